"""The demo: train a network, calibrate a detector, give verdicts and write a report.

A network is trained on scenes of the digits 0 to 6. A detector is calibrated for it as a user would
do it, on validation scenes only. It judges scenes of unseen digits, patches of photographs and
noise, beside other detectors (the benchmark `digits-quick`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nescio._io.files import check_target
from nescio.detectors import Combined, Detector, JointEnergy, MaxLogit
from nescio.detectors.combined import Default, default_detector
from nescio.detectors.registry import parse_detector
from nescio.errors import FileError
from nescio.lab.benchmark.results import BenchmarkRun, Evidence
from nescio.lab.benchmark.run import Watch, make_pipelines, run_benchmark, unwatched
from nescio.lab.benchmark.spec import BenchmarkSpec, load_spec
from nescio.lab.benchmark.tables import Table, fpr_table, mean_fprs
from nescio.lab.report import write_report
from nescio.lab.report.verdicts import Chosen, Promise
from nescio.metrics.comparison import Spread
from nescio.outputs import Outputs

REPORT = "report.html"
DETECTOR = "digits.nescio"
TRAIN = "train.safetensors"
HELD_OUT = "val.safetensors"
TEST = "test.safetensors"
UNSEEN = "unseen-digits.safetensors"


@dataclass(frozen=True)
class Demo:
    """The result of `run_demo`."""

    folder: Path
    run: BenchmarkRun
    detector: Detector  # calibrated on validation scenes of the first network
    sentences: tuple[str, ...]  # what was done and found
    shown: tuple[str, ...]  # the detectors of the table and of the report
    table: Table  # their FPR on every OOD set


def run_demo(
    folder: str | Path,
    *,
    seeds: int = 1,
    device: torch.device | str = "cpu",
    force: bool = False,
    watch: Watch = unwatched,
) -> Demo:
    """Run the demo; write the report, the calibrated detector and outputs to try it on.

    `seeds` is the number of networks. With `force`, the files of an earlier demo are replaced; its
    networks and outputs are used again.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is not a folder.")
    spec = load_spec("digits-quick").with_data(folder / "data")
    spec = replace(spec, seeds=tuple(range(seeds)))
    folder.mkdir(parents=True, exist_ok=True)
    for name in (REPORT, DETECTOR, TRAIN, HELD_OUT, TEST, UNSEEN):
        check_target(folder / name, force=force)
    run = run_benchmark(spec, folder, device=device, watch=watch)
    chosen = _calibrated(spec, folder, device, watch, force=force)
    with watch("writing the report", 0):
        evidence = run.evidence()
        demo = _described(folder, run, chosen, evidence[0])
        _write(demo, evidence, spec.title, force=force)
    return demo


def _calibrated(
    spec: BenchmarkSpec, folder: Path, device: torch.device | str, watch: Watch, *, force: bool
) -> Default:
    """Return a detector for the first network, calibrated on validation; write its data."""
    first = make_pipelines(spec, folder, device=device, watch=watch)[0]
    network, _ = first.network()
    train, val = (
        Outputs.load(first.outputs(network, split)) for split in (first.data.train, first.data.val)
    )
    chosen = default_detector(train, val)
    chosen.detector.fit(train, from_probs=False).calibrate(val, from_probs=False)
    train.save(folder / TRAIN, force=force)
    val.save(folder / HELD_OUT, force=force)
    return chosen


def _described(folder: Path, run: BenchmarkRun, chosen: Default, first: Evidence) -> Demo:
    """Return the results in numbers and words."""
    detector = chosen.detector
    own = detector.text(defaults=False)
    fprs = mean_fprs(run.lines)
    best = next(name for name in fprs if parse_detector(name)[0] != Combined.name)
    names = {own, JointEnergy.name, MaxLogit.name, best}
    shown = tuple(name for name in fprs if name in names)
    shares = ", ".join(
        f"{100 * (detector.predict(outputs) == -1).mean():.1f} % of {ood}"
        for ood, outputs in first.ood_outputs.items()
    )
    through = ", ".join(
        f"{name} lets through {100 * fprs[name]:.2f} %"
        for name in dict.fromkeys((own, JointEnergy.name, best))
    )
    facts = run.lines[0].manifest
    oods = [f"{len(outputs):,} of {ood}" for ood, outputs in first.ood_outputs.items()]
    promise = Promise.of(detector, detector.assess(first.id_outputs, from_probs=False))
    sentences = (
        f"The model ({facts['model']}) was trained on {facts['data']['train']['n_images']:,} scenes"
        f" to say which of these a scene shows: {', '.join(first.id_outputs.label_names or ())}.",
        f"It was shown {len(first.id_outputs):,} new scenes of these, and scenes that show none of "
        f"them: {', '.join(oods)}.",
        chosen.reason,
        f"{detector.name}, calibrated on validation scenes, flags {100 * promise.share:.1f} % of "
        f"the new scenes, and {shares}. This is {promise.compared()}.",
        f"On average over these sets, {through} (FPR95). {best} is the best single detector in "
        "hindsight: by these very numbers, which nobody knows before.",
    )
    return Demo(folder, run, detector, sentences, shown, _table(run, shown))


def _table(run: BenchmarkRun, shown: Sequence[str]) -> Table:
    best = {line.seed: line.manifest["training"]["best"]["val_map"] for line in run.lines}
    over = f"mean ± standard deviation over {len(best)} seeds" if len(best) > 1 else "one seed"
    note = f"Validation mAP: {Spread.of(list(best.values()))}."
    if len(best) == 1:
        note = f"Another network has other numbers: --seeds 3 shows how much they differ. {note}"
    return fpr_table(
        run.lines,
        shown,
        f"FPR95 ↓, per cent, {over}: let through if 95 % of new scenes of known digits are kept",
        notes=[note],
    )


def _write(demo: Demo, evidence: Sequence[Evidence], title: str, *, force: bool) -> None:
    """Write the files. The report is about the detectors of the table."""
    lines = [line for line in demo.run.lines if line.detector in demo.shown]
    evidence = [
        replace(run, scores={name: run.scores[name] for name in run.scores if name in demo.shown})
        for run in evidence
    ]
    context, origin = demo.sentences[:2], demo.sentences[2:3]
    files = {"files": {"detector": DETECTOR, "id": TEST}}
    chosen = Chosen(demo.detector.text(defaults=False), demo.detector, context, origin, files)
    write_report(demo.folder / REPORT, lines, evidence, title=title, chosen=chosen, force=force)
    demo.detector.save(demo.folder / DETECTOR, force=force)
    evidence[0].id_outputs.save(demo.folder / TEST, force=force)
    evidence[0].ood_outputs["unseen digits"].save(demo.folder / UNSEEN, force=force)
