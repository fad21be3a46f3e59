"""A calibrated detector as a torch module: in torch, and for graphs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from nescio.calibration import CUSTOM, TOP_LABEL, Calibration
from nescio.detectors import Arrays, Detector, as_detector
from nescio.detectors.base import require_calibration
from nescio.errors import ExportError, MissingInputError, ShapeError
from nescio.export.scorers import count_passed, scorer_of, search_table
from nescio.outputs import Head


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
        logits = _logits_from_probs(logits) if self.from_probs else _widened(logits)
        return FusedOutputs(logits, logits.sigmoid(), *self.judge(logits, *layers))

    def judge(self, logits: Tensor | None, *layers: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return score, p-value and verdict of each row, from what the detector needs."""
        inputs = {"logits": logits, **dict(zip(self.layers, layers, strict=False))}
        for name in self.needs:
            if inputs.get(name) is None:
                raise MissingInputError(f"the detector reads {name}, which were not given.")
        arrays = {name: self._checked(name, inputs[name]) for name in self.n_columns}
        usable = torch.stack([self._usable(name, array) for name, array in arrays.items()]).all(0)
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
        return _widened(array)

    def _usable(self, name: str, array: Tensor) -> Tensor:
        # NaN is not below infinity either.
        masked_allowed = self.masked_allowed and name == "logits"
        fine = array < torch.inf if masked_allowed else array.abs() < torch.inf
        return fine.all(1)

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
    capped = _widened(torch.where(probs <= 1.0, torch.minimum(probs, below_one), torch.nan))
    return capped.log() - (-capped).log1p()


def _widened(tensor: Tensor) -> Tensor:
    """Return 16-bit tensors in float32, in which Python computes."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
