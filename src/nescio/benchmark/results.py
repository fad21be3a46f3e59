"""Result lines: one detector against one OOD set for one seed, as JSON, with a manifest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.files import existing_file, replacing
from nescio.errors import FileFormatError
from nescio.metrics import Evaluation
from nescio.metrics.comparison import Comparison

MEASURES = ("fpr", "auroc", "aupr")
"""What the paper reports, in its order; of the first, less is better."""


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
        With the parameters that were set, as in "top_k_joint_energy(k=5)".
    seed : int
    evaluation : Evaluation or None
        None if the detector could not run.
    skipped : str
        Why it could not.
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
        """Plain data, for JSON."""
        head = {name: getattr(self, name) for name in ("spec", "id", "ood", "detector", "seed")}
        if self.evaluation is None:
            found: dict[str, Any] = {"skipped": self.skipped}
        else:
            found = self.evaluation.as_dict()
        return {**head, **found, "manifest": dict(self.manifest)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Line:
        """What `as_dict` gave."""
        head = {name: content[name] for name in ("spec", "id", "ood", "detector", "seed")}
        skipped = content.get("skipped", "")
        evaluation = None if skipped else Evaluation.from_dict(content)
        return cls(**head, evaluation=evaluation, skipped=skipped, manifest=content["manifest"])


def read_lines(path: str | Path) -> list[Line]:
    """The lines of a result file."""
    path = existing_file(path)
    lines = []
    try:
        texts = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{path} is not a file of results. For a model's outputs, use --id and --ood."
        ) from error
    for number, text in enumerate(texts, start=1):
        try:
            lines.append(Line.from_dict(json.loads(text)))
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"line {number} of {path} is not a result that nescio bench has written."
            ) from error
    return lines


def write_lines(path: str | Path, lines: Sequence[Line]) -> None:
    """Write a result file whole, in place of one that may be there."""
    with replacing(path, force=True) as temporary:
        text = "".join(json.dumps(line.as_dict()) + "\n" for line in lines)
        temporary.write_text(text, "utf-8")


def file_name(name: str) -> str:
    """A set's name as part of a file's."""
    return re.sub(r"[^\w.-]", "_", name)


def lines_hash(lines: Sequence[Line]) -> str:
    """SHA-256 of lines, to tell whether something belongs to them."""
    text = json.dumps([line.as_dict() for line in lines], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Spread:
    """A measure over seeds, as shares; as text, per cent.

    Attributes
    ----------
    mean : float
    deviation : float or None
        The standard deviation over seeds; None for one seed.
    n_seeds : int
    """

    mean: float
    deviation: float | None
    n_seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The mean and the sample standard deviation."""
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), deviation, len(values))

    @property
    def printed(self) -> float:
        """The mean in per cent as it is printed: what looks alike is not ranked."""
        return round(100 * self.mean, 2)

    def __str__(self) -> str:
        mean = f"{self.printed:.2f}"
        return mean if self.deviation is None else f"{mean} ± {100 * self.deviation:.2f}"


def comparison_lines(
    comparison: Comparison, spec: str, id_name: str, seed: int, manifest: Mapping[str, Any]
) -> list[Line]:
    """A line for each OOD set and detector, those that could not run among them."""
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
    """For each (ID set, OOD set), each detector's measures over seeds, in order of appearance."""
    values: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = {}
    for line in lines:
        if line.evaluation is None:
            continue
        by_detector = values.setdefault((line.id, line.ood), {})
        measures = by_detector.setdefault(line.detector, {name: [] for name in MEASURES})
        for name, over_seeds in measures.items():
            over_seeds.append(getattr(line.evaluation, name).value)
    return {
        pair: {
            detector: {name: Spread.of(over_seeds) for name, over_seeds in measures.items()}
            for detector, measures in by_detector.items()
        }
        for pair, by_detector in values.items()
    }
