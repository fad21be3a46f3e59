import warnings

import numpy as np
import pytest

import nescio as ns
from nescio.detectors import features as module
from nescio.detectors.base import learning_half
from nescio.detectors.features import product, unit_rows, without_wild
from nescio.errors import InputError, MissingInputError, NescioWarning
from nescio.outputs import Outputs


@pytest.mark.parametrize("shape", [(3, 2), (64, 5), (50, 1), (4, 0)])
def test_the_product_of_any_number_of_rows(rng, shape):
    rows, matrix = rng.normal(size=(110, shape[0])), rng.normal(size=shape)
    for n_rows in (0, 1, 23, 24, 25, 110):
        result, expected = product(rows[:n_rows], matrix), rows[:n_rows] @ matrix
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)
    assert product(rows.astype(np.float32), matrix.astype(np.float32)).dtype == np.float32


# --- the linear probe ---


def some(n, seed, dtype=np.float64, noise=1.0):
    rng = np.random.default_rng(seed)
    labels = (rng.random((n, 3)) < 0.4).astype(int)
    directions = np.random.default_rng(9).normal(0, 2, (3, 8))
    features = labels @ directions + 2 + noise * rng.normal(size=(n, 8))
    return Outputs(rng.normal(size=(n, 3)), features=features.astype(dtype), labels=labels)


def unit(features):
    return unit_rows(features.astype(np.float64))


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
@pytest.mark.parametrize("n_samples", [200, 5])
def test_the_probe_is_the_formula(dtype, n_samples):
    """Also with fewer samples than features."""
    train, new = some(n_samples, 0, dtype), some(50, 1, dtype, noise=20.0)
    detector = ns.LinearProbe().fit(train)
    outputs = ridge(unit(train.features), train.labels, detector.penalty_)(unit(new.features))
    expected = (np.maximum(outputs, 0) ** 2).sum(1) + np.minimum(outputs.max(1), 0)
    assert n_samples == 5 or (expected < 0).any()
    np.testing.assert_allclose(
        detector.score_samples(new), expected, rtol=1e-8 if dtype == np.float64 else 1e-4
    )


def test_the_penalty_has_the_smallest_error_on_samples_left_out():
    train = some(60, 0, noise=6.0)
    detector = ns.LinearProbe().fit(train)
    rows = unit(train.features)

    def error(penalty):
        def residual(i):
            rest = np.arange(60) != i
            # The penalty is in units of all samples, as in the closed form.
            part, whole = (x - x.mean(0) for x in (rows[rest], rows))
            ratio = (whole**2).sum() / (part**2).sum()
            predict = ridge(rows[rest], train.labels[rest], penalty * ratio)
            return train.labels[i] - predict(rows[i])

        return np.mean([residual(i) ** 2 for i in range(60)])

    errors = [error(penalty) for penalty in module._PENALTIES]
    assert detector.penalty_ == module._PENALTIES[np.argmin(errors)]
    assert 0 < np.argmin(errors) < len(errors) - 1


def test_more_samples_than_the_choice_of_the_penalty_reads(monkeypatch):
    train, new = some(300, 0), some(50, 1)
    expected = ns.LinearProbe().fit(train)
    monkeypatch.setattr(module, "_ROWS", 200)
    detector = ns.LinearProbe().fit(train)
    assert 1 / 4 <= detector.penalty_ / expected.penalty_ <= 4
    assert np.corrcoef(detector.score_samples(new), expected.score_samples(new))[0, 1] > 0.99


def test_a_plain_array_needs_labels():
    train, new = some(200, 0), some(50, 1)
    np.testing.assert_array_equal(
        ns.LinearProbe().fit(train.features, train.labels).score_samples(new.features),
        ns.LinearProbe().fit(train).score_samples(new.features),
    )
    with pytest.raises(MissingInputError, match="pass them as y"):
        ns.LinearProbe().fit(train.features)


def test_equal_features_are_an_error():
    train = Outputs(np.full((20, 3), -2.0), features=np.ones((20, 4)), labels=np.ones((20, 3), int))
    with pytest.raises(InputError, match="no difference between the features"):
        ns.LinearProbe().fit(train)


# --- out of range ---


