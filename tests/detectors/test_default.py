import numpy as np
import pytest

from nescio import Outputs
from nescio.detectors.combined import MIN_HELD_OUT, default_detector
from nescio.errors import DefaultDetectorWarning


def outputs(n, seed=0, **without):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (n, 6))
    features = labels @ np.eye(6, 8) + 0.3 * rng.normal(size=(n, 8))
    logits = 4 * labels - 2 + rng.normal(size=(n, 6))
    return Outputs(logits, **({"features": features, "labels": labels} | without))


def test_features_and_labels_make_a_combination_that_can_be_used():
    train, held_out = outputs(300), outputs(MIN_HELD_OUT, 1)
    detector, reason = default_detector(train, held_out, tpr=0.9)
    assert detector.name == "combined"
    assert "linear probe" in reason
    assessed = detector.fit(train).calibrate(held_out).assess(outputs(2000, 2))
    assert 0.85 < assessed.in_distribution.mean() < 0.95


@pytest.mark.parametrize(
    ("train", "held_out", "why"),
    [
        (None, outputs(500), "it needs training outputs"),
        (outputs(300, features=None), outputs(500), "training outputs have no features"),
        (outputs(300, labels=None), outputs(500), "training outputs have no labels"),
        (outputs(300), outputs(500, features=None), "held-out outputs have no features"),
        (None, outputs(100, features=None), "needs training outputs"),
    ],
)
def test_without_features_it_is_joint_energy(train, held_out, why):
    detector, reason = default_detector(train, held_out, nonfinite="out")  # warnings are errors
    assert (detector.name, detector.nonfinite) == ("joint_energy", "out")
    assert why in reason


@pytest.mark.parametrize(
    ("train", "held_out", "why"),
    [
        (
            outputs(300, labels=outputs(300).labels[::-1]),
            outputs(500),
            "the training labels do not fit the logits",
        ),
        (
            outputs(300, features=np.ones((300, 4097))),
            outputs(500, features=np.ones((500, 4097))),
            "there are 4,097 features",
        ),
        (outputs(300), outputs(MIN_HELD_OUT - 1), "needs 400 held-out samples, and there are 399"),
    ],
)
def test_features_that_cannot_be_used_are_warned_of(train, held_out, why):
    with pytest.warns(DefaultDetectorWarning, match=why):
        detector, reason = default_detector(train, held_out)
    assert detector.name == "joint_energy"
    assert why in reason


def test_columns_of_a_table_are_compared_with_training_samples():
    detector, reason = default_detector(of_table=True, tpr=0.9)
    assert (detector.name, detector.tpr) == ("knn", 0.9)
    assert "columns of the table" in reason


@pytest.mark.parametrize(("n_labels", "name"), [(20, "joint_energy"), (21, "top_k_joint_energy")])
def test_of_many_labels_the_largest_count(n_labels, name):
    held_out = Outputs(np.random.default_rng(0).normal(-2, 3, (500, n_labels)))
    detector, reason = default_detector(held_out=held_out, tpr=0.9)
    assert (detector.name, detector.tpr) == (name, 0.9)
    assert detector.get_params().get("k", 20) == 20
    assert ("20 largest labels" in reason) == (n_labels > 20)
