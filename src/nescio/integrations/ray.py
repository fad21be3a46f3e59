"""Verdicts on clusters: batches of Ray Data, Spark or a plain loop, and large files on Ray."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.frames import read_frame
from nescio._io.tables import Columns, matching_names
from nescio._threads import limit_cpus
from nescio._validation import Array
from nescio._version import __version__
from nescio.detectors import Assessment, Detector, as_detector, load
from nescio.detectors.base import require_calibration
from nescio.detectors.verdicts import ScoreBlock, ScoreEngine, VerdictColumns
from nescio.errors import InputError, NescioError, ParameterError, require
from nescio.outputs.files import OutputsStream
from nescio.outputs.outputs import from_content

__all__ = ["Verdicts", "ray_scoring"]

# What a user has set stays. Usage statistics would be sent to Ray's makers.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it, Ray warns of a change to come
}
# A Parquet file is read from the beginning of a row group, which often holds several blocks: the
# more of them one process reads at a time, the less is read twice.
_MOST_BLOCKS = 16
_RUNS_PER_PROCESS = 4


# --- verdicts on batches of a table ---------------------------------------------------------------


class Verdicts:
    """Adds score, p_value and in_distribution to batches of a table; Ray is not needed.

    A detector that was calibrated by label count adds group too. A batch is a data frame of pandas,
    and so is the result, with all columns of the batch.

    Parameters
    ----------
    detector : path or Detector
        The path must be readable where the object is made. With Ray Data, give the class and its
        arguments, and each actor loads the file once: `dataset.map_batches(Verdicts,
        fn_constructor_kwargs={"detector": path}, compute=ActorPoolStrategy(size=4),
        batch_format="pandas")`. An object of this class carries its detector along, to Spark's
        workers for example.
    labels, ignore, id_column : optional
        What the columns are, as for `Outputs.from_frame`. A detector that knows its labels takes
        the columns with these names.
    keep : sequence of str, or str, optional
        The columns of the batch to return, by name or pattern. The default is all.
    from_probs : bool, optional
        Whether the values are probabilities, which are converted to logits. By default, logits are
        expected, and a batch that looks like probabilities or percentages is an error.

    Examples
    --------
    >>> import nescio as ns
    >>> detector = ns.JointEnergy().calibrate(np.random.default_rng(0).normal(-2, 3, (200, 3)))
    >>> import pandas as pd
    >>> batch = pd.DataFrame({"cat": [3.0, -9.0], "dog": [-1.0, -9.0], "cow": [2.0, -8.0]})
    >>> Verdicts(detector)(batch)["in_distribution"].tolist()
    [True, False]
    """

    def __init__(
        self,
        detector: str | Path | Detector,
        *,
        labels: Sequence[str] | str | None = None,
        ignore: Sequence[str] | str = (),
        id_column: str | None = None,
        keep: Sequence[str] | str | None = None,
        from_probs: bool | None = None,
    ) -> None:
        is_path = isinstance(detector, str | Path)
        self.detector = load(detector) if is_path else as_detector(detector)
        require_calibration(self.detector)
        expected = getattr(self.detector, "label_names_", None)
        self.columns = Columns(id_column, labels, ignore, expected=expected)
        self.keep = keep
        self.from_probs = from_probs

    def __call__(self, batch: Any) -> Any:
        """Return the batch with verdicts."""
        if not hasattr(batch, "assign"):
            raise InputError(
                f"a batch must be a data frame of pandas, got a {type(batch).__name__}. With Ray "
                'Data, pass batch_format="pandas" to map_batches.'
            )
        names = {str(name): name for name in batch.columns}
        kept = names if self.keep is None else matching_names(self.keep, tuple(names))
        added = {name: values for name, values in self._verdicts(batch).items() if name != "id"}
        taken = next((name for name in added if name in kept), None)
        if taken is not None:
            raise InputError(
                f"the batch has a column {taken!r} already, which the verdicts have too. Rename "
                "it, or leave it out with keep=..."
            )
        return batch[[names[name] for name in kept]].assign(**added)

    def _verdicts(self, batch: Any) -> dict[str, Array]:
        """Return the columns of the verdicts; those of a batch without rows are empty."""
        if not len(batch):
            groups = None if self.detector.calibration_.by is None else np.empty(0, "U1")
            return Assessment(np.empty(0), np.empty(0), np.empty(0, bool), groups).columns()
        outputs = from_content(read_frame(batch, self.columns), from_probs=bool(self.from_probs))
        asked = None if self.from_probs is None else False
        return self.detector.assess(outputs, from_probs=asked).columns()

    def over(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Give each of several batches with verdicts: the function for Spark's `mapInPandas`."""
        return map(self, batches)


