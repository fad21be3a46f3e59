"""ODIN: the largest probability, at a temperature, for a slightly perturbed input."""

from __future__ import annotations

from nescio import scores
from nescio._validation import Array, checked_choice
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector


class ODIN(Detector):
    """The largest label probability of the perturbed input, its logits divided by a temperature.

    The perturbed logits need the network: `nescio tune` chooses the temperature and the size of
    the perturbation on synthetic data, and `nescio extract --tuned` adds the logits for the
    perturbed inputs to the outputs, already divided by the temperature.

    Under the max, the temperature does not change the ranking: dividing all logits by one number
    keeps their order.

    Parameters
    ----------
    aggregate : {"max", "sum"}
        The paper's method takes the max, of the array odin_max; its ablation takes the sum, of
        odin_sum.
    """

    name = "odin"
    paper = "Liang et al., ICLR 2018; multi-label as in Wang et al., NeurIPS 2021"
    accepts_masked = False

    def __init__(
        self, aggregate: str = "max", *, tpr: float = 0.95, nonfinite: str = "raise"
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.aggregate = aggregate

    def _check_params(self) -> None:
        super()._check_params()
        checked_choice("aggregate", self.aggregate, ("max", "sum"))

    @property
    def scores_from(self) -> tuple[str, ...]:
        """The perturbed logits for the aggregate: their directions differ."""
        return (f"odin_{self.aggregate}",)

    def _score(self, arrays: Arrays) -> Array:
        (name,) = self.scores_from
        return scores.label_score(arrays[name], "prob", self.aggregate)
