from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

import nescio as ns
from nescio.errors import (
    GroupWarning,
    InputError,
    ParameterError,
    ProbabilitiesError,
    ShapeError,
)

torch = pytest.importorskip("torch")
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SubsetRandomSampler, TensorDataset


def small(n_labels=4):
    """Batch norm, dropout and an activation in place: what a careless pass would change."""
    torch.manual_seed(0)
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(3, 6, 3),
            norm=nn.BatchNorm2d(6),
            act=nn.ReLU(inplace=True),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            drop=nn.Dropout(0.5),
            head=nn.Linear(6, n_labels),
        )
    )


def images(n=10, size=8, seed=0):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def own_logits(model, *inputs, **named):
    """What the model itself gives in eval mode."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    with torch.no_grad():
        output = model(*inputs, **named)
    for part, mode in modes.items():
        part.training = mode
    return getattr(output, "logits", output).numpy()


def state(model):
    """Everything that a pass must not change."""
    return {
        "modes": [part.training for part in model.modules()],
        "tensors": {name: t.clone() for name, t in model.state_dict().items()},
        "grads": [(p.requires_grad, p.grad) for p in model.parameters()],
        "hooks": [
            (dict(part._forward_hooks), dict(part._forward_pre_hooks)) for part in model.modules()
        ],
        "random": torch.get_rng_state(),
        "grad mode": torch.is_grad_enabled(),
    }


def assert_same(before, after):
    for name, tensor in before.pop("tensors").items():
        assert torch.equal(tensor, after["tensors"][name]), name
    after.pop("tensors")
    assert torch.equal(before.pop("random"), after.pop("random"))
    assert before == after


# --- the same predictions, and nothing else changes -------------------------------------------


@pytest.mark.parametrize("features", [None, "act", "head:input"])
def test_a_pass_leaves_the_model_as_it_was(features):
    model = small().train()
    model.norm.eval()  # a frozen part of a model in training
    model.conv.weight.requires_grad_(False)
    model.act.register_forward_hook(lambda *_: None)
    before, expected = state(model), own_logits(model, images())
    ns.wrap(model, features=features).outputs(images(), batch_size=3)
    np.testing.assert_array_equal(ns.wrap(model).outputs(images()).logits, expected)
    assert_same(before, state(model))
    assert model.training
    assert not model.norm.training


def test_an_error_in_the_middle_leaves_the_model_as_it_was():
    class Fails(nn.Module):
        def forward(self, x):
            if x.shape[0] < 4:
                raise RuntimeError("no room")
            return x

    model = nn.Sequential(OrderedDict(body=small(), fails=Fails())).train()
    before = state(model)
    with pytest.raises(InputError, match="no room") as raised:
        ns.wrap(model, features="body.flat").outputs(images(10), batch_size=4)
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert_same(before, state(model))


def test_what_a_model_keeps_for_later_can_still_be_trained_with():
    class Caches(nn.Module):
        """It also draws random numbers, and counts the calls of its train method."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.scale = None
            self.calls = 0

        def forward(self, x):
            if self.scale is None:
                self.scale = torch.ones(3)
            return self.linear(x * self.scale + torch.randn_like(x))

        def train(self, mode=True):
            self.calls += 1
            return super().train(mode)

    model, before = Caches(), torch.get_rng_state()
    ns.wrap(model).outputs(torch.zeros(4, 3))
    assert model.calls == 0
    assert torch.equal(before, torch.get_rng_state())
    inputs = torch.ones(2, 3, requires_grad=True)
    model(inputs).sum().backward()  # would fail for a tensor made in inference mode
    assert inputs.grad is not None


