"""The samples of an export, and the checks that a graph computes what Python computes."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nescio._validation import Array, to_numpy
from nescio.calibration import LABEL_COUNT, TIE_TOLERANCE, TOP_LABEL
from nescio.detectors import Detector
from nescio.detectors.combined import Combined
from nescio.errors import (
    ExportError,
    InputError,
    NescioWarning,
    ParameterError,
    ShapeError,
    require,
)
from nescio.models import Wrapped
from nescio.models.inputs import n_rows
from nescio.models.onnx_models import FLOATS, numbers_of, with_columns, words_of
from nescio.outputs import Outputs
from nescio.scores import label_prob
from nescio.self_check import NEW_WORD, WORDS, new_words

Floats = NDArray[np.float64]
Feed = dict[str, Array]
"""What a graph takes, by name, samples first."""

_ROWS_AT_ONCE = 64
_N_RANDOM = 12
IN_PYTHON = (
    "Run the model in Python: wrapped(inputs) gives labels and verdicts. The detector alone can be "
    "exported, export_onnx(None, path, detector=wrapped.detector); wrapped.outputs(inputs) has "
    "what it takes."
)
_OPEN_SIZE = 32  # of a dimension that a graph leaves open
_N_PROBES = 24
_SCALES = (0.1, 1.0, 3.0, 10.0)
_LEVELS = (0.0, -30.0, 60.0, 1e4, -1e4)  # of all labels at once


# --- the samples ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Samples:
    """Inputs of a model, for Python and for its graph."""

    feed: Feed  # what the graph takes
    by_name: bool  # whether Python takes them by name as well, or by position
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of a table, by input
    frame: Any = None  # of pandas: what Python takes

    @property
    def data(self) -> Any:
        """The inputs as `Runner.run` takes them."""
        parts = tuple(self.feed.values())
        if self.frame is not None:
            return self.frame
        return self.feed if self.by_name else parts if len(parts) > 1 else parts[0]

    def __len__(self) -> int:
        return n_rows(self.feed)

    def resized(self, rows: int) -> Samples:
        """Return this many rows: the first ones, or all of them repeatedly."""
        chosen = np.resize(np.arange(len(self)), rows)
        feed = {name: array[chosen] for name, array in self.feed.items()}
        frame = None if self.frame is None else self.frame.iloc[chosen]
        return replace(self, feed=feed, frame=frame)


def typed_samples(runner: Any, samples: Any) -> Samples:
    """Return samples in the types that the model takes; the first batch of an iterable."""
    data = samples if runner.takes(samples) else next(runner.batches(samples, _ROWS_AT_ONCE)).inputs
    if n_rows(data) < 1:
        raise ShapeError("samples have no rows.")
    if runner.kind == "onnx":
        feed = {name: runner.typed(name, part) for name, part in runner.by_name(data).items()}
        return Samples(feed, True, runner.columns_of)
    if runner.kind == "sklearn":
        return _of_table(data, runner)
    by_name = isinstance(data, Mapping) or runner.kind == "transformers"
    if isinstance(data, Mapping):
        named = {name: data[name] for name in runner.input_names(data)}
    else:
        parts = data if isinstance(data, tuple) else (data,)
        names = runner.input_names() or _argument_names(runner.model, len(parts))
        named = dict(zip(names, parts, strict=False))
    feed = {}
    for name, part in named.items():
        tensor = runner.placed(part)
        if not isinstance(tensor, Tensor):
            raise ExportError(f"input {name!r} is {part!r}; a graph takes arrays and tensors only.")
        feed[name] = to_numpy(tensor)
    return Samples(feed, by_name)


def _of_table(data: Any, runner: Any) -> Samples:
    """Return one matrix of the numbers that are read and, of a data frame, a second of words."""
    names, read = runner.columns, runner.read(runner.columns)
    try:
        if not names:
            return Samples({"input": numbers_of(data)}, by_name=False)
        make = require("pandas", None).DataFrame
        is_pandas = hasattr(data, "select_dtypes")
        frame = with_columns(data if is_pandas else make(numbers_of(data), None, names), read)
        words = list(frame.select_dtypes(WORDS))
        columns = {"input": [name for name in read if name not in words], "words": words}
        columns = {name: part for name, part in columns.items() if part}
        cells = {"input": numbers_of, "words": words_of}
        feed = {name: cells[name](frame[part]) for name, part in columns.items()}
        return Samples(feed, False, columns, frame)
    except InputError as error:
        raise ExportError(
            f"a graph takes numbers, and words of a pandas data frame, but {error} {IN_PYTHON}"
        ) from error


def _argument_names(model: Any, count: int) -> tuple[str, ...]:
    """Return the names of a module's first arguments, or generic ones if it has none."""
    arguments = inspect.signature(model.forward).parameters.values()
    named = [a.name for a in arguments if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)]
    generic = [f"input_{position}" for position in range(count)]
    return tuple(named[:count] if len(named) >= count else generic)


