"""Nearest-neighbour guidance: joint energy, weighted by similar training samples and theirs."""

from __future__ import annotations

import numpy as np

from nescio import scores
from nescio._validation import Array, FloatArray
from nescio.detectors import neighbours
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.detectors.features import checked_layer, row_blocks, unit_rows


class NNGuide(Detector):
    """Joint energy times the mean of the k largest products of similarity and training energy.

    The product of a training sample is the cosine similarity of its features to those of the
    sample, times its own joint energy, which takes the place of the paper's log-sum-exp. A row of
    zeros has no direction: its similarity to every sample is 0, and so is its score.

    The search is exact, in the precision of the training features.

    Parameters
    ----------
    k : int
        How many training samples guide a score.
    layer : str
        The array to read: "features", or a name in `Outputs.arrays`.
    bank : int
        How many training samples to keep at most, drawn at random with a fixed seed; 0 for all.
        Memory, the size of the file and the time to score grow with it. With 20,000 samples of
        1,024 features, these are 82 MB, and below 10 % of the time of DenseNet-121, even for one
        image at a time (benchmarks/neighbours.py).

    Attributes
    ----------
    bank_ : array of shape (n_kept, n_features)
        The features of the training samples, scaled to the length of their joint energy.
    """

    name = "nnguide"
    paper = "Park et al., ICCV 2023; with joint energy"
    learned = ("bank_",)

    def __init__(
        self,
        k: int = 50,
        layer: str = "features",
        bank: int = 20_000,
        *,
        tpr: float = 0.95,
        nonfinite: str = "raise",
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.k = k
        self.layer = layer
        self.bank = bank

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The features of the layer, and logits."""
        return (self.layer, "logits")

    scores_from = learns_from

    def _check_params(self) -> None:
        super()._check_params()
        checked_layer(self.layer)
        neighbours.check_sizes(self.k, self.bank)

    def _learn(self, arrays: Arrays) -> None:
        features: FloatArray = arrays[self.layer]
        neighbours.check_enough(self.k, len(features), self.name)
        rows = neighbours.drawn(len(features), self.bank)
        self.bank_ = unit_rows(features, rows)
        energies: FloatArray = scores.joint_energy(arrays.logits[rows])
        self.bank_ *= energies.astype(self.bank_.dtype)[:, None]

    def _score(self, arrays: Arrays) -> Array:
        neighbours.check_enough(self.k, len(self.bank_), self.name)
        inputs: FloatArray = arrays[self.layer]
        guidance = np.empty(len(inputs))
        for block in row_blocks(len(inputs), max(self.bank_.shape)):
            found = neighbours.products(unit_rows(inputs[block]), self.bank_)
            largest = np.partition(found, -self.k, axis=1)[:, -self.k :]
            guidance[block] = largest.mean(1, dtype=np.float64)
        energies: FloatArray = scores.joint_energy(arrays.logits)
        return guidance * energies

    def _check_learned(self) -> None:
        if not neighbours.fits(self.bank_, self.k, self.n_features_in_):
            raise ValueError("its training samples are not consistent")
