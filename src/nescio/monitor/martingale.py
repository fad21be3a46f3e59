"""The evidence of a change: a test martingale over online conformal p-values.

Online p-values are the rank of each new score among the calibration and earlier scores. A gambler
bets that they are not uniform and starts with a capital of 1. The capital is spread over several
bets and over all times at which the stream may have changed. The part that is reserved for a change
at sample t is first staked on sample t. docs/explanation/monitoring.md shows why this is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln

from nescio.calibration.calibration import tie_limits

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

MAX_CUTS = 1_023  # calibration scores that cut the line: at most 2,049 cells
_BLOCK = 256  # a byte can count up to the 255 earlier scores of a block
_EARLIER = np.triu(np.ones((_BLOCK, _BLOCK), np.bool_), 1)  # [i, j]: i is earlier than j
_SMALLEST = 2.0**-53  # the smallest p and 1 - p: some bets are infinite at 0 or at 1
_MAX_POINTS = 2_048  # of a trace

# --- online p-values ------------------------------------------------------------------------------


class Bag:
    """The number of calibration scores and stream scores so far in each cell.

    A rank needs only counts, not scores. Some calibration scores, chosen by rank, cut the line into
    cells: each of these values is a cell, and so is the open interval between two of them. What
    equals a value up to the tie tolerance (`tie_limits`) is in its cell. The position of a new
    score among the members of its cell is drawn at random. "Bag" is the usual name in conformal
    prediction for a set with repetitions.

    The first cut is -inf, the score of a row with NaN: cell 0 is empty, and cell 1 has these rows.
    """

    def __init__(self, scores: Floats) -> None:  # of the calibration, in ascending order
        n = len(scores)
        # Cuts are chosen by rank, never by value: ranks that depend on n alone leave the members
        # of a cell exchangeable.
        ranks = np.arange(1, n + 1)
        if n > MAX_CUTS:
            ranks = np.unique(np.rint(np.linspace(1, n, MAX_CUTS)).astype(np.int64))
        cuts, first = np.unique(np.append(-np.inf, scores[ranks - 1]), return_index=True)
        lows: Floats = np.append(-np.inf, tie_limits(scores)[ranks - 1])[first]
        # The cell of a cut is as wide above it as below. Of tied cuts, the first is kept.
        highs = cuts + np.subtract(cuts, lows, out=np.zeros(len(cuts)), where=~np.isinf(cuts))
        kept = [0]
        for cut in range(1, len(cuts)):
            if cuts[cut] > highs[kept[-1]]:
                kept.append(cut)
        self.cuts, self._lows = cuts[kept], lows[kept]
        # A place before the first cut has no cell of a cut below it: nothing is at most NaN.
        self._highs: Floats = np.concatenate([[np.nan], highs[kept]])
        self.calibration: Counts = np.bincount(self.cells(scores), minlength=2 * len(kept) + 1)
        self.counts = self.calibration.copy()  # of the calibration and of the stream

    def cells(self, scores: Floats) -> NDArray[np.intp]:
        """Return the cell of each score: odd for the value of a cut, even for an interval."""
        place = np.searchsorted(self._lows, scores, side="right")  # cuts at or below the score
        return np.asarray(2 * place - (scores <= self._highs[place]), np.intp)

    @property
    def total(self) -> int:
        """Number of scores, of the calibration and of the stream."""
        return int(self.counts.sum())

    def add(self, scores: Floats, uniform: Floats) -> Floats:
        """Add new scores, each with a random number within [0, 1); return their online p-values."""
        cells = self.cells(scores)
        p_values = np.empty(len(cells))
        for start in range(0, len(cells), _BLOCK):
            rows = slice(start, start + _BLOCK)
            p_values[rows] = self._add_block(cells[rows], uniform[rows])
        return p_values

    def _add_block(self, cells: NDArray[np.intp], uniform: Floats) -> Floats:
        n = len(cells)
        upto = np.cumsum(self.counts)
        own = self.counts[cells]
        below = upto[cells] - own
        total = upto[-1] + np.arange(1, n + 1)
        if n > 1:
            earlier = _EARLIER[:n, :n]
            short = cells.astype(np.int16)  # a quarter of the memory to compare
            before = short[:, None]
            below += _count((before < short) & earlier)
            own += _count((before == short) & earlier)
        self.counts += np.bincount(cells, minlength=len(self.counts))
        p_values: Floats = (below + uniform * (own + 1)) / total
        return p_values


def _count(pairs: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the number of true values in each column, which is at most 255."""
    counted: NDArray[np.uint8] = np.add.reduce(pairs.view(np.uint8), axis=0, dtype=np.uint8)
    return counted


# --- bets -----------------------------------------------------------------------------------------


class Bet(NamedTuple):
    """A density on [0, 1]: Beta(a, b) with weight `stake`, mixed with the uniform density."""

    stake: float
    a: float
    b: float
    finds: str  # which scores it bets on, as `Change.kind`