def out_of_range(held_out, layer="features"):
    """Return a calibrated guard, and the rows whose ranges it has learned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NescioWarning)
        guard = ns.OutOfRange(layer, held_out=True).calibrate(held_out)
    return guard, held_out[learning_half(len(held_out))]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_excess_is_in_tails_of_the_column(rng, dtype):
    guard, rows = out_of_range(rng.gamma(2, [1, 5], (800, 2)).astype(dtype))
    rows = rows.astype(float)
    low, high = rows.min(0), rows.max(0)
    inner = np.quantile(rows, (0.05, 0.95), axis=0)  # 20 of 400 rows
    lower, upper = inner[0] - low, high - inner[1]

    def log_lengths(rows_):
        return np.log(np.sqrt((((rows_ - rows.mean(0)) / (high - low)) ** 2).mean(1)))

    usual = log_lengths(rows)
    new = np.array([[high[0] + 2 * upper[0], rows[0, 1]], [rows[0, 0], low[1] - 90 * lower[1]]])
    beyond = (log_lengths(new) - usual.max()).clip(0) / (usual.max() - np.quantile(usual, 0.95))
    expected = -100 * np.sqrt(np.array([2**2, 90**2]) / 2 + beyond**2)
    np.testing.assert_allclose(guard.score_samples(new), expected, rtol=2e-3)
    np.testing.assert_array_equal(guard.score_samples(rows.astype(dtype)), 0.0)


def test_the_ranges_are_those_of_training_data_if_there_is_any(rng):
    train, held_out = rng.normal(size=(2, 300, 4))
    guard = ns.OutOfRange().fit(train)
    np.testing.assert_allclose(guard.low_, train.min(0), rtol=1e-4)
    before = guard.score_samples(held_out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NescioWarning)
        guard.calibrate(held_out)
    np.testing.assert_array_equal(guard.score_samples(held_out), before)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_few_wild_training_values_do_not_widen_a_range(rng, sign):
    rows = rng.uniform(18, 90, (2_000, 3))
    wild = rows.copy()
    wild[:20, 1] = 999  # 1 %
    wild[:21, 2] = 999  # more is no outlier
    tame = without_wild(sign * wild)
    np.testing.assert_array_equal(tame[20:], sign * wild[20:])
    np.testing.assert_array_equal(tame[:20, 1], sign * rows[20:, 1].max())
    np.testing.assert_array_equal(tame[:, 2], sign * wild[:, 2])
    few = np.where(np.arange(2_000)[:, None] < 150, wild, 0)  # rare values are no outliers
    np.testing.assert_array_equal(without_wild(few), few)
    np.testing.assert_array_equal(without_wild(wild[:99]), wild[:99])
    heavy = rng.exponential(1, (2_000, 50))
    np.testing.assert_array_equal(without_wild(heavy), heavy)

    guard = ns.OutOfRange().fit(wild[:, :2])
    assert guard.high_[1] < 91
    assert guard.score_samples([[50.0, 120.0]]) < -100


def test_gross_faults_and_none(rng):
    guard, _ = out_of_range(rng.normal(2, 1, (400, 12)))
    new = rng.normal(2, 1, (200, 12))
    assert (guard.predict(new) == 1).mean() > 0.9
    for fault in (10 * new, new / 100, new + 20, 1e30 * new, np.full_like(new, 2.0)):
        assert (guard.predict(fault) == -1).all()
    assert (guard.score_samples(1e300 * new) == -np.inf).all()


def test_dead_columns_and_masked_labels(rng):
    logits = rng.normal(-2, 3, (400, 5))
    logits[:, 1] = 4.0
    logits[:, 2] = -np.inf
    logits[::2, 3] = -np.inf
    guard, _ = out_of_range(Outputs(logits), "logits")
    usual = np.array([[-2.0, 4.0, -np.inf, -np.inf, -2.0], [-2.0, 4.0, 9.0, -2.0, 1.0]])
    dead, masked = guard.score_samples(usual), guard.score_samples(usual - [0, 9, 0, 0, 0])
    assert (dead > masked + 0.1).all()
    assert dead[1] == guard.score_samples(usual[[1]] + [0, 0, 90, 0, 0])  # it was never seen
    assert np.isfinite(guard.score_samples(np.full((1, 5), -np.inf))).all()


# --- virtual-logit matching ---


@pytest.fixture
def train(rng):
    mixing = rng.normal(size=(10, 10)) * np.linspace(3, 0.1, 10)[:, None]
    return Outputs(rng.normal(-1, 3, (300, 4)), features=rng.normal(size=(300, 10)) @ mixing + 2)


@pytest.fixture
def new(rng):
    return Outputs(rng.normal(-2, 3, (40, 4)), features=rng.normal(0, 3, (40, 10)))


def residual_scores(train, new, n_components):
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
    expected = residual_scores(train, new, used)
    train, new = (Outputs(o.logits.astype(dtype), o.features.astype(dtype)) for o in (train, new))
    detector = ns.ViM(n_components).fit(train)
    assert detector.outside_.shape == (10, 10 - used)
    tolerance = 1e-9 if dtype == np.float64 else 1e-3
    np.testing.assert_allclose(
        detector.score_samples(new), expected, rtol=tolerance, atol=tolerance
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
