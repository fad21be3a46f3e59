"""The demo: run the benchmark `digits`, calibrate a detector and write a report.

Three networks are trained on scenes of the digits 0 to 6. Every detector is run on scenes of unseen
digits, patches of photographs and noise. Then a detector is calibrated for the first network, as a
user would do it, on validation scenes only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nescio._io.files import check_target
from nescio.benchmark.folder import BenchmarkRun
from nescio.benchmark.pipeline import make_pipelines
from nescio.benchmark.progress import Watch, unwatched
from nescio.benchmark.run import CACHE, run_benchmark
from nescio.benchmark.spec import BenchmarkSpec, load_spec
from nescio.detectors import Detector, JointEnergy
from nescio.errors import FileError
from nescio.outputs import Outputs
from nescio.report import write_report

REPORT = "report.html"
DETECTOR = "digits.nescio"
TEST = "test.safetensors"
UNSEEN = "unseen-digits.safetensors"
_UNSEEN_SET = "unseen digits"


@dataclass(frozen=True)
class Demo:
    """The result of `run_demo`, with the outputs of the first network on two sets of scenes."""

    folder: Path
    run: BenchmarkRun
    detector: Detector  # joint energy, calibrated on validation scenes of the first network
    test: Outputs  # scenes of known digits
    unseen: Outputs  # scenes of unseen digits


def run_demo(
    folder: str | Path,
    *,
    seeds: int = 3,
    device: torch.device | str = "cpu",
    force: bool = False,
    watch: Watch = unwatched,
) -> Demo:
    """Run the demo; write the report, the calibrated detector and outputs to try it on.

    Everything goes into the folder, including the scenes and the networks, of which there are
    `seeds`. `force` replaces the files of an earlier demo; its networks and outputs are used again.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is not a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for name in (REPORT, DETECTOR, TEST, UNSEEN):
        check_target(folder / name, force=force)
    spec = replace(load_spec("digits"), seeds=tuple(range(seeds))).with_data(folder / "data")
    run = run_benchmark(spec, folder, device=device, watch=watch)
    evidence = run.evidence()
    detector = JointEnergy().calibrate(_validation_outputs(spec, folder, device, watch))
    write_report(folder / REPORT, run.lines, evidence, title=spec.title, force=force)
    detector.save(folder / DETECTOR, force=force)
    first = evidence[0]
    test, unseen = first.id_outputs, first.ood_outputs[_UNSEEN_SET]
    test.save(folder / TEST, force=force)
    unseen.save(folder / UNSEEN, force=force)
    return Demo(folder, run, detector, test, unseen)


def _validation_outputs(
    spec: BenchmarkSpec, folder: Path, device: torch.device | str, watch: Watch
) -> Outputs:
    """Return the outputs of the first network on the validation scenes."""
    first = make_pipelines(spec, folder / CACHE, device=device, watch=watch)[0]
    network, _ = first.network()
    return Outputs.load(first.outputs(network, first.data.val, None))
