"""When did the stream change? The input at which the gains of a bet began to add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.monitor.betting import BETS

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Place:
    """One input of the stream.

    Attributes
    ----------
    at : int
        Its number, counted from 1.
    id, time : str or None
        Its id and its time, if they are known.
    """

    at: int
    id: str | None = None
    time: str | None = None

    def __str__(self) -> str:
        known = [f"{name} {text}" for name, text in (("id", self.id), ("time", self.time)) if text]
        return f"input {self.at:,}" + (f" ({', '.join(known)})" if known else "")


@dataclass(frozen=True)
class Change:
    """An estimate of what has changed, and since when.

    Attributes
    ----------
    kind : str
        How the scores differ from those of the calibration data: "lower", "some lower", "higher",
        "some higher", "more extreme" or "less extreme".
    since : Place
        The input at which the change most likely began.
    """

    kind: str
    since: Place

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return asdict(self)


class ChangeFinder:
    """For each bet, the input from which on it has gained the most so far, and how much.

    This is the cumulative-sum estimate (CUSUM, Page 1954): the likeliest start of a change.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove everything that came from the stream."""
        self.gains: Floats = np.zeros(len(BETS))  # the logarithm of the gain since the start
        self.starts: list[Place | None] = [None] * len(BETS)

    def add(self, gains: Floats, place: Callable[[int], Place]) -> None:
        """Add the result of `Martingale.gains`, of shape (n_bets, n_samples).

        `place` returns the place of a sample from its column.
        """
        before = np.zeros_like(gains)  # the gain before each sample
        before[:, 1:] = gains[:, :-1]
        columns = before.argmin(axis=1)
        lowest = before.min(axis=1)
        # An earlier start remains the best one if no gain since is as low as it is from here.
        earlier = -self.gains < lowest
        self.gains = gains[:, -1] - np.where(earlier, -self.gains, lowest)
        for bet in np.flatnonzero(~earlier).tolist():
            self.starts[bet] = place(int(columns[bet]))

    def likeliest(self) -> Change | None:
        """Return the change with the largest gain, or None if no input was added."""
        bet = int(np.argmax(self.gains))
        since = self.starts[bet]
        return None if since is None else Change(BETS[bet].finds, since)