def sample_inputs(runner: Any, samples: Any, input_shape: Sequence[int] | None) -> Samples:
    """Return samples for a classifier: enough rows to show that it takes any number of them."""
    if samples is None:
        samples = _random_inputs(runner, input_shape)
    typed = typed_samples(runner, samples)
    preprocessing, shapes = runner.preprocessing, [array.shape for array in typed.feed.values()]
    if preprocessing is not None:
        size = preprocessing.size
        takes = next(iter(runner.input_shapes.values())) if runner.kind == "onnx" else shapes[0]
        fits = len(takes) == 4 and all(
            theirs == ours or not isinstance(theirs, int)
            for theirs, ours in zip(takes[1:], (3, size, size), strict=True)
        )
        if len(shapes) > 1 or not fits:
            raise ParameterError(
                f"preprocessing makes one input of shape (batch, 3, {size}, {size}), but the model "
                f"takes {' and '.join(map(str, shapes))}. Leave it out, or correct it "
                "(--image-size, --mean, --std)."
            )
    fixed = runner.fixed_batch
    rows = max(len(typed), 2) if fixed is None else math.ceil(len(typed) / fixed) * fixed
    return typed.resized(rows)


def _random_inputs(runner: Any, input_shape: Sequence[int] | None) -> Any:
    """Return noise of a given shape, or of the shapes of an ONNX graph; always the same."""
    rng = np.random.default_rng(0)
    if input_shape is None and runner.preprocessing is not None:
        input_shape = (3, runner.preprocessing.size, runner.preprocessing.size)
    if input_shape is not None:
        return _noise(rng, (_N_RANDOM, *input_shape))
    nodes = runner.session.get_inputs() if runner.kind == "onnx" else []
    if not nodes or not all(node.type in FLOATS for node in nodes):
        raise ExportError(
            "the model does not say what it takes. Pass a few real inputs (samples=..., "
            "--samples), or the shape of one input, such as 3,224,224 (input_shape=..., "
            "--input-shape)."
        )
    rows, noise = runner.fixed_batch or _N_RANDOM, {}
    for node in nodes:
        sizes = [n if isinstance(n, int) else _OPEN_SIZE for n in (node.shape or [0])[1:]]
        noise[node.name] = _noise(rng, (rows, *sizes))
    return noise


