"""A self-check: how many samples a detector flags after gross faults, made from ordinary data.

A fault is made without any out-of-distribution data: numbers in other units, empty texts, black
images. A detector that flags few of them is blind to such faults, whatever else it finds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from string import ascii_lowercase
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from nescio._charts.results import Result, View, table, word
from nescio._charts.svg import Markup
from nescio._validation import Array, BoolArray, checked_whole
from nescio.errors import BlindSpotWarning, counted, listed, warn

__all__ = ["SelfCheck"]

NUMBERS, TABLES, IMAGES, TEXTS = "numbers", "tables", "images", "texts"

MOST_ROWS = 1_000
"""Of the inputs, as many make the faults: the ranges of fewer would be too narrow."""

_FEWEST_ROWS = 100  # that tell a correlation from chance
_CORRELATED = 0.25
_SEEN, _ALL_SEEN = 0.5, 0.95  # the share that is flagged of a fault that counts as seen; partly
_FAR = 5  # standard deviations
_LARGEST = 20  # images with larger values are taken to be on the scale from 0 to 255
_SCALED, _SHUFFLED, _MIRRORED, _NOISE = "x 10", "shuffled", "mirrored", "noise"
NEW_WORD = "(a new word)"

WORDS = ["object", "string", "category"]
"""The types of the columns of a pandas frame that hold words."""

Change = Callable[[Any], Any]  # ordinary values in, faulty ones out
Make = Callable[[Any, Generator], Any]


@dataclass(frozen=True, eq=False, repr=False)
class SelfCheck(Result):
    """How many samples a detector flags after each fault, with one row per fault.

    `self_check` of a detector or of a wrapped model makes it. `print` shows it as a table.

    Attributes
    ----------
    detector : str
        The name of the detector.
    what : str
        What was changed: "input" of the model or, if these cannot be changed, "output".
    n_samples : int
        The number of samples that were changed, in each way.
    changes : dict of str to str
        What was done to the samples, by the name of the fault.
    flagged : dict of str to float
        The share that is flagged, by the name of the fault. 1 if the model raises an error.
    unchanged : float
        The share of the same samples that is flagged without a fault.
    independent : bool
        Whether the columns hardly depend on each other: other values within their ranges then make
        ordinary rows.

    Examples
    --------
    >>> import nescio as ns
    >>> logits = np.random.default_rng(0).normal(-2, 3, (1000, 20))
    >>> ns.JointEnergy().calibrate(logits).self_check(logits)
    Self-check on 200 outputs: joint_energy lets 7 of 7 faults through
    fault     change                                 flagged
    x 10      all values times 10                         1%  NOT SEEN
    / 10      all values divided by 10                    0%  NOT SEEN
    shifted   5 standard deviations added                 0%  NOT SEEN
    zeros     all values 0                                0%  NOT SEEN
    shuffled  each column shuffled over samples           5%  NOT SEEN
    mirrored  small values large, by column               6%  NOT SEEN
    noise     random numbers in each column's range       0%  NOT SEEN
    Without a fault, 4% are flagged.
    The columns hardly depend on each other, so 'shuffled', 'mirrored', 'noise' may be ordinary.
    """

    index_column = "fault"

    detector: str
    what: str
    n_samples: int
    changes: dict[str, str]
    flagged: dict[str, float]
    unchanged: float
    independent: bool = False

    @property
    def lets_through(self) -> dict[str, float]:
        """The faults of which less than half of the samples are flagged, with this share."""
        return {fault: share for fault, share in self.flagged.items() if share < _SEEN}

    @property
    def may_be_ordinary(self) -> set[str]:
        """Shuffling and, of independent columns, other values within their ranges."""
        return {_SHUFFLED, *([_MIRRORED, _NOISE] if self.independent else [])}

    def columns(self) -> dict[str, Any]:
        """Return a table as columns: fault, change, n_samples and flagged (a share)."""
        return {
            "fault": list(self.flagged),
            "change": list(self.changes.values()),
            "n_samples": [self.n_samples] * len(self.flagged),
            "flagged": list(self.flagged.values()),
        }

    def summary(self) -> str:
        """Return one sentence: which faults are let through, and how many of each are flagged."""
        shares = [f"{share:.0%} of {fault}" for fault, share in self.lets_through.items()]
        flags = f": it flags only {', '.join(shares)}" if shares else ""
        return f"{self._headline()}{flags}."

    def _headline(self) -> str:
        return (
            f"{self.detector} lets {len(self.lets_through)} of {len(self.flagged)} faults through"
        )

    def drawn(self) -> Markup:
        """Return the table as HTML, for the card of a wrapped model and for a report."""
        view = self._view()
        return table(list(view.table), view.rows())

    def _view(self) -> View:
        through = self.lets_through
        notes = [f"Without a fault, {self.unchanged:.0%} are flagged."]
        ordinary = listed([fault for fault in through if fault in self.may_be_ordinary])
        if self.independent and ordinary:
            notes.append(f"The columns hardly depend on each other, so {ordinary} may be ordinary.")
        return View(
            f"Self-check on {counted(self.n_samples, self.what)}: {self._headline()}",
            table={
                "fault": list(self.flagged),
                "change": list(self.changes.values()),
                "flagged": [f"{share:.0%}" for share in self.flagged.values()],
                "": [
                    word("NOT SEEN", "out")
                    if fault in through
                    else word("seen" if share >= _ALL_SEEN else "partly", "in")
                    for fault, share in self.flagged.items()
                ],
            },
            notes=notes,
        )


def _usual_ends(values: Array) -> Array:
    """Return the ends of each column without its outliers: one would hide what is in between."""
    return np.asarray(np.quantile(values, (0.01, 0.99), axis=0))


def _mirrored(values: Array) -> Array:
    low, high = _usual_ends(values)
    mirrored: Array = np.clip(low + high - values, low, high).astype(values.dtype)
    return mirrored


def _wrong_scale(images: Array) -> Array:
    if images.dtype == np.uint8:  # a runner takes images of floating point as normalised
        return images.astype(np.float32)
    return images / 255 if images.max() > _LARGEST else images * 255


def _of_channels(images: Array, function: Callable[..., Array]) -> Array:
    """Return the smallest, largest or mean value of each channel, which come first or last."""
    axes = (0, 2, 3) if images.shape[1] <= images.shape[3] else (0, 1, 2)
    return function(images, axis=axes, keepdims=True).astype(images.dtype)


def _noise(values: Array, rng: Generator) -> Array:
    ends = [_of_channels(values, end) for end in (np.min, np.max)] if values.ndim == 4 else None
    low, high = ends or _usual_ends(values)
    return rng.uniform(low, high, values.shape).astype(values.dtype)


def _from_0_to_1(images: Array) -> Array:
    if images.dtype == np.uint8:
        return images.astype(np.float32) / 255
    scaled: Array = (images - images.min()) / (np.ptp(images) or 1)
    return scaled


def _random_letters(text: str, rng: Generator) -> str:
    letters = zip(text, rng.choice(list(ascii_lowercase), len(text)), strict=True)
    return "".join(new if old.strip() else old for old, new in letters)


# By kind of data and name: what is done, in at most 40 characters, and how.
FAULTS: dict[str, dict[str, tuple[str, Make]]] = {
    NUMBERS: {
        _SCALED: ("all values times 10", lambda x, _: x * 10),
        "/ 10": ("all values divided by 10", lambda x, _: x / 10),
        "shifted": (f"{_FAR} standard deviations added", lambda x, _: x + _FAR * x.std(0)),
        "zeros": ("all values 0", lambda x, _: np.zeros_like(x)),
        _SHUFFLED: ("each column shuffled over samples", lambda x, rng: rng.permuted(x, axis=0)),
        _MIRRORED: ("small values large, by column", lambda x, _: _mirrored(x)),
        _NOISE: ("random numbers in each column's range", _noise),
    },
    IMAGES: {
        "black": ("each channel its smallest value", lambda x, _: 0 * x + _of_channels(x, np.min)),
        "white": ("each channel its largest value", lambda x, _: 0 * x + _of_channels(x, np.max)),
        "grey": ("each channel its mean value", lambda x, _: 0 * x + _of_channels(x, np.mean)),
        "inverted": ("dark is bright", lambda x, _: x.max() - (x - x.min())),
        "wrong scale": ("not normalised: values 255 times off", lambda x, _: _wrong_scale(x)),
        "0 to 1": ("values from 0 to 1, not normalised", lambda x, _: _from_0_to_1(x)),
        _SHUFFLED: (
            "the pixels of each image shuffled",
            lambda x, rng: rng.permuted(x.reshape(len(x), -1), axis=1).reshape(x.shape),
        ),
        _NOISE: ("random pixels", _noise),
    },
    TEXTS: {
        "empty": ("no text at all", lambda texts, _: ["" for _ in texts]),
        "letters": (
            "random letters",
            lambda texts, rng: [_random_letters(text, rng) for text in texts],
        ),
        "repeated": (
            "the first word again and again",
            lambda texts, _: [" ".join(text.split()[:1] * len(text.split())) for text in texts],
        ),
        _SHUFFLED: (
            "words in random order",
            lambda texts, rng: [" ".join(rng.permutation(text.split())) for text in texts],
        ),
    },
}


def _of_numbers(make: Make, frame: Any, rng: Generator) -> Any:
    """Make a fault in the number columns of a pandas frame; its words stay."""
    numbers = frame.select_dtypes("number", exclude="timedelta")
    values = numbers.to_numpy(np.float64, na_value=np.nan)
    return frame.assign(**dict(zip(numbers, _changed(make, rng, values).T, strict=True)))


def _one_column(factor: float, rows: Array, _: Generator) -> Array:
    """Return rows with one column in another unit: in each row the next that leaves its range."""
    changed = rows * factor
    outside = (changed < rows.min(0)) | (changed > rows.max(0))
    places = np.flatnonzero(outside.mean(0) > 0.5)
    if not len(places):
        return rows
    place = places[np.arange(len(rows)) % len(places)]
    return np.where(np.arange(rows.shape[1]) == place[:, None], changed, rows)


def new_words(frame: Any, _: Generator | None = None, word: Any = NEW_WORD) -> Any:
    """Replace one word of each row of a pandas frame, in each row of the next column."""
    names = list(frame.select_dtypes(WORDS))
    turn = np.arange(len(frame)) % max(1, len(names))
    words = {n: frame[n].astype(object).mask(turn == p, word) for p, n in enumerate(names)}
    return frame.assign(**words)


_UNITS: dict[str, tuple[str, Make]] = {
    "unit x 1000": ("one column of each row times 1000", partial(_one_column, 1000)),
    "unit / 1000": ("one column of each row divided by 1000", partial(_one_column, 1 / 1000)),
}
FAULTS[TABLES] = {
    **{
        fault: (what, partial(_of_numbers, make))
        for fault, (what, make) in {**_UNITS, **FAULTS[NUMBERS]}.items()
        if fault not in (_SCALED, "/ 10", _MIRRORED)
    },
    "missing": ("all numbers missing", partial(_of_numbers, lambda x, _: x * np.nan)),
    "new words": ("one word of each row unknown", new_words),
}


def _changed(make: Make, rng: Generator, values: Any) -> Any:
    """Make a fault; what is missing (NaN) or masked (-inf) among numbers stays so."""
    if not isinstance(values, np.ndarray):
        return make(values, rng)
    finite = np.isfinite(values)
    means = np.where(finite, values, 0).sum(0) / np.maximum(finite.sum(0), 1)
    known = np.where(finite, values, means.astype(values.dtype))
    return np.where(finite, make(known, rng), values)


def check_faults(
    detector: str,
    kind: str,
    n_samples: int,
    flagged: Callable[[Change], BoolArray],
    what: str,
    numbers: Array | None = None,
) -> SelfCheck:
    """Make each fault of a kind of data; `flagged` applies one and returns what is flagged.

    If it returns nothing, the data was such already, and the fault is left out. `numbers` is the
    data if it has columns of numbers.
    """
    changes, shares = {}, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is said of faulty data helps nobody
        unchanged = float(flagged(lambda values: values).mean())  # raises if it cannot run at all
        for fault, (change, make) in FAULTS[kind].items():
            try:
                out = flagged(partial(_changed, make, np.random.default_rng(0)))
                if not len(out):
                    continue
                share = float(out.mean())
            except Exception:  # of any model: the fault does not go unnoticed
                share, change = 1.0, f"raises an error: {change}"
            changes[fault], shares[fault] = change, share
    independent = numbers is not None and _are_independent(numbers)
    return SelfCheck(detector, what, n_samples, changes, shares, unchanged, independent)


def _are_independent(numbers: Array) -> bool:
    """Return whether the largest correlation of a column with another one is small, on average."""
    rows = numbers[np.isfinite(numbers).all(1)]
    if len(rows) < _FEWEST_ROWS:
        return False
    low, high = _usual_ends(rows)
    rows = np.clip(rows, low, high)[:, low < high]
    if rows.shape[1] < 2:
        return False
    correlations = np.abs(np.corrcoef(rows, rowvar=False))
    np.fill_diagonal(correlations, 0.0)
    return bool(correlations.max(0).mean() < _CORRELATED)


def spread_rows(n_rows: int, n_samples: int) -> NDArray[np.intp]:
    """Return evenly spaced rows: at most `n_samples`."""
    checked_whole("n_samples", n_samples, minimum=1)
    return np.linspace(0, n_rows - 1, min(n_rows, n_samples)).astype(np.intp)


def warn_of_blind_spots(check: SelfCheck, *, has_learned: bool) -> None:
    """Warn if faults are let through, unless these can leave ordinary data.

    A model that counts words does not see their order, for example.
    """
    if not check.lets_through.keys() <= check.may_be_ordinary:
        fit = "A detector that has learned from training inputs and labels (fit) sees more. "
        warn(
            f"{check.summary()} {'' if has_learned else fit}If such inputs can come, test for them "
            "before the model. The attribute `checked` has the table.",
            BlindSpotWarning,
        )
