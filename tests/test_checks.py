"""The public checks pass a good detector of a user's own and catch bad ones."""

import numpy as np
import pytest

from nescio import Detector, checks
from nescio.checks import CHECKS, check_detector
from nescio.errors import NescioError


class MedianLogit(Detector):
    """The median logit."""

    name = "median_logit"
    paper = "nobody"

    def _score(self, inputs):
        return np.median(inputs, axis=1)


class Learner(Detector):
    """Distance to the mean."""

    name = "learner"
    paper = "nobody"
    learned = ("mean_",)

    def _learn(self, inputs, labels):
        self.mean_ = inputs.mean(0)

    def _score(self, inputs):
        return -((inputs - self.mean_) ** 2).sum(1)


@pytest.mark.parametrize("detector", [MedianLogit(), Learner()])
def test_a_users_own_detector_passes(detector):
    check_detector(detector)


class RanksTheBatch(MedianLogit):
    def _score(self, inputs):
        return np.argsort(np.argsort(inputs.sum(1))).astype(float)


class WritesToItsInput(MedianLogit):
    def _score(self, inputs):
        inputs += 1
        return inputs.sum(1)


class ForgetsWhatItLearned(Learner):
    learned = ()

    def _score(self, inputs):
        mean = getattr(self, "mean_", np.zeros(inputs.shape[1]))
        return -((inputs - mean) ** 2).sum(1)


class GivesTwoColumns(MedianLogit):
    def _score(self, inputs):
        return inputs[:, :2]


class IsNotFinite(MedianLogit):
    def _score(self, inputs):
        return np.where(inputs[:, 0] > 0, np.nan, 0.0)


class HasNoSource(MedianLogit):
    """Says nothing of where it comes from."""

    paper = ""


class IsRandom(MedianLogit):
    def _score(self, inputs):
        return np.random.default_rng().random(len(inputs))


class PosesAsNescios(MedianLogit):
    """Has the name of one of nescio's own."""

    name = "max_logit"


@pytest.mark.parametrize(
    ("detector", "expected"),
    [
        (RanksTheBatch(), checks.check_samples_are_independent),
        (WritesToItsInput(), checks.check_input_is_left_alone),
        (ForgetsWhatItLearned(), checks.check_survives_saving),
        (GivesTwoColumns(), checks.check_scores_one_number_per_sample),
        (IsNotFinite(), checks.check_scores_one_number_per_sample),
        (HasNoSource(), checks.check_says_what_it_is),
        (PosesAsNescios(), checks.check_says_what_it_is),
        (IsRandom(), checks.check_scores_one_number_per_sample),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Detector) else "",
)
def test_a_bad_detector_is_caught(detector, expected):
    assert expected in CHECKS
    with pytest.raises((AssertionError, NescioError, ValueError)):
        expected(detector)
