import numpy as np
import pytest

import nescio as ns
from nescio.detectors import linear_probe
from nescio.errors import InputError, MissingInputError
from nescio.outputs import Outputs


def some(n, seed, dtype=np.float64, noise=1.0):
    rng = np.random.default_rng(seed)
    labels = (rng.random((n, 3)) < 0.4).astype(int)
    directions = np.random.default_rng(9).normal(0, 2, (3, 8))
    features = labels @ directions + 2 + noise * rng.normal(size=(n, 8))
    return Outputs(rng.normal(size=(n, 3)), features=features.astype(dtype), labels=labels)


def unit(features):
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def ridge(features, targets, penalty):
    """The textbook's formula, with an intercept that is not penalised."""
    center = features.mean(0)
    moved = features - center
    scatter = moved.T @ moved
    scaled = penalty * np.trace(scatter) / len(scatter)
    weights = np.linalg.solve(
        scatter + scaled * np.eye(len(scatter)), moved.T @ (targets - targets.mean(0))
    )
    return lambda new: (new - center) @ weights + targets.mean(0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scores_are_the_formula(dtype):
    train, new = some(200, 0, dtype), some(50, 1, dtype, noise=20.0)
    detector = ns.LinearProbe().fit(train)
    predict = ridge(unit(train.features.astype(np.float64)), train.labels, detector.penalty_)
    outputs = predict(unit(new.features.astype(np.float64)))
    expected = (np.maximum(outputs, 0) ** 2).sum(1) + np.minimum(outputs.max(1), 0)
    assert (expected < 0).any()
    np.testing.assert_allclose(
        detector.score_samples(new), expected, rtol=1e-8 if dtype == np.float64 else 1e-4
    )


def test_the_penalty_has_the_smallest_error_on_samples_left_out():
    train = some(60, 0, noise=6.0)
    detector = ns.LinearProbe().fit(train)
    rows = unit(train.features)

    def error(penalty):
        def residual(i):
            others = np.arange(60) != i
            # The penalty is in units of all samples, as in the closed form.
            part, whole = (x - x.mean(0) for x in (rows[others], rows))
            ratio = (whole**2).sum() / (part**2).sum()
            predict = ridge(rows[others], train.labels[others], penalty * ratio)
            return train.labels[i] - predict(rows[i])

        return np.mean([residual(i) ** 2 for i in range(60)])

    errors = [error(penalty) for penalty in linear_probe._PENALTIES]
    assert detector.penalty_ == linear_probe._PENALTIES[np.argmin(errors)]
    assert 0 < np.argmin(errors) < len(errors) - 1


def test_fewer_samples_than_features():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (30, 3))
    train = Outputs(np.full((30, 3), -2.0), features=rng.normal(1, 2, (30, 50)), labels=labels)
    new = Outputs(np.full((20, 3), -2.0), features=rng.normal(1, 2, (20, 50)))
    detector = ns.LinearProbe().fit(train)
    predict = ridge(unit(train.features), labels, detector.penalty_)
    outputs = predict(unit(new.features))
    expected = (np.maximum(outputs, 0) ** 2).sum(1) + np.minimum(outputs.max(1), 0)
    np.testing.assert_allclose(detector.score_samples(new), expected, rtol=1e-8)


def test_more_samples_than_the_choice_of_the_penalty_reads(monkeypatch):
    train, new = some(300, 0), some(50, 1)
    expected = ns.LinearProbe().fit(train)
    monkeypatch.setattr(linear_probe, "_ROWS", 200)
    found = ns.LinearProbe().fit(train)
    ratio = found.penalty_ / expected.penalty_
    assert 1 / 4 <= ratio <= 4
    assert np.corrcoef(found.score_samples(new), expected.score_samples(new))[0, 1] > 0.99


def test_what_lies_between_labels_scores_lower():
    train = some(400, 0, noise=0.3)
    detector = ns.LinearProbe().fit(train).calibrate(some(400, 1, noise=0.3))
    unknown = Outputs(
        np.full((50, 3), -2.0), features=np.random.default_rng(2).normal(2, 0.3, (50, 8))
    )
    assert (detector.predict(some(400, 3, noise=0.3)) == 1).mean() > 0.9
    carries = some(400, 3, noise=0.3).labels.any(1)
    scores = detector.score_samples(some(400, 3, noise=0.3))
    assert np.median(detector.score_samples(unknown)) < np.quantile(scores[carries], 0.05)


def test_a_plain_array_needs_labels():
    train, new = some(200, 0), some(50, 1)
    found = ns.LinearProbe().fit(train.features, train.labels)
    expected = ns.LinearProbe().fit(train)
    np.testing.assert_array_equal(
        found.score_samples(new.features), expected.score_samples(new.features)
    )
    with pytest.raises(MissingInputError, match="pass them as y"):
        ns.LinearProbe().fit(train.features)


def test_equal_features_are_an_error():
    train = Outputs(np.full((20, 3), -2.0), features=np.ones((20, 4)), labels=np.ones((20, 3), int))
    with pytest.raises(InputError, match="no difference between the features"):
        ns.LinearProbe().fit(train)
