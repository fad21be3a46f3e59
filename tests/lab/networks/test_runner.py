"""A checkpoint of nescio is one way to make a torch runner. Tests make_runner too."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

import nescio as ns
from fixtures.own_detectors import ReAct
from nescio.errors import ParameterError
from nescio.lab.networks.checkpoint import Architecture, Checkpoint, load_checkpoint
from nescio.lab.networks.network import load_own
from nescio.models.base import make_runner


@pytest.fixture
def pixels(rng):
    return rng.integers(0, 256, (5, 3, 32, 32)).astype(np.uint8)


def test_layers_have_names_and_bytes_are_preprocessed(checkpoint, pixels):
    made = checkpoint()
    network, inputs = made.network, torch.from_numpy(made.preprocessing.normalise(pixels))
    with torch.no_grad():
        pooled = network.backbone(inputs)
        expected = {
            "pooled": pooled,
            "penultimate": network.head.hidden(pooled),
            "head.hidden.0": network.head.hidden[0](pooled),
            "input": inputs.mean((2, 3)),
        }
    for features, values in expected.items():
        runner = make_runner(made, features=features)
        assert runner.describe()["features"] == features
        found = runner.run(pixels)
        np.testing.assert_allclose(found["features"], values, rtol=1e-3, atol=1e-5)
        assert (runner.head(found) is not None) == (features == "penultimate")
    default = make_runner(made)
    assert default.layers == ("pooled", "penultimate")
    found = default.run(pixels)
    np.testing.assert_allclose(default.run(inputs)["logits"], found["logits"], atol=1e-5)
    for name, layer in (("features", "pooled"), ("penultimate", "penultimate")):
        np.testing.assert_allclose(found[name], expected[layer], rtol=1e-3, atol=1e-5)
    assert default.head(found) is not None


def test_a_file_can_be_wrapped(checkpoint, pixels, tmp_path):
    made = checkpoint()
    made.save(tmp_path / "net.safetensors")
    wrapped = ns.wrap(load_checkpoint(tmp_path / "net.safetensors"))
    assert wrapped.label_names == made.label_names
    assert wrapped.runner.content_hash() == made.content_hash()
    np.testing.assert_array_equal(
        wrapped.outputs(pixels).logits, ns.wrap(made).outputs(pixels).logits
    )
    assert (
        repr(wrapped) == f"Wrapped(torch: {made.architecture.name}, features='pooled,penultimate')"
    )


def test_the_layers_of_a_network_of_ones_own(own_module, pixels):
    """ "pooled" is the layer that the architecture names, and the only one by default."""
    architecture = Architecture(f"module:{own_module}", features="4")
    made = Checkpoint(architecture.build(3).eval(), architecture, ("a", "b", "c"))
    found = {name: make_runner(made, features=name).run(pixels) for name in ("pooled", "4")}
    np.testing.assert_array_equal(found["pooled"]["features"], found["4"]["features"])
    assert make_runner(made).layers == ("pooled",)
    assert make_runner(made).head(found["pooled"]) is not None
    maps = Checkpoint(made.network, replace(architecture, features="2"), made.label_names)
    both = make_runner(maps, features="pooled,penultimate").run(pixels)
    np.testing.assert_array_equal(
        both["features"], make_runner(made, features="2").run(pixels)["features"]
    )
    np.testing.assert_array_equal(both["penultimate"], found["4"]["features"])
    # The same without a checkpoint: the module itself, by its name.
    plain = make_runner(load_own(own_module), features="penultimate")
    assert plain.run(made.preprocessing.normalise(pixels))["features"].shape == (5, 4)


def test_a_detector_decides_which_layer_its_features_are(checkpoint, pixels):
    """If the caller does not: the layer it was made with, or the input of the head it reads."""
    made, truth = checkpoint(), np.eye(3)[[0, 1, 2, 0, 1]]
    fitted = ns.wrap(made, features="penultimate", detector="mahalanobis").fit(pixels, truth)
    for model in (made, make_runner(make_runner(made), label_names=made.label_names)):
        assert ns.wrap(model, detector=fitted.detector).runner.features == "penultimate"
        assert ns.wrap(model, detector="mahalanobis").runner.features == "pooled"
        assert ns.wrap(model, detector=ReAct()).runner.features == "penultimate"
    chosen = ns.wrap(made, features="pooled", detector=fitted.detector)
    assert chosen.runner.layers == ("pooled",)


def test_another_preprocessing_is_refused(checkpoint):
    runner = make_runner(checkpoint(), preprocessing=ns.Preprocessing(64))
    with pytest.raises(ParameterError, match="has its own preprocessing"):
        runner.content_hash()


@pytest.mark.slow
def test_importing_the_runners_loads_no_torch():
    code = (
        "import sys, nescio.models, nescio.lab.extraction\n"
        "print([m for m in ('torch', 'transformers', 'onnxruntime', 'PIL') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
