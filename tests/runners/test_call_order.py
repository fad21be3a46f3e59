"""The order in which a pass calls layers, found without keeping what they gave."""

import weakref

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from nescio.runners.call_order import CallOrder  # noqa: E402


class Tokens(nn.Module):
    """Linear layers on every token, and a head on their mean."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head(self.inner(inputs).mean(1))


def test_the_outputs_of_inner_layers_are_not_kept():
    model, given = Tokens(), []
    model.inner[0].register_forward_hook(lambda _, __, output: given.append(weakref.ref(output)))
    with torch.no_grad(), CallOrder(model) as calls:
        logits = model(torch.zeros(2, 5, 4))
        assert given[0]() is None
    assert [path for path, _ in calls.leaves(logits)] == ["inner.0", "inner.1", "inner.2", "head"]


def test_without_a_layer_that_gives_the_logits_the_last_linear_one_ends_the_order():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Sigmoid())
    with torch.no_grad(), CallOrder(model) as calls:
        logits = model(torch.zeros(2, 5, 4)).mean(1)
    assert [path for path, _ in calls.leaves(logits)] == ["0"]
