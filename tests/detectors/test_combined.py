"""Several detectors as one: p-values, weights, what is promised, and the default."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from sklearn.base import clone

import nescio as ns
from fixtures.own_detectors import Neighbours
from nescio import Outputs
from nescio.calibration import Threshold
from nescio.checks import check_detector, make_outputs
from nescio.detectors import DETECTORS, build_detector, saving
from nescio.detectors.combined import (
    MIN_HELD_OUT,
    continuous_p_values,
    default_detector,
    reference_scores,
)
from nescio.errors import (
    DefaultDetectorWarning,
    FileFormatError,
    ImplausibleValuesWarning,
    InputError,
    MissingInputError,
    ParameterError,
)

LOGIT_PARTS = ("joint_energy", "top_k_joint_energy(k=3)")


@pytest.fixture
def combined(logits):
    return ns.Combined(LOGIT_PARTS).calibrate(logits)


def part_p_values(detector, X):
    """The p-values of the parts, each one computed on its own."""
    return np.stack(
        [continuous_p_values(reference_scores(p), p.score_samples(X)) for p in detector.detectors_],
        axis=1,
    )


# --- p-values ---------------------------------------------------------------------------------


@given(
    hnp.arrays(np.float64, st.integers(1, 40), elements=st.integers(-5, 5).map(float)),
    hnp.arrays(np.float64, 30, elements=st.floats(-20, 20)),
)
def test_p_values_are_the_conformal_ones_made_continuous(reference, scores):
    reference, scores = np.sort(reference), np.sort(scores)
    n, threshold = len(reference), Threshold(reference, 0.5, None, 1)
    result = continuous_p_values(reference, scores, threshold.limits)
    conformal = threshold.p_values(scores)
    inside = scores >= threshold.limits[0]
    assert (result[inside] <= conformal[inside]).all()
    assert (result[inside] >= conformal[inside] - (1 + 1e-12) / (n + 1)).all()
    assert ((result > 0) & (result <= n / (n + 1))).all()
    assert (np.diff(result) >= 0).all()
    last = np.flatnonzero(np.append(np.diff(reference) > 0, True))  # of equal scores
    np.testing.assert_allclose(
        continuous_p_values(reference, reference[last]), (last + 1) / (n + 1)
    )


@pytest.mark.parametrize("reference", [[1.0], [2.0] * 30, [0.0] * 20 + [5.0] * 20])
def test_samples_below_every_reference_score_keep_their_order(reference):
    scores = -np.logspace(0, 12, 50)
    result = continuous_p_values(np.array(reference), scores)
    assert (np.diff(result) < 0).all()
    assert (result > 0).all()
    assert result[0] < 1 / (len(reference) + 1)


def test_infinite_scores_of_a_part():
    reference = np.arange(9.0)
    result = continuous_p_values(reference, np.array([-np.inf, np.inf, np.nan]))
    np.testing.assert_array_equal(result, [0.0, 0.9, np.nan])


# --- the score --------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [(), (1, 3)])
def test_the_score_is_minus_1_over_the_harmonic_mean(weights, logits):
    detector = ns.Combined(LOGIT_PARTS, weights).calibrate(logits)
    new = np.concatenate([logits[:50], logits[:10] - 9])
    p_values = part_p_values(detector, new)
    expected = -1 / stats.hmean(p_values, axis=1, weights=np.tile(weights or (1, 1), (60, 1)))
    np.testing.assert_allclose(detector.score_samples(new), expected, rtol=1e-9)


def test_a_guard_has_a_small_weight_unless_weights_are_passed():
    parts = ["joint_energy", "out_of_range", "max_logit"]
    expected = np.array([1, 0.02, 1]) / 2.02
    np.testing.assert_allclose(ns.Combined(parts).normalised_weights(), expected)
    np.testing.assert_allclose(
        ns.Combined(parts, [2, 1, 1]).normalised_weights(), [0.5, 0.25, 0.25]
    )


# --- what is promised -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [["sum_logit", "max_logit"], ["max_logit", "out_of_range(layer=logits, held_out=true)"]],
)
def test_the_promised_share_is_kept_though_the_parts_are_dependent(parts):
    """Over many calibrations on few samples, new samples are kept as often as promised."""
    kept = []
    seeds, n_rest = 150, 20
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        logits = rng.normal(0, 2, (240, 3))
        detector = ns.Combined(parts, [1, 2])
        detector.calibrate(logits[: 2 * n_rest], tpr=0.9)
        kept.append((detector.predict(logits[2 * n_rest :]) == 1).mean())
    promised = 1 - 2 / (n_rest + 1)  # at least 0.9; the rank of the threshold is 2
    error = np.std(kept) / np.sqrt(seeds)
    assert abs(np.mean(kept) - promised) < 4 * error


@pytest.mark.slow
def test_the_p_values_of_a_part_are_uniform_on_average():
    result = []
    for seed in range(2000):
        rng = np.random.default_rng(seed)
        result.append(continuous_p_values(np.sort(rng.normal(size=19)), rng.normal(size=5)))
    levels = np.arange(1, 19) / 20
    shares = (np.ravel(result) <= levels[:, None]).mean(1)
    np.testing.assert_allclose(shares, levels, atol=0.025)


# --- the parts --------------------------------------------------------------------------------


@pytest.mark.parametrize("n_odd", [40, 200], ids=["few are left out", "many are usual"])
def test_odd_held_out_rows_do_not_hide_the_faults_of_other_columns(rng, n_odd):
    def people(n_samples):
        features = np.stack([rng.uniform(18, 90, n_samples), *rng.normal(size=(7, n_samples))], 1)
        logits = np.stack([features[:, 1], features[:, 2], features[:, 3]], 1)
        return Outputs(logits, features, labels=logits > 0)

    train, held_out, new = people(1000), people(2000), people(200)
    usual = ns.Combined().fit(train)
    odd = rng.choice(2000, n_odd, replace=False)
    held_out.features[odd, 4] = rng.choice([1e3, 1e6], n_odd)
    detector = clone(usual).fit(train).calibrate(held_out)
    share = float(detector.detectors_[-1].outliers_)
    assert (0.01 < share < 0.03) if n_odd == 40 else share == 0.002
    assert len(reference_scores(detector.detectors_[-1])) == 1000 - int(1000 * share)
    assert (detector.predict(new) == 1).mean() > 0.85
    new.features[:, 0] = 0  # nobody is younger than 18
    assert (detector.predict(new) == -1).all()
    other = people(200)
    other.features[:, 5] = train.features[:, 5].max() + 3
    assert (detector.predict(other) == -1).mean() > 0.95
    guard = detector.explain(new[[0]])[0].parts[0]
    assert (guard.detector, guard.p_value) == (
        "out_of_range",
        pytest.approx(share + 1 / (1001 - int(1000 * share))),
    )
    # What one calibration has seen does not change the next.
    held_out.features[odd, 4] = 0
    np.testing.assert_array_equal(
        detector.calibrate(held_out).score_samples(new),
        usual.calibrate(held_out).score_samples(new),
    )


def test_names_texts_classes_and_objects_are_the_same(logits):
    data = (
        ("joint_energy", "top_k_joint_energy(k=3)"),
        [ns.JointEnergy, ns.TopKJointEnergy(3)],
        build_detector("combined(detectors=[joint_energy, top_k_joint_energy(k=3)])").detectors,
    )
    scores = [ns.Combined(parts).calibrate(logits).score_samples(logits) for parts in data]
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])


def test_parts_that_were_passed_are_left_alone(logits):
    part = ns.JointEnergy().calibrate(logits)
    before = dict(vars(part))
    detector = ns.Combined([part, "max_logit"]).calibrate(logits[:100])
    assert vars(part) == before
    assert detector.detectors[0] is part
    assert detector.detectors_[0] is not part


def test_parts_of_several_arrays_learn_what_they_need():
    train, held_out, new = (make_outputs(300, seed=seed) for seed in range(3))
    detector = ns.Combined(["max_logit", "mahalanobis", "lof"])
    assert detector.learns_from == ("features", "labels", "logits")
    assert detector.scores_from == ("logits", "features")
    with pytest.raises(MissingInputError, match="features and labels and logits: pass Outputs"):
        detector.fit(train.logits)
    with pytest.raises(ns.detectors.NotCalibratedError, match=r"call fit\(training_data\) first"):
        detector.calibrate(held_out)
    detector.fit(train).calibrate(held_out)
    alone = ns.Mahalanobis().fit(train).score_samples(new)
    np.testing.assert_array_equal(detector.detectors_[1].score_samples(new), alone)
    with pytest.raises(InputError, match="learned from this very data"):
        detector.calibrate(train)
    far = make_outputs(50, seed=3, shift=4.0)
    assert (detector.predict(new) == 1).mean() > 0.85
    assert (detector.predict(far) == 1).mean() < 0.1


def test_a_failed_calibration_leaves_the_parts_as_they_were(combined, logits):
    scores = combined.score_samples(logits)
    with pytest.raises(
        ns.errors.TooFewSamplesError, match="combined learns from half of the held-out"
    ):
        combined.calibrate(logits[:30] + 5, tpr=0.95)
    np.testing.assert_array_equal(combined.score_samples(logits), scores)


def test_a_combination_may_be_a_part(logits, tmp_path):
    detector = ns.Combined([ns.Combined(LOGIT_PARTS), "max_logit"]).calibrate(logits)
    inner, other = detector.detectors_
    assert len(reference_scores(other)) == 200
    assert len(reference_scores(inner)) == 100  # another half made its p-values
    assert len(reference_scores(inner.detectors_[0])) == 100
    detector.save(tmp_path / "x.nescio")
    loaded = ns.load(tmp_path / "x.nescio")
    np.testing.assert_array_equal(loaded.score_samples(logits), detector.score_samples(logits))


def test_masked_labels_count_if_every_part_accepts_them(logits):
    logits[:, 2] = -np.inf
    ns.Combined(LOGIT_PARTS).calibrate(logits)
    assert not ns.Combined(["joint_energy", "lof"]).accepts_masked
    rows = np.full((1, 6), -np.inf)  # without any label, there is no largest logit
    detector = ns.Combined(["joint_energy", "max_logit"]).calibrate(logits)
    assert np.isneginf(detector.score_samples(rows))
    assert detector.predict(rows) == -1


def test_warnings_come_once(logits):
    logits[:, 2] = 1.5
    with pytest.warns(ImplausibleValuesWarning) as result:
        ns.Combined(LOGIT_PARTS).calibrate(logits)
    assert len(result) == 1
    logits[:, 2] = np.arange(400)
    saturated = np.where(logits > 0, 50.0, logits)
    ns.Combined(["joint_energy", "max_prob"]).calibrate(saturated)  # ties of a part are no ties


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"detectors": "joint_energy"}, "detectors must be a list of detectors"),
        ({"detectors": []}, "detectors must be a list of detectors"),
        ({"detectors": ["joint_energie", "max_logit"]}, "Did you mean joint_energy"),
        ({"detectors": [3]}, "expected a detector"),
        ({"detectors": ["top_k_logit(k=0)"]}, "k must be"),
        ({"detectors": ["fixtures.own_detectors:Neighbours"]}, "register the class"),
        ({"weights": [1]}, "weights must be a list of 2 positive numbers"),
        ({"weights": [1, 0]}, r"one per part, or empty for the usual weights, got \[1, 0\]"),
        ({"weights": [1, float("nan")]}, "weights must be"),
        ({"weights": [True, "a"]}, "weights must be"),
        ({"weights": np.ones(2)}, "weights must be a list"),
    ],
)
def test_wrong_parameters(parameters, message, logits):
    detector = ns.Combined(**{"detectors": LOGIT_PARTS, **parameters})
    with pytest.raises(ParameterError, match=message):
        detector.calibrate(logits)


# --- common checks, files and names -----------------------------------------------------------


def test_other_parts_pass_the_common_checks():
    check_detector(ns.Combined([ns.Mahalanobis(), "joint_energy"], [1, 2]))
    check_detector(ns.Combined(["joint_energy", "out_of_range(layer=logits, held_out=true)"]))


def damaged(detector, path, monkeypatch, change):
    """Save the detector with a changed description, as a file from elsewhere may be."""
    to_file = saving._to_file

    def changed(part):
        node, tensors = to_file(part)
        return (change(node) if part is detector else node), tensors

    with monkeypatch.context() as patch:
        patch.setattr(saving, "_to_file", changed)
        detector.save(path, force=True)


def with_parts(change):
    return lambda node: node | {"parts": {"detectors_": change(node["parts"]["detectors_"])}}


def with_names(*names):
    return lambda node: node | {"params": node["params"] | {"detectors": [*names]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_parts(lambda parts: []), "not those of its parameters"),
        (with_parts(lambda parts: parts[::-1]), "damaged"),
        (with_names("os:system", "max_logit"), "'os:system' names a class"),
        (with_names("msp", "combined(detectors=[os:system])"), "names a class"),
    ],
)
def test_a_file_is_checked_and_chooses_no_code(change, message, combined, tmp_path, monkeypatch):
    path = tmp_path / "x.nescio"
    damaged(combined, path, monkeypatch, change)
    with pytest.raises(FileFormatError, match=message):
        ns.load(path)


def test_it_is_written_as_it_is_read():
    text = (
        "combined(detectors=[joint_energy, top_k_joint_energy(k=5), "
        "combined(detectors=[max_logit, msp], weights=[])], "
        "weights=[2, 1, 0.5])"
    )
    detector = build_detector(text)
    assert detector.detectors[1] == "top_k_joint_energy(k=5)"
    assert detector.weights == (2, 1, 0.5)
    assert detector.text() == text
    objects = ns.Combined([ns.JointEnergy(), ns.TopKLogit(k=np.int64(7))])
    assert objects.text() == "combined(detectors=[joint_energy, top_k_logit(k=7)])"
    again = build_detector(objects.text())
    assert again.text() == objects.text()


def test_the_name_of_a_layer_may_have_a_colon():
    (inner,) = ns.Combined(["combined(detectors=[knn(layer=fc:input)])"])._unfitted_parts()
    assert inner.scores_from == ("fc:input",)
    for text in ("os:system(layer=fc)", "combined(detectors=[knn(layer=a:b), os:system])"):
        with pytest.raises(ParameterError, match="names a class"):
            ns.Combined([text])._unfitted_parts()


def test_a_class_of_ones_own_may_be_a_part(tmp_path):
    text = "combined(detectors=[joint_energy, fixtures.own_detectors:Neighbours(k=2)])"
    try:
        detector = build_detector(text)
        assert isinstance(detector.detectors[1], Neighbours)
        detector.fit(make_outputs(200)).calibrate(make_outputs(200, seed=1))
        detector.save(tmp_path / "x.nescio")
        assert ns.load(tmp_path / "x.nescio").detectors_[1].k == 2
    finally:
        DETECTORS.pop("neighbours", None)
    with pytest.raises(FileFormatError, match="'neighbours', which is not one of nescio's"):
        ns.load(tmp_path / "x.nescio")


def test_groups_and_outputs_with_names(tmp_path):
    train, held_out = make_outputs(300), make_outputs(1500, seed=1)
    detector = ns.Combined().fit(train).calibrate(held_out, groups="label_count")
    assert len(detector.calibration_.thresholds) > 1
    new = make_outputs(40, seed=2)
    turned = replace(new.select_labels(new.label_names[::-1]), arrays={})
    np.testing.assert_allclose(detector.score_samples(turned), detector.score_samples(new))


def outputs(n, seed=0, **without):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (n, 6))
    features = labels @ np.eye(6, 8) + 0.3 * rng.normal(size=(n, 8))
    logits = 4 * labels - 2 + rng.normal(size=(n, 6))
    return Outputs(logits, **({"features": features, "labels": labels} | without))


def test_features_and_labels_make_a_combination_that_can_be_used():
    train, held_out = outputs(300), outputs(400, 1)
    default = default_detector(train, held_out, tpr=0.9)
    detector, reason = default.detector, default.reason
    assert detector.name == "combined"
    assert "linear probe" in reason
    assessed = detector.fit(train).calibrate(held_out).assess(outputs(2000, 2))
    assert 0.85 < assessed.in_distribution.mean() < 0.95


@pytest.mark.parametrize(
    ("train", "held_out", "why"),
    [
        (outputs(300, features=None), outputs(500), "training outputs have no features"),
        (outputs(300, labels=None), outputs(500), "training outputs have no labels"),
        (outputs(300), outputs(500, features=None), "held-out outputs have no features"),
        (
            outputs(300, labels=outputs(300).labels[::-1]),
            outputs(500),
            "the training labels do not fit the logits",
        ),
        (
            outputs(300, labels=outputs(300).labels[:, [1, 0, 2, 3, 4, 5]]),  # of a data frame
            outputs(500),
            "much better than its own. Check the order of rows and labels",
        ),
        (
            outputs(300, features=np.ones((300, 4097))),
            outputs(500, features=np.ones((500, 4097))),
            "there are 4,097 features",
        ),
        (outputs(300), outputs(79), "needs 80 held-out samples, and there are 79"),
    ],
)
def test_training_data_that_cannot_be_used_is_warned_of(train, held_out, why):
    with pytest.warns(DefaultDetectorWarning, match=why):
        default = default_detector(train, held_out)
    detector = default.detector
    enough = len(held_out) >= MIN_HELD_OUT
    assert detector.name == ("combined" if enough else "joint_energy")
    assert not detector.learns_from
    assert why in default.obstacle
    assert default.reason.endswith(f"separates better, but {default.obstacle}.")


@pytest.mark.parametrize(
    ("held_out", "layer"), [(outputs(500), "features"), (outputs(500, features=None), "logits")]
)
def test_without_training_data_it_is_joint_energy_with_a_guard(held_out, layer):
    default = default_detector(None, held_out, nonfinite="out")
    detector, reason = default.detector, default.reason
    energy, guard = detector.detectors
    assert (energy.name, guard.name, guard.layer) == ("joint_energy", "out_of_range", layer)
    assert guard.held_out
    assert detector.nonfinite == "out"
    assert "it needs training outputs" in reason
    detector.calibrate(held_out)
    scaled = replace(outputs(200, 1), logits=10 * outputs(200, 1).logits)
    scaled = replace(scaled, features=10 * scaled.features)
    assert (ns.JointEnergy().calibrate(held_out).predict(scaled) == 1).mean() > 0.9
    assert (detector.predict(scaled) == -1).mean() > 0.95


@pytest.mark.parametrize(("n_labels", "name"), [(20, "joint_energy"), (21, "top_k_joint_energy")])
@pytest.mark.parametrize("n_samples", [MIN_HELD_OUT - 1, MIN_HELD_OUT])
def test_of_many_labels_the_largest_count(n_labels, name, n_samples):
    held_out = Outputs(np.random.default_rng(0).normal(-2, 3, (n_samples, n_labels)))
    default = default_detector(held_out=held_out, tpr=0.9)
    detector, reason = default.detector, default.reason
    energy = detector.detectors[0] if detector.name == "combined" else detector
    assert (detector.name == "combined") == (n_samples == MIN_HELD_OUT)
    assert (energy.name, detector.tpr) == (name, 0.9)
    assert energy.get_params().get("k", 20) == 20
    assert ("20 largest labels" in reason) == (n_labels > 20)
