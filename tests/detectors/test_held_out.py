"""A detector that learns from held-out data: half of it, and the other half calibrates."""

import numpy as np
import pytest

import nescio as ns
from nescio.checks import make_outputs
from nescio.detectors.base import learning_half
from nescio.errors import GroupWarning, InputError, ShapeError, TooFewSamplesError


class Centred(ns.Detector):
    """Distance to the mean of held-out logits."""

    name, paper = "centred", "an example"
    learns_from_held_out = ("logits",)
    learned = ("mean_",)

    def _learn_held_out(self, arrays):
        self.mean_ = arrays.logits.mean(0)

    def _score(self, arrays):
        return -np.abs(arrays.logits - self.mean_).sum(1)


class CentredTwice(Centred):
    """Distance to the mean of the training logits and to that of held-out features."""

    name = "centred_twice"
    learns_from = ("logits",)
    learns_from_held_out = ("features", "labels")
    learned = ("train_mean_", "mean_")

    def _learn(self, arrays):
        self.train_mean_ = arrays.logits.mean(0)

    def _learn_held_out(self, arrays):
        assert arrays.names == ("features", "labels")
        self.mean_ = arrays.features[arrays.labels[:, 0] == 1].mean(0)

    def _score(self, arrays):
        assert arrays.names == ("logits",)
        return -np.abs(arrays.logits - self.train_mean_).sum(1) - self.mean_.sum()


def test_lists_and_outputs_are_halved_alike(logits):
    outputs = ns.Outputs(logits, ids=[f"image {i}" for i in range(len(logits))])
    result = [Centred().calibrate(data).offset_ for data in (logits, logits.tolist(), outputs)]
    assert len(set(result)) == 1


def test_groups_are_halved_with_the_rows(logits):
    groups = np.where(logits[:, 0] > 0, "high", "low")
    detector = Centred().calibrate(logits, groups=groups.tolist(), tpr=0.8)
    rest = ~learning_half(len(logits))
    sizes = {name: first.n_samples for name, first in detector.calibration_.thresholds.items()}
    expected = {name: (groups[rest] == name).sum() for name in ("high", "low")}
    assert sizes == expected | {"all": rest.sum()}
    with pytest.raises(ShapeError, match=r"shape \(400,\), got \(399,\)"):
        Centred().calibrate(logits, groups=groups[1:])


def test_fit_learns_from_training_and_calibrate_from_held_out_data():
    train, held_out = make_outputs(100), make_outputs(100, seed=1)
    detector = CentredTwice().fit(train)
    assert not hasattr(detector, "mean_")
    detector.calibrate(held_out)
    half = held_out[learning_half(100)]
    np.testing.assert_array_equal(detector.train_mean_, train.logits.mean(0))
    np.testing.assert_array_equal(detector.mean_, half.features[half.labels[:, 0] == 1].mean(0))
    with pytest.raises(InputError, match="learned from this very data"):
        detector.calibrate(train)


def test_data_without_what_is_learned_later_only_fits():
    train = make_outputs(100)
    detector = CentredTwice().fit(train).calibrate(make_outputs(100, seed=1))
    detector.fit(ns.Outputs(train.logits))
    assert not hasattr(detector, "offset_")
    assert not hasattr(detector, "mean_")  # what it knew of other data
    with pytest.raises(ns.detectors.NotCalibratedError, match="has no threshold yet"):
        detector.predict(train)
    detector.calibrate(make_outputs(100, seed=1)).predict(train)


def test_the_error_says_what_to_call_first(logits):
    with pytest.raises(ns.detectors.NotCalibratedError, match=r"data: call calibrate\(held_out\)"):
        Centred().score_samples(logits)
    with pytest.raises(ns.detectors.NotCalibratedError, match=r"data: call fit\(training_data\)"):
        CentredTwice().calibrate(make_outputs(100))


def test_too_few_samples_say_that_half_of_them_are_learned_from(logits):
    message = "needs at least 19 calibration samples, got 18. .* learns from half "
    with pytest.raises(TooFewSamplesError, match=message + "of the held-out data: pass twice"):
        Centred().calibrate(logits[:36])
    Centred().calibrate(logits[:37])
    groups = np.where(np.arange(200) < 20, "small", "large")
    with pytest.warns(GroupWarning, match=r"needs 19 in each\). .* learns from half .* twice"):
        Centred().calibrate(make_outputs(200).logits, groups=groups)
    with pytest.raises(TooFewSamplesError, match="none of the 0 rows"):
        Centred().calibrate(logits[:1])


def test_rows_that_cannot_be_used_are_not_learned_from(logits):
    logits[:4] = np.nan
    detector = Centred(nonfinite="out").calibrate(logits)
    half = learning_half(len(logits))
    half[:4] = False
    np.testing.assert_array_equal(detector.mean_, logits[half].mean(0))
