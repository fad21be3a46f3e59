"""The largest logit, after each label's logits are standardised."""

from __future__ import annotations

import numpy as np

from nescio import scores
from nescio._validation import Array
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector


class CalibratedMax(Detector):
    """The largest logit, in standard deviations from the mean of its label.

    Labels have logits of different size: rare labels have lower ones than frequent labels, and a
    large logit of one label can be usual for another. The mean and the standard deviation of each
    label put them on one scale. A label with a constant logit is only centred. Masked labels count
    nothing.

    Attributes
    ----------
    means_ : array of shape (n_labels,)
        The mean logit of each label.
    scales_ : array of shape (n_labels,)
        The standard deviation of each label's logits.

    Examples
    --------
    >>> logits = np.array([[-8.0, 0.0], [-6.0, 4.0], [-4.0, 8.0]])
    >>> CalibratedMax().fit(logits).score_samples([[-2.0, 4.0], [-6.0, 6.0]]).round(2)
    array([2.45, 0.61])
    """

    name = "calibrated_max"
    paper = "max_logit of Hendrycks et al., 2019, standardised by label"
    # Not from held-out data: half of it gives noisier numbers, and no better ranking was measured.
    learns_from = ("logits",)
    learned = ("means_", "scales_")
    traceable = True

    def _learn(self, arrays: Arrays) -> None:
        logits = arrays.logits.astype(np.float64)
        known = logits > -np.inf
        counts = np.maximum(known.sum(0), 1)
        self.means_ = np.where(known, logits, 0.0).sum(0) / counts
        deviations = np.where(known, logits - self.means_, 0.0)
        scales = np.sqrt((deviations**2).sum(0) / counts)
        # The deviations of a constant label are rounding errors.
        constant = scales <= len(logits) * np.finfo(np.float64).eps * np.abs(self.means_)
        self.scales_ = np.where(constant, 1.0, scales)

    def _score(self, arrays: Arrays) -> Array:
        return scores.max_logit((arrays.logits - self.means_) / self.scales_)

    def _check_learned(self) -> None:
        fits = self.means_.shape == self.scales_.shape == (self.n_features_in_,)
        if (
            not fits
            or not np.isfinite([self.means_, self.scales_]).all()
            or (self.scales_ <= 0).any()
        ):
            raise ValueError("the means and standard deviations of its labels cannot be used")
