"""A monitor on disk: one safetensors file with counts and JSON."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nescio._io.files import check_target, find_files
from nescio._io.tensors import FileKind
from nescio._io.toml import from_table
from nescio._validation import Array
from nescio.calibration import Firing
from nescio.errors import FileFormatError, InputError, ParameterError
from nescio.monitor.martingale import Change, Place
from nescio.monitor.monitor import Monitor
from nescio.monitor.windows import LabelDrift, Window

if TYPE_CHECKING:
    from nescio.detectors import Detector

_KIND = FileKind("nescio.monitor", "saved monitor")

_SETTINGS = ("alpha", "window")
_EVIDENCE = ("alarm_at", "log10_martingale", "max_log10_martingale", "last_file")
_CHART = ("n_samples", "flagged", "n_windows", "n_outside", "open_flagged")
_LARGEST = 2**40  # far more than any stream has


@dataclass(frozen=True)
class _State:
    """The JSON part of a state file."""

    fingerprint: str
    alpha: float
    window: int
    alarm_at: int | None
    log10_martingale: float
    max_log10_martingale: float
    last_file: str | None
    n_samples: int
    flagged: int
    n_windows: int
    n_outside: int
    open_flagged: int
    trace_step: int
    generator: Mapping[str, Any]
    change: tuple[Change, ...]  # one, or none
    starts: tuple[Place, ...]
    n_tests: int
    levels: tuple[int, ...]  # of the blocks of windows that wait for another
    block_sizes: tuple[int, ...]  # number of inputs: of the open window, then of these blocks
    drifts: tuple[LabelDrift, ...]

    def __post_init__(self) -> None:
        counts = [*(n for n in vars(self).values() if type(n) is int), *self.block_sizes]
        if not 0 <= min(counts) <= max(counts) <= _LARGEST:
            raise ValueError("a count is out of range")
        if not math.isfinite(self.log10_martingale + self.max_log10_martingale):
            raise ValueError("its evidence is not finite")


def check_state_target(path: Path) -> None:
    """Raise if no state can be written to this path."""
    if path.suffix.lower() != ".safetensors":
        raise ParameterError(f"cannot write {path}: the name must end in .safetensors.")
    check_target(path, force=True)


def resume(
    detector: Detector, path: Path | None, *, alpha: float | None = None, window: int | None = None
) -> Monitor:
    """Return the monitor saved at `path`, or a new one if there is no such file.

    `alpha` and `window` must match those of the saved monitor, unless they are None.
    """
    options = {"alpha": alpha, "window": window}
    settings: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if path is None or not path.exists():
        return Monitor(detector, **settings)
    monitor = load(path, detector)
    for name, value in settings.items():
        if value != getattr(monitor, name):
            raise ParameterError(
                f"{path} was started with --{name} {getattr(monitor, name):g}, which cannot be "
                f"changed to {value:g}. Leave out --{name}, or start a new state file."
            )
    return monitor


def count_once(monitor: Monitor, path: str | Path) -> None:
    """Remember this file as counted; raise if it was the last one, as after a repeated job."""
    files, digest = find_files(path), hashlib.sha256()
    for file in files.paths:
        with files.open(file) as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
    if digest.hexdigest() == monitor.last_file:
        raise InputError(
            f"{path} has the same contents as the file that was counted last. Pass the next file."
        )
    monitor.last_file = digest.hexdigest()


def save(monitor: Monitor, path: str | Path, *, force: bool = False) -> None:
    """Write the state of a monitor, atomically; replace an existing file only with `force`."""
    chart, watch = monitor.chart, monitor.drift_watch
    tensors: dict[str, Array] = {
        "log_stakes": monitor.martingale.log_stakes,
        "trace": monitor.trace.values,
        "start_gains": monitor.finder.gains,
        "windows": np.array([astuple(window) for window in chart.windows], np.int64).reshape(-1, 5),
        "open": chart.open,
    }
    for group, bag in enumerate(monitor.bags):
        tensors[f"counts.{group}"] = bag.counts
    blocks = [] if watch is None else [watch.open, *watch.waiting.values()]
    if blocks:
        tensors["drift.counts"] = np.stack([block.counts for block in blocks])
    state = _State(
        **{name: getattr(monitor, name) for name in ("fingerprint", *_SETTINGS, *_EVIDENCE)},
        **{name: getattr(chart, name) for name in _CHART},
        trace_step=monitor.trace.step,
        generator=monitor.generator.bit_generator.state,
        change=() if monitor.change is None else (monitor.change,),
        starts=tuple(monitor.finder.starts),
        n_tests=0 if watch is None else watch.n_tests,
        levels=() if watch is None else tuple(watch.waiting),
        block_sizes=tuple(block.n_samples for block in blocks),
        drifts=() if watch is None else tuple(watch.drifts.values()),
    )
    _KIND.write(path, tensors, asdict(state), force=force)


def load(path: str | Path, detector: Detector) -> Monitor:
    """Read a saved monitor; raise if it was made for another detector."""
    tensors, metadata = _KIND.read(path, copy=True)
    try:
        state = from_table(_State, {field.name: metadata[field.name] for field in fields(_State)})
        monitor = Monitor(detector, **{name: getattr(state, name) for name in _SETTINGS})
        is_ours = state.fingerprint == monitor.fingerprint
        if is_ours:
            _restore(monitor, tensors, state)
            monitor.report().as_dict()  # reads everything once
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise FileFormatError(f"{path} is damaged: {error}.") from error
    if not is_ours:
        raise InputError(
            f"{path} is the state of a monitor for another detector, or for an earlier "
            "calibration of this one. Start a new state file."
        )
    return monitor


def _restore(monitor: Monitor, tensors: Mapping[str, Array], state: _State) -> None:
    """Set what the file holds; raise if an array does not have the type and shape of ours."""
    chart, martingale, finder = monitor.chart, monitor.martingale, monitor.finder

    def stored(name: str, like: Array, *, any_length: bool = False) -> Array:
        array, first = tensors[name], 1 if any_length else 0
        if array.dtype != like.dtype or array.shape[first:] != like.shape[first:]:
            raise ValueError(f"{name} has shape {array.shape}, not {like.shape}, or another type")
        return array.copy()  # a file is read-only

    for name in _EVIDENCE:
        setattr(monitor, name, getattr(state, name))
    for name in _CHART:
        setattr(chart, name, getattr(state, name))
    chart.open = stored("open", chart.open)
    if chart.open.min() < 0 or chart.room < 1:
        raise ValueError("its open window is not valid")
    rows = stored("windows", np.empty((0, 5), np.int64), any_length=True)
    chart.windows.extend(Window(*row) for row in rows.tolist())
    martingale.n_samples = chart.n_samples
    martingale.log_stakes = stored("log_stakes", martingale.log_stakes)
    for group, bag in enumerate(monitor.bags):
        bag.counts = stored(f"counts.{group}", bag.counts)
    monitor.trace.step = max(1, state.trace_step)
    monitor.trace.values = stored("trace", np.empty(0), any_length=True)
    monitor.generator.bit_generator.state = state.generator
    monitor.change = state.change[0] if state.change else None
    finder.gains = stored("start_gains", finder.gains)
    finder.starts = list(state.starts)
    watch = monitor.drift_watch
    if watch is not None:
        counts = stored("drift.counts", watch.open.counts[None], any_length=True)
        sizes = np.array(state.block_sizes)[:, None]
        watch.open, *waiting = map(Firing.from_arrays, counts, sizes)
        watch.waiting = dict(zip(state.levels, waiting, strict=True))
        watch.n_tests = state.n_tests
        watch.drifts = {drift.label: drift for drift in state.drifts}
