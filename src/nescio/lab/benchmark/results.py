"""The results of a benchmark: lines of JSON, and the scores and outputs behind them.

    FOLDER/results.jsonl                    all lines
    FOLDER/runs/SET-seed-0.jsonl            the lines of one network
    FOLDER/runs/SET-seed-0.safetensors      its evidence

A line is one detector on one OOD set for one seed, with a manifest. Each network has separate
files, so that several commands can run networks at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from nescio._io.files import existing_file, write_text
from nescio._io.tensors import FileKind
from nescio._validation import checked_whole, from_table
from nescio.errors import FileError, FileFormatError, ParameterError
from nescio.metrics import Evaluation
from nescio.metrics.comparison import Comparison, Scored, Spread
from nescio.outputs import Outputs

MEASURES = ("fpr", "auroc", "aupr")
"""The measures that the paper reports, in its order; for the first, lower is better."""


@dataclass(frozen=True)
class Line:
    """The result of one detector on one OOD set, for one seed."""

    spec: str  # the name of the benchmark
    id: str  # the in-distribution set
    ood: str
    detector: str  # as the spec names it, such as "top_k_joint_energy(k=5)"
    seed: int
    evaluation: Evaluation | None  # None if the detector could not run
    skipped: str = ""  # the reason why it could not run
    manifest: Mapping[str, Any] = field(default_factory=dict)  # data, network, settings, versions

    def as_dict(self) -> dict[str, Any]:
        """Return the line as plain data, for JSON."""
        head = {name: getattr(self, name) for name in ("spec", "id", "ood", "detector", "seed")}
        evaluation = self.evaluation
        outcome = {"skipped": self.skipped} if evaluation is None else evaluation.as_dict()
        mark = {"rehearsal": True} if "rehearsal" in self.manifest else {}
        return {**head, **mark, **outcome, "manifest": dict(self.manifest)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Line:
        """Return the line that `as_dict` wrote."""
        _check_manifest(content["manifest"])
        head = {name: content[name] for name in ("spec", "id", "ood", "detector", "seed")}
        skipped = str(content.get("skipped", ""))
        evaluation = None
        if not skipped:
            names = [field.name for field in fields(Evaluation)]
            evaluation = from_table(Evaluation, {name: content[name] for name in names})
            checked_whole("n_id", evaluation.n_id, minimum=1)
            checked_whole("n_ood", evaluation.n_ood, minimum=1)
        manifest = dict(content["manifest"])
        return from_table(cls, head, evaluation=evaluation, skipped=skipped, manifest=manifest)


def _check_manifest(manifest: Mapping[str, Any]) -> None:
    """Raise unless what the tables read from a manifest has the right types."""
    for name in ("title", "protocol", "model", "model_hash"):
        if not isinstance(manifest.get(name, ""), str):
            raise TypeError(f"{name} must be a text")
    best = manifest.get("training", {}).get("best") or {}
    if not all(isinstance(value, int | float) for value in best.values()):
        raise TypeError("the best epoch must be numbers")
    for setting in (manifest.get("tuning") or {}).get("best", []):
        if not isinstance(setting["method"] + setting["aggregate"], str):
            raise TypeError("method and aggregate must be texts")
        float(setting["epsilon"]), float(setting["temperature"] or 1)


def read_lines(path: str | Path, *, rehearsal: bool = False) -> list[Line]:
    """Read the lines of a result file; those of a rehearsal are no results, and rejected."""
    lines = []
    for number, text in enumerate(existing_file(path).read_bytes().splitlines(), start=1):
        try:
            lines.append(Line.from_dict(json.loads(text)))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise FileFormatError(
                f"line {number} of {path} is not a result line of nescio bench. To report on your "
                "own outputs, pass them with --id and --ood."
            ) from error
    if not rehearsal and any("rehearsal" in line.manifest for line in lines):
        raise ParameterError(
            f"{path} is a rehearsal: its numbers are no results. Run nescio bench without --limit."
        )
    return lines


def write_lines(path: str | Path, lines: Sequence[Line]) -> None:
    """Write a result file atomically; an existing one is replaced."""
    write_text(path, "".join(json.dumps(line.as_dict()) + "\n" for line in lines), force=True)


def file_name(name: str) -> str:
    """Return the name of a set in a form that is safe in file names."""
    return re.sub(r"[^\w.-]", "_", name)


def lines_hash(lines: Sequence[Line]) -> str:
    """Return the SHA-256 of lines, to recognise the evidence that belongs to them."""
    text = json.dumps([line.as_dict() for line in lines], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def comparison_lines(
    comparison: Comparison, spec: str, id_name: str, seed: int, manifest: Mapping[str, Any]
) -> list[Line]:
    """Return one line per OOD set and detector, including detectors that could not run."""
    reasons = comparison.skipped
    return [
        Line(spec, id_name, ood, name, seed, results.get(name), reasons.get(name, ""), manifest)
        for ood, results in comparison.results.items()
        for name in (*results, *reasons)
    ]


def summarise(lines: Sequence[Line]) -> dict[tuple[str, str], dict[str, dict[str, Spread]]]:
    """Return, for each (ID set, OOD set), the measures of each detector over seeds."""
    values: dict[tuple[str, str], dict[str, list[Evaluation]]] = {}
    for line in lines:
        if line.evaluation is not None:
            by_detector = values.setdefault((line.id, line.ood), {})
            by_detector.setdefault(line.detector, []).append(line.evaluation)
    return {
        pair: {
            detector: {
                name: Spread.of([getattr(evaluation, name).value for evaluation in over_seeds])
                for name in MEASURES
            }
            for detector, over_seeds in by_detector.items()
        }
        for pair, by_detector in values.items()
    }


_KIND = FileKind("nescio.evidence", "file of a benchmark's scores")


@dataclass(frozen=True)
class Evidence:
    """The scores of every detector, and the outputs that they were computed from."""

    id_name: str
    seed: int
    id_outputs: Outputs  # on test data
    ood_outputs: Mapping[str, Outputs]  # by OOD set
    scores: Mapping[str, Scored]  # by detector
    image_roots: Mapping[str, Path] = field(default_factory=dict)  # what the ids are relative to
    of_lines: str = ""  # a hash of the lines made from the scores; empty if none are on disk
    val: Outputs | None = None  # on validation data; of a benchmark only

    @property
    def labelled(self) -> Outputs:
        """ID outputs with true labels if there are any: on test data, or else validation data."""
        has_labels = self.id_outputs.labels is not None
        return self.id_outputs if has_labels or self.val is None else self.val


def save_evidence(
    path: str | Path, evidence: Evidence, outputs_paths: Mapping[str, Path], val_path: Path
) -> None:
    """Write the scores to one file, with the paths of the outputs of all sets."""
    folder = Path(path).parent
    tensors = {}
    for detector, scored in enumerate(evidence.scores.values()):
        tensors[f"{detector}.id"] = scored.id_scores
        for number, ood in enumerate(evidence.ood_outputs):
            tensors[f"{detector}.{number}"] = scored.ood_scores[ood]
    metadata = {
        "id": evidence.id_name,
        "seed": evidence.seed,
        "ood": list(evidence.ood_outputs),
        "detectors": list(evidence.scores),
        "of_lines": evidence.of_lines,
        # Relative, so that a folder of results can be moved.
        "outputs": {name: os.path.relpath(file, folder) for name, file in outputs_paths.items()},
        "val": os.path.relpath(val_path, folder),
        "image_roots": {name: str(root.resolve()) for name, root in evidence.image_roots.items()},
    }
    _KIND.write(path, tensors, metadata, force=True)


def load_evidence(path: str | Path) -> Evidence:
    """Read a file that `save_evidence` wrote, and the outputs that it refers to."""
    tensors, metadata = _KIND.read(path)
    folder = Path(path).parent
    try:
        id_name, oods = metadata["id"], list(metadata["ood"])
        paths = {name: folder / metadata["outputs"][name] for name in (id_name, *oods)}
        scores = {
            name: Scored(
                tensors[f"{detector}.id"],
                {ood: tensors[f"{detector}.{number}"] for number, ood in enumerate(oods)},
            )
            for detector, name in enumerate(metadata["detectors"])
        }
        outputs = {name: Outputs.load(file) for name, file in paths.items()}
        return Evidence(
            id_name=id_name,
            seed=metadata["seed"],
            id_outputs=outputs.pop(id_name),
            ood_outputs=outputs,
            scores=scores,
            image_roots={name: Path(root) for name, root in metadata["image_roots"].items()},
            of_lines=metadata["of_lines"],
            val=Outputs.load(folder / metadata["val"]),
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error


RESULTS = "results.jsonl"


@dataclass(frozen=True)
class BenchmarkRun:
    """The results of a benchmark."""

    folder: Path
    lines: tuple[Line, ...]  # by set, then by seed
    left_out: tuple[str, ...] = ()  # sentences on images that could not be used

    @classmethod
    def load(cls, folder: str | Path) -> BenchmarkRun:
        """Read the folder of a benchmark."""
        folder = Path(folder)
        results = folder / RESULTS
        if not results.is_file():
            raise FileError(
                f"there is no {RESULTS} in {folder}. Name the folder of a finished benchmark."
            )
        return cls(folder, tuple(read_lines(results)))

    def evidence(self) -> list[Evidence]:
        """Return the evidence of each set and seed."""
        evidence = []
        for run in dict.fromkeys((line.id, line.seed) for line in self.lines):
            path = lines_file(self.folder, *run).with_suffix(".safetensors")
            try:
                evidence.append(load_evidence(path))
            except FileError as error:
                raise FileError(f"{error} Run the benchmark again to create it.") from error
            lines = [line for line in self.lines if (line.id, line.seed) == run]
            if evidence[-1].of_lines != lines_hash(lines):
                raise FileError(
                    f"{path} does not belong to {self.folder / RESULTS}. Run the benchmark again, "
                    "until it is complete."
                )
        return evidence


def lines_file(folder: Path, id_name: str, seed: int) -> Path:
    """Return the file of the lines of one network; its evidence is beside it (.safetensors)."""
    return folder / "runs" / f"{file_name(id_name)}-seed-{seed}.jsonl"
