import numpy as np
import pytest

import nescio as ns
from nescio.checks import make_outputs
from nescio.errors import EmptyLabelWarning, InputError, ShapeError


@pytest.fixture
def data(rng):
    labels = rng.integers(0, 2, (300, 5))
    features = labels @ rng.normal(0, 2, (5, 12)) + rng.normal(size=(300, 12)) @ rng.normal(
        size=(12, 12)
    )
    return features, labels


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def plainly(features, labels, new):
    """The paper's way, a label at a time: memberships laid end to end, then the full quadratic."""
    means = [features[labels[:, i] == 1].mean(0) for i in range(labels.shape[1])]
    residuals = np.concatenate(
        [features[labels[:, i] == 1] - means[i] for i in range(labels.shape[1])]
    )
    precision = np.linalg.pinv(residuals.T @ residuals / len(residuals), hermitian=True)
    return np.stack([-np.diag((new - mean) @ precision @ (new - mean).T) for mean in means], axis=1)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("aggregate", ["max", "sum"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scores_are_the_papers(data, rng, aggregate, dtype, normalise):
    features, labels = data
    new = np.vstack([rng.normal(0, 4, (40, 12)), np.zeros((1, 12))])
    detector = ns.Mahalanobis(aggregate, normalise=normalise).fit(features.astype(dtype), labels)
    scales = (1, 1e-10, 1e10) if normalise else (1,)
    scores = [detector.score_samples((new * scale).astype(dtype)) for scale in scales]
    if normalise:
        features, new = unit(features), np.vstack([unit(new[:-1]), new[-1:]])
    expected = getattr(plainly(features, labels, new), aggregate)(1)
    tolerance = 1e-9 if dtype == np.float64 else 1e-4
    for scaled in scores:
        np.testing.assert_allclose(scaled, expected, rtol=tolerance)


def test_dead_and_copied_features_do_not_matter(data, rng):
    features, labels = data
    wide = np.hstack([features, np.zeros((300, 3)), features[:, :2]])
    new = rng.normal(0, 4, (20, 12))
    wide_new = np.hstack([new, np.zeros((20, 3)), new[:, :2]])
    detector = ns.Mahalanobis().fit(wide, labels)
    assert detector.whitening_.shape == (17, 12)
    expected = ns.Mahalanobis().fit(features, labels).score_samples(new)
    np.testing.assert_allclose(detector.score_samples(wide_new), expected, rtol=1e-6)


def test_features_far_from_zero_or_of_unlike_scales_lose_nothing(data, rng):
    features, labels = data
    new = rng.normal(0, 4, (20, 12))
    expected = ns.Mahalanobis().fit(features, labels).score_samples(new)
    scales = 10.0 ** np.linspace(-9, 3, 12)
    scaled = ns.Mahalanobis().fit(features * scales, labels)
    assert scaled.whitening_.shape == (12, 12)
    np.testing.assert_allclose(scaled.score_samples(new * scales), expected, rtol=1e-6)
    # exact in float32 with the offset and without
    features, new = np.round(features * 1024) / 1024, np.round(new * 1024) / 1024
    expected = ns.Mahalanobis().fit(features, labels).score_samples(new)
    shifted = ns.Mahalanobis().fit((features + 4096).astype(np.float32), labels)
    scores = shifted.score_samples((new + 4096).astype(np.float32))
    np.testing.assert_allclose(scores, expected, rtol=2e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("seed", range(5))
def test_features_that_only_say_the_label_do_not_matter(dtype, seed):
    """Around the label means they do not vary; rounding must not be taken for variance."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 4, 300)
    features = rng.normal(size=(300, 6)) + classes[:, None]
    values = rng.normal(0, 3, 4)[classes][:, None]
    wide = np.hstack([features, values]).astype(dtype)
    expected = (
        ns.Mahalanobis().fit(features.astype(dtype), classes).score_samples(features.astype(dtype))
    )
    scores = ns.Mahalanobis().fit(wide, classes).score_samples(wide)
    np.testing.assert_allclose(scores, expected, rtol=1e-3)


def test_one_class_per_sample_is_the_one_hot_case(data, rng):
    features, _ = data
    classes = rng.integers(0, 3, 300)
    one_hot = np.eye(3)[classes]
    np.testing.assert_allclose(
        ns.Mahalanobis().fit(features, classes).score_samples(features),
        ns.Mahalanobis().fit(features, one_hot).score_samples(features),
    )


@pytest.mark.parametrize("kind", [ns.Mahalanobis, ns.RelativeMahalanobis])
def test_labels_without_samples_are_left_out_with_one_warning(data, kind):
    features, labels = data
    emptied = np.hstack([labels, np.zeros((300, 1), int)])
    with pytest.warns(EmptyLabelWarning, match=r"1 of 6 labels .*label 5") as warned:
        detector = kind().fit(features, emptied)
    assert len(warned) == 1
    np.testing.assert_allclose(
        detector.score_samples(features), kind().fit(features, labels).score_samples(features)
    )


def test_bad_labels_are_explained(data):
    features, labels = data
    with pytest.raises(InputError, match="every value must be 0 or 1"):
        ns.Mahalanobis().fit(features, 2 * labels)
    with pytest.raises(ShapeError, match="must have 300 rows, one per sample, got 10"):
        ns.Mahalanobis().fit(features, labels[:10])
    with pytest.raises(InputError, match="all 0"):
        ns.Mahalanobis().fit(features, 0 * labels)


def test_bad_rows_are_not_learned_from(data):
    features, labels = data
    spoiled = features.copy()
    spoiled[:50, 0] = np.nan
    detector = ns.Mahalanobis(nonfinite="out", tpr=0.8).fit(spoiled, labels)
    clean = ns.Mahalanobis(tpr=0.8).fit(features[50:], labels[50:])
    np.testing.assert_allclose(detector.score_samples(features), clean.score_samples(features))


@pytest.mark.parametrize("aggregate", ["max", "sum"])
def test_mahalanobis_learns_from_plain_and_scores_perturbed_features(aggregate):
    train, new = make_outputs(300), make_outputs(50, seed=1)
    plain = ns.Mahalanobis(aggregate).fit(train)
    perturbed = ns.PerturbedMahalanobis(aggregate).fit(train)
    np.testing.assert_array_equal(perturbed.means_, plain.means_)
    expected = plain.score_samples(new.arrays[f"mahalanobis_{aggregate}"])
    np.testing.assert_array_equal(perturbed.score_samples(new), expected)
    assert not np.array_equal(perturbed.score_samples(new), plain.score_samples(new))


# --- relative to the Gaussian of all samples ---


def quadratic(residuals, covariance):
    return np.einsum("ij,jk,ik->i", residuals, np.linalg.inv(covariance), residuals)


def relative(features, labels, new):
    """The paper's formula, with one entry in the shared covariance per label of a sample."""
    overall = quadratic(new - features.mean(0), np.cov(features.T, bias=True))
    return (plainly(features, labels, new) + overall[:, None]).max(1)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("normalise", [False, True])
def test_relative_scores_are_the_papers(data, rng, dtype, normalise):
    features, labels = data
    labels[:20] = 0  # without a label, they are only in the Gaussian of all samples
    new = rng.normal(0, 3, (40, 12))
    detector = ns.RelativeMahalanobis(normalise).fit(features.astype(dtype), labels)
    scores = detector.score_samples(new.astype(dtype))
    if normalise:
        features, new = unit(features), unit(new)
    expected = relative(features, labels, new)
    tolerance = 1e-9 if dtype == np.float64 else 1e-4  # float32 has rounded the features
    np.testing.assert_allclose(scores, expected, atol=tolerance * np.abs(expected).max())


def test_with_a_single_label_that_all_have_nothing_remains(data, rng):
    features, _ = data
    detector = ns.RelativeMahalanobis().fit(features, np.ones((300, 1), int))
    np.testing.assert_allclose(detector.score_samples(rng.normal(size=(20, 12))), 0, atol=1e-9)


def test_without_labels_it_is_the_plain_distance(data, rng):
    features, _ = data
    new = rng.normal(size=(20, 12))
    np.testing.assert_array_equal(
        ns.RelativeMahalanobis().fit(features).score_samples(new),
        ns.Mahalanobis(normalise=True).fit(features).score_samples(new),
    )