def test_passes_in_threads_do_not_meet():
    model = small().train()
    wrapped = ns.wrap(model, features="pool")
    batches = [images(16, seed=seed) for seed in range(4)]
    expected = [wrapped.outputs(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda batch: wrapped.outputs(batch, batch_size=4), 8 * batches)
        for outputs, wanted in zip(results, 8 * expected, strict=True):
            np.testing.assert_allclose(outputs.logits, wanted.logits, atol=1e-5)
            np.testing.assert_allclose(outputs.features, wanted.features, atol=1e-5)
    assert all(part.training for part in model.modules())


# --- inputs -----------------------------------------------------------------------------------


def test_a_loader_brings_inputs_and_labels():
    truth = torch.eye(4).repeat(3, 1)[:10]
    wrapped = ns.wrap(small())
    loader = DataLoader(TensorDataset(images(), truth), batch_size=4)
    outputs = wrapped.outputs(loader)
    np.testing.assert_array_equal(outputs.labels, truth)
    np.testing.assert_array_equal(outputs.logits, wrapped.outputs(images(), batch_size=4).logits)
    with pytest.raises(InputError, match="pass them once"):
        wrapped.outputs(loader, labels=truth)
    alone = wrapped.outputs(DataLoader(TensorDataset(images()), batch_size=4))
    assert alone.labels is None
    assert len(alone) == 10


def test_a_mapping_with_names_that_the_model_does_not_have():
    samples = [{"image": image, "label": torch.eye(4)[0]} for image in images()]
    with pytest.raises(InputError, match=r"by name: give its parts, image, label.*pairs \(inputs"):
        ns.wrap(small()).outputs(DataLoader(samples, batch_size=5))


def test_nothing_comes_beside_a_loader_that_shuffles():
    data = TensorDataset(torch.randn(40, 3, 8, 8))
    order, truth = SubsetRandomSampler(range(40)), torch.eye(4).repeat(10, 1)
    groups, in_order = ["a", "b"] * 20, DataLoader(data, batch_size=8)
    wrapped = ns.wrap(small(), detector="joint_energy").calibrate(in_order, groups=groups)
    for loader in (
        DataLoader(data, shuffle=True),
        DataLoader(data, sampler=order),
        DataLoader(data, batch_sampler=BatchSampler(order, 8, drop_last=False)),
    ):
        for call in (
            lambda x: wrapped.fit(x, truth),
            lambda x: wrapped.calibrate(x, groups=groups),
            lambda x: wrapped(x, groups=groups),
            lambda x: wrapped.explain(x, groups=groups),
            lambda x: wrapped.self_check(x, groups=groups),
            lambda x: wrapped.outputs(x, ids=groups),
        ):
            call(in_order)
            with pytest.raises(InputError, match=r"random order.*shuffle=False"):
                call(loader)
        assert len(wrapped.outputs(loader)) == 40
        with pytest.warns(GroupWarning):  # the labels are counted, whatever the order
            wrapped.calibrate(loader, groups="label_count")


def test_numpy_is_taken_in_any_precision_and_order():
    wrapped = ns.wrap(small())
    array = images().numpy()
    expected = wrapped.outputs(array).logits
    np.testing.assert_array_equal(wrapped.outputs(array.astype(np.float64)).logits, expected)
    backwards = np.ascontiguousarray(array[::-1])[::-1]
    backwards.setflags(write=False)
    np.testing.assert_array_equal(wrapped.outputs(backwards).logits, expected)
    assert ns.wrap(small().bfloat16()).outputs(array).logits.dtype == np.float32


def test_a_compiled_model_has_the_layers_of_the_model():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
    x = torch.randn(20, 3)
    compiled, plain = (
        ns.wrap(each, features="penultimate,0").outputs(x)
        for each in (torch.compile(model, backend="eager"), model)
    )
    for name in ("logits", "features", "0"):
        np.testing.assert_allclose(compiled.get(name), plain.get(name), atol=1e-5)


def test_several_inputs_by_position_or_by_name():
    class Two(nn.Module):
        def forward(self, left, right, *, double=False):
            return (left + right) * (2 if double else 1)

    left, right = torch.randn(5, 3), torch.randn(5, 3)
    wrapped = ns.wrap(Two())
    np.testing.assert_array_equal(wrapped.outputs((left, right), batch_size=2).logits, left + right)
    named = {"right": right, "left": left, "double": True}
    logits = wrapped.outputs(named, batch_size=2).logits
    np.testing.assert_array_equal(logits, 2 * (left + right))
    pairs = wrapped.outputs([((left, right), torch.ones(5, 3))])
    np.testing.assert_array_equal(pairs.logits, left + right)


# --- outputs and features ---------------------------------------------------------------------


class Pair(NamedTuple):
    first: object
    logits: object


class Gives(nn.Module):
    """A model that gives its logits inside of something."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x):
        return {
            "dict": {"out": x, "aux": x + 1},
            "logits": {"logits": x, "loss": x.sum()},
            "tuple": (x + 1, x),
            "named": Pair(x + 1, x),
            "one": x[:, 0],
            "whole": x.long(),
        }[self.form]


@pytest.mark.parametrize(
    ("form", "output"), [("dict", "out"), ("logits", None), ("tuple", 1), ("named", None)]
)
def test_logits_are_found_where_they_are(form, output):
    x = torch.randn(3, 2)
    np.testing.assert_array_equal(ns.wrap(Gives(form), output=output).outputs(x).logits, x)


@pytest.mark.parametrize(
    ("form", "output", "message"),
    [
        ("dict", None, r"got a dict with 'out', 'aux'. Choose one with output="),
        ("dict", "aus", r"no output 'aus': it returned a dict with 'out', 'aux'"),
        ("tuple", None, r"got a tuple of 2. Choose one with output="),
        ("tuple", 2, r"no output 2: it returned a tuple of 2"),
        ("one", None, r"got float32 of shape \(3,\)"),
        ("whole", None, r"got int64 of shape"),
    ],
)
def test_what_is_no_logits_is_refused(form, output, message):
    with pytest.raises(ns.NescioError, match=message):
        ns.wrap(Gives(form), output=output).outputs(torch.randn(3, 2))


def test_a_layer_that_is_not_there_or_not_called():
    for features in ("haed", "haed:input", "norm,haed"):
        with pytest.raises(ParameterError, match=r"no layer 'haed'. Did you mean 'head'"):
            ns.wrap(small(), features=features)
    with pytest.raises(ParameterError, match=r"no layer 'nonsense'\. Its last layers are .*head"):
        ns.wrap(small(), features="nonsense")
    model = nn.Linear(3, 2)
    model.idle = nn.ReLU()
    with pytest.raises(ParameterError, match="'idle' was not called"):
        ns.wrap(model, features="idle").outputs(torch.zeros(4, 3))


def test_probabilities_are_converted_or_refused():
    model = nn.Sequential(nn.Linear(3, 20), nn.Sigmoid())
    x = torch.randn(8, 3)
    logits = ns.wrap(model, from_probs=True).outputs(x).logits
    np.testing.assert_allclose(logits, own_logits(model[0], x), atol=1e-4)
    with pytest.raises(ProbabilitiesError, match="from_probs=True"):
        ns.wrap(model).outputs(torch.randn(60, 3))
    ns.wrap(model, from_probs=False).outputs(x)


def test_logits_of_strange_inputs_are_no_percentages():
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    nn.init.uniform_(model.weight, 0.5, 2)
    nn.init.zeros_(model.bias)
    wrapped = ns.wrap(model).calibrate(torch.randn(400, 3))
    strange = torch.linspace(0, 10, 60)[:, None] * torch.ones(3)
    logits = own_logits(model, strange)
    assert 20 < logits.max() <= 100
    assert wrapped(strange).assessment.in_distribution.mean() < 0.5
    with pytest.raises(ProbabilitiesError, match="percentages"):
        ns.wrap(nn.Linear(3, 4)).calibrate(strange).detector.calibrate(logits)


def test_images_with_their_colours_last():
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    hint = r"If the colours are last, pass np\.moveaxis\(images, -1, 1\)\. .*uint8.*preprocessing="
    for dtype in (np.float32, np.uint8):
        with pytest.raises(InputError, match=hint):
            ns.wrap(model).outputs(np.zeros((4, 16, 32, 3), dtype))
    with pytest.raises(InputError) as error:
        ns.wrap(model).outputs(np.zeros((4, 16, 32, 32), np.float32))
    assert "colours" not in str(error.value)


# --- rubbish ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (["a text"], InputError, "got text"),
        ("a text", InputError, "got text"),
        (7, InputError, "got a int"),
        (pd.DataFrame({"a": [1.0]}), InputError, r"got a DataFrame.*frame\[names\]\.to_numpy"),
        ([], ShapeError, "not a single sample"),
        (torch.zeros(0, 3, 8, 8), ShapeError, "not a single sample"),
        (torch.tensor(1.0), ShapeError, "one row per sample"),
        ([(1, 2, 3)], InputError, "got 3 parts"),
        ({"input": images(2), "other": images(3)}, ShapeError, "input: 2, other: 3"),
        ({"flag": True}, InputError, "none of the inputs has rows"),
        ([(images(2), torch.ones(3, 4))], ShapeError, "labels have 3 rows"),
        ([(images(2), torch.ones(2, 4)), images(2)], InputError, "some of the batches"),
        (np.array([["a"]]), InputError, "takes numbers"),
        (images(2)[0, 0], InputError, r"float32 of shape \(8, 8\): .*a single one as x\[None\]"),
        (images(2).byte(), InputError, r"uint8 of shape \(2, 3, 8, 8\): .* in the type"),
        ([images(2)[0, 0]], InputError, "a list is taken as batches"),
    ],
)
def test_inputs_that_cannot_be_used(inputs, error, message):
    with pytest.raises(error, match=message):
        ns.wrap(small()).outputs(inputs)


def test_the_names_must_fit_the_logits():
    with pytest.raises(
        ShapeError, match="returns 4 outputs per sample, but there are 2 label names"
    ):
        ns.wrap(small(), label_names=["a", "b"]).outputs(images())
    with pytest.raises(InputError, match="must be a sequence"):
        ns.wrap(small(), label_names="ab")


def test_the_device_is_the_models():
    wrapped = ns.wrap(small(), device="cpu")
    assert len(wrapped.outputs(images())) == 10
    with pytest.raises(ParameterError, match=r"the model is on cpu.*model.to\('cuda'\)"):
        ns.wrap(small(), device="cuda")
    with pytest.raises(ParameterError, match="no device 'nowhere'"):
        ns.wrap(small(), device="nowhere")
