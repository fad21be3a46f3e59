"""A detector, data, and the files of a whole workflow."""

import pytest

import nescio as ns
from nescio.checks import make_outputs
from nescio.detectors import DETECTORS


@pytest.fixture
def detector(logits):
    return ns.JointEnergy().calibrate(logits)


@pytest.fixture
def logits(rng):
    return rng.normal(-1, 3, (400, 6))


@pytest.fixture
def files(tmp_path):
    """Outputs for every step of the work, on disk."""
    names = {"train": 0, "val": 1, "new": 2}
    for name, seed in names.items():
        make_outputs(400, seed=seed).save(tmp_path / f"{name}.safetensors")
    make_outputs(100, seed=3, shift=4.0).save(tmp_path / "ood.safetensors")
    yield tmp_path
    for name in ("neighbours", "my_react", "together"):  # a command may have registered them
        DETECTORS.pop(name, None)
