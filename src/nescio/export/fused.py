"""A classifier and its detector as one torch module, for those who stay in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from nescio.detectors import Detector, NotCalibratedError
from nescio.errors import ExportError, MissingInputError, ParameterError, ShapeError
from nescio.export.scoring import scorer_of
from nescio.export.verdict import Verdict

__all__ = ["DetectorHead", "FusedModel", "FusedOutputs"]


class FusedOutputs(NamedTuple):
    """What a fused model gives, a row for each input."""

    logits: Tensor  # (n_samples, n_labels), float32 or float64
    probs: Tensor  # (n_samples, n_labels)
    score: Tensor  # (n_samples,), float64
    p_value: Tensor  # (n_samples,), float64
    in_distribution: Tensor  # (n_samples,), bool


class DetectorHead(nn.Module):
    """A calibrated detector as a torch module: the same scores, p-values and verdicts.

    It raises for nothing that is in the data, as a graph cannot: rows that the detector refuses
    (NaN or infinity) are out, with a score of -inf.

    Moves between devices as any module does. Its numbers keep their precision under `half()`,
    `float()` and the like. Devices without float64, such as mps, cannot hold it.

    Parameters
    ----------
    detector : Detector
        Calibrated. See [what can be exported](../how-to/export-to-onnx.md#what-can-be-exported).
    from_probs : bool
        It is given probabilities in place of logits, and converts them.

    Examples
    --------
    >>> import nescio as ns
    >>> detector = ns.JointEnergy().calibrate(torch.arange(-20.0, 20.0, 0.1).reshape(100, 4))
    >>> head = DetectorHead(detector)
    >>> head(torch.tensor([[9.0, -3.0, 0.0, 1.0], [-25.0] * 4])).in_distribution
    tensor([ True, False])
    """

    def __init__(self, detector: Detector, *, from_probs: bool = False) -> None:
        super().__init__()
        self.scorer = scorer_of(detector)
        self.from_probs = from_probs
        if not hasattr(detector, "calibration_"):
            raise NotCalibratedError(
                f"this {type(detector).__name__} is not calibrated: p-values need held-out data. "
                "Call calibrate(held_out) first."
            )
        detector._check_params()
        self.verdict = Verdict(detector.calibration_)
        self.reads = detector.scores_from[0]
        self.n_columns = int(detector.n_features_in_)
        self.masked_allowed = detector.accepts_masked and self.reads == "logits"

    @property
    def needs(self) -> tuple[str, ...]:
        """What it takes: logits, features, or both."""
        return (
            ("logits", "features")
            if self.verdict.by_count and self.reads == "features"
            else (self.reads,)
        )

    def forward(self, logits: Tensor, features: Tensor | None = None) -> FusedOutputs:
        """Score and verdict for each row."""
        logits = _logits_from_probs(logits) if self.from_probs else _widened(logits)
        return FusedOutputs(logits, logits.sigmoid(), *self.judge(logits, features))

    def judge(
        self, logits: Tensor | None, features: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score, p-value and verdict for each row, of what the detector needs."""
        given = {"logits": logits, "features": features}
        for name in self.needs:
            if given[name] is None:
                raise MissingInputError(f"the detector reads {name}, which were not given.")
        inputs = given[self.reads]
        assert inputs is not None
        if inputs.ndim != 2 or inputs.shape[1] != self.n_columns:
            raise ShapeError(
                f"{self.reads} must have shape (n_samples, {self.n_columns}), "
                f"got {tuple(inputs.shape)}."
            )
        inputs = _widened(inputs)
        # NaN is not below infinity either.
        fine = inputs < torch.inf if self.masked_allowed else inputs.abs() < torch.inf
        usable = fine.all(1)
        scores = self.scorer(torch.where(usable[:, None], inputs, 0.0)).double()
        scores = torch.where(usable, scores, -torch.inf)
        return scores, *self.verdict(scores, logits)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Take the device and leave the precision: calibration scores in half precision are others.
        device = fn(torch.zeros(1, dtype=torch.int64)).device
        super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]
        return self


class FusedModel(nn.Module):
    """A classifier with its detector: one module from inputs to predictions and verdicts.

    Plain torch: it moves between devices, and `torch.compile` and `torch.export` take it. The
    classifier is used as it is, in the mode it is in; call `eval()` as you would on the classifier.

    Parameters
    ----------
    classifier : Module, or a wrapped model
        Gives logits, or a pair of logits and features, which a detector of features needs.
    detector : Detector
        Calibrated; that of the wrapped model if not given.

    Examples
    --------
    >>> import nescio as ns
    >>> detector = ns.MaxLogit().calibrate(torch.arange(-100.0, 100.0).reshape(100, 2))
    >>> fused = FusedModel(nn.Linear(3, 2), detector).eval()
    >>> fused(torch.zeros(5, 3)).score.shape
    torch.Size([5])
    """

    def __init__(self, classifier: Any, detector: Detector | None = None) -> None:
        super().__init__()
        from_probs = False
        if not isinstance(classifier, nn.Module):
            wrapped = classifier if detector is None else classifier.with_detector(detector)
            if not hasattr(wrapped, "module"):
                raise ExportError(
                    f"a {wrapped.kind} model is no torch module. Write it as ONNX: export_onnx."
                )
            detector, from_probs = wrapped.detector, wrapped.from_probs
            classifier = wrapped.module()
        if detector is None:
            raise ParameterError("there is no detector: pass one, calibrated.")
        self.classifier = classifier
        self.head = DetectorHead(detector, from_probs=from_probs)

    def forward(self, *inputs: Any, **named: Any) -> FusedOutputs:
        """One pass for all of it."""
        given = self.classifier(*inputs, **named)
        logits, features = given if isinstance(given, tuple) else (given, None)
        outputs: FusedOutputs = self.head(logits, features)
        return outputs


def _logits_from_probs(probs: Tensor) -> Tensor:
    """As `nescio.scores.logits_from_probs`, but for NaN where that raises."""
    # A tensor: of a plain number, the exporter keeps float32, which has no such number below 1.
    below_one = torch.tensor(
        1.0 - torch.finfo(probs.dtype).eps / 2, dtype=probs.dtype, device=probs.device
    )
    capped = _widened(torch.where(probs <= 1.0, torch.minimum(probs, below_one), torch.nan))
    return capped.log() - (-capped).log1p()


def _widened(tensor: Tensor) -> Tensor:
    """16-bit tensors in float32, as Python computes with them."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
