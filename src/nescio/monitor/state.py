"""A monitor on disk: one safetensors file of counts and JSON."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nescio._io.kinds import FileKind
from nescio._validation import Array, checked_whole
from nescio.calibration import Firing
from nescio.errors import FileFormatError, InputError
from nescio.monitor.chart import Window
from nescio.monitor.labels import LabelDrift, LabelWatch
from nescio.monitor.references import fingerprint
from nescio.monitor.stream import Monitor
from nescio.monitor.trace import Trace

if TYPE_CHECKING:
    from nescio.detectors import Detector

_KIND = FileKind("nescio.monitor", "saved monitor")

_SETTINGS = ("alpha", "window", "seed", "coverage")
_EVIDENCE = ("alarm_at", "log10_martingale", "max_log10_martingale")
_OPEN = -1  # the level of the window that is not full
_COUNTS = ("n_samples", "flagged", "n_windows", "n_outside", "open_flagged")


def save(monitor: Monitor, path: str | Path, *, force: bool = False) -> None:
    """Write the state of a monitor, atomically; an existing file only with `force`."""
    chart = monitor.chart
    tensors: dict[str, Array] = {
        "log_stakes": monitor.martingale.log_stakes,
        "trace": monitor.trace.values,
        "windows": np.array([astuple(window) for window in chart.windows], np.int64).reshape(-1, 5),
    }
    for at, bag in enumerate(monitor.bags.values()):
        tensors[f"counts.{at}"] = bag.counts
    groups = monitor.references.by_group.items()
    metadata: dict[str, Any] = {
        "fingerprint": monitor.fingerprint,
        "grouped": monitor.references.grouped,
        "groups": [[name, len(reference.scores), reference.rank] for name, reference in groups],
        "settings": {name: getattr(monitor, name) for name in _SETTINGS},
        "evidence": {name: getattr(monitor, name) for name in _EVIDENCE},
        "chart": {name: getattr(chart, name) for name in (*_COUNTS, "open")},
        "trace_step": monitor.trace.step,
        "generator": monitor.generator.bit_generator.state,
        "labels": None,
        "last_file": monitor.last_file,
    }
    if monitor.labels is not None:
        metadata["labels"] = _add_labels(monitor.labels, tensors)
    _KIND.write_with_checksum(path, tensors, metadata, force=force)


def _add_labels(watch: LabelWatch, tensors: dict[str, Array]) -> dict[str, Any]:
    """What the JSON keeps of the labels; their counts are added to the tensors."""
    blocks = {_OPEN: watch.open} | watch.waiting
    tensors["labels.counts"] = np.stack([block.counts for block in blocks.values()])
    return {
        "n_tests": watch.n_tests,
        "blocks": [[level, block.n_samples] for level, block in blocks.items()],
        "found": {str(at): drift.as_dict() for at, drift in watch.found.items()},
    }


def load(path: str | Path, detector: Detector | None) -> Monitor:
    """The monitor that was saved; raises if it was made for another detector."""
    tensors, metadata = _KIND.read(path, checksum=True)
    try:
        monitor = _new(path, metadata, detector)
        _restore(monitor, tensors, metadata)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileFormatError(f"{path} is damaged: {error}.") from error
    return monitor


def _new(path: str | Path, metadata: dict[str, Any], detector: Detector | None) -> Monitor:
    """A monitor with nothing in it, for what the file was made for."""
    settings = {name: metadata["settings"][name] for name in _SETTINGS}
    stored = metadata["fingerprint"]
    if detector is None:
        if stored:
            raise InputError(f"{path} is the state of a detector's monitor: pass the detector too.")
        groups = metadata["groups"]
        sizes, ranks = ({group[0]: group[at] for group in groups} for at in (1, 2))
        if not metadata["grouped"]:
            [[_, size, rank]] = groups
            return Monitor.from_p_values(size, rank=rank, **settings)
        return Monitor.from_p_values(sizes, rank=ranks, **settings)
    monitor = Monitor.for_detector(detector, **settings)
    if stored != fingerprint(detector):
        raise InputError(
            f"{path} is the state of a monitor for another detector, or for another calibration of "
            "this one. Start a new one."
        )
    return monitor


def _restore(monitor: Monitor, tensors: dict[str, Array], metadata: dict[str, Any]) -> None:
    chart, martingale = monitor.chart, monitor.martingale
    for name in _EVIDENCE:
        setattr(monitor, name, metadata["evidence"][name])
    for name in _COUNTS:
        setattr(chart, name, checked_whole(name, metadata["chart"][name], minimum=0))
    for name in chart.open:
        chart.open[name] = checked_whole("open", metadata["chart"]["open"][name], minimum=0)
    windows = np.asarray(tensors["windows"], np.int64).reshape(-1, 5)
    chart.windows.extend(Window(*row) for row in windows.tolist())
    martingale.n_samples = chart.n_samples
    martingale.log_stakes = _like(tensors["log_stakes"], martingale.log_stakes)
    for at, bag in enumerate(monitor.bags.values()):
        bag.counts = _like(tensors[f"counts.{at}"], bag.counts)
    monitor.trace = Trace(metadata["trace_step"], np.array(tensors["trace"], np.float64))
    monitor.generator.bit_generator.state = metadata["generator"]
    monitor.last_file = metadata.get("last_file")  # older states do not have it
    labels = metadata["labels"]
    if (monitor.labels is None) != (labels is None):
        raise ValueError("its labels do not fit the detector")
    if monitor.labels is not None:
        _restore_labels(monitor.labels, tensors["labels.counts"], labels)


def _restore_labels(watch: LabelWatch, counts: Array, labels: dict[str, Any]) -> None:
    usual = watch.calibration.counts
    blocks = {
        checked_whole("level", level, minimum=_OPEN): Firing(
            _like(row, usual), checked_whole("n_samples", n, minimum=0)
        )
        for (level, n), row in zip(labels["blocks"], counts, strict=True)
    }
    watch.open, watch.waiting = blocks.pop(_OPEN), blocks
    watch.n_tests = checked_whole("n_tests", labels["n_tests"], minimum=0)
    watch.found = {int(at): LabelDrift(**drift) for at, drift in labels["found"].items()}


def _like(stored: Array, expected: Array) -> Array:
    """A copy of a stored array, which must be as the one that is there already."""
    if stored.shape != expected.shape or stored.dtype != expected.dtype:
        raise ValueError("its counts do not fit the calibration")
    return stored.copy()
