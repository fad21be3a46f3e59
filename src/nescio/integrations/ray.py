"""Verdicts on clusters: batches of Ray Data and Spark, and large files on Ray.

`Verdicts` adds verdicts to batches of a table, for Ray Data, Spark or a plain loop; it does not
need Ray. `ray_scoring` scores large files on a Ray cluster. The rest connects to a cluster and runs
work in its actors, also for `nescio.lab.extraction.on_ray`.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nescio import errors
from nescio._io.columns import Columns as TableColumns, matching_names
from nescio._optional import require
from nescio._threads import limit_cpus
from nescio._validation import Array
from nescio._version import __version__
from nescio.calibration import CUSTOM
from nescio.detectors import Assessment, Detector, NotCalibratedError, load
from nescio.detectors.streaming import Columns, ScoreBlock, ScoreEngine, as_columns
from nescio.errors import InputError, NescioError, ParameterError
from nescio.outputs.outputs import from_content
from nescio.outputs.reading import OutputsStream

__all__ = ["Verdicts", "ray_scoring"]

# What a user has set stays. Usage statistics would be sent to Ray's makers.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # errors are raised in Python too
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it, Ray warns of a change to come
}
# A Parquet file is read from the beginning of a row group, which often holds several blocks: the
# more of them one actor reads at a time, the less is read twice.
_MOST_BLOCKS = 16
_RUNS_PER_ACTOR = 4


# --- verdicts on batches of a table ---------------------------------------------------------------


class Verdicts:
    """Adds score, p_value and in_distribution to batches of a table.

    A detector that was calibrated by label count adds group too. A batch is a data frame of pandas,
    a table of pyarrow or a mapping of names to arrays, and the result is of the same kind, with all
    columns of the batch. Ray is not needed.

    Parameters
    ----------
    detector : path or Detector
        The path must be readable where the object is made. With Ray Data, give the class and its
        arguments, and each actor loads the file once: `dataset.map_batches(Verdicts,
        fn_constructor_kwargs={"detector": path}, compute=ActorPoolStrategy(size=4))`. An object of
        this class carries its detector along, to Spark's workers for example.
    labels, ignore, id_column : optional
        What the columns are, as for `Outputs.from_frame`. A detector that knows its labels takes
        the columns with these names.
    keep : sequence of str, or str, optional
        The columns of the batch to return, by name or pattern. The default is all.
    nonfinite : {"raise", "out"}, optional
        Rows with NaN or infinity raise an error, or count as out. The default is the detector's.
    from_probs : bool, optional
        Whether the values are probabilities, which are converted to logits. By default, logits are
        expected, and a batch that looks like probabilities or percentages is an error.

    Examples
    --------
    >>> import nescio as ns
    >>> detector = ns.JointEnergy().calibrate(np.random.default_rng(0).normal(-2, 3, (200, 4)))
    >>> batch = {"id": np.array([7, 8]), "logits": np.array([[3.0, -1, 2, -4], [-9, -9, -8, -9]])}
    >>> list(Verdicts(detector)(batch))
    ['id', 'logits', 'score', 'p_value', 'in_distribution']
    >>> Verdicts(detector)(batch)["in_distribution"]
    array([ True, False])
    """

    def __init__(
        self,
        detector: str | Path | Detector,
        *,
        labels: Sequence[str] | str | None = None,
        ignore: Sequence[str] | str = (),
        id_column: str | None = None,
        keep: Sequence[str] | str | None = None,
        nonfinite: str | None = None,
        from_probs: bool | None = None,
    ) -> None:
        if not isinstance(detector, str | Path | Detector):
            raise InputError(
                "detector must be the path of a saved detector, or a detector; got a "
                f"{type(detector).__name__}."
            )
        self.detector = detector if isinstance(detector, Detector) else load(detector)
        calibration = getattr(self.detector, "calibration_", None)
        if calibration is None:
            raise NotCalibratedError(
                f"{self.detector.name} is not calibrated, so it has no threshold: call "
                "calibrate(held_out) first."
            )
        if calibration.by == CUSTOM:
            raise InputError(
                "the detector was calibrated by your own groups, which Verdicts does not know. Use "
                "detector.assess(..., groups=...)."
            )
        if nonfinite is not None:  # the caller's own detector stays as it is
            self.detector = copy(self.detector).set_params(nonfinite=nonfinite)
        expected = getattr(self.detector, "label_names_", None)
        self.columns = TableColumns(id_column, labels, ignore, expected=expected)
        self.keep = keep
        self.from_probs = from_probs

    def __call__(self, batch: Any) -> Any:
        """Return the batch with verdicts."""
        if isinstance(batch, Mapping):
            names, n_rows = tuple(batch), len(next(iter(batch.values()), ()))
        else:
            columns = batch.column_names if hasattr(batch, "column_names") else batch.columns
            names, n_rows = tuple(map(str, columns)), len(batch)
        if n_rows:
            outputs = from_content(
                self.columns.read_frame(_frame(batch)), from_probs=bool(self.from_probs)
            )
            asked = None if self.from_probs is None else False
            assessment = self.detector.assess(outputs, from_probs=asked)
        else:
            groups = None if self.detector.calibration_.by is None else np.empty(0, "U1")
            assessment = Assessment(np.empty(0), np.empty(0), np.empty(0, bool), groups)
        added = {name: column for name, column in assessment.columns().items() if name != "id"}
        kept = names if self.keep is None else matching_names(self.keep, names, "keep")
        taken = next((name for name in added if name in kept), None)
        if taken is not None:
            raise InputError(
                f"the batch has a column {taken!r} already, which the verdicts have too. Rename "
                "it, or leave it out with keep=..."
            )
        return _with_columns(batch, kept, added)

    def over(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Give each of several batches with verdicts: the function for Spark's `mapInPandas`."""
        return map(self, batches)


