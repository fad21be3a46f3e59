"""The kernel that numba compiles, against exact sums and against itself in other batches."""

import sys

import numpy as np
import pytest

import nescio as ns
from nescio._threads import map_rows
from nescio.errors import MissingDependencyError, ParameterError
from nescio.scores import kernels


@pytest.fixture
def asked_for(monkeypatch):
    """Ask for the kernel, as a user does; the answer is kept for a whole process."""
    monkeypatch.setenv(kernels.COMPILED_VARIABLE, "1")
    kernels._compiled.cache_clear()
    yield
    kernels._compiled.cache_clear()


def exact(logits):
    return np.logaddexp(logits.astype(np.float64), 0).sum(1)


@pytest.mark.parametrize("level", [-80.0, -40.0, -20.0, 0.0, 50.0])
@pytest.mark.parametrize("n_labels", [1, 15, 16, 17, 80, 512, 513, 2000])
def test_it_keeps_relative_precision(level, n_labels, rng):
    logits = np.minimum(rng.normal(level, 3, (100, n_labels)), level + 6).astype(np.float32)
    found = map_rows(kernels.joint_energy_compiled, logits)
    np.testing.assert_allclose(found, exact(logits), rtol=2e-6)


def test_extreme_rows_are_computed_as_numpy_does(rng):
    logits = rng.normal(-4, 3, (12, 80)).astype(np.float32)
    logits[0] = -np.inf  # every label is masked
    logits[1, 5:] = -np.inf
    logits[2, 3] = np.nan
    logits[3, 7] = 88.5  # exp is just finite
    logits[4, 7] = 3e38
    logits[5] = 60.0  # the product overflows
    logits[6] = -100.0  # exp has few digits
    logits[7] = -104.0  # and here none
    logits[8, 7] = np.inf
    found = map_rows(kernels.joint_energy_compiled, logits)
    expected = map_rows(kernels.joint_energy_direct, logits)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[0] == 0
    assert np.isnan(found[2])
    assert found[6] == expected[6] > 0


def test_a_score_does_not_depend_on_batch_layout_or_block(rng):
    logits = rng.normal(-4, 3, (5000, 83)).astype(np.float32)  # two blocks
    logits[::50] -= 90
    whole = map_rows(kernels.joint_energy_compiled, logits)
    for rows in (slice(0, 1), slice(4999, 5000), slice(3000, 3301)):
        assert (map_rows(kernels.joint_energy_compiled, logits[rows]) == whole[rows]).all()
    assert (map_rows(kernels.joint_energy_compiled, np.asfortranarray(logits)) == whole).all()
    assert (map_rows(kernels.joint_energy_compiled, logits[::-1]) == whole[::-1]).all()


@pytest.mark.usefixtures("asked_for")
def test_it_is_used_if_asked_for_with_enough_labels_in_float32(rng):
    logits = rng.normal(-4, 3, (50, 80)).astype(np.float32)
    compiled = map_rows(kernels.joint_energy_compiled, logits)
    assert (ns.scores.joint_energy(logits) == compiled).all()
    half = logits.astype(np.float16)
    assert (
        ns.scores.joint_energy(half)
        == map_rows(kernels.joint_energy_compiled, half.astype(np.float32))
    ).all()
    for other in (logits.astype(np.float64), logits[:, :20]):
        found = ns.scores.joint_energy(other)
        kernels._compiled.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(kernels.COMPILED_VARIABLE, "0")
            assert (found == ns.scores.joint_energy(other)).all()
        kernels._compiled.cache_clear()


@pytest.mark.usefixtures("asked_for")
def test_without_numba_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(MissingDependencyError, match="'fast'"):
        ns.scores.joint_energy(np.zeros((2, 80)))


@pytest.mark.parametrize("value", ["false", "no", "2"])
def test_other_values_do_not_turn_it_on(value, asked_for, monkeypatch):
    monkeypatch.setenv(kernels.COMPILED_VARIABLE, value)
    with pytest.raises(ParameterError, match=f"NESCIO_COMPILED must be 0 or 1, got '{value}'"):
        ns.scores.joint_energy(np.zeros((3, 80), np.float32))
