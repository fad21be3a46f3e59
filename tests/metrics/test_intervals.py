from unittest.mock import Mock

import numpy as np
import pytest
from scipy.stats import bootstrap

from nescio.metrics import evaluate, measures
from nescio.metrics.measures import Ranking, bca_levels, interval, resample, resample_bins


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


@pytest.mark.parametrize("decimals", [None, 1], ids=["untied", "tied"])
@pytest.mark.parametrize(("n", "m"), [(900, 700), (3_000, 40), (40, 3_000)])
def test_the_resamples_have_the_spread_of_those_drawn_one_by_one(n, m, decimals):
    rng = np.random.default_rng(5)
    scores = rng.normal(1.5, 1, n), rng.normal(0, 1, m)
    if decimals is not None:
        scores = tuple(one.round(decimals) for one in scores)
    ranking = Ranking.from_scores(*scores)
    values = ranking.measures(0.9, 1.0)
    one_by_one = resample(ranking, 0.9, 1.0, 400, np.random.default_rng(0))
    by_bin = resample_bins(ranking, values, 0.9, 1.0, 800, np.random.default_rng(1))
    for name in values:
        expected, spread = one_by_one[name], one_by_one[name].std()
        # The standard error of a mean and of a spread of 400 is 0.05 and 0.04 of the spread.
        assert abs(by_bin[name].mean() - expected.mean()) < 0.25 * spread + 1e-12, name
        assert by_bin[name].std() == pytest.approx(spread, rel=0.2, abs=1e-9), name


def test_more_than_a_million_samples_are_drawn_by_bin(rng, monkeypatch):
    draws = Mock(wraps=resample_bins)
    monkeypatch.setattr(measures, "resample_bins", draws)
    found = evaluate(rng.normal(1, 1, 600_000), rng.normal(0, 1, 500_000), n_bootstrap=20)
    for one in (found.fpr, found.auroc, found.aupr):
        assert one.low <= one.value <= one.high
        assert one.high - one.low < 0.01
    draws.assert_called_once()
