"""A self-check: how many samples a detector flags after gross faults, made from ordinary data.

A fault is made without any out-of-distribution data: numbers in other units, empty texts, black
images. A detector that flags few of them is blind to such faults, whatever else it finds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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

_SEEN, _ALL_SEEN = 0.5, 0.95  # the share that is flagged of a fault that counts as seen; partly
_FAR = 5  # standard deviations
_LARGEST = 20  # images with larger values are taken to be on the scale from 0 to 255
_SHUFFLED, _NOISE = "shuffled", "noise"
NEW_WORD = "(a new word)"

WORDS = ["object", "string", "category"]
"""The types of the columns of a pandas frame that hold words."""

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
        The share that is flagged, by the name of the fault. 1 if the model raises an error. If a
        fault takes most samples out of the range of a column, only these count.
    unchanged : float
        The share of the same samples that is flagged without a fault.
    may_be_ordinary : sequence of str
        The faults of which less than half is flagged, but that leave most samples in the range of
        every column (without the 1 % at each end), and shuffling: each value by itself is usual.
    unseen_columns : dict of str to list
        By fault, the columns of a table that let it through where they alone are out of range.

    Examples
    --------
    >>> import nescio as ns
    >>> logits = np.random.default_rng(0).normal(-2, 3, (1000, 20))
    >>> ns.JointEnergy().calibrate(logits).self_check(logits)
    Self-check on 200 outputs: joint_energy lets 2 of 2 clear faults through
    fault     change                                 flagged
    x 10      all values times 10                         1%  NOT SEEN
    / 10      all values divided by 10                    0%  may be ordinary
    shifted   5 standard deviations added                 0%  NOT SEEN
    zeros     all values 0                                0%  may be ordinary
    shuffled  each column shuffled over samples           5%  may be ordinary
    noise     random numbers in each column's range       0%  may be ordinary
    Flagged without a fault: 8 of 200.
    '/ 10', 'zeros', 'shuffled', 'noise' may be ordinary: each value by itself is usual.
    """

    index_column = "fault"

    detector: str
    what: str
    n_samples: int
    changes: dict[str, str]
    flagged: dict[str, float]
    unchanged: float
    may_be_ordinary: Sequence[str] = ()
    unseen_columns: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def lets_through(self) -> dict[str, float]:
        """The faults of which less than half is flagged, without those that may be ordinary."""
        clear = self.flagged.keys() - self.may_be_ordinary
        return {f: share for f, share in self.flagged.items() if share < _SEEN and f in clear}

    def columns(self) -> dict[str, Any]:
        """Return columns: fault, change, n_samples, flagged (a share) and may_be_ordinary."""
        return {
            "fault": list(self.flagged),
            "change": list(self.changes.values()),
            "n_samples": [self.n_samples] * len(self.flagged),
            "flagged": list(self.flagged.values()),
            "may_be_ordinary": [fault in self.may_be_ordinary for fault in self.flagged],
        }

    def summary(self) -> str:
        """Return one sentence: which faults are let through, and how many of each are flagged."""
        shares = [f"{share:.0%} of {fault}" for fault, share in self.lets_through.items()]
        flags = f": it flags only {', '.join(shares)}" if shares else ""
        return f"{self._headline()}{flags}."

    def _headline(self) -> str:
        through, n_clear = self.lets_through, len(self.flagged) - len(self.may_be_ordinary)
        return f"{self.detector} lets {len(through)} of {n_clear} clear faults through"

    def drawn(self) -> Markup:
        """Return the table as HTML, for the card of a wrapped model and for a report."""
        view = self._view()
        return table(list(view.table), view.rows())

    def _view(self) -> View:
        said = [
            f"'{fault}' is let through in: {listed(columns, quoted=False)}."
            for fault, columns in self.unseen_columns.items()
            if columns
        ]
        if self.may_be_ordinary:
            ordinary = listed(self.may_be_ordinary)
            said.append(f"{ordinary} may be ordinary: each value by itself is usual.")
        n_flagged = round(self.unchanged * self.n_samples)
        return View(
            f"Self-check on {counted(self.n_samples, self.what)}: {self._headline()}",
            table={
                "fault": list(self.flagged),
                "change": list(self.changes.values()),
                "flagged": [f"{share:.0%}" for share in self.flagged.values()],
                "": [
                    word("may be ordinary", "plain")
                    if fault in self.may_be_ordinary
                    else word("NOT SEEN", "out")
                    if share < _SEEN
                    else word("seen" if share >= _ALL_SEEN else "partly", "in")
                    for fault, share in self.flagged.items()
                ],
            },
            notes=[f"Flagged without a fault: {n_flagged} of {self.n_samples}.", " ".join(said)],
        )


