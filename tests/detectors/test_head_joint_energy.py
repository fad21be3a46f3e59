import numpy as np
import pytest

import nescio as ns
from nescio.checks import check_detector, make_outputs
from nescio.errors import FileFormatError, InputError, ParameterError, ShapeError
from nescio.outputs import Head
from nescio.scores import joint_energy, top_k_joint_energy


@pytest.fixture(scope="module")
def head():
    """2,000 labels in 40 topics."""
    rng = np.random.default_rng(0)
    topics = rng.normal(0, 1, (40, 8))
    weight = topics[rng.integers(0, 40, 2000)] + rng.normal(0, 0.1, (2000, 8))
    return Head(weight.astype(np.float32), rng.normal(-8, 1, 2000).astype(np.float32))


@pytest.fixture(scope="module")
def made(head):
    return ns.HeadJointEnergy.from_head(head, k=10)


def features_of(head, n, seed=1):
    rng = np.random.default_rng(seed)
    near = head.weight[rng.integers(0, len(head.weight), n)]
    return (2 * near + rng.normal(0, 0.2, near.shape)).astype(np.float32)


def logits_of(head, features):
    return features.astype(float) @ head.weight.T.astype(float) + head.bias


@pytest.mark.parametrize("params", [{"k": 0}, {"k": 2, "probes": 0}, {"k": 100}])
def test_it_passes_the_common_checks_with_other_parameters(params):
    check_detector(ns.HeadJointEnergy(**params))


def test_a_head_is_needed(head):
    with pytest.raises(InputError, match=r"takes a Head, got a tuple.*Head\(weight, bias\)"):
        ns.HeadJointEnergy.from_head((head.weight, head.bias))


def test_it_finds_nearly_what_top_k_joint_energy_sums(head, made):
    features = features_of(head, 200)
    scores, expected = (
        made.score_samples(features),
        top_k_joint_energy(logits_of(head, features), 10),
    )
    assert (scores <= expected * (1 + 1e-6)).all()
    assert np.corrcoef(scores, expected)[0, 1] > 0.999
    exact = ns.HeadJointEnergy.from_head(head, k=10, probes=0).score_samples(features)
    np.testing.assert_allclose(exact, expected, rtol=1e-6)


@pytest.mark.parametrize("k", [0, 2000, 10**7])
def test_all_labels_give_the_joint_energy(head, k):
    features = features_of(head, 20)
    detector = ns.HeadJointEnergy.from_head(head, k=k)
    expected = joint_energy(logits_of(head, features))
    np.testing.assert_allclose(detector.score_samples(features), expected, rtol=1e-5)
    scores, bounds = detector.score_and_bound(features)
    np.testing.assert_array_equal(scores, detector.score_samples(features))
    assert (bounds == 0).all()


def test_score_and_bound_enclose_the_joint_energy(head, made):
    features = features_of(head, 50)
    scores, bounds = made.score_and_bound(features)
    energy = joint_energy(logits_of(head, features))
    np.testing.assert_array_equal(scores, made.score_samples(features))
    assert (scores < energy).all()
    assert (energy <= scores + bounds).all()


def test_the_labels_that_were_found_are_positions_in_the_head(head, made):
    features = features_of(head, 30)
    labels, logits = made.top_labels(features, 3)
    expected = logits_of(head, features)
    np.testing.assert_allclose(np.take_along_axis(expected, labels, axis=1), logits, rtol=1e-6)
    assert np.mean(labels[:, 0] == expected.argmax(1)) > 0.95
    assert made.top_labels(features)[0].shape == (30, 10)
    assert ns.HeadJointEnergy.from_head(head, k=0).top_labels(features)[0].shape == (30, 2000)


