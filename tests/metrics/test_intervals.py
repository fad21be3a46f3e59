import numpy as np
import pytest
from scipy.stats import bootstrap

from nescio.metrics.intervals import bca_levels, interval


def test_the_interval_of_a_mean_is_that_of_scipy(rng):
    """SciPy takes the acceleration from a jackknife, and nescio from the resamples."""
    data = rng.exponential(size=60)
    samples = rng.choice(data, (20_000, 60)).mean(axis=1)
    theirs = bootstrap(
        (data,), np.mean, n_resamples=20_000, method="BCa", random_state=np.random.default_rng(1)
    ).confidence_interval
    ours = interval(samples, data.mean(), 0.95)
    assert ours == pytest.approx(theirs, abs=0.02)
    assert ours[1] - np.quantile(samples, 0.975) > 0.02  # the correction of a skewed mean


def test_without_bias_and_skewness_the_levels_are_the_tails():
    samples = np.linspace(-1, 1, 1001)
    assert bca_levels(samples, 0.0, [0.025, 0.975]) == pytest.approx([0.025, 0.975])


@pytest.mark.parametrize("value", [0.0, 0.3, 0.5, 1.0])
def test_resamples_on_one_side_of_the_estimate(value):
    low, high = interval(np.full(50, 0.5), value, 0.95)
    assert (low, high) == (min(0.5, value), max(0.5, value))


def test_a_single_odd_resample_does_not_break_the_formula():
    samples = np.append(np.full(999, 0.9), 0.1)
    levels = bca_levels(samples, 0.9, [0.0005, 0.9995])
    assert all(0 <= level <= 1 for level in levels)
    assert interval(samples, 0.9, 0.999) == (0.1, 0.9)