# --- a connection to a cluster, and work in its processes -----------------------------------------


@contextmanager
def connected() -> Iterator[Any]:
    """Give Ray, connected to the cluster at RAY_ADDRESS, or to a new one on this machine.

    A connection that exists already is used and stays open; otherwise it is closed at the end.
    """
    ray = require("ray", "ray")
    if ray.is_initialized():
        yield ray
        return
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    address = os.environ.get("RAY_ADDRESS") or "local"
    # Ray's sockets are in this folder, and their paths are limited to about 100 bytes.
    where = "/tmp" if os.path.isdir("/tmp") else None
    name = f"nescio-ray-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=name, dir=where, ignore_cleanup_errors=True) as folder:
        own = {"include_dashboard": False, "_temp_dir": folder} if address == "local" else {}
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
            yield ray
        except ConnectionError as error:
            raise ParameterError(
                f"there is no Ray cluster at RAY_ADDRESS={address!r}. Correct it, or unset it to "
                "use the processors of this machine."
            ) from error
        finally:
            ray.shutdown()


def count_processors(ray: Any) -> int:
    """Return the number of processors of a cluster."""
    n_cpus = int(ray.cluster_resources().get("CPU", 0))
    if not n_cpus:
        raise ParameterError("the Ray cluster has no processors to work with (CPU).")
    return n_cpus


def map_on_cluster(
    ray: Any, work: Callable[[Any], Any], items: Sequence[Any], n_processes: int
) -> Iterator[Any]:
    """Give what the processes of a cluster, of one processor each, make of each item, in order."""
    task = ray.remote(num_cpus=1)(_work)
    stored = [ray.put(work)]  # once to each node; in a list, or Ray would send it with each item
    waiting: deque[Any] = deque()
    for item in items:
        if len(waiting) >= 2 * n_processes:
            yield _result(ray, waiting.popleft())
        waiting.append(task.remote(stored, __version__, item))
    while waiting:
        yield _result(ray, waiting.popleft())


def _work(stored: list[Any], version: str, item: Any) -> Any:
    """Do the work of one item, in a process of the cluster."""
    return _opened(stored[0], version)(item)


@functools.lru_cache(maxsize=1)
def _opened(stored: Any, version: str) -> Callable[[Any], Any]:
    if version != __version__:
        raise ParameterError(
            f"a node of the cluster has nescio {__version__}, but this command is of nescio "
            f"{version}. Install the same version on all nodes."
        )
    limit_cpus(1)
    work: Callable[[Any], Any] = require("ray", "ray").get(stored)
    return work


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        if isinstance(cause := getattr(error, "cause", None), NescioError):
            raise cause from None
        raise NescioError(
            f"a process of the Ray cluster failed: {str(error).strip().splitlines()[-1]}. Your own "
            "modules must be installed on all nodes, or be on PYTHONPATH before Ray is started."
        ) from error


# --- large files ----------------------------------------------------------------------------------


@contextmanager
def ray_scoring() -> Iterator[ScoreEngine]:
    """Give an `engine` for `score_stream` that scores on a Ray cluster.

    The cluster is the one at the address in the environment variable RAY_ADDRESS, or a temporary
    one on this machine.
    """
    with connected() as ray:
        yield functools.partial(_scored, ray)


def _scored(ray: Any, score: ScoreBlock, stream: OutputsStream) -> Iterator[VerdictColumns]:
    for block in stream.blocks(0, 1):  # here, so that the warnings about the first block are seen
        yield score(block)
    n_processes = count_processors(ray)
    step = max(1, min(_MOST_BLOCKS, stream.n_blocks // (_RUNS_PER_PROCESS * n_processes)))
    runs = [
        (first, min(first + step, stream.n_blocks)) for first in range(1, stream.n_blocks, step)
    ]
    work = functools.partial(_score_run, score, stream)
    for blocks in map_on_cluster(ray, work, runs, n_processes):
        yield from blocks


def _score_run(
    score: ScoreBlock, stream: OutputsStream, run: tuple[int, int]
) -> list[VerdictColumns]:
    return [score(block) for block in stream.blocks(*run)]
