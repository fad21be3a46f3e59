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

    def _score(self, arrays):
        return np.median(arrays.logits, axis=1)


class Learner(Detector):
    """Distance to the mean."""

    name = "learner"
    paper = "nobody"
    learns_from = ("logits",)
    learned = ("mean_",)

    def _learn(self, arrays):
        self.mean_ = arrays.logits.mean(0)

    def _score(self, arrays):
        return -((arrays.logits - self.mean_) ** 2).sum(1)


class HeldOutLearner(Learner):
    """Distance to the mean of held-out data."""

    name = "held_out_learner"
    learns_from, learns_from_held_out = (), ("logits",)

    def _learn_held_out(self, arrays):
        self.mean_ = arrays.logits.mean(0)


@pytest.mark.parametrize("detector", [MedianLogit(), Learner(), HeldOutLearner()])
def test_a_users_own_detector_passes(detector):
    check_detector(detector)


class RanksTheBatch(MedianLogit):
    def _score(self, arrays):
        return np.argsort(np.argsort(arrays.logits.sum(1))).astype(float)


class WritesToItsInput(MedianLogit):
    def _score(self, arrays):
        arrays.logits[:] += 1
        return arrays.logits.sum(1)


class ForgetsWhatItLearned(Learner):
    learned = ()

    def _score(self, arrays):
        mean = getattr(self, "mean_", np.zeros(arrays.logits.shape[1]))
        return -((arrays.logits - mean) ** 2).sum(1)


class LearnsFromAllHeldOutData(HeldOutLearner):
    def calibrate(self, X, **settings):
        super().calibrate(X, **settings)
        self._learn_held_out(X)
        return self


class GivesTwoColumns(MedianLogit):
    def _score(self, arrays):
        return arrays.logits[:, :2]


class IsNotFinite(MedianLogit):
    def _score(self, arrays):
        return np.where(arrays.logits[:, 0] > 0, np.nan, 0.0)


class HasNoSource(MedianLogit):
    """Says nothing of where it comes from."""

    paper = ""


class IsRandom(MedianLogit):
    def _score(self, arrays):
        return np.random.default_rng().random(len(arrays))


class ReadsWhatItDoesNotDeclare(MedianLogit):
    def _score(self, arrays):
        return arrays.features.sum(1)


class PosesAsNescios(MedianLogit):
    """Has the name of one of nescio's own."""

    name = "max_logit"


@pytest.mark.parametrize(
    ("detector", "expected"),
    [
        (RanksTheBatch(), checks.check_samples_are_independent),
        (WritesToItsInput(), checks.check_input_is_left_alone),
        (ForgetsWhatItLearned(), checks.check_survives_saving),
        (
            LearnsFromAllHeldOutData(),
            checks.check_calibrates_on_data_that_it_has_not_learned_from,
        ),
        (GivesTwoColumns(), checks.check_scores_one_number_per_sample),
        (IsNotFinite(), checks.check_scores_one_number_per_sample),
        (HasNoSource(), checks.check_says_what_it_is),
        (PosesAsNescios(), checks.check_says_what_it_is),
        (ReadsWhatItDoesNotDeclare(), checks.check_scores_one_number_per_sample),
        (IsRandom(), checks.check_scores_one_number_per_sample),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Detector) else "",
)
def test_a_bad_detector_is_caught(detector, expected):
    assert expected in CHECKS
    with pytest.raises((AssertionError, AttributeError, NescioError, ValueError)):
        expected(detector)