def _usual_ends(values: Array) -> Array:
    """Return the ends of each column without its outliers: one would hide what is in between."""
    return np.asarray(np.quantile(values, (0.01, 0.99), axis=0))


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
        "x 10": ("all values times 10", lambda x, _: x * 10),
        "/ 10": ("all values divided by 10", lambda x, _: x / 10),
        "shifted": (f"{_FAR} standard deviations added", lambda x, _: x + _FAR * x.std(0)),
        "zeros": ("all values 0", lambda x, _: np.zeros_like(x)),
        _SHUFFLED: ("each column shuffled over samples", lambda x, rng: rng.permuted(x, axis=0)),
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


def _numbers(frame: Any) -> Any:
    return frame.select_dtypes("number", exclude="timedelta")


def _of_numbers(make: Make, frame: Any, rng: Generator) -> Any:
    """Make a fault in the number columns of a pandas frame; its words stay."""
    numbers = _numbers(frame)
    values = numbers.to_numpy(np.float64, na_value=np.nan)
    return with_cells(frame, dict(zip(numbers, _changed(make, rng, values).T, strict=True)))


def with_cells(frame: Any, columns: Any) -> Any:
    """Return a pandas frame with some columns replaced, whatever their names are."""
    frame = frame.copy()
    for name in columns:
        frame[name] = columns[name]
    return frame


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
    return with_cells(frame, words)


_UNITS: dict[str, tuple[str, Make]] = {
    "unit x 1000": ("one column of each row times 1000", partial(_one_column, 1000)),
    "unit / 1000": ("one column of each row divided by 1000", partial(_one_column, 1 / 1000)),
}
FAULTS[TABLES] = {
    **{
        fault: (what, partial(_of_numbers, make))
        for fault, (what, make) in {**_UNITS, **FAULTS[NUMBERS]}.items()
        if fault not in ("x 10", "/ 10")
    },
    "missing": ("all numbers missing", partial(_of_numbers, lambda x, _: x * np.nan)),
    "new words": ("one word of each row unknown", new_words),
}


def _changed(make: Make, rng: Generator, values: Any) -> Any:
    """Make a fault; what is missing (NaN) or masked (-inf) among numbers stays so."""
    if not isinstance(values, np.ndarray):
        return make(values, rng)
    return np.where(np.isfinite(values), make(_filled(values), rng), values)


def _filled(values: Array) -> Array:
    """Return values with the mean of their column for those that are missing or masked."""
    finite = np.isfinite(values)
    means = np.where(finite, values, 0).sum(0) / np.maximum(finite.sum(0), 1)
    return np.where(finite, values, means.astype(values.dtype))


