"""A test martingale: the capital of a gambler who bets that p-values are not uniform.

The gambler starts with a capital of 1. If the odds are fair for independent uniform numbers, the
probability that the capital ever reaches 1 / alpha is at most alpha (Ville's inequality). So if the
capital does reach it, the numbers are most likely not uniform.

The capital is spread over several bets and over all times at which the stream may have changed.
The part that is reserved for a change at sample t is first staked on sample t.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Bet(NamedTuple):
    """A density on [0, 1]: Beta(a, b) with weight `stake`, mixed with the uniform density.

    `finds` says which scores it bets on, as `Change.kind`.
    """

    name: str
    stake: float
    a: float
    b: float
    finds: str = ""


BETS = (
    Bet("low, many", 0.9, 0.4, 1.0, "lower"),
    Bet("low, few", 0.1, 0.15, 1.0, "some lower"),
    Bet("low, slightly", 0.3, 1.0, 2.0, "lower"),
    Bet("high, many", 0.9, 1.0, 0.4, "higher"),
    Bet("high, few", 0.1, 1.0, 0.15, "some higher"),
    Bet("high, slightly", 0.3, 2.0, 1.0, "higher"),
    Bet("both ends", 0.5, 0.5, 0.5, "more extreme"),
    Bet("middle", 0.5, 2.0, 2.0, "less extreme"),
)

_SMALLEST = 2.0**-53  # the smallest p and 1 - p: some bets are infinite at 0 or at 1


def reserve(t: int | NDArray[np.int64]) -> Floats:
    """Return the share of the capital reserved for changes after sample t: 1 / log2(2 + t)."""
    return np.asarray(1.0 / np.log2(2.0 + np.asarray(t, np.float64)))


def share_at(t: int | NDArray[np.int64]) -> Floats:
    """Return the share reserved for t = 1, 2, ...: reserve(t - 1) - reserve(t).

    The shares add up to 1. They fall about as 1 / (t log(t)^2), almost as slowly as shares with a
    finite sum can. So a change late in a long stream costs little more than an early one.
    """
    t = np.asarray(t, np.float64)
    step = np.log1p(1.0 / (1.0 + t)) / math.log(2.0)  # no cancellation at large t
    return np.asarray(step / (np.log2(1.0 + t) * np.log2(2.0 + t)))


class Martingale:
    """The capital of the gambler, as a natural logarithm."""

    def __init__(self, bets: tuple[Bet, ...] = BETS) -> None:
        self.bets = bets
        self._stake, a, b = np.array([bet[1:4] for bet in bets]).T[:, :, None]
        self._powers = (a - 1.0, b - 1.0)
        self._log_beta = np.array([[_log_beta(bet.a, bet.b)] for bet in bets])
        self.clear()

    def clear(self) -> None:
        """Start again with a capital of 1."""
        self.n_samples = 0
        self.log_stakes = np.full(len(self.bets), -np.inf)  # of each bet, without the reserve

    def add(self, p_values: Floats) -> Floats:
        """Bet on these p-values and return the logarithm of the capital after each of them."""
        return self.add_gains(self.gains(p_values))

    def add_gains(self, gains: Floats) -> Floats:
        """Do the same, given the result of `gains`."""
        n = gains.shape[1]
        if not n:
            return np.empty(0)
        times = self.n_samples + np.arange(1, n + 1)
        # S_t = (S_{t-1} + w_t) * bet(p_t), divided by the product of all bets so far, is a sum.
        terms = np.empty((len(self.bets), n + 1))
        terms[:, 0] = self.log_stakes
        terms[:, 1:] = np.log(share_at(times) / len(self.bets))
        terms[:, 2:] -= gains[:, :-1]
        held = np.logaddexp.accumulate(terms, axis=1)[:, 1:] + gains
        self.log_stakes = held[:, -1].copy()
        self.n_samples += n
        peak = held.max(axis=0)
        capital = np.exp(held - peak).sum(axis=0)
        return np.asarray(np.logaddexp(peak + np.log(capital), np.log(reserve(times))))

    def gains(self, p_values: Floats) -> Floats:
        """Return the logarithm of the factor by which the p-values so far multiply a stake.

        The shape is (n_bets, n_samples).
        """
        return np.cumsum(self._log_gains(p_values), axis=1)

    def _log_gains(self, p_values: Floats) -> Floats:
        p = np.clip(p_values, _SMALLEST, 1.0 - _SMALLEST)
        low, high = self._powers
        density = np.exp(low * np.log(p) + high * np.log1p(-p) - self._log_beta)
        return np.asarray(np.log1p(self._stake * (density - 1.0)))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
