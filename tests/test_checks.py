"""The public checks pass a good detector of a user's own and catch bad ones."""

import numpy as np
import pytest

from nescio import Detector
from nescio.checks import CHECKS, check_detector


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


@pytest.mark.parametrize(
    "detector",
    [
        RanksTheBatch(),
        WritesToItsInput(),
        ForgetsWhatItLearned(),
        GivesTwoColumns(),
        IsNotFinite(),
        HasNoSource(),
        IsRandom(),
    ],
    ids=lambda detector: type(detector).__name__,
)
def test_a_bad_detector_is_caught(detector):
    failed = []
    for check in CHECKS:
        try:
            check(detector)
        except Exception:
            failed.append(check.__name__)
    assert failed