def check_faults(
    detector: str,
    kind: str,
    what: str,
    values: dict[str, Any],
    rows: NDArray[np.intp],
    flagged: Callable[[dict[str, Any]], BoolArray],
) -> SelfCheck:
    """Make each fault of a kind of data, in values by name; `flagged` says which rows are flagged.

    If a fault changes nothing, the data was such already, and the fault is left out.
    """
    changes, shares, unseen_columns = {}, {}, {}
    may_be_ordinary = []
    have_columns = all(np.ndim(part) == 2 for part in values.values())
    usual = _matrix(values) if have_columns else np.empty((1, 0))
    ends = _usual_ends(_filled(usual))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is said of faulty data helps nobody
        unchanged = float(flagged(values).mean())  # raises if it cannot run at all
        for fault, (change, make) in FAULTS[kind].items():
            rng = np.random.default_rng(0)
            try:
                faulty = {name: _changed(make, rng, part) for name, part in values.items()}
                if all(_is_same(faulty[name], part) for name, part in values.items()):
                    continue
                seen = flagged(faulty)
            except Exception:  # of any model: the fault does not go unnoticed
                changes[fault], shares[fault] = f"raises an error: {change}", 1.0
                continue
            outside = np.ones((len(rows), 1), np.bool_)
            if have_columns:
                outside = _outside(_matrix(faulty), usual, *ends)[rows]
            clear = outside.any(1)
            # Shuffling: a model that counts words does not see their order.
            if fault != _SHUFFLED and clear.mean() > 0.5:
                seen, outside = seen[clear], outside[clear]
                if kind == TABLES:
                    unseen_columns[fault] = _unseen_columns(values[what], outside, seen)
            elif seen.mean() < _SEEN:
                may_be_ordinary.append(fault)
            changes[fault], shares[fault] = change, float(seen.mean())
    return SelfCheck(
        detector, what, len(rows), changes, shares, unchanged, may_be_ordinary, unseen_columns
    )


def _matrix(values: dict[str, Any]) -> Array:
    """Return all columns as numbers: of words whether they are new."""
    parts = []
    for part in values.values():
        if hasattr(part, "select_dtypes"):
            parts.append(_numbers(part).to_numpy(np.float64, na_value=np.nan))
            part = part.select_dtypes(WORDS).astype(object) == NEW_WORD
        parts.append(part)
    return np.hstack(parts)


def _outside(faulty: Array, usual: Array, low: Array, high: Array) -> BoolArray:
    """Return which values were changed to what is out of their column's range, or missing."""
    finite = np.isfinite(usual)
    outside = finite & (usual != faulty) & ((faulty < low) | (faulty > high))
    return np.asarray(outside | (np.isnan(faulty) & finite.all(0)))


def _unseen_columns(frame: Any, outside: BoolArray, seen: BoolArray) -> list[Any]:
    """Return the columns whose faults are mostly not seen in rows that have no other fault."""
    names = [*_numbers(frame), *frame.select_dtypes(WORDS)]
    alone = outside.sum(1) == 1
    made, found = outside[alone].sum(0), outside[alone & seen].sum(0)
    return [names[place] for place in np.flatnonzero(found < _SEEN * made)]


def _is_same(changed: Any, values: Any) -> bool:
    """Return whether a fault has changed nothing, such as the scale of images from 0 to 1."""
    if isinstance(values, list):
        return bool(changed == values)
    if hasattr(values, "equals"):  # a data frame
        return bool(values.equals(changed))
    return changed.dtype == values.dtype and np.array_equal(changed, values)


def spread_rows(n_rows: int, n_samples: int) -> NDArray[np.intp]:
    """Return evenly spaced rows: at most `n_samples`."""
    checked_whole("n_samples", n_samples, minimum=1)
    return np.linspace(0, n_rows - 1, min(n_rows, n_samples)).astype(np.intp)


def warn_of_blind_spots(check: SelfCheck, *, has_learned: bool) -> None:
    """Warn of clear faults that are let through."""
    if check.lets_through:
        fit = "A detector that has learned from training inputs and labels (fit) sees more. "
        warn(
            f"{check.summary()} {'' if has_learned else fit}If such inputs can come, test for them "
            "before the model. The attribute `checked` has the table.",
            BlindSpotWarning,
        )
