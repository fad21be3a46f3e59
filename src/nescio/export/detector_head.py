"""A calibrated detector as a torch module: in torch, and for graphs.

A detector whose `_score` accepts torch tensors declares it (`traceable`) and needs nothing here.
One that searches training samples has a function in `SCORES`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from nescio import scores
from nescio.calibration import CUSTOM, TOP_LABEL, Calibration, Scores
from nescio.detectors import Arrays, Detector, as_detector
from nescio.detectors.base import require_calibration
from nescio.detectors.combined import Combined, reference_scores, tail_scale
from nescio.detectors.features import unit_rows
from nescio.errors import ExportError, MissingInputError, ShapeError
from nescio.outputs import Head
from nescio.scores import widened

_DECIDE_SHAPES = ("starts_",)  # learned arrays that a graph needs as plain numbers
_NEEDS_GRADIENT = "it needs the network's gradient"
_WHY_NOT = {
    "odin": _NEEDS_GRADIENT,
    "mahalanobis_perturbed": _NEEDS_GRADIENT,
    "lof": "it searches the training data for neighbours",
    "isolation_forest": "it walks through trees",
}
_INSTEAD = ", which a graph cannot. Export mahalanobis of the same features, or joint_energy."
_NOT_TRACEABLE = (
    "its _score takes NumPy arrays. If it uses only nescio.scores and operators that torch tensors "
    "have too, set traceable = True in its class."
)


class FusedOutputs(NamedTuple):
    """What a `DetectorHead` returns, with one row per sample."""

    logits: Tensor  # (n_samples, n_labels), float32 or float64
    probs: Tensor  # (n_samples, n_labels)
    score: Tensor  # (n_samples,), float64
    p_value: Tensor  # (n_samples,), float64
    in_distribution: Tensor  # (n_samples,), bool


class DetectorHead(nn.Module):
    """A calibrated detector as a torch module: the same scores, p-values and verdicts.

    It raises no error about values in the data, because a graph cannot: rows that the detector
    rejects (NaN or infinity) are out, with a score of -inf.

    It moves between devices as any module does. Its numbers keep their precision under `half()`,
    `float()` and similar calls. Devices without float64, such as mps, cannot hold it.

    Parameters
    ----------
    detector : Detector
        Calibrated. See [what can be exported](../how-to/export-to-onnx.md#what-can-be-exported).
    from_probs : bool
        The module takes probabilities instead of logits and converts them.
    head : Head, optional
        The classifier's last layer, for a detector that reads it.

    Examples
    --------
    >>> import nescio as ns
    >>> detector = ns.JointEnergy().calibrate(torch.arange(-5.0, 35.0, 0.1).reshape(100, 4))
    >>> head = DetectorHead(detector)
    >>> head(torch.tensor([[9.0, -3.0, 0.0, 1.0], [-25.0] * 4])).in_distribution
    tensor([ True, False])
    """

    def __init__(
        self, detector: Detector, *, from_probs: bool = False, head: Head | None = None
    ) -> None:
        super().__init__()
        detector = as_detector(detector)
        self.scorer = scorer_of(detector)
        self.from_probs = from_probs
        require_calibration(detector)
        detector._check_params()
        self.verdict = VerdictModule(detector.calibration_)
        self.n_columns = {
            name: detector.n_columns_[name] for name in detector.scores_from if name != "head"
        }
        self.reads_head = "head" in detector.scores_from
        self.masked_allowed = detector.accepts_masked
        if self.reads_head:
            if head is None:
                raise MissingInputError(
                    f"{detector.name} reads the classifier's last layer, which is not known: the "
                    "model must end in a linear layer whose input are the features. Outputs of "
                    "such a model have it: head=outputs.head."
                )
            for name in ("weight", "bias"):
                self.register_buffer(name, torch.from_numpy(np.array(getattr(head, name))))

    @property
    def needs(self) -> tuple[str, ...]:
        """What it takes: logits, one or several layers, or both."""
        logits = "logits" in self.n_columns or self.verdict.by is not None
        return (*(["logits"] if logits else []), *self.layers)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that it takes: "features", and others by their names."""
        return tuple(name for name in self.n_columns if name != "logits")

    def forward(self, logits: Tensor, *layers: Tensor | None) -> FusedOutputs:
        """Return score and verdict of each row, from the logits and `layers`."""
        logits = _logits_from_probs(logits) if self.from_probs else widened(logits)
        return FusedOutputs(logits, logits.sigmoid(), *self.judge(logits, *layers))

    def judge(self, logits: Tensor | None, *layers: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return score, p-value and verdict of each row, from what the detector needs."""
        inputs = {"logits": logits, **dict(zip(self.layers, layers, strict=False))}
        for name in self.needs:
            if inputs.get(name) is None:
                raise MissingInputError(f"the detector reads {name}, which were not given.")
        arrays = {name: self._checked(name, inputs[name]) for name in self.n_columns}
        # NaN is not below infinity either. A detector may accept -inf, of a masked label.
        fine = [
            (array if self.masked_allowed and name == "logits" else array.abs()) < torch.inf
            for name, array in arrays.items()
        ]
        usable = torch.stack([columns.all(1) for columns in fine]).all(0)
        clean: dict[str, Any] = {
            name: torch.where(usable[:, None], array, 0.0) for name, array in arrays.items()
        }
        if self.reads_head:
            dtype = next(iter(arrays.values())).dtype
            clean["head"] = SimpleNamespace(
                weight=self.get_buffer("weight").to(dtype), bias=self.get_buffer("bias").to(dtype)
            )
        scores = torch.where(usable, self.scorer(Arrays(clean)).double(), -torch.inf)
        return scores, *self.verdict(scores, logits)

    def _checked(self, name: str, array: Tensor | None) -> Tensor:
        assert array is not None
        if array.ndim != 2 or array.shape[1] != self.n_columns[name]:
            raise ShapeError(
                f"{name} must have shape (n_samples, {self.n_columns[name]}), "
                f"got {tuple(array.shape)}."
            )
        wide: Tensor = widened(array)
        return wide

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Take the device but not the precision: calibration scores must not be rounded.
        device = fn(torch.zeros(1, dtype=torch.int64)).device
        super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]
        return self


class VerdictModule(nn.Module):
    """The p-values of scores, and whether they reach their threshold, as `Calibration` has them."""

    def __init__(self, calibration: Calibration) -> None:
        super().__init__()
        if calibration.by == CUSTOM:
            raise ExportError(
                "the detector was calibrated by your own groups, which a graph cannot know. "
                "Calibrate it without groups, or with groups='label_count' or 'top_label'."
            )
        thresholds = list(calibration.thresholds.values())
        sizes = [threshold.n_samples for threshold in thresholds]
        self.by = calibration.by
        table, starts, self.n_steps = search_table([part.limits for part in thresholds])
        self.register_buffer("table", table)
        self.register_buffer("starts", starts)
        self.register_buffer("sizes", torch.tensor(sizes))
        values = [threshold.value for threshold in thresholds]
        self.register_buffer("thresholds", torch.tensor(values, dtype=torch.float64))
        self.register_buffer("edges", torch.tensor(calibration.edges[1:], dtype=torch.int64))
        self.register_buffer("ranks", torch.tensor(calibration.ranks, dtype=torch.int64))

    def forward(self, scores: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return p-values and verdicts of float64 scores; with groups, pass the logits too."""
        # Of each row's group, or of the only group.
        start, size, threshold = (
            self.get_buffer(name) for name in ("starts", "sizes", "thresholds")
        )
        if self.by is not None:
            assert logits is not None
            counts = (logits > 0).sum(1)  # (n_samples,)
            if self.by == TOP_LABEL:
                counts = self.get_buffer("ranks").index_select(0, logits.argmax(1))
            group = (counts[:, None] >= self.get_buffer("edges")).sum(1)
            start, size, threshold = (
                values.index_select(0, group) for values in (start, size, threshold)
            )
        passed = count_passed(self.get_buffer("table"), start, self.n_steps, scores)
        below = torch.minimum(passed, size)  # a score of +inf has also passed every +inf
        return (below.double() + 1.0) / (size.double() + 1.0), scores >= threshold


def _logits_from_probs(probs: Tensor) -> Tensor:
    """Convert as `nescio.scores.logits_from_probs` does, with NaN where that raises."""
    # A tensor: the exporter would keep a plain number as float32, which has no such number below 1.
    below_one = torch.tensor(
        1.0 - torch.finfo(probs.dtype).eps / 2, dtype=probs.dtype, device=probs.device
    )
    capped: Tensor = widened(torch.where(probs <= 1.0, torch.minimum(probs, below_one), torch.nan))
    return capped.log() - (-capped).log1p()


# --- scores ---------------------------------------------------------------------------------------


class Score(nn.Module):
    """The score of a detector on tensors; arrays that it has learned move with the module."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = copy.copy(detector)
        self.compute: Any = SCORES.get(detector.name, type(detector)._score)
        arrays = {name: getattr(detector, name) for name in detector.learned}
        self.learned = [
            name
            for name, array in arrays.items()
            if getattr(array, "ndim", 0) > 0 and name not in _DECIDE_SHAPES
        ]
        for name in self.learned:
            # A copy: the arrays of a loaded detector are not writable.
            self.register_buffer(name, torch.from_numpy(np.array(arrays[name])))

    def forward(self, arrays: Arrays) -> Tensor:
        """Return one score per row."""
        for name in self.learned:
            setattr(self.detector, name, self.get_buffer(name))
        scores: Tensor = self.compute(self.detector, arrays)
        return scores


# --- detectors that search training samples -------------------------------------------------------


def _nearest_neighbours(detector: Any, arrays: Arrays) -> Tensor:
    unit = unit_rows(arrays[detector.layer])
    kth = _similarities(unit, detector.bank_).topk(detector.k, dim=1).indices[:, -1]
    # Of the transposed bank, as in the product: the graph holds it once.
    difference = unit.double() - detector.bank_.T.index_select(1, kth).T.double()
    distances = (difference * difference).sum(1).sqrt()
    directed = (unit != 0).any(1)
    return -torch.where(directed, distances, math.sqrt(2))


def _label_neighbours(detector: Any, arrays: Arrays) -> Tensor:
    sizes = np.diff(detector.starts_)
    learned = np.flatnonzero(sizes).tolist()  # the labels with training samples
    similarities = _similarities(unit_rows(arrays[detector.layer]), detector.bank_)
    nearest = [
        similarities.index_select(1, members).topk(min(detector.k, len(members)), dim=1).values
        for members in torch.split(detector.members_, sizes[learned].tolist())
    ]
    means = torch.stack([values.double().mean(1) for values in nearest], 1)
    weights = scores.label_energy(arrays.logits.double())[:, learned]
    total = weights.sum(1, keepdim=True)
    weights = torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 1 / len(learned))
    return (weights * means).sum(1)


def _nnguide(detector: Any, arrays: Arrays) -> Tensor:
    similarities = _similarities(unit_rows(arrays[detector.layer]), detector.bank_)
    guidance = similarities.topk(detector.k, dim=1).values.double().mean(1)
    energies: Tensor = scores.joint_energy(arrays.logits)
    return guidance * energies.double()


def _similarities(unit: Tensor, bank: Tensor) -> Tensor:
    """Return the cosine similarities of rows to the training samples: (n_samples, n_bank)."""
    return unit.to(bank.dtype) @ bank.T


# --- a combination of detectors -------------------------------------------------------------------


class CombinedScore(nn.Module):
    """The combination of the scores of other modules, one for each part."""

    def __init__(self, detector: Combined) -> None:
        super().__init__()
        require_calibration(detector)
        try:
            self.scorers = nn.ModuleList(map(scorer_of, detector.detectors_))
        except ExportError as error:
            raise ExportError(
                f"combined cannot be exported with one of its parts: {error}"
            ) from error
        references = [reference_scores(part) for part in detector.detectors_]
        limits = [reference_scores(part, "limits") for part in detector.detectors_]
        table, starts, self.n_steps = search_table(references)
        self.register_buffer("table", table)
        self.register_buffer("limits", search_table(limits)[0])
        self.register_buffer("starts", starts)
        self.sizes = [len(reference) for reference in references]
        self.scales = [tail_scale(reference) for reference in references]
        self.register_buffer("weights", torch.from_numpy(detector.normalised_weights()))

    def forward(self, arrays: Arrays) -> Tensor:
        """Return one score per row."""
        columns = [
            self._p_values(part, score(arrays).double()) for part, score in enumerate(self.scorers)
        ]
        p_values = torch.stack(columns, 1)  # (n_samples, n_parts)
        return -(self.get_buffer("weights") / p_values).sum(1)

    def _p_values(self, part: int, scores: Tensor) -> Tensor:
        """Return the p-values of a part's scores, as `continuous_p_values` does."""
        table, n = self.get_buffer("table"), self.sizes[part]
        start = self.get_buffer("starts")[part]

        def reference(rank: Tensor) -> Tensor:  # counted from 1
            return table.index_select(0, start + rank.clamp(1, n))

        first, last = table[start + 1], table[start + n]
        scores = torch.minimum(scores, last)
        below = count_passed(self.get_buffer("limits"), start, self.n_steps, scores)
        lower, upper = reference(below), reference(below + 1)
        between = (scores - lower).clamp(min=0.0) / torch.where(upper > lower, upper - lower, 1.0)
        gaps = (first - scores).clamp(min=0.0) / self.scales[part]
        return torch.where(below == 0, 1 / (1 + gaps), below + between) / (n + 1)


# --- a search among ascending numbers, in a form that can be exported -----------------------------


def search_table(rows: Sequence[Scores]) -> tuple[Tensor, Tensor, int]:
    """Return a table for `count_passed`, the place where each row starts, and the steps to take.

    A row holds its numbers from its second place on, then +inf.
    """
    n_steps = max(map(len, rows)).bit_length()
    table = np.full((len(rows), 2**n_steps), np.inf)
    for row, numbers in zip(table, rows, strict=True):
        row[1 : 1 + len(numbers)] = numbers
    return torch.from_numpy(table.reshape(-1)), torch.arange(len(rows)) * 2**n_steps, n_steps


def count_passed(table: Tensor, start: Tensor, n_steps: int, scores: Tensor) -> Tensor:
    """Return how many numbers of a row of the table are at or below each score.

    A binary search with a fixed number of steps, one lookup per score in each. Memory grows with
    the scores, not with the scores times the numbers. A score of +inf passes every +inf too.
    """
    place = start + torch.zeros_like(scores, dtype=torch.int64)  # of the last number passed
    for step in reversed(range(n_steps)):
        further = place + 2**step
        place = torch.where(table.index_select(0, further) <= scores, further, place)
    return place - start


# --- by detector ----------------------------------------------------------------------------------


SCORES: dict[str, Callable[[Any, Arrays], Tensor]] = {
    "knn": _nearest_neighbours,
    "label_neighbours": _label_neighbours,
    "nnguide": _nnguide,
}
"""By detector name: its score, from a detector whose arrays are tensors and what it reads."""


def scorer_of(detector: Detector) -> nn.Module:
    """Return the module that computes a detector's scores; raise with the reason if none can."""
    if isinstance(detector, Combined):
        return CombinedScore(detector)
    if detector.name not in SCORES and not detector.traceable:
        raise ExportError(
            f"{detector.name or type(detector).__name__} cannot be exported: "
            + (_WHY_NOT[detector.name] + _INSTEAD if detector.name in _WHY_NOT else _NOT_TRACEABLE)
        )
    return Score(detector)
