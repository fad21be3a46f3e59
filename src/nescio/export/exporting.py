"""One ONNX file with the classifier and the detector, checked before it gets its name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nescio._io.files import check_target, finite, replacing
from nescio._io.tables import MATRICES
from nescio._validation import Array
from nescio._version import __version__
from nescio.detectors import Detector, as_detector, load
from nescio.errors import ExportError, MissingInputError, ParameterError, ShapeError, require
from nescio.export.detector_head import DetectorHead, scorer_of
from nescio.export.graphs import (
    OPSET,
    Classifier,
    as_matrix,
    at_opset,
    classifier_graph,
    detector_graph,
    join,
    to_bytes,
)
from nescio.export.parity import (
    Differences,
    Feed,
    Samples,
    check_parity,
    probes_of,
    run_graph,
    run_samples,
    sample_inputs,
    with_odd_words,
)
from nescio.models import Runner, Wrapped, wrap
from nescio.models.images import PREPROCESSING_KEY
from nescio.models.inputs import n_rows
from nescio.models.onnx_models import (
    COLUMNS_KEY,
    DETECTOR_KEY,
    EXAMPLE_KEY,
    LABEL_NAMES_KEY,
    TABLE_KEY,
    THRESHOLD_KEY,
    open_session,
)
from nescio.models.texts import TOKENIZER_KEY
from nescio.outputs import Head, Outputs
from nescio.scores import label_prob, logits_from_probs


@dataclass(frozen=True)
class Exported:
    """What `export_onnx` wrote.

    Attributes
    ----------
    path : Path
    inputs : dict of str to tuple
        The shape of each input, batch first; a size that may change has a name, not a number.
    outputs : tuple of str
    opset : int
    n_samples : int
        The number of samples that the graph was checked on.
    differences : Differences
        The largest differences between the graph and Python on them.
    """

    path: Path
    inputs: dict[str, tuple[int | str, ...]]
    outputs: tuple[str, ...]
    opset: int
    n_samples: int
    differences: Differences


def export_onnx(
    model: Any,
    path: str | Path,
    *,
    detector: Detector | str | Path | None = None,
    samples: Any = None,
    input_shape: Sequence[int] | None = None,
    tolerance: float = 1e-4,
    force: bool = False,
) -> Exported:
    """Write a classifier and its detector as one ONNX graph.

    The graph returns logits, probs, score, p_value and in_distribution, and the layers that the
    detector reads, each under its name, but not the input. Its opset is that of an ONNX file, and
    at least 18. Before the file gets its name, onnxruntime runs it on samples, and the results are
    compared with Python's.

    Parameters
    ----------
    model : wrapped model, anything that `nescio.wrap` takes, or None
        None writes a graph of only the detector, from logits or layers to the verdict. The
        preprocessing of a wrapped model is kept in the file, for a service to read.
    path : path
    detector : Detector or path, optional
        Calibrated; the wrapped model's own if not given.
    samples : optional
        Inputs to check the graph on, as the wrapped model takes them. Without a model: `Outputs`,
        or an array of logits. Random ones if not given, which needs `input_shape`,
        a preprocessing, or an ONNX file that takes only numbers in floating point.
    input_shape : sequence of int, optional
        The shape of one input, for random samples of a torch module.
    tolerance : float
        The largest allowed difference from Python, relative to the value if that is above 1.
    force : bool
        Replace an existing file.

    Raises
    ------
    ExportError
        If the model or the detector cannot be exported, or if the graph does not compute what
        Python computes. No file is written then.
    """
    for package in ("onnx", "onnxruntime", "onnxscript"):
        require(package, "onnx")
    if Path(path).suffix.lower() != ".onnx":
        raise ParameterError(f"the file to write must end in .onnx, got {str(path)!r}.")
    check_target(path, force=force)
    if not 0 < tolerance < 1:
        raise ParameterError(f"tolerance must lie between 0 and 1, got {tolerance!r}.")
    if isinstance(model, Detector):
        raise ParameterError("for a detector alone, pass None as the model, and detector=...")
    wrapped = None if model is None else wrap(model, detector=detector)
    if (detector if wrapped is None else wrapped.detector) is None:
        raise ParameterError("no detector: call calibrate(held_out) first, or pass detector=...")
    if wrapped is None:
        plan = _detector_alone(detector, samples)
    else:
        plan = _fused(wrapped, samples, input_shape, tolerance)
    runner = plan.runner
    fixed_batch = None if runner is None else runner.fixed_batch
    from_probs = runner is not None and bool(runner.from_probs)
    facts = _metadata(plan)
    content = to_bytes(plan.model, facts)
    session = open_session(content)
    parts = [
        check_parity(
            run_graph(session, feed, fixed_batch),
            expected,
            plan.detector,
            tolerance,
            from_probs=from_probs,
        )
        for feed, expected in plan.checks
    ]
    if samples is not None and fixed_batch is None:
        example = _ordinary_row(session, plan.checks[0][0])
        content = to_bytes(plan.model, facts | {EXAMPLE_KEY: json.dumps(example)})
    with replacing(path, force=force) as temporary:
        temporary.write_bytes(content)
    return Exported(
        Path(path),
        {node.name: tuple(node.shape) for node in session.get_inputs()},
        tuple(node.name for node in session.get_outputs()),
        plan.model.opset_imports[""],
        sum(len(expected) for _, expected in plan.checks),
        Differences.largest(parts),
    )


@dataclass(frozen=True)
class _Plan:
    """A graph that is not written yet, and what to check it with."""

    detector: Detector
    model: Any  # onnx_ir.Model
    checks: list[tuple[Feed, Outputs]]  # its inputs, and what Python computes from them
    label_names: tuple[str, ...] | None
    runner: Runner | None = None  # of the classifier
    columns: Mapping[str, Sequence[str]] | None = None  # of a table, by input


# --- only the detector ---


def _detector_alone(detector: Any, samples: Any) -> _Plan:
    detector = load(detector) if isinstance(detector, str | Path) else as_detector(detector)
    outputs = samples if samples is None or isinstance(samples, Outputs) else Outputs(samples)
    last_layer = None if outputs is None else outputs.head
    head = DetectorHead(detector, head=last_layer)
    widths = dict(head.n_columns)
    if outputs is not None:
        widths["logits"] = outputs.n_labels
        for name in head.needs:
            if outputs.get(name) is None:
                raise MissingInputError(f"the detector reads {name}, which the samples lack.")
        _check_columns(head, outputs)
    elif detector.label_names_ is not None:
        widths["logits"] = len(detector.label_names_)
    elif "logits" in head.needs and "logits" not in widths:  # only for groups
        raise ExportError(
            f"{detector.name} was calibrated by label count and does not know how many labels "
            "there are. Pass samples with logits and features (samples=..., --samples)."
        )
    examples = {name: torch.zeros(1, widths[name]) for name in head.needs}
    feeds = [probes_of(detector, {name: (widths[name], np.float32) for name in head.needs})]
    if outputs is not None:
        feeds.append({name: np.asarray(outputs.get(name), np.float32) for name in head.needs})
    checks = [(feed, _expected(feed, head, last_layer)) for feed in feeds]
    return _Plan(
        detector, detector_graph(head, examples, alone=True), checks, detector.label_names_
    )


def _expected(
    feed: Mapping[str, Array], head: DetectorHead, last_layer: Head | None = None
) -> Outputs:
    """Return what a detector reads as Outputs, which need logits even if it reads none."""
    rows = len(next(iter(feed.values())))
    n_labels = 1 if last_layer is None else len(last_layer.bias)
    arrays = {name: feed[name] for name in head.layers if name not in MATRICES}
    return Outputs(
        feed.get("logits", np.zeros((rows, n_labels))),
        features=feed.get("features"),
        head=last_layer,
        arrays=arrays,
    )


# --- with the classifier ---


def _fused(
    wrapped: Wrapped, samples: Any, input_shape: Sequence[int] | None, tolerance: float
) -> _Plan:
    runner, detector = wrapped.runner, wrapped.detector
    assert detector is not None  # checked by `export_onnx`
    if runner.tokenizer is not None:
        runner.tokenizer.limit()  # raises early, or the file would be of no use to a service
    scorer_of(detector)  # raises early if there is none
    inputs = sample_inputs(runner, samples, input_shape)
    expected = run_samples(wrapped, inputs, input_shape if samples is None else None)
    head = DetectorHead(detector, from_probs=bool(runner.from_probs), head=expected.head)
    _check_columns(head, expected)
    classifier = classifier_graph(runner, inputs, ("logits", *head.layers))
    opset = max(classifier.model.opset_imports.get("", OPSET), OPSET)
    at_opset(classifier.model, opset, what="the model")
    tail = detector_graph(head, classifier.examples, classifier.of_input)
    at_opset(tail, opset, what="the detector")
    _check_tail(tail, head, detector, classifier, expected.head, tolerance)
    names = [value.name for value in classifier.model.graph.inputs]
    join(classifier.model, tail, classifier.sources)
    # An input that had the name of one of our outputs has been renamed.
    renamed = dict(zip(names, classifier.model.graph.inputs, strict=True))
    checked = [(inputs, expected)]
    if classifier.open_length:  # shorter texts show that it is
        halves = {name: array[:, : -(-array.shape[1] // 2)] for name, array in inputs.feed.items()}
        shorter = Samples(halves, inputs.by_name)
        checked.append((shorter, run_samples(wrapped, shorter)))
    checked += with_odd_words(wrapped, inputs)
    checks = [
        ({renamed[name].name: array for name, array in part.feed.items()}, outputs)
        for part, outputs in checked
    ]
    return _Plan(detector, classifier.model, checks, wrapped.label_names, runner, inputs.columns)


def _check_tail(
    model: Any,
    head: DetectorHead,
    detector: Detector,
    classifier: Classifier,
    last_layer: Head | None,
    tolerance: float,
) -> None:
    """Check the detector's graph on values that the samples may not reach."""
    # Of maps, one value per channel, in a pattern that gives them a contrast.
    shapes = {
        name: (rows.shape[1] if rows.ndim == 4 else rows[0].numel(), rows.numpy(force=True).dtype)
        for name, rows in classifier.examples.items()
    }
    feed = probes_of(detector, shapes)
    for name, rows in classifier.examples.items():
        if rows.ndim == 4:
            maps = np.ones(rows.shape[2:], feed[name].dtype)
            maps[::2] = 0.5
            feed[name] = feed[name][:, :, None, None] * maps
        feed[name] = feed[name].reshape(-1, *rows.shape[1:])
    with np.errstate(all="ignore"):
        read = {name: as_matrix(name, array, classifier.of_input) for name, array in feed.items()}
    if head.from_probs:
        feed["logits"] = label_prob(read["logits"])
        read["logits"] = logits_from_probs(feed["logits"])
    by_input = zip(model.graph.inputs, feed.values(), strict=True)
    session = open_session(to_bytes(model, {}))
    graph = run_graph(session, {value.name: rows for value, rows in by_input}, None)
    check_parity(graph, _expected(read, head, last_layer), detector, tolerance)


