"""Verdicts from a file, and what they tell of a calibration that is not at hand."""

from __future__ import annotations

import csv
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._io.files import existing_file
from nescio._io.tables import WRITABLE, read_parquet
from nescio._validation import BoolArray
from nescio.detectors.assessment import Assessment
from nescio.errors import FileFormatError, InputError, ParameterError

Floats = NDArray[np.float64]

_LARGEST = 10_000_000  # calibration sets; the fractions of larger ones run into each other
_TIES_ALLOWED = 0.01
_TRUTH = {"True": True, "False": False, "true": True, "false": False, "1": True, "0": False}


def read_scored(path: str | Path) -> Assessment:
    """What `Assessment.save` or `nescio score -o` wrote: .parquet, .csv or .jsonl.

    Only the column p_value must be there; a score that is missing is NaN, and an input without a
    verdict counts as in-distribution.
    """
    path = existing_file(path)
    suffix = path.suffix.lower()
    if suffix not in WRITABLE:
        raise ParameterError(f"cannot read {path}: the name must end in {', '.join(WRITABLE)}.")
    columns: dict[str, Any] = (
        dict(read_parquet(path)) if suffix == ".parquet" else _read_text(path, suffix)
    )
    if "p_value" not in columns:
        raise FileFormatError(
            f"{path} has no column p_value; it has {list(columns)}. 'nescio score -o' writes one."
        )
    p_values = _numbers(path, "p_value", columns["p_value"])
    if not len(p_values):
        raise InputError(f"{path} has no rows.")
    missing = np.full(len(p_values), np.nan)
    inside = columns.get("in_distribution", [True] * len(p_values))
    names = {
        name: None if name not in columns else np.array([str(item) for item in columns[name]])
        for name in ("group", "id")
    }
    return Assessment(
        _numbers(path, "score", columns["score"]) if "score" in columns else missing,
        p_values,
        np.array([_truth(path, item) for item in np.asarray(inside).tolist()], np.bool_),
        names["group"],
        names["id"],
    )


def _read_text(path: Path, suffix: str) -> dict[str, list[Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            if suffix == ".csv":
                rows: list[dict[str, Any]] = list(csv.DictReader(stream))
            else:
                rows = [json.loads(line) for line in stream if line.strip()]
        names = list(rows[0]) if rows else ["p_value"]
        if any(row.keys() != rows[0].keys() or None in row for row in rows):
            raise ValueError("its rows differ in their columns")
    except (ValueError, AttributeError, TypeError, RecursionError, csv.Error) as error:
        raise FileFormatError(f"cannot read {path} as {suffix[1:]}: {error}.") from error
    return {name: [row[name] for row in rows] for name in names}


def _numbers(path: Path, name: str, column: Any) -> Floats:
    # JSON has no infinity: a score of -inf, of a row with NaN in it, was written as null.
    empty = -math.inf if name == "score" else math.nan
    try:
        values = [empty if item is None else float(item) for item in np.asarray(column).tolist()]
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"column {name!r} of {path} must hold numbers: {error}.") from error
    return np.array(values, np.float64)


def _truth(path: Path, item: Any) -> bool:
    if isinstance(item, bool):
        return item
    if str(item) not in _TRUTH:
        raise FileFormatError(
            f"column 'in_distribution' of {path} must hold True or False, got {str(item)[:40]!r}."
        )
    return _TRUTH[str(item)]


def infer_calibration(scored: Assessment) -> tuple[Any, Any]:
    """How many calibration scores there were, and the rank of tau, from p-values and verdicts.

    By group, if the verdicts are, as two dicts.
    """
    scores = scored.scores[np.isfinite(scored.scores)]
    tied = len(scores) - len(np.unique(scores))
    if tied > _TIES_ALLOWED * len(scored):
        raise InputError(
            f"{tied:,} of {len(scored):,} scores equal another. p-values alone do not tell what "
            "ties with a calibration score: pass the detector (--detector)."
        )
    if scored.groups is None:
        return _size_and_rank(scored.p_values, scored.in_distribution)
    found = {}
    for name in np.unique(scored.groups).tolist():
        rows = scored.groups == name
        found[name] = _size_and_rank(scored.p_values[rows], scored.in_distribution[rows])
    return {name: n for name, (n, _) in found.items()}, {name: r for name, (_, r) in found.items()}


def infer_size(p_values: Floats) -> int:
    """How many calibration scores p-values come from: the fewest that make them all fractions.

    Examples
    --------
    >>> infer_size(np.array([0.25, 0.2, 1.0]))
    19
    """
    values = np.unique(p_values)
    if not ((values > 0) & (values <= 1)).all():
        raise InputError("p-values must lie above 0, and not above 1.")
    whole = 1
    while True:
        rest = np.abs(values * whole - np.rint(values * whole)) > 1e-6
        if not rest.any():
            return max(whole - 1, 1)
        fraction = Fraction(float(values[rest][0])).limit_denominator(_LARGEST)
        whole = math.lcm(whole, fraction.denominator)
        if whole > _LARGEST:
            raise InputError(
                "these are not p-values of one calibration: there is no n for which all of them "
                "are (1 + k) / (n + 1). Were they rounded? Pass the detector (--detector)."
            )


def _size_and_rank(p_values: Floats, inside: BoolArray) -> tuple[int, int]:
    n = infer_size(p_values)
    below = np.rint(p_values * (n + 1)).astype(np.int64) - 1
    # Flagged is what has fewer than `rank` calibration scores at or below.
    least = int(np.max(below[~inside], initial=0)) + 1
    most = max(1, int(np.min(below[inside], initial=n)))
    if least > most:
        raise InputError(
            "some flagged inputs have a larger p-value than some that are not: these verdicts are "
            "not by a threshold (were they made with --fdr?). Pass the detector (--detector)."
        )
    return n, (least + most) // 2
