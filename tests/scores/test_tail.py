import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from nescio.scores import label_energy
from nescio.scores.tail import largest_mean_energy

some_logits = hnp.arrays(float, st.integers(1, 20), elements=st.floats(-1e3, 1e3))


def energy_of(logit):
    return float(np.logaddexp(0.0, logit))


def bound_of(logits, above=0.0):
    known = (logits.mean(), logits.var(), logits.max() + above)
    return float(largest_mean_energy(*(np.array([number]) for number in known))[0])


@given(some_logits, st.sampled_from([0.0, 1e-9, 0.5, 7.0, 1e6]))
def test_no_logits_have_a_larger_mean_energy(logits, above):
    energy = label_energy(logits).mean()
    assert bound_of(logits, above) >= energy * (1 - 1e-9) - 1e-20


@given(some_logits)
def test_it_is_never_above_the_energy_of_the_largest_logit(logits):
    assert bound_of(logits) <= energy_of(logits.max() + 1e-9) * (1 + 1e-9)


def test_a_small_share_of_large_logits_is_bounded_closely():
    """Of these logits, none with this mean, variance and maximum have a larger mean energy."""
    logits = np.array([-12.4] * 96 + [-3.0] * 4)
    energy = label_energy(logits).mean()
    assert bound_of(logits) == pytest.approx(energy, rel=0.06)
    assert bound_of(logits) < energy_of(-3.0) / 20


def test_equal_logits_have_their_own_energy():
    assert bound_of(np.full(5, -2.0)) == pytest.approx(energy_of(-2.0), rel=1e-9)


def test_an_overflow_leaves_the_largest_logit():
    known = (np.array([-1e200]), np.array([np.inf]), np.array([2.0]))
    assert largest_mean_energy(*known)[0] == label_energy(np.array([2.0]))[0]
