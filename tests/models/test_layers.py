"""The choice of features, their shape, and the last layer after them, for every kind of runner."""

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nescio as ns
from nescio.errors import ParameterError, ShapeError
from nescio.models.base import is_head, layer_names


def maps_to(outputs):
    """Whether the head of these outputs maps its input to their logits."""
    head = outputs.head
    logits = outputs.get("penultimate") @ head.weight.T + head.bias
    np.testing.assert_allclose(logits, outputs.logits, atol=1e-4)
    return True


def test_a_head_is_verified(rng):
    features, weight, bias = (rng.normal(size=shape) for shape in ((5, 3), (2, 3), (2,)))
    logits = features @ weight.T + bias
    assert is_head(weight, bias, features, logits)
    assert is_head(weight.astype("f4"), bias, features.astype("f4"), logits.astype("f4"))
    assert not is_head(weight, bias + 0.01, features, logits)
    assert not is_head(weight, bias, np.maximum(features, 0), logits)
    assert not is_head(weight.T, bias, features, logits)
    assert not is_head(weight, bias, features, np.full_like(logits, np.nan))


def test_the_names_of_several_layers():
    assert layer_names(" pooled , fc:input") == layer_names(["pooled", "fc:input"])
    # The first may be an array under its own name too.
    assert layer_names("pooled,pooled,x,x") == ("pooled", "pooled", "x")
    for name in ("features", "logits", "labels", "head"):
        assert layer_names([name, "x"]) == (name, "x")
        with pytest.raises(ParameterError, match=f"{name!r} cannot be the name of a further"):
            layer_names(["x", name])
    for bad in ("", 3, "norm,", ["norm", None], []):
        with pytest.raises(ParameterError, match=r"must be the name of a layer, or several.*got"):
            layer_names(bad)


# --- torch ------------------------------------------------------------------------------------


def small_network():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(8, 4)
    )


@pytest.mark.parametrize(
    ("features", "has_head"),
    [("penultimate", True), ("3:input", True), ("1", True), ("0", False), ("input", False)],
)
def test_the_head_of_a_torch_model(features, has_head, rng):
    inputs = rng.normal(size=(9, 6))
    outputs = ns.wrap(small_network(), features=features).outputs(inputs, batch_size=4)
    assert maps_to(outputs) if has_head else outputs.head is None
    if features == "input":
        np.testing.assert_allclose(outputs.features, inputs, rtol=1e-6)


def test_several_layers_in_one_pass(rng):
    torch = pytest.importorskip("torch")
    model, inputs, seen = small_network(), rng.normal(size=(9, 6)), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    outputs = ns.wrap(model, features=["0", "input", "penultimate"]).outputs(inputs)
    assert len(seen) == 2  # the first batch runs once more, to find the order of the layers
    with torch.no_grad():
        first = model[0](torch.tensor(inputs, dtype=torch.float32))
    np.testing.assert_allclose(outputs.features, first, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs.get("input"), inputs, rtol=1e-6)
    np.testing.assert_allclose(outputs.get("penultimate"), first.relu(), rtol=1e-5, atol=1e-6)
    assert maps_to(outputs)
    assert outputs.manifest["features"] == "0"
    # There is no head without the layer that it reads, or if a ReLU follows it.
    assert ns.wrap(model, features="0,input").outputs(inputs).head is None
    rectified = torch.nn.Sequential(*model, torch.nn.ReLU())
    assert ns.wrap(rectified, features="penultimate").outputs(inputs).head is None


def test_the_layer_that_is_chosen_automatically(rng):
    torch = pytest.importorskip("torch")
    body = torch.nn.Sequential(torch.nn.Conv1d(1, 6, 1), torch.nn.Flatten(), *small_network())
    for model, layers in (
        (body, ("pooled",)),
        (small_network(), ("penultimate",)),  # it is its own head
        (torch.nn.ReLU(), ()),
    ):
        assert ns.wrap(model, features="auto").runner.layers == layers
    assert ns.wrap(small_network(), features="auto,0").runner.layers == ("penultimate", "0")


def test_a_head_does_not_change_when_the_model_is_trained_further(rng):
    torch = pytest.importorskip("torch")
    model = small_network()
    outputs = ns.wrap(model, features="penultimate").outputs(rng.normal(size=(9, 6)))
    with torch.no_grad():
        model[3].weight.zero_()
    assert maps_to(outputs)
    # Without bias, and with a sigmoid.
    model = torch.nn.Sequential(torch.nn.Linear(6, 4, bias=False), torch.nn.Sigmoid())
    wrapped = ns.wrap(model, features="penultimate", from_probs=True)
    assert maps_to(wrapped.outputs(rng.normal(size=(9, 6))))


def test_a_layer_with_other_rows(rng):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Flatten(0), torch.nn.Unflatten(0, (18, 3)))
    model = torch.nn.Sequential(model, torch.nn.Flatten(0), torch.nn.Unflatten(0, (9, 6)))
    with pytest.raises(ShapeError, match="features of 18 rows, but there are logits of 9"):
        ns.wrap(model, features="0").outputs(rng.normal(size=(9, 6)))


# --- scikit-learn -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "has_head"),
    [
        (OneVsRestClassifier(LogisticRegression()), True),
        (MultiOutputClassifier(LogisticRegression()), True),
        (RidgeClassifier(), True),
        (ClassifierChain(LogisticRegression()), False),
        (RandomForestClassifier(3), False),
        (make_pipeline(StandardScaler(), OneVsRestClassifier(LogisticRegression())), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_head_of_a_scikit_learn_model(model, has_head, multi_label):
    inputs, truth = multi_label
    outputs = ns.wrap(model.fit(inputs + 1, truth), features="input").outputs(inputs)
    np.testing.assert_array_equal(outputs.features, inputs)
    assert maps_to(outputs) if has_head else outputs.head is None


def test_the_input_of_the_last_step_of_a_pipeline(multi_label):
    """For a table, these may be its standardised columns."""
    inputs, truth = multi_label
    calls = []
    scaler = StandardScaler()
    model = make_pipeline(scaler, OneVsRestClassifier(LogisticRegression())).fit(inputs * 9, truth)
    transform = scaler.transform
    scaler.transform = lambda *args, **kwargs: calls.append(1) or transform(*args, **kwargs)
    outputs = ns.wrap(model, features="penultimate,input").outputs(inputs * 9, batch_size=300)
    assert len(calls) == 1  # the logits are computed from the same
    np.testing.assert_allclose(outputs.features, transform(inputs * 9))
    np.testing.assert_allclose(outputs.get("input"), inputs * 9)
    np.testing.assert_allclose(outputs.logits, model.decision_function(inputs * 9), rtol=1e-9)
    assert maps_to(outputs)
    assert ns.wrap(model, features="auto").runner.layers == ("penultimate",)
    plain = OneVsRestClassifier(LogisticRegression()).fit(inputs, truth)
    assert ns.wrap(plain, features="auto").runner.layers == ("input",)
    with pytest.raises(ParameterError, match="for a pipeline 'penultimate'"):
        ns.wrap(plain, features="input,penultimate")
