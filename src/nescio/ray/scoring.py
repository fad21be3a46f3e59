"""Scoring of large files on a Ray cluster: actors read and score runs of blocks.

The nodes must be able to read the files, except those that are read as a whole (.csv, .npy, .npz).
The detector travels through Ray's object store, and so do the verdicts, in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from nescio._io.tables import require
from nescio.detectors.streaming import Columns, ScoreBlock, ScoreEngine, as_columns
from nescio.outputs.streams import OutputsStream
from nescio.ray.cluster import Worker, connected, map_in_actors, resources

# A Parquet file is read from the beginning of a row group, which often holds several blocks: the
# more of them one actor reads at a time, the less is read twice.
_MOST_BLOCKS = 16
_RUNS_PER_ACTOR = 4


@contextmanager
def ray_scoring() -> Iterator[ScoreEngine]:
    """Give an `engine` for `score_stream` that scores on a Ray cluster.

    The cluster is the one at the address in the environment variable RAY_ADDRESS, or a temporary
    one on this machine.
    """
    with connected() as ray:
        yield partial(_scored, ray)


def _scored(ray: Any, score: ScoreBlock, stream: OutputsStream, first: int) -> Iterator[Columns]:
    pyarrow = require("pyarrow", "parquet")
    for block in stream.blocks(stream.n_blocks - 1):  # raises if the rows are doubtful
        del block
    if not first:  # here, so that the warnings about the first block are seen
        [block] = stream.some(0, 1)
        yield score(block)
        first = 1
    size = resources(ray, gpus=False)
    share = (stream.n_blocks - first) // (_RUNS_PER_ACTOR * size.n_actors)
    step = max(1, min(_MOST_BLOCKS, share))
    runs = [
        {"first": at, "stop": min(at + step, stream.n_blocks)}
        for at in range(first, stream.n_blocks, step)
    ]
    job = (score, stream)
    for data in map_in_actors(ray, _RunWorker, job, runs, size, in_order=True):
        table = pyarrow.ipc.open_stream(data).read_all()
        for start in range(0, len(table), stream.block_rows):
            yield as_columns(table.slice(start, stream.block_rows))


class _RunWorker(Worker):
    """Scores one run of blocks per call."""

    def open(self, job: tuple[ScoreBlock, OutputsStream]) -> None:
        self._score, self._stream = job

    def run(self, item: dict[str, int]) -> bytes:
        pyarrow = require("pyarrow", "parquet")
        blocks = self._stream.some(item["first"], item["stop"])
        tables = [pyarrow.table(self._score(block)) for block in blocks]
        # A column of text that is empty in a whole block has no type there.
        table = pyarrow.concat_tables(tables, promote_options="default")
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data: bytes = sink.getvalue().to_pybytes()
        return data
