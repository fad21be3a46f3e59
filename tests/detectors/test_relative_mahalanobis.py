import numpy as np
import pytest

import nescio as ns
from nescio.errors import EmptyLabelWarning


@pytest.fixture
def data(rng):
    labels = rng.integers(0, 2, (300, 4))
    labels[:20] = 0  # without a label, they are only in the Gaussian of all samples
    features = labels @ rng.normal(0, 2, (4, 9)) + rng.normal(size=(300, 9)) + 1
    return features, labels


def quadratic(residuals, covariance):
    return np.einsum("ij,jk,ik->i", residuals, np.linalg.inv(covariance), residuals)


def plainly(features, labels, new):
    """The paper's formula, with one entry in the shared covariance per label of a sample."""
    members = [features[labels[:, i] == 1] for i in range(labels.shape[1])]
    within = np.concatenate([part - part.mean(0) for part in members])
    covariance = within.T @ within / len(within)
    to_labels = np.stack([quadratic(new - part.mean(0), covariance) for part in members])
    overall = quadratic(new - features.mean(0), np.cov(features.T, bias=True))
    return -(to_labels - overall).min(0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("normalise", [False, True])
def test_scores_are_the_papers(data, rng, dtype, normalise):
    features, labels = data
    new = rng.normal(0, 3, (40, 9))
    detector = ns.RelativeMahalanobis(normalise).fit(features.astype(dtype), labels)
    found = detector.score_samples(new.astype(dtype))
    if normalise:
        features, new = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (features, new))
    expected = plainly(features, labels, new)
    tolerance = 1e-9 if dtype == np.float64 else 1e-4  # float32 has rounded the features
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())


def test_with_a_single_label_that_all_have_nothing_remains(data, rng):
    features, _ = data
    detector = ns.RelativeMahalanobis().fit(features, np.ones((300, 1), int))
    np.testing.assert_allclose(detector.score_samples(rng.normal(size=(20, 9))), 0, atol=1e-9)


def test_without_labels_it_is_the_plain_distance(data, rng):
    features, _ = data
    new = rng.normal(size=(20, 9))
    np.testing.assert_array_equal(
        ns.RelativeMahalanobis().fit(features).score_samples(new),
        ns.Mahalanobis(normalise=True).fit(features).score_samples(new),
    )


def test_features_are_normalised_by_default(data):
    features, labels = data
    detector = ns.RelativeMahalanobis().fit(features, labels)
    np.testing.assert_allclose(
        detector.score_samples(features * 7), detector.score_samples(features), rtol=1e-6
    )


def test_labels_without_samples_are_left_out_with_one_warning(data):
    features, labels = data
    with pytest.warns(EmptyLabelWarning, match="1 of 5 labels") as warned:
        ns.RelativeMahalanobis().fit(features, np.hstack([labels, np.zeros((300, 1), int)]))
    assert len(warned) == 1
