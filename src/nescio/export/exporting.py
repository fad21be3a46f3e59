"""One ONNX file with the classifier and the detector, checked before it gets its name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nescio._io.files import check_target, replacing
from nescio._io.tables import require
from nescio._validation import Array, to_numpy
from nescio._version import __version__
from nescio.data.preprocessing import PREPROCESSING_KEY, Preprocessing
from nescio.detectors import Detector, load
from nescio.errors import ExportError, InputError, MissingInputError, ParameterError, ShapeError
from nescio.export.classifiers import Classifier, check_kind, classifier_graph, fixed_batch_of
from nescio.export.fused import DetectorHead
from nescio.export.graphs import at_opset, detector_graph, join, to_bytes
from nescio.export.parity import Differences, check_parity, run_graph, session_of
from nescio.export.probes import probes_of
from nescio.export.samples import (
    Feed,
    Samples,
    check_images,
    given_samples,
    random_samples,
)
from nescio.outputs import Outputs
from nescio.runners import Wrapped, wrap
from nescio.runners.onnx_models import LABEL_NAMES_KEY
from nescio.scores import label_prob, logits_from_probs

__all__ = ["Exported", "export_onnx", "run_samples", "sample_inputs"]

_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Exported:
    """What `export_onnx` wrote.

    Attributes
    ----------
    path : Path
    inputs : dict of str to tuple
        The shape of each input; a name stands for a size that may change.
    outputs : tuple of str
    opset : int
    n_samples : int
        How many samples the graph was checked on.
    differences : Differences
        The largest between the graph and Python on these.
    fixed_batch : int or None
        The only batch size that it takes, as the classifier's file had it; None for any.
    """

    path: Path
    inputs: dict[str, tuple[int | str, ...]]
    outputs: tuple[str, ...]
    opset: int
    n_samples: int
    differences: Differences
    fixed_batch: int | None = None


def export_onnx(
    model: Any,
    path: str | Path,
    *,
    detector: Detector | str | Path | None = None,
    samples: Any = None,
    input_shape: Sequence[int] | None = None,
    preprocessing: Preprocessing | None = None,
    opset: int | None = None,
    tolerance: float = 1e-4,
    force: bool = False,
) -> Exported:
    """Write a classifier and its detector as one ONNX graph.

    The graph gives logits, probs, score, p_value and in_distribution, and features if the detector
    reads any. Before the file gets its name, onnxruntime runs it on samples, and what it gives is
    compared with Python.

    Parameters
    ----------
    model : wrapped model, anything that `nescio.wrap` takes, or None
        None writes a graph of the detector alone, from logits or features to the verdict.
    path : path
    detector : Detector or path, optional
        Calibrated; the wrapped model's own if not given.
    samples : optional
        Inputs to check the graph on, as the wrapped model takes them. If there is no model:
        `Outputs`, or an array of what the detector reads. Random ones if not given.
    input_shape : sequence of int, optional
        The shape of one input, for random samples of a torch module.
    preprocessing : Preprocessing, optional
        What is done to images before; kept in the file for a service to read. Only for a model
        with one input, of images of that size.
    opset : int, optional
        At least 18. That of an ONNX file, or 18, if not given.
    tolerance : float
        The largest difference to Python, relative to the value if that is above 1.
    force : bool
        Replace an existing file.

    Raises
    ------
    ExportError
        If the model or the detector cannot be exported, or if the graph gives something else than
        Python does. No file is written then.
    """
    for package in ("onnx", "onnxruntime", "onnxscript"):
        require(package, "export")
    check_target(path, force=force)
    if not 0 < tolerance < 1:
        raise ParameterError(f"tolerance must lie between 0 and 1, got {tolerance!r}.")
    wrapped = model if model is None or isinstance(model, Wrapped) else wrap(model)
    detector = load(detector) if isinstance(detector, str | Path) else detector
    own = None if wrapped is None else wrapped.detector
    detector = own if detector is None else detector
    if detector is None:
        raise ParameterError("there is no detector to export: pass detector=..., calibrated.")
    head = DetectorHead(detector, from_probs=wrapped is not None and wrapped.from_probs)
    if wrapped is None:
        if preprocessing is not None:
            raise ParameterError("a detector alone takes no images: leave preprocessing out.")
        plan = _detector_alone(detector, head, samples, opset)
    else:
        check_kind(wrapped)
        wrapped = wrapped.with_detector(detector)
        inputs = sample_inputs(wrapped, samples, input_shape)
        if preprocessing is not None:
            check_images(wrapped, preprocessing, inputs)
        expected = run_samples(wrapped, inputs, input_shape if samples is None else None)
        plan = _fused(wrapped, head, (inputs, expected), opset, tolerance)
    with replacing(path, force=force) as temporary:
        temporary.write_bytes(to_bytes(plan.model, _metadata(detector, plan, preprocessing)))
        session = session_of(temporary)
        parts = [
            check_parity(
                run_graph(session, feed, plan.fixed_batch),
                expected,
                detector,
                tolerance,
                from_probs=head.from_probs,
            )
            for feed, expected in plan.checks
        ]
    return Exported(
        Path(path),
        {node.name: tuple(node.shape) for node in session.get_inputs()},
        tuple(node.name for node in session.get_outputs()),
        plan.model.opset_imports[""],
        sum(len(expected) for _, expected in plan.checks),
        Differences.largest(parts),
        plan.fixed_batch,
    )


@dataclass(frozen=True)
class _Plan:
    """A graph that is not written yet, and what to check it with."""

    model: Any  # onnx_ir.Model
    checks: list[tuple[Feed, Outputs]]  # what it takes, and what it must make of it
    label_names: tuple[str, ...] | None
    fixed_batch: int | None = None


def _detector_alone(
    detector: Detector, head: DetectorHead, samples: Any, opset: int | None
) -> _Plan:
    given = _given_outputs(samples, head)
    widths = {head.reads: head.n_columns}
    if "logits" in head.needs:
        widths["logits"] = _n_labels(detector, head, given)
    model = detector_graph(
        head, {name: torch.zeros(1, widths[name]) for name in head.needs}, alone=True
    )
    at_opset(model, opset, what="the detector")
    feed = probes_of(detector, {name: (widths[name], np.float32) for name in head.needs})
    if given is not None:
        feed = {
            name: np.concatenate([probes, np.asarray(given.get(name), np.float32)])
            for name, probes in feed.items()
        }
    return _Plan(model, [(feed, _expected(feed))], detector.label_names_)


def _given_outputs(samples: Any, head: DetectorHead) -> Outputs | None:
    """Samples of a detector alone."""
    if samples is None:
        return None
    whole = isinstance(samples, Outputs)
    outputs: Outputs = samples if whole else _expected({head.reads: to_numpy(samples)})
    for name in head.needs:
        if outputs.get(name) is None:
            raise MissingInputError(f"the detector reads {name}, which the samples lack.")
    _check_columns(head, outputs)
    return outputs


def _n_labels(detector: Detector, head: DetectorHead, given: Outputs | None) -> int:
    """How many logits the graph takes."""
    if head.reads == "logits":
        return head.n_columns
    if given is not None:
        return given.n_labels
    if detector.label_names_ is not None:
        return len(detector.label_names_)
    raise ExportError(
        f"{detector.name} was calibrated by label count and does not know how many labels there "
        "are. Pass samples with logits and features (--samples, in Python samples)."
    )


def _expected(feed: Mapping[str, Array]) -> Outputs:
    """What a detector reads, as Outputs, which need logits even if it reads none."""
    rows = len(next(iter(feed.values())))
    return Outputs(feed.get("logits", np.zeros((rows, 1))), features=feed.get("features"))


def sample_inputs(wrapped: Wrapped, samples: Any, input_shape: Sequence[int] | None) -> Samples:
    """Samples for a classifier: enough rows to show that any number will do."""
    if samples is None:
        found = random_samples(wrapped, input_shape)
    else:
        found = given_samples(wrapped, samples)
    fixed = fixed_batch_of(wrapped)
    rows = max(len(found), 2) if fixed is None else math.ceil(len(found) / fixed) * fixed
    return found if rows == len(found) else found.resized(rows)


def _fused(
    wrapped: Wrapped,
    head: DetectorHead,
    checked: tuple[Samples, Outputs],
    opset: int | None,
    tolerance: float,
) -> _Plan:
    samples, expected = checked
    detector = wrapped.detector
    assert detector is not None
    _check_columns(head, expected)
    takes = ("logits", "features") if "features" in head.needs else ("logits",)
    classifier = classifier_graph(wrapped, samples, takes)
    reached = at_opset(classifier.model, opset, what="the model")
    tail = detector_graph(head, classifier.examples)
    at_opset(tail, reached, what="the detector")
    _check_detector(tail, detector, classifier, tolerance, from_probs=wrapped.from_probs)
    names = [value.name for value in classifier.model.graph.inputs]
    join(classifier.model, tail, classifier.sources)
    # An input that bore the name of one of our outputs has another now.
    renamed = dict(zip(names, classifier.model.graph.inputs, strict=True))
    texts = [
        (part, run_samples(wrapped, part)) for part in _shorter_texts(wrapped, samples, classifier)
    ]
    checks = [
        ({renamed[name].name: array for name, array in part.feed.items()}, outputs)
        for part, outputs in [(samples, expected), *texts]
    ]
    return _Plan(classifier.model, checks, wrapped.label_names, classifier.fixed_batch)


def run_samples(
    wrapped: Wrapped, samples: Samples, input_shape: Sequence[int] | None = None
) -> Outputs:
    """What Python makes of samples; an error names the shape that these were made of, if any."""
    try:
        return wrapped.outputs(samples.data, batch_size=_ROWS_AT_ONCE)
    except InputError as error:
        if input_shape is None or error.__cause__ is None:  # it is not the model that failed
            raise
        reason = str(error.__cause__).strip().partition("\n")[0].rstrip(".")
        raise InputError(
            f"the model failed on random inputs of the shape {','.join(map(str, input_shape))}: "
            f"{reason}. Check it: it must be the shape of one input, without the batch "
            "(--input-shape, in Python input_shape)."
        ) from error


def _shorter_texts(wrapped: Wrapped, samples: Samples, classifier: Classifier) -> list[Samples]:
    """The first half of texts whose length is open, to show that it is."""
    if wrapped.kind != "transformers" or not classifier.open_length:
        return []
    length = next(array.shape[1] for array in samples.feed.values())
    halves = {name: array[:, : max(length // 2, 1)] for name, array in samples.feed.items()}
    return [Samples(halves, samples.by_name)]


def _check_detector(
    model: Any, detector: Detector, classifier: Classifier, tolerance: float, *, from_probs: bool
) -> None:
    """Try the detector's part on values that the samples may not reach."""
    shapes = {
        name: (example.shape[1], example.numpy(force=True).dtype)
        for name, example in classifier.examples.items()
    }
    read = probes_of(detector, shapes)
    fed = dict(read)
    if from_probs:
        fed["logits"] = label_prob(read["logits"])
        read["logits"] = logits_from_probs(fed["logits"])
    for name, example in classifier.examples.items():
        if example.ndim == 4:  # features that the graph averages over height and width
            fed[name] = fed[name][:, :, None, None] * np.ones(example.shape[2:], fed[name].dtype)
    feed = {value.name: fed[name] for name, value in zip(fed, model.graph.inputs, strict=True)}
    found = run_graph(session_of(to_bytes(model, {})), feed, None)
    check_parity(found, _expected(read), detector, tolerance)


