"""What the calibration data looked like: kept by calibrate, save and load."""

import numpy as np
import pytest

import nescio as ns
from nescio._io.tensors import digest, read_tensors, write_tensors
from nescio.checks import make_outputs
from nescio.errors import FileFormatError, ParameterError


def test_calibrating_again_replaces_the_medians_and_failing_keeps_them():
    detector = ns.JointEnergy().calibrate(make_outputs(100, shift=3.0))
    before = detector.profile_.medians
    with pytest.raises(ParameterError):
        detector.calibrate(make_outputs(100), groups="colour")
    assert detector.profile_.medians is before
    detector.calibrate(make_outputs(100), groups=["a", "b"] * 50)
    assert detector.profile_.medians.labels.shape == (2, 6)
    detector.calibrate(make_outputs(100))
    np.testing.assert_array_equal(
        detector.profile_.medians.labels,
        ns.JointEnergy().calibrate(make_outputs(100)).profile_.medians.labels,
    )


@pytest.mark.parametrize("by", [None, "label_count", "custom"])
def test_the_medians_are_saved(tmp_path, by):
    outputs, groups = make_outputs(3000), by
    if by == "custom":
        groups = np.array(["z", "ä", "b"] * 1000)  # not in the order of their names
    detector = ns.TopKJointEnergy(k=2).calibrate(outputs, groups=groups)
    detector.save(tmp_path / "x.nescio")
    new = {"groups": groups[:20]} if by == "custom" else {}
    loaded = ns.load(tmp_path / "x.nescio").explain(outputs[:20], **new)
    kept = detector.explain(outputs[:20], **new)
    np.testing.assert_array_equal(loaded.medians, kept.medians)
    np.testing.assert_array_equal(loaded.rank_medians, kept.rank_medians)
    assert repr(loaded) == repr(kept)


def tampered(path, change):
    tensors, metadata = read_tensors(path)
    tensors = {name: np.array(array) for name, array in tensors.items()}
    change(tensors)
    del metadata["sha256"]
    metadata["sha256"] = digest(tensors, metadata)
    write_tensors(path, tensors, metadata, force=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop("profile.medians.ranks"), "ranks"),
        (lambda t: t.update({"profile.medians.labels": np.zeros((2, 6))}), "do not fit its labels"),
        (lambda t: t.update({"profile.medians.labels": np.zeros((1, 5))}), "do not fit its labels"),
        (
            lambda t: t.update({"profile.medians.ranks": np.full((1, 6), np.nan)}),
            "do not fit its labels",
        ),
    ],
)
def test_medians_that_do_not_fit_are_refused(tmp_path, change, reason):
    path = tmp_path / "x.nescio"
    ns.JointEnergy().calibrate(make_outputs(50)).save(path)
    tampered(path, change)
    with pytest.raises(FileFormatError, match=f"damaged: .*{reason}"):
        ns.load(path)
