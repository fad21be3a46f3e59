"""How often labels fire: what counts, and that a detector keeps it."""

import numpy as np
import pytest

import nescio as ns
from fixtures.streams import (
    logits_of,
)
from nescio._io.kinds import digest
from nescio._io.tensors import read_tensors, write_tensors
from nescio.calibration import Firing
from nescio.errors import FileFormatError


def test_rows_with_nan_or_plus_infinity_do_not_count(rng):
    logits = rng.normal(size=(700, 4)).astype(np.float32)
    logits[5, 1], logits[300, 0], logits[699, 3] = np.nan, -np.inf, np.inf
    clean = np.delete(logits, [5, 699], axis=0)
    firing = Firing.from_logits(logits)
    assert firing.n_samples == 698
    assert firing.counts.tolist() == (clean > 0).sum(0).tolist()
    # A sum that overflows is no reason to leave a row out.
    large = np.full((300, 4), 3e38, np.float32)
    assert Firing.from_logits(large).counts.tolist() == [300] * 4
    assert Firing.from_logits(logits[:0]).n_samples == 0


@pytest.mark.parametrize("beside", [np.nan, np.inf])
def test_minus_infinity_hides_no_bad_value(beside):
    firing = Firing.from_logits(np.array([[-np.inf, beside], [-np.inf, 1.0]]))
    assert (firing.n_samples, firing.counts.tolist()) == (1, [0, 1])


def test_firing_is_kept_by_calibrate_and_by_a_file(tmp_path, rng):
    logits = logits_of(rng, 300)
    fitted = ns.JointEnergy().calibrate(logits)
    fitted.save(tmp_path / "a.nescio")
    loaded = ns.load(tmp_path / "a.nescio")
    assert loaded.profile_.firing.counts.tolist() == (logits > 0).sum(0).tolist()
    assert loaded.profile_.firing.n_samples == 300
    assert not hasattr(fitted.fit(logits), "profile_")


@pytest.mark.parametrize(
    ("counts", "n_samples"),
    [([-1, 2], [3]), ([1, 4], [3]), ([0.5, 1.0], [3]), ([], [3]), ([1, 2], [3, 4])],
)
def test_counts_that_cannot_be_are_refused(rng, tmp_path, counts, n_samples):
    ns.JointEnergy().calibrate(logits_of(rng, 100)).save(tmp_path / "a.nescio")
    tensors, metadata = read_tensors(tmp_path / "a.nescio")
    tensors["profile.firing.counts"], tensors["profile.firing.n_samples"] = (
        np.array(counts),
        np.array(n_samples),
    )
    del metadata["sha256"]
    metadata["sha256"] = digest(tensors, metadata)
    write_tensors(tmp_path / "b.nescio", tensors, metadata)
    with pytest.raises(FileFormatError, match="damaged"):
        ns.load(tmp_path / "b.nescio")
