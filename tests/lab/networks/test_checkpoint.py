import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from dataclasses import replace

from fixtures.rewriting import write_valid
from nescio._io.tensors import read_tensors
from nescio.errors import FileFormatError, ParameterError
from nescio.lab.networks.checkpoint import (
    Architecture,
    Checkpoint,
    load_checkpoint,
    load_training,
)
from nescio.lab.networks.network import read_state_dict
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
    others = [
        changed,
        checkpoint(label_names=("green", "red", "blue")),
        replace(made, preprocessing=Preprocessing(64)),
        replace(made, preprocessing=Preprocessing(32, mean=(0.5, 0.5, 0.5))),
    ]
    hashes = {made.content_hash(), *(other.content_hash() for other in others)}
    assert len(hashes) == 5
    assert replace(made, training={"epoch": 9}).content_hash() == made.content_hash()


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


def test_a_flipped_bit_in_the_weights_is_noticed(checkpoint, tmp_path):
    checkpoint().save(tmp_path / "a.safetensors")
    whole = bytearray((tmp_path / "a.safetensors").read_bytes())
    whole[-100] ^= 1
    (tmp_path / "a.safetensors").write_bytes(whole)
    for read in (load_checkpoint, read_state_dict):
        with pytest.raises(FileFormatError, match="do not match their checksum"):
            read(tmp_path / "a.safetensors")
