"""The martingale: its bets, its capital, and its false alarms over many streams."""

import numpy as np
import pytest
from scipy import stats

from fixtures.streams import continuous, few_values, not_more_than, partly_rounded, saturated
from nescio.monitor.betting import BETS, Bet, Martingale, reserve, share_at
from nescio.monitor.ranks import Bag


def test_shares_add_up_to_what_is_not_in_reserve():
    t = np.arange(1, 100_001)
    np.testing.assert_allclose(1 - np.cumsum(share_at(t)), reserve(t), atol=1e-12)
    assert share_at(10**12) > 0


@pytest.mark.parametrize("bet", BETS, ids=lambda bet: bet.name)
def test_a_bet_is_a_density(bet):
    # In quantiles of the Beta part the density has no poles: E[f(p)] = 1 for p uniform.
    grid = (np.arange(200_000) + 0.5) / 200_000
    density = np.exp(Martingale((bet,))._log_gains(grid)[0])
    expected = 1 - bet.stake + bet.stake * stats.beta(bet.a, bet.b).pdf(grid)
    np.testing.assert_allclose(density, expected, rtol=1e-9)
    assert density.min() >= 1 - bet.stake - 1e-12
    assert density.mean() == pytest.approx(1, abs=0.05)


def test_the_capital_is_that_of_a_gambler_who_plays_one_by_one(rng):
    p_values = rng.random(300) ** 1.3
    stakes, expected = np.zeros(len(BETS)), []
    for t, p in enumerate(p_values, 1):
        gains = [1 - b.stake + b.stake * stats.beta(b.a, b.b).pdf(p) for b in BETS]
        stakes = (stakes + share_at(t) / len(BETS)) * gains
        expected.append(stakes.sum() + reserve(t))
    np.testing.assert_allclose(Martingale().add(p_values), np.log(expected), atol=1e-9)


def test_p_values_of_0_and_1_are_no_end():
    capital = Martingale().add(np.array([0.0, 1.0] * 50))
    assert np.isfinite(capital).all()


def test_a_bet_of_ones_own_can_be_tried(rng):
    capital = Martingale((Bet("low", 0.5, 0.5, 1.0),)).add(rng.random(500) ** 2)
    assert capital[-1] > np.log(100)


@pytest.mark.parametrize("spread", [0.6, 1.5])
def test_another_spread_is_found(rng, spread):
    stream = np.concatenate([rng.normal(size=2000), spread * rng.normal(size=1000)])
    p_values = Bag(np.sort(rng.normal(size=1000))).add(stream, rng.random(3000))
    capital = Martingale().add(p_values)
    assert capital[:2000].max() < np.log(100) < capital[2000:].max()


def alarms(scores, n_calibration, *, online=True, n_streams=400, length=2000, alpha=0.1, cuts=1023):
    """In how many streams like their calibration data the capital reaches 1 / alpha."""
    found = 0
    for seed in range(n_streams):
        rng = np.random.default_rng(seed)
        values = scores(rng, n_calibration + length)
        calibration, stream = np.sort(values[:n_calibration]), values[n_calibration:]
        if online:
            p = Bag(calibration, max_cuts=cuts).add(stream, rng.random(length))
        else:
            below = np.searchsorted(calibration, stream, side="right")
            p = (below + rng.random(length)) / (n_calibration + 1)
        found += bool(Martingale().add(p).max() >= -np.log(alpha))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scores", "n_calibration", "cuts"),
    [
        (continuous, 50, 1023),
        (continuous, 1000, 100),
        (few_values, 50, 1023),
        (saturated, 1000, 1023),
        (partly_rounded, 200, 15),
    ],
)
def test_false_alarms_stay_below_alpha(scores, n_calibration, cuts):
    assert not_more_than(alarms(scores, n_calibration, cuts=cuts), 400, 0.1)


@pytest.mark.slow
def test_against_the_calibration_data_alone_they_would_not():
    # The reason for online ranks: a calibration sample has its own deviation, and a long stream
    # gives it away.
    assert not not_more_than(alarms(continuous, 50, online=False), 400, 0.1)
    assert not not_more_than(alarms(few_values, 1000, online=False, n_streams=50), 50, 0.1)
