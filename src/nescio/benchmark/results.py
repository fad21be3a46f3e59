"""Result lines: one detector on one OOD set for one seed, as JSON, with a manifest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.files import existing_file, replacing
from nescio._io.toml import from_table
from nescio.errors import FileFormatError
from nescio.metrics import Evaluation
from nescio.metrics.comparison import Comparison

MEASURES = ("fpr", "auroc", "aupr")
"""The measures that the paper reports, in its order; for the first, lower is better."""


@dataclass(frozen=True)
class Line:
    """One result.

    Attributes
    ----------
    spec : str
        The name of the benchmark.
    id, ood : str
        Names of the in-distribution and the out-of-distribution set.
    detector : str
        As the spec names it, such as "top_k_joint_energy(k=5)".
    seed : int
    evaluation : Evaluation or None
        None if the detector could not run.
    skipped : str
        The reason why it could not run.
    manifest : mapping
        What the result was made from: data, network, settings, versions.
    """

    spec: str
    id: str
    ood: str
    detector: str
    seed: int
    evaluation: Evaluation | None
    skipped: str = ""
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the line as plain data, for JSON."""
        head = {name: getattr(self, name) for name in ("spec", "id", "ood", "detector", "seed")}
        if self.evaluation is None:
            found: dict[str, Any] = {"skipped": self.skipped}
        else:
            found = self.evaluation.as_dict()
        return {**head, **found, "manifest": dict(self.manifest)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Line:
        """Return the line that `as_dict` wrote."""
        names = ("spec", "id", "ood", "detector", "seed", "manifest")
        line = from_table(_Head, {name: content[name] for name in names})
        _check_manifest(line.manifest)
        skipped = content.get("skipped", "")
        if not isinstance(skipped, str):
            raise TypeError("skipped must be a text")
        evaluation = None if skipped else Evaluation.from_dict(content)
        return cls(**vars(line), evaluation=evaluation, skipped=skipped)


@dataclass(frozen=True)
class _Head:
    """What every line has, as it is stored."""

    spec: str
    id: str
    ood: str
    detector: str
    seed: int
    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class _Tuned:
    """A tuned setting of a manifest, as the tables read it."""

    method: str
    aggregate: str
    epsilon: float
    temperature: float | None


def _check_manifest(manifest: Mapping[str, Any]) -> None:
    """Raise unless what the tables read from a manifest is of the right type."""
    for name in ("title", "protocol", "model", "model_hash"):
        if not isinstance(manifest.get(name, ""), str):
            raise TypeError(f"{name} must be a text")
    training, tuning = manifest.get("training", {}), manifest.get("tuning") or {}
    for value in (training.get("best", {}) or {}).values():
        if not isinstance(value, int | float):
            raise TypeError("the best epoch must be numbers")
    for one in tuning.get("best", []):
        from_table(_Tuned, {field.name: one[field.name] for field in fields(_Tuned)})


def read_lines(path: str | Path) -> list[Line]:
    """Read the lines of a result file."""
    path = existing_file(path)
    lines = []
    try:
        texts = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{path} is not a results file. For the outputs of a model, use --id and --ood."
        ) from error
    for number, text in enumerate(texts, start=1):
        try:
            lines.append(Line.from_dict(json.loads(text)))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise FileFormatError(
                f"line {number} of {path} is not a result line of nescio bench."
            ) from error
    return lines


def write_lines(path: str | Path, lines: Sequence[Line]) -> None:
    """Write a result file atomically; an existing one is replaced."""
    with replacing(path, force=True) as temporary:
        text = "".join(json.dumps(line.as_dict()) + "\n" for line in lines)
        temporary.write_text(text, "utf-8")


def file_name(name: str) -> str:
    """Return the name of a set in a form that is safe in file names."""
    return re.sub(r"[^\w.-]", "_", name)


def lines_hash(lines: Sequence[Line]) -> str:
    """Return the SHA-256 of lines, to recognise the evidence that belongs to them."""
    text = json.dumps([line.as_dict() for line in lines], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Spread:
    """A measure over seeds; the values are between 0 and 1, its text is in per cent.

    Attributes
    ----------
    mean : float
    deviation : float or None
        The sample standard deviation over seeds; None for one seed.
    n_seeds : int
    """

    mean: float
    deviation: float | None
    n_seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the mean and the sample standard deviation of some values."""
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), deviation, len(values))

    @property
    def printed(self) -> float:
        """The mean in per cent, rounded as printed; equal ones are ranked as equal."""
        return round(100 * self.mean, 2)

    def __str__(self) -> str:
        mean = f"{self.printed:.2f}"
        return mean if self.deviation is None else f"{mean} ± {100 * self.deviation:.2f}"


def comparison_lines(
    comparison: Comparison, spec: str, id_name: str, seed: int, manifest: Mapping[str, Any]
) -> list[Line]:
    """Return one line per OOD set and detector, including detectors that could not run."""
    lines = []
    for ood, results in comparison.results.items():
        lines += [
            Line(spec, id_name, ood, detector, seed, result, manifest=manifest)
            for detector, result in results.items()
        ]
        lines += [
            Line(spec, id_name, ood, detector, seed, None, reason, manifest)
            for detector, reason in comparison.skipped.items()
        ]
    return lines


Summary = dict[tuple[str, str], dict[str, dict[str, Spread]]]


def summarise(lines: Sequence[Line]) -> Summary:
    """Return, for each (ID set, OOD set), the measures of each detector over seeds."""
    values: dict[tuple[str, str], dict[str, list[Evaluation]]] = {}
    for line in lines:
        if line.evaluation is not None:
            by_detector = values.setdefault((line.id, line.ood), {})
            by_detector.setdefault(line.detector, []).append(line.evaluation)
    return {
        pair: {
            detector: {
                name: Spread.of([getattr(one, name).value for one in over_seeds])
                for name in MEASURES
            }
            for detector, over_seeds in by_detector.items()
        }
        for pair, by_detector in values.items()
    }
