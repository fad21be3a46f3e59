"""The folder of a benchmark: its result lines, and the evidence for them.

    FOLDER/results.jsonl                    all lines
    FOLDER/runs/SET-seed-0.jsonl            the lines of one network
    FOLDER/runs/SET-seed-0.safetensors      its evidence

Each network has separate files, so that several networks can be run in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nescio.benchmark.evidence import Evidence, load_evidence
from nescio.benchmark.results import Line, file_name, lines_hash, read_lines
from nescio.errors import FileError

RESULTS = "results.jsonl"


@dataclass(frozen=True)
class BenchmarkRun:
    """The results of a benchmark.

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
        """Read the folder of a benchmark."""
        folder = Path(folder)
        results = folder / RESULTS
        if not results.is_file():
            raise FileError(
                f"there is no {RESULTS} in {folder}. Name the folder of a benchmark that has been "
                "run, such as nescio-bench/digits."
            )
        return cls(folder, tuple(read_lines(results)))

    def evidence(self) -> list[Evidence]:
        """Return the evidence of each set and seed."""
        runs = dict.fromkeys((line.id, line.seed) for line in self.lines)
        return [self._evidence_of(*run) for run in runs]

    def _evidence_of(self, id_name: str, seed: int) -> Evidence:
        path = run_file(self.folder, id_name, seed, ".safetensors")
        lines = [line for line in self.lines if (line.id, line.seed) == (id_name, seed)]
        try:
            evidence = load_evidence(path)
        except FileError as error:
            raise FileError(f"{error} Run the benchmark again to create it.") from error
        if evidence.of_lines != lines_hash(lines):
            raise FileError(
                f"{path} does not belong to {self.folder / RESULTS}. Run the benchmark again, "
                "until it is complete."
            )
        return evidence


def run_file(folder: Path, id_name: str, seed: int, suffix: str) -> Path:
    """Return the path of the lines (.jsonl) or the evidence (.safetensors) of one network."""
    return folder / "runs" / f"{file_name(id_name)}-seed-{seed}{suffix}"
