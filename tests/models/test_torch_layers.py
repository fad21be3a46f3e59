"""The layers of a torch module: the order of their calls, and where features are taken."""

import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn

import nescio as ns
from nescio.errors import InputError, ParameterError, ShapeError
from nescio.models.torch_models import CallOrder, Tap, find_pooled, registered_leaves


class Tokens(nn.Module):
    """Linear layers on every token, and a head on their mean."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head(self.inner(inputs).mean(1))


def test_the_outputs_of_inner_layers_are_not_kept():
    model, inner_outputs = Tokens(), []
    model.inner[0].register_forward_hook(
        lambda _, __, output: inner_outputs.append(weakref.ref(output))
    )
    with torch.no_grad(), CallOrder(model) as calls:
        logits = model(torch.zeros(2, 5, 4))
        assert inner_outputs[0]() is None
    paths = ["inner.0", "inner.1", "inner.2", "head"]
    assert [path for path, _ in calls.leaves(logits)] == paths
    # If no layer gives the logits, the last linear one ends the order.
    assert [path for path, _ in calls.leaves(logits.sigmoid())] == paths


CONVOLUTION = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


def _pooled(model):
    return find_pooled(model, registered_leaves(model))


@pytest.mark.parametrize(
    ("layers", "pooled"),
    [
        # One linear layer is the head.
        ((*CONVOLUTION, nn.Flatten(), nn.Linear(144, 5)), Tap("4", reads=True)),
        # Two of them, with what may lie between them. The pooling before them gives maps.
        (
            (
                *(*CONVOLUTION, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout()),
                *(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 5)),
            ),
            Tap("3", reads=False),
        ),
        # Over time.
        (
            (nn.Conv1d(3, 4, 3), nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(8, 5)),
            Tap("1", reads=False),
        ),
        # Another layer between linear ones: the head is the last one.
        (
            (*CONVOLUTION, nn.Flatten(), nn.Linear(144, 8), nn.LayerNorm(8), nn.Linear(8, 5)),
            Tap("6", reads=True),
        ),
        # A linear layer that gives something else than what the head reads.
        (
            (nn.Embedding(9, 4), nn.Linear(4, 3), nn.Flatten(), nn.Linear(6, 5)),
            Tap("3", reads=True),
        ),
        ((nn.EmbeddingBag(9, 4), nn.Linear(4, 3), nn.Linear(3, 5)), Tap("1", reads=True)),
        # An activation after the logits.
        ((*CONVOLUTION, nn.Flatten(), nn.Linear(144, 5), nn.Sigmoid()), Tap("4", reads=True)),
        # Nothing but a head, or no linear layer at all.
        ((nn.Flatten(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)), None),
        ((nn.BatchNorm1d(6), nn.Linear(6, 5)), None),
        (CONVOLUTION, None),
    ],
)
def test_the_representation_before_the_head(layers, pooled):
    assert _pooled(nn.Sequential(*layers)) == pooled


@pytest.mark.parametrize("layer", ["0", "1", "2", "2:input", "3", "4"])
def test_layers_over_time_are_averaged_over_it(layer):
    torch.manual_seed(0)
    convolutions = (nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.MaxPool1d(2), nn.Conv1d(4, 2, 1))
    model = nn.Sequential(*convolutions, nn.AdaptiveMaxPool1d(5), nn.Flatten(), nn.Linear(10, 5))
    series = torch.randn(6, 3, 20)
    last = int(layer[0]) + (not layer.endswith(":input"))
    with torch.no_grad():
        expected = model[:last].eval()(series).mean(2)
    features = ns.wrap(model, features=layer).outputs(series).features
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)


def test_one_row_per_token_is_not_taken_for_a_series():
    model = nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(20, 3))
    with pytest.raises(ShapeError, match="layer '1' returns shape"):
        ns.wrap(model, features="1").outputs(torch.randint(0, 9, (6, 5)))


def test_published_architectures():
    """Names of layers as the libraries have them; no weights are needed for that."""
    models = pytest.importorskip("torchvision").models
    timm = pytest.importorskip("timm")
    expected = {
        "resnet18": "avgpool",
        "vgg11": "avgpool",
        "densenet121": "classifier:input",
        "mobilenet_v3_small": "avgpool",
        "convnext_tiny": "classifier.2:input",
        "timm/vit_tiny_patch16_224": "head:input",
        "timm/mobilenetv3_small_100": "classifier:input",
    }
    for name, layer in expected.items():
        with torch.device("meta"):
            if name.startswith("timm/"):
                model = timm.create_model(name.removeprefix("timm/"))
            else:
                model = models.get_model(name, weights=None)
        assert _pooled(model) == Tap.parse(layer, model), name


def test_linear_layers_that_do_not_belong_to_the_head():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.left, self.right = nn.Conv1d(3, 4, 1), nn.Linear(4, 2), nn.Linear(4, 5)

    class Attentive(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(4, 1), nn.Linear(4, 5)

    assert _pooled(TwoHeads()) == Tap("right", reads=True)
    # The linear layer of the attention is never called by itself.
    assert _pooled(Attentive()) == Tap("head", reads=True)


def test_pooled_maps_are_averaged(rng):
    torch.manual_seed(0)
    pool = nn.AdaptiveAvgPool2d(2)
    model = nn.Sequential(*CONVOLUTION, pool, nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 5))
    pixels = torch.randn(7, 3, 8, 8)
    outputs = ns.wrap(model, features="pooled,penultimate").outputs(pixels, batch_size=4)
    with torch.no_grad():
        maps = pool(model[:3].eval()(pixels))
        hidden = model[5](maps.flatten(1))
    torch.testing.assert_close(torch.tensor(outputs.features), maps.mean((2, 3)))
    torch.testing.assert_close(torch.tensor(outputs.get("penultimate")), hidden)
    torch.testing.assert_close(torch.tensor(outputs.head.weight), model[6].weight.detach())
    assert outputs.manifest["layers"] == ["pooled", "penultimate"]


def test_a_layer_that_cannot_be_found():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    message = r"no layer 'pooled': before its last linear.*'penultimate'.*last layers are 0, 1, 2"
    with pytest.raises(ParameterError, match=message):
        ns.wrap(model, features="pooled")
    for name in ("pooled", "penultimate"):
        message = f"no layer '{name}': none is linear.*last layers are 0, 1, 2"
        with pytest.raises(ParameterError, match=message):
            ns.wrap(nn.Sequential(*CONVOLUTION), features=name)


def test_the_input_is_a_matrix_of_numbers(rng):
    signals = torch.randn(7, 3, 4)  # samples, channels, time
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    outputs = ns.wrap(model, features="input").outputs(signals)
    torch.testing.assert_close(torch.tensor(outputs.features), signals.flatten(1))
    assert outputs.head is not None
    words = nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 5))
    with pytest.raises(
        InputError, match=r"the model takes torch\.int64, but the detector reads the input"
    ):
        ns.wrap(words, features="input").outputs(torch.ones(7, 3, dtype=torch.long))


def test_a_head_that_runs_on_every_token():
    model = nn.Sequential(nn.Conv1d(3, 4, 1), nn.Linear(6, 5), nn.Flatten())
    with pytest.raises(ShapeError, match=r"layer '1' takes shape .* Name another layer"):
        ns.wrap(model, features="pooled").outputs(torch.randn(7, 3, 6))


def test_a_layer_that_works_in_place_does_not_change_the_features():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 4))
    inputs = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    wanted = inputs.flatten(1).numpy().copy()
    features = ns.wrap(model, features="input").outputs(inputs.clone()).features
    np.testing.assert_array_equal(features, wanted)


class HeadFirst(nn.Module):
    """Registers its heads before what they read; the second one is called last, but unused."""

    def __init__(self, body):
        super().__init__()
        self.head, self.other, self.body = nn.Linear(6, 5), nn.Linear(6, 2), body

    def forward(self, x):
        features = self.body(x)
        return self.head(features), self.other(features)


@pytest.mark.parametrize("layers", ["auto", "pooled", "penultimate"])
def test_a_head_that_is_registered_before_the_backbone(layers):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 6), nn.LayerNorm(6))
    model, words = HeadFirst(body), torch.arange(21).reshape(7, 3) % 9
    wrapped = ns.wrap(model, features=layers, output=0)
    for inputs in (words, words + 0):  # the layers are known from the second batch on
        outputs = wrapped.outputs(inputs, batch_size=4)
        torch.testing.assert_close(torch.tensor(outputs.features), body(words).detach())
        torch.testing.assert_close(torch.tensor(outputs.head.weight), model.head.weight.detach())
    fused = wrapped.runner.module()
    torch.testing.assert_close(fused(words)[1], body(words))


def test_a_representation_that_only_seems_to_come_before_the_head():
    model = HeadFirst(nn.Sequential(nn.Linear(3, 6), nn.ReLU()))
    inputs = torch.randn(7, 3)
    for features in ("auto", "pooled"):
        with pytest.raises(ParameterError, match=r"no layer 'pooled'.*Choose 'penultimate'"):
            ns.wrap(model, features=features, output=0).outputs(inputs)
    outputs = ns.wrap(model, features="penultimate", output=0).outputs(inputs)
    torch.testing.assert_close(torch.tensor(outputs.features), model.body(inputs).detach())


def test_the_order_of_the_calls_is_found_in_training_mode_too():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv1d(3, 6, 4), nn.Flatten(), nn.BatchNorm1d(6))
    model, inputs = HeadFirst(body), torch.randn(7, 3, 4)
    module = ns.wrap(model, features="pooled", output=0).runner.module().train()
    module(inputs)
    assert module.model.body[2].num_batches_tracked == 1
    assert not any(part._forward_pre_hooks for part in module.model.body)