def _frame(batch: Any) -> Any:
    """Return a batch for the reader of data frames; images in it are left out."""
    if isinstance(batch, Mapping):
        return _from_arrays(batch)
    return _with_lists(batch) if hasattr(batch, "column_names") else batch


def _from_arrays(batch: Mapping[str, Any]) -> Any:
    """Return a mapping of names to arrays, as Ray Data's batches are, as a table of pyarrow."""
    pyarrow = require("pyarrow", "files")
    columns = {}
    for name, column in batch.items():
        array = np.asarray(column)
        try:
            if array.ndim == 2:
                flat = pyarrow.array(array.reshape(-1))
                columns[name] = pyarrow.FixedSizeListArray.from_arrays(flat, array.shape[1])
            elif array.ndim < 2:
                columns[name] = pyarrow.array(array)
        except pyarrow.ArrowException:  # Python objects, which are no labels
            continue
    try:
        return pyarrow.table(columns)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"the columns of the batch are not a table: {error}") from error


def _with_lists(table: Any) -> Any:
    """Return a table of pyarrow with vectors as lists, as Ray stores matrices, and no images."""
    pyarrow = require("pyarrow", "files")
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if not isinstance(kind, pyarrow.BaseExtensionType):
            columns[name] = column
        elif len(getattr(kind, "shape", None) or ()) == 1:
            chunks = [chunk.storage for chunk in column.chunks]
            columns[name] = pyarrow.chunked_array(chunks, kind.storage_type)
    return pyarrow.table(columns)


def _with_columns(batch: Any, kept: Sequence[str], added: Mapping[str, Array]) -> Any:
    if isinstance(batch, Mapping):
        return {**{name: batch[name] for name in kept}, **added}
    if hasattr(batch, "column_names"):
        pyarrow = require("pyarrow", "files")
        result = batch.select(list(kept))
        for name, column in added.items():
            values = pyarrow.array(column, pyarrow.string() if column.dtype.kind == "U" else None)
            result = result.append_column(name, values)
        return result
    names = {str(name): name for name in batch.columns}
    plain = {n: c.astype(object) if c.dtype.kind == "U" else c for n, c in added.items()}
    return batch[[names[name] for name in kept]].assign(**plain)


# --- a connection to a cluster, and work in its actors --------------------------------------------


class Resources(NamedTuple):
    """What the actors of a pool take."""

    n_actors: int
    num_cpus: int  # per actor
    num_gpus: int  # per actor


@contextmanager
def connected() -> Iterator[Any]:
    """Give Ray, connected to the cluster at RAY_ADDRESS, or to a new one on this machine.

    A connection that exists already is used and stays open.
    """
    ray = require("ray", "ray")
    require("ray.data", "ray")
    with _quiet(ray):
        if ray.is_initialized():
            yield ray
            return
        with _started(ray):
            yield ray


