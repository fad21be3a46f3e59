"""A monitor on disk: one safetensors file with counts and JSON."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nescio._io.addresses import find_files
from nescio._io.files import check_target
from nescio._io.kinds import FileKind
from nescio._io.toml import from_table
from nescio._validation import Array, checked_choice, checked_whole
from nescio.calibration import Firing
from nescio.errors import FileFormatError, InputError, ParameterError
from nescio.monitor.betting import BETS
from nescio.monitor.change import Change, Place
from nescio.monitor.chart import ControlChart, Window
from nescio.monitor.drift import DriftWatch, LabelDrift
from nescio.monitor.stream import Monitor, Trace

if TYPE_CHECKING:
    from nescio.detectors import Detector

_KIND = FileKind("nescio.monitor", "saved monitor")

_SETTINGS = ("alpha", "window", "seed", "coverage")
_EVIDENCE = ("alarm_at", "log10_martingale", "max_log10_martingale")
_COUNTS = ("n_samples", "flagged", "n_windows", "n_outside", "open_flagged")
_LARGEST_COUNT = 2**40  # far more than any stream has
_OPEN = -1  # the level of the window that is not full yet


def check_state_target(path: Path) -> None:
    """Raise if no state can be written to this path."""
    if path.suffix.lower() != ".safetensors":
        raise ParameterError(f"cannot write {path}: the name must end in .safetensors.")
    check_target(path, force=True)


def resume(
    detector: Detector,
    path: Path | None,
    *,
    alpha: float | None = None,
    window: int | None = None,
    seed: int = 0,
) -> Monitor:
    """Return the monitor saved at `path`, or a new one if there is no such file.

    `alpha` and `window` must match those of the saved monitor, unless they are None.
    """
    given = {"alpha": alpha, "window": window}
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if path is None or not path.exists():
        return Monitor(detector, seed=seed, **settings)
    monitor = load(path, detector)
    for name, value in settings.items():
        if value != getattr(monitor, name):
            raise ParameterError(
                f"{path} was started with --{name} {getattr(monitor, name):g}, which cannot be "
                f"changed to {value:g}. Leave out --{name}, or start a new state file."
            )
    return monitor


def count_once(monitor: Monitor, path: str | Path, *, again: bool = False) -> None:
    """Remember this file as counted; raise if it was the last one, as after a repeated job.

    Several files that are one input count as one file.
    """
    files, digest = find_files(path), hashlib.sha256()
    for one in files.paths:
        with files.open(one) as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
    found = digest.hexdigest()
    if found == monitor.last_file and not again:
        raise InputError(
            f"{path} has the same contents as the file that was counted last. Pass the next file, "
            "or pass --again to count this one once more."
        )
    monitor.last_file = found


def save(monitor: Monitor, path: str | Path, *, force: bool = False) -> None:
    """Write the state of a monitor, atomically; replace an existing file only with `force`."""
    chart = monitor.chart
    tensors: dict[str, Array] = {
        "log_stakes": monitor.martingale.log_stakes,
        "trace": monitor.trace.values,
        "start_gains": monitor.finder.gains,
        "windows": np.array([astuple(window) for window in chart.windows], np.int64).reshape(-1, 5),
    }
    for at, bag in enumerate(monitor.bags.values()):
        tensors[f"counts.{at}"] = bag.counts
    metadata: dict[str, Any] = {
        "fingerprint": monitor.fingerprint,
        "settings": {name: getattr(monitor, name) for name in _SETTINGS},
        "evidence": {name: getattr(monitor, name) for name in _EVIDENCE},
        "chart": {name: getattr(chart, name) for name in (*_COUNTS, "open")},
        "trace_step": monitor.trace.step,
        "generator": monitor.generator.bit_generator.state,
        "last_file": monitor.last_file,
        "change": None if monitor.change is None else monitor.change.as_dict(),
        "starts": [None if one is None else asdict(one) for one in monitor.finder.starts],
        "drift": None,
    }
    if monitor.drift_watch is not None:
        metadata["drift"] = _add_drift(monitor.drift_watch, tensors)
    _KIND.write(path, tensors, metadata, force=force)


def _add_drift(watch: DriftWatch, tensors: dict[str, Array]) -> dict[str, Any]:
    """Add the counts of the labels to the tensors, and return the rest for the JSON."""
    blocks = {_OPEN: watch.open} | watch.waiting
    tensors["drift.counts"] = np.stack([block.counts for block in blocks.values()])
    return {
        "n_tests": watch.n_tests,
        "blocks": [[level, block.n_samples] for level, block in blocks.items()],
        "found": {str(at): drift.as_dict() for at, drift in watch.found.items()},
    }


def load(path: str | Path, detector: Detector) -> Monitor:
    """Read a saved monitor; raise if it was made for another detector."""
    tensors, metadata = _KIND.read(path, copy=True)
    try:
        monitor = Monitor(detector, **{name: metadata["settings"][name] for name in _SETTINGS})
        if metadata["fingerprint"] != monitor.fingerprint:
            raise InputError(
                f"{path} is the state of a monitor for another detector, or for an earlier "
                "calibration of this one. Start a new state file."
            )
    except (KeyError, TypeError, AttributeError, ParameterError) as error:
        raise FileFormatError(f"{path} is damaged: {error}.") from error
    try:
        _restore(monitor, tensors, metadata)
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, IndexError) as error:
        raise FileFormatError(f"{path} is damaged: {error}.") from error
    return monitor


def _restore(monitor: Monitor, tensors: dict[str, Array], metadata: dict[str, Any]) -> None:
    """Set what the file holds; raise if it is not of the type and shape that a monitor has."""
    chart, martingale = monitor.chart, monitor.martingale
    evidence = from_table(_Evidence, metadata["evidence"])
    for name in _EVIDENCE:
        setattr(monitor, name, getattr(evidence, name))
    for name in _COUNTS:
        setattr(chart, name, _count(name, metadata["chart"][name]))
    _restore_open(chart, metadata["chart"]["open"])
    windows = tensors["windows"]
    if windows.dtype != np.int64 or windows.shape[1:] != (5,) or (windows[:, 1] < 1).any():
        raise ValueError("its windows are not counts")
    chart.windows.extend(Window(*row) for row in windows.tolist())
    martingale.n_samples = chart.n_samples
    martingale.log_stakes = _like(martingale.log_stakes, tensors["log_stakes"])
    for at, bag in enumerate(monitor.bags.values()):
        counts = tensors[f"counts.{at}"]
        # Of the same calibration scores, an older nescio counted fewer in some cells.
        if counts.shape != bag.counts.shape or (counts < bag.calibration).any():
            raise InputError(
                "the monitor was saved by an older nescio, which told scores apart that are equal "
                "up to rounding. Start a new state file."
            )
        bag.counts = _like(bag.counts, counts).copy()
    trace = np.asarray(tensors["trace"], np.float64).reshape(-1)
    monitor.trace = Trace(max(1, _count("trace_step", metadata["trace_step"])), trace)
    monitor.generator.bit_generator.state = metadata["generator"]
    monitor.last_file = metadata["last_file"] and str(metadata["last_file"])
    if "start_gains" in tensors:  # nescio 0.1.0 did not look for the start of a change
        monitor.change = _restored_change(metadata["change"])
        monitor.finder.gains = _like(monitor.finder.gains, tensors["start_gains"])
        starts = [None if one is None else from_table(Place, one) for one in metadata["starts"]]
        if len(starts) != len(monitor.finder.starts):
            raise ValueError("its starts of a change are not one per bet")
        monitor.finder.starts = starts
    if monitor.drift_watch is not None:
        _restore_drift(monitor.drift_watch, tensors["drift.counts"], metadata["drift"])


@dataclass(frozen=True)
class _Evidence:
    """The evidence of a change, as it is stored."""

    alarm_at: int | None
    log10_martingale: float
    max_log10_martingale: float


def _count(name: str, value: Any) -> int:
    """Return a number of inputs, windows or tests."""
    if checked_whole(name, value, minimum=0) > _LARGEST_COUNT:
        raise ValueError(f"{name} is too large")
    return int(value)


def _like(ours: Array, stored: Array) -> Array:
    """Return a stored array; raise unless it has the type and the shape of ours."""
    if stored.dtype != ours.dtype or stored.shape != ours.shape:
        raise ValueError(f"an array has shape {stored.shape}, not {ours.shape}, or another type")
    return stored


def _restore_open(chart: ControlChart, stored: dict[str, Any]) -> None:
    if stored.keys() != chart.open.keys():
        raise ValueError("its groups are not those of the detector")
    chart.open = {name: _count("open", stored[name]) for name in chart.open}
    if chart.room < 1:
        raise ValueError("its open window is full")


def _restored_change(stored: dict[str, Any] | None) -> Change | None:
    if stored is None:
        return None
    kind = checked_choice("kind", stored["kind"], tuple(bet.finds for bet in BETS))
    return Change(kind, from_table(Place, stored["since"]))


def _restore_drift(watch: DriftWatch, counts: Array, stored: dict[str, Any]) -> None:
    n_labels = watch.calibration.n_labels
    if counts.shape[1:] != (n_labels,):
        raise ValueError("its counts of labels do not fit the detector")
    rows = zip(stored["blocks"], counts, strict=True)
    blocks = {
        checked_whole("level", level, minimum=_OPEN): Firing.from_arrays(
            row, np.array([_count("block", n)])
        )
        for (level, n), row in rows
    }
    watch.open, watch.waiting = blocks.pop(_OPEN), blocks
    watch.n_tests = _count("n_tests", stored["n_tests"])
    watch.found = {
        checked_whole("label", int(at), minimum=0): from_table(LabelDrift, drift)
        for at, drift in stored["found"].items()
    }
