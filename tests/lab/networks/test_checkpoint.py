"""Checkpoints: files of networks, and runners of them."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

import nescio as ns
from fixtures.own_detectors import ReAct
from fixtures.rewriting import write_valid
from nescio._io.tensors import read_tensors
from nescio.errors import FileFormatError, ParameterError
from nescio.lab.networks.network import (
    Architecture,
    Checkpoint,
    load_checkpoint,
    load_own,
    load_training,
)
from nescio.lab.networks.weights import read_state_dict
from nescio.models.base import make_runner
from nescio.models.images import Preprocessing
from nescio.outputs import Outputs


def test_a_network_comes_back_as_it_was(checkpoint, tmp_path):
    made = replace(checkpoint(), training={"epoch": 4})
    made.save(tmp_path / "a.safetensors", state={"adam.0.step": torch.tensor(3.0)})
    loaded = load_checkpoint(tmp_path / "a.safetensors")
    training, weights, state = load_training(tmp_path / "a.safetensors")
    assert training == {"epoch": 4}
    assert weights.keys() == made.network.state_dict().keys()
    assert loaded.label_names == ("red", "green", "blue")
    assert (loaded.preprocessing, loaded.training) == (Preprocessing(32), {"epoch": 4})
    assert state == {"adam.0.step": torch.tensor(3.0)}
    assert not loaded.network.training
    images = torch.randn(2, 3, 32, 32)
    for ours, theirs in zip(made.network(images), loaded.network(images), strict=True):
        assert torch.equal(ours, theirs)
    assert loaded.content_hash() == made.content_hash()
    replace(loaded, training={"epoch": 4}).save(tmp_path / "b.safetensors")
    made.save(tmp_path / "a.safetensors", force=True)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_the_hash_is_of_all_that_decides_the_outputs(checkpoint):
    made = checkpoint()
    changed = checkpoint()
    with torch.no_grad():
        changed.network.head.labels.bias[0] += 1e-6
    variants = [
        changed,
        checkpoint(label_names=("green", "red", "blue")),
        replace(made, preprocessing=Preprocessing(64)),
        replace(made, preprocessing=Preprocessing(32, mean=(0.5, 0.5, 0.5))),
    ]
    hashes = {made.content_hash(), *(other.content_hash() for other in variants)}
    assert len(hashes) == 5
    assert replace(made, training={"epoch": 9}).content_hash() == made.content_hash()
    with pytest.raises(ParameterError, match="has its own preprocessing"):
        make_runner(made, preprocessing=Preprocessing(64)).content_hash()


def test_another_file_is_refused(tmp_path, checkpoint):
    Outputs(np.zeros((2, 3))).save(tmp_path / "outputs.safetensors")
    with pytest.raises(FileFormatError, match="not a network saved by nescio"):
        load_checkpoint(tmp_path / "outputs.safetensors")
    checkpoint().save(tmp_path / "a.safetensors")
    tensors, metadata = read_tensors(tmp_path / "a.safetensors")
    write_valid(tmp_path / "newer.safetensors", tensors, {**metadata, "schema": 99})
    with pytest.raises(FileFormatError, match="another version of nescio"):
        load_checkpoint(tmp_path / "newer.safetensors")
    write_valid(tmp_path / "odd.safetensors", tensors, {**metadata, "label_names": ["x"]})
    with pytest.raises(FileFormatError, match="does not fit small-cnn"):
        load_checkpoint(tmp_path / "odd.safetensors")
    del metadata["preprocessing"]
    write_valid(tmp_path / "less.safetensors", tensors, metadata)
    with pytest.raises(FileFormatError, match="damaged"):
        load_checkpoint(tmp_path / "less.safetensors")
    whole = bytearray((tmp_path / "a.safetensors").read_bytes())
    whole[-100] ^= 1
    (tmp_path / "a.safetensors").write_bytes(whole)
    for read in (load_checkpoint, read_state_dict):
        with pytest.raises(FileFormatError, match="do not match their checksum"):
            read(tmp_path / "a.safetensors")


def test_a_file_does_not_choose_code_to_run(own_module, checkpoint, tmp_path):
    architecture = Architecture(f"module:{own_module}", features="4")
    made = Checkpoint(architecture.build(3).eval(), architecture, ("a", "b", "c"))
    path = tmp_path / "own.safetensors"
    made.save(path)
    with pytest.raises(ParameterError, match="does not choose code"):
        load_checkpoint(path)
    checkpoint().save(tmp_path / "ours.safetensors")
    with pytest.raises(ParameterError, match="leave out module"):
        load_checkpoint(tmp_path / "ours.safetensors", module="os:getcwd")
    loaded = load_checkpoint(path, module=own_module)
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(loaded.network(images), made.network(images))


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
            "input": torch.cat(
                [inputs.mean((2, 3)), (inputs.std((2, 3), correction=0) + 0.01).log()], 1
            ),
        }
    for features, values in expected.items():
        runner = make_runner(made, features=features)
        assert runner.describe()["features"] == features
        arrays = runner.run(pixels)
        np.testing.assert_allclose(arrays["features"], values, rtol=1e-3, atol=1e-5)
        assert (runner.head(arrays) is not None) == (features == "penultimate")
    default = make_runner(made)
    assert default.layers == ("pooled", "penultimate")
    arrays = default.run(pixels)
    np.testing.assert_allclose(default.run(inputs)["logits"], arrays["logits"], atol=1e-5)
    for name, layer in (("features", "pooled"), ("penultimate", "penultimate")):
        np.testing.assert_allclose(arrays[name], expected[layer], rtol=1e-3, atol=1e-5)
    assert default.head(arrays) is not None


def test_the_layers_of_a_network_of_ones_own(own_module, pixels):
    """ "pooled" is the layer that the architecture names, and the only one by default."""
    architecture = Architecture(f"module:{own_module}", features="4")
    made = Checkpoint(architecture.build(3).eval(), architecture, ("a", "b", "c"))
    arrays = {name: make_runner(made, features=name).run(pixels) for name in ("pooled", "4")}
    np.testing.assert_array_equal(arrays["pooled"]["features"], arrays["4"]["features"])
    assert make_runner(made).layers == ("pooled",)
    assert make_runner(made).head(arrays["pooled"]) is not None
    maps = Checkpoint(made.network, replace(architecture, features="2"), made.label_names)
    both = make_runner(maps, features="pooled,penultimate").run(pixels)
    np.testing.assert_array_equal(
        both["features"], make_runner(made, features="2").run(pixels)["features"]
    )
    np.testing.assert_array_equal(both["penultimate"], arrays["4"]["features"])
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


@pytest.mark.slow
def test_importing_the_runners_loads_no_torch():
    code = (
        "import sys, nescio.models, nescio.lab.extraction\n"
        "print([m for m in ('torch', 'transformers', 'onnxruntime', 'PIL') if m in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "[]"
