"""What a report is made from: the results of a benchmark, or outputs that are evaluated now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nescio.benchmark.evidence import Evidence
from nescio.benchmark.folder import BenchmarkRun
from nescio.benchmark.results import Line, comparison_lines, read_lines
from nescio.detectors import Detector
from nescio.errors import InputError
from nescio.metrics.comparison import compare_outputs
from nescio.outputs import Outputs

ReportInputs = tuple[list[Line], list[Evidence]]


def from_results(
    path: Path, image_roots: Mapping[str, Path] | None = None, *, recorded_roots: bool = False
) -> ReportInputs:
    """Read the folder of a benchmark, or a file of result lines, which has no evidence.

    The folder may come from someone else, and it says where its images are. A report that showed
    any picture of this computer could give it away, so recorded folders are used only if they are
    within the folder of the benchmarks, or with `recorded_roots`. `image_roots` names others.
    """
    run = BenchmarkRun.load(path) if path.is_dir() else None
    lines = read_lines(path) if run is None else list(run.lines)
    if not lines:
        raise InputError(f"{path} has no results.")
    if run is None:
        return lines, []
    within = run.folder.resolve().parent
    evidence = []
    for one in run.evidence():
        roots = {
            name: root
            for name, root in one.image_roots.items()
            if recorded_roots or root.resolve().is_relative_to(within)
        }
        own = {one.id_name, *one.ood_outputs}
        named = {name: root for name, root in (image_roots or {}).items() if name in own}
        evidence.append(replace(one, image_roots=roots | named))
    return lines, evidence


def from_outputs(
    name: str,
    id_outputs: Outputs,
    ood_outputs: Mapping[str, Outputs],
    detectors: Mapping[str, Detector],
    *,
    train: Outputs | None,
    held_out: Outputs | None = None,
    image_roots: Mapping[str, Path],  # for each set, the folder in which its ids are image files
    files: Mapping[str, Any],  # where the outputs came from, for the manifest
    on_step: Callable[[int], object],
) -> ReportInputs:
    """Evaluate detectors on the outputs of one network; `name` is that of the ID set."""
    comparison = compare_outputs(
        detectors, id_outputs, ood_outputs, train=train, held_out=held_out, on_step=on_step
    )
    manifest = {"files": files, "id": dict(id_outputs.manifest)}
    lines = comparison_lines(comparison, name, name, 0, manifest)
    return lines, [Evidence(name, 0, id_outputs, ood_outputs, comparison.scores, image_roots)]