def _check_columns(head: DetectorHead, outputs: Outputs) -> None:
    """Raise unless the detector was made for as many labels or features."""
    array = outputs.get(head.reads)
    if array is not None and array.shape[1] != head.n_columns:
        raise ShapeError(
            f"the detector was made for {head.n_columns} columns of {head.reads}, and the model "
            f"gives {array.shape[1]}. Calibrate it on outputs of this very model"
            + (", of the same layer." if head.reads == "features" else ".")
        )


def _metadata(
    detector: Detector, plan: _Plan, preprocessing: Preprocessing | None
) -> dict[str, str]:
    """What the file says of itself."""
    calibration = detector.calibration_
    first = next(iter(calibration.thresholds.values()))
    facts: dict[str, Any] = {
        "version": __version__,
        "detector": detector.name or type(detector).__name__,
        "params": detector.get_params(),
        "reads": detector.input_name(),
        "tau": calibration.taus,
        "tpr": first.tpr,
        "confidence": first.confidence,
        "groups": calibration.by,
        "n_calibration": calibration.n_samples,
        "inputs": [value.name for value in plan.model.graph.inputs],
    }
    named = {f"nescio.{name}": value for name, value in facts.items()}
    named[LABEL_NAMES_KEY] = plan.label_names
    named[PREPROCESSING_KEY] = None if preprocessing is None else preprocessing.as_dict()
    return {
        key: value if isinstance(value, str) else json.dumps(value, default=_plain)
        for key, value in named.items()
        if value is not None
    }


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