BETS = (
    Bet(0.9, 0.4, 1.0, "lower"),  # many
    Bet(0.1, 0.15, 1.0, "some lower"),  # few
    Bet(0.3, 1.0, 2.0, "lower"),  # slightly
    Bet(0.9, 1.0, 0.4, "higher"),  # many
    Bet(0.1, 1.0, 0.15, "some higher"),  # few
    Bet(0.3, 2.0, 1.0, "higher"),  # slightly
    Bet(0.5, 0.5, 0.5, "more extreme"),
    Bet(0.5, 2.0, 2.0, "less extreme"),
)


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

    def __init__(self) -> None:
        self._stake, self._a, self._b = np.array([bet[:3] for bet in BETS]).T[:, :, None]
        self.n_samples = 0
        self.log_stakes = np.full(len(BETS), -np.inf)  # of each bet, without the reserve

    def add(self, gains: Floats) -> Floats:
        """Bet, given the result of `gains`; return the log of the capital after each p-value."""
        n = gains.shape[1]
        times = self.n_samples + np.arange(1, n + 1)
        # S_t = (S_{t-1} + w_t) * bet(p_t), divided by the product of all bets so far, is a sum.
        terms = np.empty((len(BETS), n + 1))
        terms[:, 0] = self.log_stakes
        terms[:, 1:] = np.log(share_at(times) / len(BETS))
        terms[:, 2:] -= gains[:, :-1]
        held = np.logaddexp.accumulate(terms, axis=1)[:, 1:] + gains
        self.log_stakes = held[:, -1].copy()
        self.n_samples += n
        peak = held.max(axis=0)
        capital = np.exp(held - peak).sum(axis=0)
        return np.asarray(np.logaddexp(peak + np.log(capital), np.log(reserve(times))))

    def gains(self, p_values: Floats) -> Floats:
        """Return the log of the factor by which p-values multiply a stake: (n_bets, n_samples)."""
        p = np.clip(p_values, _SMALLEST, 1.0 - _SMALLEST)
        powers = (self._a - 1.0) * np.log(p) + (self._b - 1.0) * np.log1p(-p)
        density = np.exp(powers - betaln(self._a, self._b))
        return np.asarray(np.cumsum(np.log1p(self._stake * (density - 1.0)), axis=1))


class Trace:
    """The evidence after every k-th sample; k doubles whenever there are too many points."""

    def __init__(self) -> None:
        self.step = 1
        self.values: Floats = np.empty(0)

    def add(self, n_before: int, evidence: Floats) -> None:
        """Add the evidence after each of the samples that follow the first `n_before`."""
        first = -n_before % self.step  # keep samples 0, step, 2 * step, ...
        self.values = np.concatenate([self.values, evidence[first :: self.step]])
        while len(self.values) > _MAX_POINTS:
            self.values = self.values[::2]
            self.step *= 2

    def points(self) -> tuple[tuple[int, float], ...]:
        """Return pairs of a number of samples and the evidence after them."""
        n_samples = np.arange(len(self.values)) * self.step + 1
        return tuple(zip(n_samples.tolist(), self.values.tolist(), strict=True))


# --- the start of a change ------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """One input of the stream: its number, counted from 1, and its id and time, if known."""

    number: int
    id: str | None = None
    time: str | None = None

    def __str__(self) -> str:
        names = [f"{name} {text}" for name, text in (("id", self.id), ("time", self.time)) if text]
        return f"input {self.number:,}" + (f" ({', '.join(names)})" if names else "")


@dataclass(frozen=True)
class Change:
    """An estimate of what has changed, and since which input.

    Compared with those of the calibration data, the scores are "lower", "some lower", "higher",
    "some higher", "more extreme", "less extreme" or "constant", or more rows are "unusable".
    """

    kind: str
    since: Place


class ChangeFinder:
    """For each bet, the input from which on it has gained the most so far, and how much.

    This is the cumulative-sum estimate (CUSUM, Page 1954): the likeliest start of a change.
    """

    def __init__(self) -> None:
        self.gains: Floats = np.zeros(len(BETS))  # the logarithm of the gain since the start
        self.starts: list[Place] = []  # of each bet, once there is an input

    def add(self, gains: Floats, place: Callable[[int], Place]) -> None:
        """Add the result of `Martingale.gains`; `place` returns that of a sample by its column."""
        before = np.zeros_like(gains)  # the gain before each sample
        before[:, 1:] = gains[:, :-1]
        columns = before.argmin(axis=1)
        lowest = before.min(axis=1)
        # An earlier start remains the best one if no gain since is as low as it is from here.
        earlier = -self.gains < lowest
        self.gains = gains[:, -1] - np.where(earlier, -self.gains, lowest)
        self.starts = [
            self.starts[bet] if earlier[bet] else place(int(column))
            for bet, column in enumerate(columns)
        ]

    def likeliest(self) -> Change:
        """Return the change with the largest gain."""
        bet = int(np.argmax(self.gains))
        return Change(BETS[bet].finds, self.starts[bet])
