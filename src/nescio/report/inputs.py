"""What a report is made from: the results of a benchmark, or outputs that are evaluated now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nescio.benchmark.evidence import Evidence
from nescio.benchmark.folder import BenchmarkRun
from nescio.benchmark.results import Line, comparison_lines, read_lines
from nescio.detectors import Detector
from nescio.errors import InputError
from nescio.metrics.comparison import compare
from nescio.outputs import Outputs

ReportInputs = tuple[list[Line], list[Evidence]]


def from_results(path: Path) -> ReportInputs:
    """Read the folder of a benchmark, or a file of result lines, which has no evidence."""
    run = BenchmarkRun.load(path) if path.is_dir() else None
    lines = read_lines(path) if run is None else list(run.lines)
    if not lines:
        raise InputError(f"{path} has no results.")
    return lines, [] if run is None else run.evidence()


def from_outputs(
    name: str,
    id_outputs: Outputs,
    ood_outputs: Mapping[str, Outputs],
    detectors: Mapping[str, Detector],
    *,
    train: Outputs | None = None,
    image_roots: Mapping[str, Path] | None = None,
    files: Mapping[str, Any] | None = None,
    on_step: Callable[[int], object] = lambda _: None,
) -> ReportInputs:
    """Evaluate detectors on the outputs of one network.

    Parameters
    ----------
    name : str
        Name of the ID set.
    id_outputs, train : Outputs
        In-distribution test outputs, and training outputs for the detectors that learn.
    ood_outputs : mapping of str to Outputs
    detectors : mapping of str to Detector
    image_roots : mapping of str to Path
        For each set, the folder in which its ids are image files.
    files : mapping
        Where the outputs came from, for the manifest.
    on_step : callable
        Is called with the number of finished steps, of which there is one per detector and OOD set.
    """
    comparison = compare(
        dict(detectors), id_outputs, dict(ood_outputs), train=train, on_step=on_step
    )
    manifest = {"files": files or {}, "id": dict(id_outputs.manifest)}
    lines = comparison_lines(comparison, name, name, 0, manifest)
    roots = image_roots or {}
    return lines, [Evidence(name, 0, id_outputs, ood_outputs, comparison.scores, roots)]