def _noise(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return normal noise, some rows small and some large."""
    scales = np.resize(_SCALES[:3], shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    noise: Array = (rng.normal(size=shape) * scales).astype(np.float32)
    return noise


def run_samples(
    wrapped: Wrapped, samples: Samples, input_shape: Sequence[int] | None = None
) -> Outputs:
    """Run samples in Python; an error names the shape that random ones were made of."""
    try:
        return wrapped.outputs(samples.data, batch_size=_ROWS_AT_ONCE)
    except InputError as error:
        cause = error if isinstance(error, ShapeError) else error.__cause__
        if input_shape is None or cause is None:  # it is not the model that failed
            raise
        reason = str(cause).strip().partition("\n")[0].rstrip(".")
        raise InputError(
            f"the model failed on random inputs of the shape {','.join(map(str, input_shape))}: "
            f"{reason}. The shape must be that of one input, without the batch (input_shape=..., "
            "--input-shape)."
        ) from error


def with_odd_words(wrapped: Wrapped, samples: Samples) -> list[tuple[Samples, Outputs]]:
    """Run samples with new words, and with missing ones, unless Python rejects them."""
    if samples.frame is None or "words" not in samples.feed:
        return []
    odd, cells = [], samples.frame.select_dtypes(WORDS).to_numpy(object)
    for word in (NEW_WORD, next(iter(cells[samples.feed["words"] == ""]), np.nan)):
        rows = _of_table(new_words(samples.frame, word=word), wrapped.runner)
        with warnings.catch_warnings(), suppress(InputError):
            warnings.simplefilter("ignore")
            odd.append((rows, run_samples(wrapped, rows)))
    return odd


# --- the checks -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Differences:
    """The largest differences between the graph and Python, relative to the value if above 1.

    Attributes
    ----------
    logits, probs, score, p_value : float
        `logits` and `probs` are 0 if the graph does not return them. A p-value may differ by more
        than rounding, because a rounded score may pass a calibration score.
    verdicts : int
        How many verdicts differ: of scores so close to the threshold that rounding decides.
    """

    logits: float = 0.0
    probs: float = 0.0
    score: float = 0.0
    p_value: float = 0.0
    verdicts: int = 0

    @classmethod
    def largest(cls, parts: Sequence[Differences]) -> Differences:
        """Return the largest of several checks, and the number of all verdicts that differ."""
        logits, probs, score, p_value, _ = map(max, zip(*map(astuple, parts), strict=True))
        verdicts = sum(part.verdicts for part in parts)
        return cls(logits, probs, score, p_value, verdicts)


def probes_of(detector: Detector, shapes: Mapping[str, tuple[int, Any]]) -> dict[str, Array]:
    """Return rows (of these columns and dtypes) where rounding and infinities matter most."""
    rng = np.random.default_rng(0)
    probes = {}
    for name, (n_columns, dtype) in shapes.items():
        scales = np.resize(_SCALES, _N_PROBES)[:, None]
        noise = rng.normal(size=(_N_PROBES, n_columns)) * scales
        center = 0.0 if name == "logits" else _center(detector, n_columns)
        levels = np.repeat(np.array(_LEVELS)[:, None], n_columns, axis=1)
        bad = np.zeros((4, n_columns))
        bad[[0, 1, 2], 0] = np.nan, np.inf, -np.inf
        bad[3] = -np.inf
        probes[name] = np.concatenate([center + noise, levels, bad]).astype(dtype)
    return probes


def _center(detector: Detector, n_columns: int) -> Array | float:
    """Return where the features lie, if the detector or a part of it has learned that."""
    parts = (detector, *getattr(detector, "detectors_", ()))
    centers = (getattr(part, "center_", 0.0) for part in parts)
    return next((center for center in centers if np.shape(center) == (n_columns,)), 0.0)


def run_graph(session: Any, feed: Mapping[str, Array], rows_at_once: int | None) -> Feed:
    """Return the graph's outputs by name for all rows of a feed.

    If the graph takes any number of rows at once, one row runs first and then many, which shows
    that it does.
    """
    n_samples = len(next(iter(feed.values())))
    bounds = [0, *range(rows_at_once or 1, n_samples, rows_at_once or _ROWS_AT_ONCE)]
    names = [output.name for output in session.get_outputs()]
    parts = []
    for start, end in zip(bounds, [*bounds[1:], n_samples], strict=True):
        rows = {name: array[start:end] for name, array in feed.items()}
        try:
            parts.append(session.run(names, rows))
        except Exception as error:  # onnxruntime's errors have no common class
            reason = str(error).strip().partition("\n")[0]
            raise ExportError(f"the graph cannot run on {end - start} samples: {reason}") from error
    return dict(zip(names, map(np.concatenate, zip(*parts, strict=True)), strict=True))


def check_parity(
    graph: Mapping[str, Array],
    expected: Outputs,
    detector: Detector,
    tolerance: float,
    *,
    from_probs: bool = False,
) -> Differences:
    """Compare a graph's outputs with Python's; raise if they differ by more than the tolerance.

    A p-value must lie between those of the scores just within the tolerance, and a verdict may
    differ only if the score is that close to the threshold. Where the calibration scores of a part
    of a combination are dense, rounding changes its p-value, and by that the score.

    For a model that returns probabilities, these are compared, and the verdict is compared with
    that on the graph's own logits: the logit of a probability near 0 or 1 is mostly rounding.
    """
    worst = {}
    if from_probs:
        probs = label_prob(expected.logits)
        worst["probs"] = _largest("probs", graph["probs"], probs, tolerance)
        expected = replace(expected, logits=graph["logits"])
    judge = copy.copy(detector).set_params(nonfinite="out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NescioWarning)
        wanted = judge.assess(expected, from_probs=False)
    logits = expected.logits
    low, high = _score_range(judge, expected, wanted.scores)
    score = np.fmin(np.fmax(graph["score"], low), high)  # the nearest one that is right
    python = {"logits": logits, "probs": label_prob(logits), "score": score}
    for name, values in python.items():
        if name in graph:
            largest = _largest(name, graph[name], values, tolerance)
            worst[name] = max(worst.get(name, 0.0), largest)
    # How far a score may be off: an infinite one not at all.
    margins = tolerance * np.maximum(1.0, np.abs(wanted.scores))
    eps = np.where(np.isfinite(wanted.scores), margins, 0.0)
    # A logit that close to 0, or to the largest one, may change the group of a row.
    certain: Any = np.ones(len(eps), np.bool_)
    if judge.calibration_.by == LABEL_COUNT:
        certain = ~(np.abs(expected.logits) <= tolerance).any(1)
    elif judge.calibration_.by == TOP_LABEL:
        nearly = expected.logits >= expected.logits.max(1, keepdims=True) - tolerance
        certain = nearly.sum(1) == 1
    p_values = (graph["p_value"], wanted.p_values)
    names = wanted.groups
    lowest = judge.calibration_.p_values(low - eps, names)
    highest = judge.calibration_.p_values(high + eps, names)
    outside = graph["p_value"] < lowest - 1e-12
    outside = certain & (outside | (graph["p_value"] > highest + 1e-12))
    if outside.any():
        raise _refusal("p_value", *p_values, outside.astype(float), tolerance)
    threshold = judge.calibration_.threshold_of(names)
    verdicts = graph["in_distribution"] != wanted.in_distribution
    wrong = verdicts & certain & ((low - eps > threshold) | (high + eps < threshold))
    if wrong.any():
        columns = (graph["in_distribution"], wanted.in_distribution)
        raise _refusal("in_distribution", *columns, wrong.astype(float), tolerance)
    return Differences(
        **worst,
        p_value=float(np.abs(p_values[0] - p_values[1]).max(initial=0.0)),
        verdicts=int(np.count_nonzero(verdicts)),
    )


def _score_range(judge: Detector, expected: Outputs, scores: Floats) -> tuple[Floats, Floats]:
    """Return the lowest and the highest score that rounding of the parts' scores may give."""
    if not isinstance(judge, Combined):
        return scores, scores
    finite = np.isfinite(scores)
    parts = [copy.copy(part).set_params(nonfinite="out") for part in judge.detectors_]
    values = [part.score_samples(expected, from_probs=False) for part in parts]
    columns = np.stack(values, axis=1)
    room = TIE_TOLERANCE * np.maximum(1.0, np.abs(np.where(np.isfinite(columns), columns, 0.0)))
    low, high = (judge._terms(judge._p_values(columns + sign * room)).sum(1) for sign in (-1, 1))
    return np.where(finite, low, scores), np.where(finite, high, scores)


def _largest(name: str, graph: Array, python: Array, tolerance: float) -> float:
    """Return the largest difference, relative as in `Differences`; raise if it is not tolerated."""
    graph, python = np.asarray(graph, np.float64), np.asarray(python, np.float64)
    same = (graph == python) | (np.isnan(graph) & np.isnan(python))
    with np.errstate(invalid="ignore"):
        relative = np.abs(graph - python) / np.maximum(1.0, np.abs(python))
    difference = np.where(same, 0.0, np.where(np.isnan(relative), np.inf, relative))
    largest = float(difference.max(initial=0.0))
    if not largest <= tolerance:
        raise _refusal(name, graph, python, difference, tolerance)
    return largest


def _refusal(
    name: str, graph: Array, python: Array, difference: Floats, tolerance: float
) -> ExportError:
    place = np.unravel_index(int(np.argmax(difference)), difference.shape)
    return ExportError(
        f"the graph does not compute what Python computes: {name} of sample {place[0]} is "
        f"{graph[place]!s} in the graph and {python[place]!s} in Python, and the allowed "
        f"difference is {tolerance:g} (relative to the value, if above 1). Nothing was written. If "
        "the model is correct, the cause may be rounding, of float16 or of skl2onnx: allow more "
        "(tolerance=0.01, --tolerance 0.01). A model that branches on the values of its input in "
        "Python, or that keeps state between calls, cannot become a graph."
    )
