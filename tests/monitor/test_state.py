"""A saved monitor: it continues exactly, for one detector, and damage is found."""

import numpy as np
import pytest

import nescio as ns
from fixtures.streams import fed, logits_of
from nescio._io.tensors import read_tensors, write_tensors
from nescio.errors import FileError, FileFormatError, InputError
from nescio.monitor import Monitor


def test_a_saved_monitor_goes_on_exactly(detector, rng, tmp_path):
    logits = np.concatenate([logits_of(rng, 2300), logits_of(rng, 1500, shift=-0.5)])
    straight = fed(Monitor(detector, window=300), detector, logits, [1000, 2000, 800])
    monitor, start = Monitor(detector, window=300), 0
    for size in (1000, 2000, 800):
        fed(monitor, detector, logits[start : start + size])
        start += size
        monitor.save(tmp_path / "state.safetensors", force=True)
        monitor = Monitor.load(tmp_path / "state.safetensors", detector)
    assert monitor.as_dict() == straight.as_dict()
    assert monitor.alarm
    assert monitor.label_drifts
    new = logits_of(rng, 700)
    fed(monitor, detector, new)
    assert monitor.as_dict() == fed(straight, detector, new).as_dict()


def test_a_state_is_of_one_detector(detector, rng, tmp_path):
    path = tmp_path / "state.safetensors"
    fed(Monitor(detector), detector, logits_of(rng, 50)).save(path)
    other = ns.JointEnergy().calibrate(logits_of(rng, 1500))
    with pytest.raises(InputError, match="another detector"):
        Monitor.load(path, other)
    with pytest.raises(FileError, match="exists already"):
        Monitor(detector).save(path)


def test_a_state_that_is_none_is_refused(detector, tmp_path):
    path = tmp_path / "state.safetensors"
    Monitor(detector).save(path)
    tensors, metadata = read_tensors(path)
    write_tensors(tmp_path / "changed.safetensors", tensors, metadata | {"trace.step": 7})
    with pytest.raises(FileFormatError, match="checksum"):
        Monitor.load(tmp_path / "changed.safetensors", detector)


def test_memory_does_not_grow_with_the_stream(detector, rng, tmp_path):
    monitor, sizes = Monitor(detector, window=20), []
    for _ in range(3):
        for _ in range(25):
            fed(monitor, detector, logits_of(rng, 1000))
        monitor.save(tmp_path / "state.safetensors", force=True)
        sizes.append((tmp_path / "state.safetensors").stat().st_size)
    assert sizes[2] < 1.3 * sizes[0]