@contextmanager
def _started(ray: Any) -> Iterator[None]:
    """Connect, and disconnect at the end; what was started here is stopped and removed."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = os.environ.get("RAY_ADDRESS")
    folder = None
    try:
        if address:
            with _silent():
                ray.init(address, **quiet)
        else:
            # Ray's sockets are in this folder, and their paths are limited to about 100 bytes.
            where = "/tmp" if os.path.isdir("/tmp") else None
            folder = tempfile.mkdtemp(prefix=f"nescio-ray-{os.getpid()}-", dir=where)
            with _silent():
                ray.init("local", include_dashboard=False, _temp_dir=folder, **quiet)
        yield
    except ConnectionError as error:
        raise ParameterError(
            f"there is no Ray cluster at RAY_ADDRESS={address!r}. Correct it, or unset it to use "
            "the processors of this machine."
        ) from error
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep what Ray's own library writes to standard error away from the user: it says its level.

    Failures are exceptions.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


@contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """Keep Ray Data's progress bars and notes off the terminal."""
    context = ray.data.DataContext.get_current()
    shown = context.enable_progress_bars
    loggers = [logging.getLogger(name) for name in ("ray", "ray.data")]
    levels = [logger.level for logger in loggers]
    try:
        context.enable_progress_bars = False
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        context.enable_progress_bars = shown
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def resources(ray: Any, *, gpus: bool) -> Resources:
    """Return one actor per GPU if they are wanted and there are any, else one per processor."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    with_gpus = [node for node in alive if node.get("GPU", 0) >= 1] if gpus else []
    if with_gpus:
        n_gpus = sum(int(node["GPU"]) for node in with_gpus)
        # The processors of each node are divided among its GPUs: they read the images.
        num_cpus = min(int(node.get("CPU", 0) // node["GPU"]) for node in with_gpus)
        return Resources(n_gpus, num_cpus, 1)
    n_cpus = sum(int(node.get("CPU", 0)) for node in alive)
    if not n_cpus:
        raise ParameterError("the Ray cluster has no processors to work with (CPU).")
    return Resources(n_cpus, 1, 0)


class Worker(ABC):
    """What an actor does: it opens a job once, and then makes bytes from each item.

    An error of nescio is a row of the result: Ray would log an exception, and repeat its traceback.
    """

    def __init__(self, job: Any, version: str, n_cpus: int) -> None:
        limit_cpus(n_cpus)
        self._problem: NescioError | None = None
        try:
            if version != __version__:
                raise ParameterError(
                    f"a node of the cluster has nescio {__version__}, but this command is of "
                    f"nescio {version}. Install the same version on all nodes."
                )
            self.open(_received(job))
        except NescioError as error:
            self._problem = error

    @abstractmethod
    def open(self, job: Any) -> None:
        """Prepare the work that `job` describes."""

    @abstractmethod
    def run(self, item: dict[str, int]) -> bytes:
        """Return the result of one item."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Do the work of one item, which is the only row of the batch."""
        data, error = b"", None
        try:
            if self._problem is not None:
                raise self._problem
            data = self.run({name: int(column[0]) for name, column in batch.items()})
        except NescioError as raised:
            error = raised
        return {
            # A tensor and not a column of bytes, which may not be larger than 2 GB.
            "data": np.frombuffer(data or b"\0", np.uint8)[None],
            "error": [type(error).__name__ if error else ""],
            "message": [str(error) if error else ""],
        }


def _received(job: Any) -> Any:
    """Return what an actor is told; raise if this node lacks a module that it refers to."""
    ray = require("ray", "ray")
    try:
        return ray.get(job)
    except ray.exceptions.RayError as error:
        raise ParameterError(
            f"a node of the cluster cannot begin: {_last_line(error)}. Install your own modules on "
            "all nodes, or put their folder on PYTHONPATH before Ray is started."
        ) from error


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


def map_in_actors(
    ray: Any,
    worker: type[Worker],
    job: Any,
    items: Sequence[Mapping[str, int]],
    size: Resources,
    *,
    in_order: bool = False,
) -> Iterator[bytes]:
    """Give what a pool of actors makes from each item.

    The job travels through Ray's object store, once to each node. Ray starts lost actors again, on
    another node if need be, and repeats what they had not done.
    """
    if not items:
        return
    arguments = {"job": ray.put(job), "version": __version__, "n_cpus": max(1, size.num_cpus)}
    # Blocks in the object store, not a data source: reading would wait for the processors that the
    # actors hold. Beyond some thousand blocks, Ray's own work per block is felt.
    dataset = ray.data.from_items(list(items), override_num_blocks=min(len(items), 10_000))
    dataset.context.execution_options.preserve_order = in_order
    made = dataset.map_batches(
        worker,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(len(items), size.n_actors)),
        num_cpus=size.num_cpus,
        num_gpus=size.num_gpus or None,
        fn_constructor_kwargs=arguments,
    )
    try:
        for row in made.iter_rows():
            if row["error"]:
                raise getattr(errors, row["error"], NescioError)(row["message"])
            yield np.asarray(row["data"], np.uint8).tobytes()
    except ray.exceptions.RayError as error:
        raise NescioError(f"Ray gave up, because an actor failed: {_last_line(error)}") from error


# --- large files --------------------------------------------------------------------------------


@contextmanager
def ray_scoring() -> Iterator[ScoreEngine]:
    """Give an `engine` for `score_stream` that scores on a Ray cluster.

    The cluster is the one at the address in the environment variable RAY_ADDRESS, or a temporary
    one on this machine.
    """
    with connected() as ray:
        yield partial(_scored, ray)


def _scored(ray: Any, score: ScoreBlock, stream: OutputsStream) -> Iterator[Columns]:
    pyarrow = require("pyarrow", "files")
    for block in stream.blocks(0, 1):  # here, so that the warnings about the first block are seen
        yield score(block)
    size = resources(ray, gpus=False)
    step = max(1, min(_MOST_BLOCKS, stream.n_blocks // (_RUNS_PER_ACTOR * size.n_actors)))
    runs = [
        {"first": first, "stop": min(first + step, stream.n_blocks)}
        for first in range(1, stream.n_blocks, step)
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
        pyarrow = require("pyarrow", "files")
        blocks = self._stream.blocks(item["first"], item["stop"])
        tables = [pyarrow.table(self._score(block)) for block in blocks]
        # A column of text that is empty in a whole block has no type there.
        table = pyarrow.concat_tables(tables, promote_options="default")
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data: bytes = sink.getvalue().to_pybytes()
        return data
