"""A folder of results: lines as they get done, and the evidence behind them.

    FOLDER/results.jsonl                    all lines
    FOLDER/runs/SET-seed-0.jsonl            those of one network
    FOLDER/runs/SET-seed-0.safetensors      its evidence

Each network has files of its own, so that several can be run side by side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nescio.benchmark.evidence import Evidence, load_evidence
from nescio.benchmark.results import Line, read_lines
from nescio.errors import FileError

RESULTS = "results.jsonl"


@dataclass(frozen=True)
class BenchmarkRun:
    """What a benchmark found.

    Attributes
    ----------
    folder : Path
    lines : tuple of Line
        By set, then by seed.
    """

    folder: Path
    lines: tuple[Line, ...]

    @classmethod
    def load(cls, folder: str | Path) -> BenchmarkRun:
        """Read the folder of a benchmark that was run."""
        folder = Path(folder)
        results = folder / RESULTS
        if not results.is_file():
            raise FileError(
                f"{folder} holds no {RESULTS}. Name the folder of a benchmark that was run, such "
                "as nescio-bench/digits."
            )
        return cls(folder, tuple(read_lines(results)))

    def evidence(self) -> list[Evidence]:
        """What the lines were computed from, one for each set and seed."""
        runs = dict.fromkeys((line.id, line.seed) for line in self.lines)
        found = []
        for id_name, seed in runs:
            path = run_file(self.folder, id_name, seed, ".safetensors")
            try:
                found.append(load_evidence(path))
            except FileError as error:
                raise FileError(f"{error} Run the benchmark again to make it.") from error
        return found


def run_file(folder: Path, id_name: str, seed: int, suffix: str) -> Path:
    """Where the lines (.jsonl) or the evidence (.safetensors) of one network are."""
    safe = re.sub(r"[^\w.-]", "_", id_name)
    return folder / "runs" / f"{safe}-seed-{seed}{suffix}"