def _check_columns(head: DetectorHead, outputs: Outputs) -> None:
    """Raise unless the detector was made for as many labels and features."""
    for name, n_columns in head.n_columns.items():
        array = outputs.get(name)
        if array is not None and array.shape[1] != n_columns:
            raise ShapeError(
                f"the detector was made for {n_columns} columns of {name}, but the model returns "
                f"{array.shape[1]}. Calibrate it on outputs of this model"
                + ("." if name == "logits" else ", of the same layer.")
            )


def _metadata(plan: _Plan) -> dict[str, str]:
    """Return what the file says about itself."""
    detector, calibration = plan.detector, plan.detector.calibration_
    first, runner = calibration.first, plan.runner
    facts: dict[str, Any] = {
        "nescio.version": __version__,
        DETECTOR_KEY: detector.name or type(detector).__name__,
        "nescio.params": detector.get_params(deep=False),
        "nescio.scores_from": detector.scores_from,
        THRESHOLD_KEY: calibration.threshold_values,
        "nescio.tpr": first.tpr,
        "nescio.confidence": first.confidence,
        "nescio.groups": calibration.by,
        "nescio.n_calibration": calibration.n_samples,
        LABEL_NAMES_KEY: plan.label_names,
    }
    if runner is not None:
        preprocessing, tokenizer = runner.preprocessing, runner.tokenizer
        facts[COLUMNS_KEY] = plan.columns or None
        facts[TABLE_KEY] = runner.table
        facts[PREPROCESSING_KEY] = preprocessing and asdict(preprocessing)
        facts[TOKENIZER_KEY] = tokenizer and tokenizer.json()
    return {
        key: value if isinstance(value, str) else json.dumps(value, default=_plain)
        for key, value in facts.items()
        if value is not None
    }


def _ordinary_row(session: Any, feed: Feed) -> dict[str, list[Any]]:
    """Return a row of a table by input, to try: of values of several samples, and none of them."""
    if any(array.ndim != 2 or array.dtype.kind not in "fO" for array in feed.values()):
        return {}
    rng, rows = np.random.default_rng(0), np.resize(np.arange(n_rows(feed)), 256)
    mixed = {name: rng.permuted(array[rows], axis=0) for name, array in feed.items()}
    verdicts = run_graph(session, mixed, None)
    best = np.argsort(-verdicts["score"])[: int(verdicts["in_distribution"].any())]
    return {
        name: finite([c if isinstance(c, str) else float(str(c)) for c in array[row]])
        for name, array in mixed.items()
        for row in best
    }


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
