"""ODIN: the largest probability, at a temperature, of an input made a little more certain."""

from __future__ import annotations

from nescio import scores
from nescio._validation import Array, FloatArray, checked_choice
from nescio.detectors.base import Detector


class ODIN(Detector):
    """The largest label probability of the perturbed input, its logits divided by a temperature.

    The perturbed logits need the network: `nescio tune` chooses the temperature and the size of
    the perturbation on synthetic data, `nescio extract --tuned` adds the result to the outputs,
    divided by the temperature already.

    Under the max, the temperature changes no ranking: dividing all logits by one number leaves
    their order alone.

    Parameters
    ----------
    aggregate : {"max", "sum"}
        The paper's method takes the max, of the array odin_max; its ablation the sum, of odin_sum.
    """

    name = "odin"
    paper = "Liang et al., ICLR 2018; multi-label as in Wang et al., NeurIPS 2021"
    reads = ("odin_max",)
    accepts_masked = False

    def __init__(
        self, aggregate: str = "max", *, tpr: float = 0.95, nonfinite: str = "raise"
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.aggregate = aggregate

    def _check_params(self) -> None:
        super()._check_params()
        checked_choice("aggregate", self.aggregate, ("max", "sum"))

    def input_name(self, *, learning: bool = False) -> str:
        """The perturbed logits for the aggregate: their directions differ."""
        return f"odin_{self.aggregate}"

    def _score(self, inputs: FloatArray) -> Array:
        return scores.max_prob(inputs) if self.aggregate == "max" else scores.sum_prob(inputs)
