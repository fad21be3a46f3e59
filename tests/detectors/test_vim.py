import numpy as np
import pytest

import nescio as ns
from nescio.errors import InputError, MissingInputError
from nescio.outputs import Outputs


@pytest.fixture
def train(rng):
    mixing = rng.normal(size=(10, 10)) * np.linspace(3, 0.1, 10)[:, None]
    return Outputs(rng.normal(-1, 3, (300, 4)), features=rng.normal(size=(300, 10)) @ mixing + 2)


@pytest.fixture
def new(rng):
    return Outputs(rng.normal(-2, 3, (40, 4)), features=rng.normal(0, 3, (40, 10)))


def plainly(train, new, n_components):
    """What remains of the features after a projection on the first principal components."""
    center = train.features.mean(0)
    _, _, axes = np.linalg.svd(train.features - center, full_matrices=False)
    inside = axes[:n_components]

    def residual(features):
        moved = features - center
        return np.linalg.norm(moved - moved @ inside.T @ inside, axis=1)

    def energy(logits):
        return np.log1p(np.exp(logits)).sum(1)

    scale = energy(train.logits).mean() / residual(train.features).mean()
    return energy(new.logits) - scale * residual(new.features)


@pytest.mark.parametrize(("n_components", "used"), [(0, 5), (1, 1), (9, 9)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_joint_energy_minus_the_residual(train, new, n_components, used, dtype):
    expected = plainly(train, new, used)
    train, new = (Outputs(o.logits.astype(dtype), o.features.astype(dtype)) for o in (train, new))
    detector = ns.ViM(n_components).fit(train)
    assert detector.outside_.shape == (10, 10 - used)
    tolerance = 1e-9 if dtype == np.float64 else 1e-3
    np.testing.assert_allclose(
        detector.score_samples(new), expected, rtol=tolerance, atol=tolerance
    )


def test_inside_the_subspace_only_joint_energy_counts(train, rng):
    """Features far away along the principal components are no residual."""
    detector = ns.ViM(4).fit(train)
    inside = np.linalg.svd(train.features - train.features.mean(0))[2][:4]
    far = train.features.mean(0) + 100 * rng.normal(size=(20, 4)) @ inside
    logits = rng.normal(0, 3, (20, 4))
    np.testing.assert_allclose(
        detector.score_samples(Outputs(logits, features=far)),
        ns.scores.joint_energy(logits),
        rtol=1e-6,
    )


def test_dead_features_count_only_if_they_wake(train):
    """They are outside of every subspace, and of the dimensions whose half is taken."""
    dead = Outputs(train.logits, features=np.hstack([train.features, np.zeros((300, 6))]))
    detector = ns.ViM().fit(dead)
    assert detector.outside_.shape == (16, 16 - 5)
    np.testing.assert_allclose(
        detector.score_samples(dead), ns.ViM().fit(train).score_samples(train), rtol=1e-6
    )
    awake = Outputs(train.logits, features=dead.features + np.eye(16)[15] * 50)
    assert (detector.score_samples(awake) < detector.score_samples(dead).min()).all()


def test_masked_labels_do_not_count(train, new):
    detector = ns.ViM().fit(train)
    masked = new.logits.copy()
    masked[:, 0] = -np.inf
    lost = ns.scores.joint_energy(new.logits) - ns.scores.joint_energy(masked)
    np.testing.assert_allclose(
        detector.score_samples(new) - detector.score_samples(Outputs(masked, new.features)),
        lost,
        rtol=1e-6,
        atol=1e-9,
    )


def test_what_is_not_allowed(train):
    with pytest.raises(InputError, match="vary in 10 directions, and vim with n_components = 10"):
        ns.ViM(n_components=10).fit(train)
    with pytest.raises(InputError, match="vary in 0 directions"):
        ns.ViM().fit(Outputs(train.logits, features=np.full((300, 10), 0.1)))
    with pytest.raises(MissingInputError, match="reads features and logits: pass Outputs"):
        ns.ViM().fit(train.features)