def test_verdicts_without_logits(head, made, tmp_path):
    detector = ns.HeadJointEnergy.from_head(head, k=10)
    with pytest.raises(ns.NotCalibratedError):
        detector.predict(features_of(head, 2))
    detector.calibrate(features_of(head, 400, seed=2), tpr=0.9)
    new = np.concatenate([features_of(head, 200, seed=3), np.zeros((50, 8), np.float32)])
    verdicts = detector.assess(new)
    assert 0.85 < verdicts.in_distribution[:200].mean() < 0.96
    assert not verdicts.in_distribution[200:].any()
    detector.save(tmp_path / "labels.nescio")
    loaded = ns.load(tmp_path / "labels.nescio")
    np.testing.assert_array_equal(loaded.assess(new).p_values, verdicts.p_values)
    for ours, theirs in zip(
        loaded.score_and_bound(new), detector.score_and_bound(new), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_fit_takes_the_head_of_outputs():
    outputs = make_outputs(50)
    fitted = ns.HeadJointEnergy(k=3).fit(outputs)
    made = ns.HeadJointEnergy.from_head(outputs.head, k=3)
    np.testing.assert_array_equal(fitted.score_samples(outputs), made.score_samples(outputs))
    np.testing.assert_allclose(
        made.score_samples(outputs.features), top_k_joint_energy(outputs.logits, 3), rtol=1e-9
    )


def test_one_sample_and_half_precision(head, made):
    features = features_of(head, 3).astype(np.float16)
    whole = made.score_samples(features)
    np.testing.assert_allclose(made.score_samples(features[1:2]), whole[1:2], rtol=1e-6)
    np.testing.assert_allclose(made.score_samples(features.astype(np.float32)), whole, rtol=1e-6)


def test_a_head_of_half_precision_is_computed_in_float32(head):
    half = Head(head.weight.astype(np.float16), head.bias.astype(np.float16))
    detector = ns.HeadJointEnergy.from_head(half, k=10, probes=0)
    assert detector.weight_.dtype == np.float32
    features = features_of(head, 20)
    expected = top_k_joint_energy(logits_of(half, features), 10)
    np.testing.assert_allclose(detector.score_samples(features), expected, rtol=1e-5)


def test_masked_labels_are_left_out(head):
    bias = head.bias.copy()
    bias[::3] = -np.inf
    features = features_of(head, 40)
    logits = logits_of(Head(head.weight, bias), features)
    detector = ns.HeadJointEnergy.from_head(Head(head.weight, bias), k=5, probes=0)
    labels, _ = detector.top_labels(features)
    assert (labels % 3 > 0).all()
    np.testing.assert_allclose(
        detector.score_samples(features), top_k_joint_energy(logits, 5), rtol=1e-5
    )
    scores, bounds = detector.score_and_bound(features)
    assert (joint_energy(logits) <= scores + bounds).all()


@pytest.mark.parametrize("at", ["weight", "bias"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_head_with_bad_values_is_an_error(head, at, value):
    arrays = {"weight": head.weight.copy(), "bias": head.bias.copy()}
    arrays[at][7] = value
    with pytest.raises(InputError, match="NaN or infinity"):
        ns.HeadJointEnergy.from_head(Head(**arrays))


def test_a_head_with_masked_labels_only_is_an_error(head):
    with pytest.raises(InputError, match="every label of the head is masked"):
        ns.HeadJointEnergy.from_head(Head(head.weight, np.full(2000, -np.inf)))


def test_rows_that_cannot_be_used(head):
    features = features_of(head, 3)
    features[1, 2] = np.nan
    detector = ns.HeadJointEnergy.from_head(head, k=4, nonfinite="out")
    scores, bounds = detector.score_and_bound(features)
    labels, logits = detector.top_labels(features)
    assert (scores[1], bounds[1]) == (-np.inf, np.inf)
    assert (labels[1] == -1).all()
    assert (logits[1] == -np.inf).all()
    assert np.isfinite(scores[[0, 2]]).all()
    assert (labels[[0, 2]] >= 0).all()
    strict = ns.HeadJointEnergy.from_head(head)
    for method in (strict.score_and_bound, strict.top_labels):
        with pytest.raises(InputError, match="rows: 1"):
            method(features)


def test_wrong_parameters_and_inputs(head, made):
    for params in ({"k": -1}, {"probes": -1}, {"k": 2.5}):
        with pytest.raises(ParameterError):
            ns.HeadJointEnergy.from_head(head, **params)
    with pytest.raises(ParameterError):
        made.top_labels(features_of(head, 2), 0)
    with pytest.raises(ShapeError, match="8 columns of penultimate, got 7"):
        made.score_and_bound(np.zeros((2, 7)))
    with pytest.raises(ns.NotCalibratedError, match="from_head"):
        ns.HeadJointEnergy().top_labels(np.zeros((2, 8)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("starts_", np.array([0, 5, 5, 2000])),
        ("starts_", np.array([0, 10**9, 2000])),
        ("starts_", np.array([0, 1999])),
        ("starts_", np.array([0.0, 2000.0])),
        ("labels_", np.zeros(2000, np.int64)),
        ("labels_", np.arange(2000) - 1),
        ("labels_", np.arange(1999)),
        ("weight_", np.full((2000, 8), np.nan, np.float32)),
        ("weight_", np.zeros((2000, 7), np.float32)),
        ("weight_", np.zeros((2000, 8), np.int64)),
        ("bias_", np.zeros(2000)),
        ("bias_", np.zeros(1, np.float32)),
    ],
)
def test_a_damaged_file_is_refused(head, tmp_path, name, value):
    detector = ns.HeadJointEnergy.from_head(head, k=10).calibrate(features_of(head, 100))
    setattr(detector, name, value)
    detector.save(tmp_path / "damaged.nescio")
    with pytest.raises(FileFormatError, match="do not fit each other"):
        ns.load(tmp_path / "damaged.nescio")
