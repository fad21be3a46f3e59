"""Explanations label by label, and part by part of a combination."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import nescio as ns
from nescio.checks import make_outputs
from nescio.detectors import DETECTORS
from nescio.detectors.combined import continuous_p_values, reference_scores
from nescio.errors import ParameterError
from nescio.explain import Reason, Terms
from nescio.scores import label_energy

EXPLAINED = (
    "joint_energy", "max_energy", "top_k_joint_energy",
    "sum_logit", "max_logit", "top_k_logit",
    "sum_prob", "max_prob", "top_k_prob",
)  # fmt: skip
N_LABELS = 7


def calibrated(name, **parameters):
    held_out = np.random.default_rng(0).normal(-1, 3, (100, N_LABELS))
    return DETECTORS[name](**parameters).calibrate(held_out)


CALIBRATED = {name: calibrated(name, **({"k": 3} if "top_k" in name else {})) for name in EXPLAINED}
LOGITS = st.floats(-60, 60, width=32) | st.just(-np.inf)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EXPLAINED)
@settings(max_examples=40)
@given(data=st.data())
def test_the_terms_make_up_the_score(name, dtype, data):
    logits = data.draw(hnp.arrays(dtype, (4, N_LABELS), elements=LOGITS))
    detector = CALIBRATED[name]
    explanation = detector.explain(logits)
    scores = detector.score_samples(logits)
    np.testing.assert_array_equal(explanation.scores, scores)
    counted = 1 if name.startswith("max") else 3 if "top_k" in name else None
    assert explanation.how.largest == counted
    if counted == 1:
        made = explanation.terms.max(1)
    else:
        largest = -np.sort(-explanation.terms, axis=1)[:, :counted]
        made = np.where(np.isneginf(largest), 0, largest).sum(1)
    # float32 rounds each term of a sum that may cancel
    size = np.abs(np.where(np.isneginf(explanation.terms), 0, explanation.terms)).sum(1)
    eps = 10 * np.finfo(dtype).eps
    assert np.isclose(made, scores, rtol=0, atol=eps * size).all()


@pytest.mark.parametrize("name", ["joint_energy", "top_k_joint_energy", "max_energy", "sum_prob"])
@settings(max_examples=40)
@given(logits=hnp.arrays(np.float64, (3, N_LABELS), elements=LOGITS))
def test_shares_add_up_to_one_unless_there_is_nothing_to_share(name, logits):
    explanation = CALIBRATED[name].explain(logits)
    nothing = np.isneginf(logits).all(1)
    np.testing.assert_allclose(explanation.shares[~nothing].sum(1), 1)
    assert np.isnan(explanation.shares[nothing]).all()
    counted = {"top_k_joint_energy": 3, "max_energy": 1}.get(name, N_LABELS)
    assert (np.count_nonzero(explanation.shares[~nothing], axis=1) <= counted).all()


def test_logits_below_zero_have_no_shares():
    explanation = CALIBRATED["sum_logit"].explain([[3.0, 9.0] + [-1.0] * 5, [1.0, 3.0] + [0.0] * 5])
    assert np.isnan(explanation.shares[0]).all()
    assert explanation.shares[1].tolist() == [0.25, 0.75, 0, 0, 0, 0, 0]
    # of the largest, only what counts has to be positive
    assert CALIBRATED["max_logit"].explain([[3.0] + [-1.0] * 6]).shares[0, 0] == 1


def test_each_group_has_its_own_medians():
    held_out = make_outputs(1000)
    detector = ns.JointEnergy().calibrate(held_out, groups="label_count")
    assert len(detector.calibration_.threshold_values) > 2
    new = make_outputs(50, seed=1)
    explanation = detector.explain(new)
    assessed = detector.assess(new)
    np.testing.assert_array_equal(explanation.groups, assessed.groups)
    np.testing.assert_array_equal(explanation.p_values, assessed.p_values)
    np.testing.assert_array_equal(explanation.in_distribution, assessed.in_distribution)
    thresholds = detector.calibration_.threshold_values
    names = detector.assess(held_out).groups
    for row, reason in enumerate(explanation):
        assert reason.threshold == thresholds[reason.group]
        assert f"group {reason.group})" in reason.headline()
        members = label_energy(held_out.logits[names == reason.group])
        np.testing.assert_allclose(explanation.medians[row], np.median(members, axis=0))
    assert len(np.unique(explanation.medians[:, 0])) > 2


def test_one_inputs_reason():
    val = [[1.0, -1.0, 0.0], [3.0, -3.0, 0.5], [2.0, -2.0, 5.0]]
    outputs = ns.Outputs(val, label_names=["cat", "dog", "car"])
    detector = ns.SumLogit().calibrate(outputs, tpr=0.5)
    reason = detector.explain(ns.Outputs([[-4.0, 1.0, 0.5]], ids=["a.jpg"]))[0]
    assert [label.label for label in reason.labels] == ["dog", "car", "cat"]
    assert [label.rank for label in reason.labels] == [1, 2, 3]
    assert [label.term for label in reason.labels] == [1.0, 0.5, -4.0]
    assert [label.median for label in reason.labels] == [-2.0, 0.5, 2.0]
    assert [label.difference for label in reason.labels] == [3.0, 0.0, -6.0]
    assert [label.rank_median for label in reason.labels] == [3.0, 0.5, -2.0]
    assert (reason.id, reason.group, reason.score) == ("a.jpg", None, -2.5)
    assert reason.threshold == detector.offset_
    assert reason.in_distribution is False
    assert reason.p_value == detector.assess([[-4.0, 1.0, 0.5]])[0].p_value


def test_a_label_that_is_usually_there_is_told_though_it_is_absent(rng):
    logits = rng.normal(-5, 1, (200, 30))
    logits[:, 17] = rng.normal(6, 1, 200)
    reason = ns.JointEnergy().calibrate(logits).explain(rng.normal(-5, 1, (1, 30)))[0]
    reason_labels = [label.label for label in reason.most_telling(3)]
    assert len(reason_labels) == 3
    assert "label 17" in reason_labels
    assert [label.rank for label in reason.most_telling(3)][:2] == [1, 2]
    terms = [label.term for label in reason.most_telling(30)]
    assert terms == sorted(terms, reverse=True)


def test_names_come_from_the_data_where_the_detector_has_none():
    logits = make_outputs(100).logits
    named = ns.Outputs(logits[:1], label_names=list("abcdef"))
    assert ns.JointEnergy().calibrate(logits).explain(named).label_names == tuple("abcdef")
    detector = ns.JointEnergy().calibrate(ns.Outputs(logits, label_names=list("ABCDEF")))
    assert detector.explain(logits[:1]).label_names == tuple("ABCDEF")
    assert ns.JointEnergy().calibrate(logits).explain(logits)[0].labels[0].label.startswith("label")


@pytest.mark.parametrize("name", ["joint_energy", "sum_logit"])
def test_json_holds_everything_but_infinity(name):
    logits = make_outputs(3, seed=1).logits.copy()
    logits[0, 0] = -np.inf
    logits[1] = -np.inf
    detector = DETECTORS[name]().calibrate(make_outputs(100))
    explanation = detector.explain(logits)
    result = json.loads(json.dumps(explanation.as_dict(), allow_nan=False))
    assert (result["detector"], len(result["samples"])) == (name, 3)
    first = result["samples"][2]
    assert first["score"] == detector.score_samples(logits)[2]
    assert set(first["labels"][0]) == {
        "label", "term", "share", "median", "difference", "rank", "rank_median",
    }  # fmt: skip
    assert result["samples"][1]["labels"][0]["share"] is None


def test_bad_rows_are_told_and_do_not_spoil_the_medians():
    logits = make_outputs(101).logits.copy()
    detector = ns.SumProb(nonfinite="out").calibrate(logits)
    spoiled = np.vstack([logits, np.full((2, 6), np.nan)])
    assert np.array_equal(
        ns.SumProb(nonfinite="out").calibrate(spoiled).medians_.labels,
        detector.medians_.labels,
    )
    logits[0, 4] = np.inf
    reason = detector.explain(logits[:1])[0]
    assert reason.score == -np.inf
    assert not reason.in_distribution
    assert reason.labels[0].label == "label 4"
    assert np.isnan(reason.labels[0].term)
    assert all(np.isnan(label.share) for label in reason.labels)
    assert reason.summary() == "NaN or infinity in label 4."
    assert reason.most_telling(1)[0].label == "label 4"
    with pytest.raises(ns.errors.NonFiniteError):
        ns.SumProb().calibrate(make_outputs(100)).explain(logits[:1])


def test_what_is_not_a_sum_over_labels_cannot_be_explained():
    detector = ns.MSP().calibrate(make_outputs(200))
    assert detector.medians_ is None
    with pytest.raises(
        ParameterError, match=r"msp cannot be explained: .*can be: (Combined.*)\.$"
    ) as e:
        detector.explain(make_outputs(3))
    combined = eval(f"ns.{str(e.value).split(': ')[-1][:-1]}")  # the advice works
    assert combined.calibrate(make_outputs(200)).explain(make_outputs(3))[0].parts


# --- text ---------------------------------------------------------------------------------------


def test_the_text_of_one_input():
    val = [[2.0, 4.0], [0.0, 3.0], [1.0, 2.0]]
    detector = ns.MaxLogit().calibrate(ns.Outputs(val, label_names=["cat", "dog"]), tpr=0.5)
    new = ns.Outputs([[1.0, 0.25], [0.0, 5.0]], ids=["a", "b"])
    assert repr(detector.explain(new)[0]).splitlines() == [
        "a: OUT. max_logit 1 is below the threshold 3 (p-value 0.2500).",
        "Its strongest label is cat: logit 1, usual is 3.",
        "label  logit   share  median  rank median",
        "cat    1.000  100.0%   1.000        3.000",
        "dog    0.250       -   3.000        1.000",
    ]
    headline = "in-distribution. max_logit 5 is at least the threshold 3 (p-value 1.0000)."
    assert detector.explain(new)[1].headline() == headline
    assert str(detector.explain(new)).splitlines() == [
        "2 explained, 1 flagged",
        "sample  score  threshold  verdict  largest logit",
        "a           1          3  OUT      cat 1, dog 0.25",
        "b           5          3  in       dog 5, cat 0",
    ]


def test_the_text_says_what_is_left_out(rng):
    detector = ns.JointEnergy().calibrate(rng.normal(-2, 3, (100, 40)))
    explanation = detector.explain(rng.normal(-2, 3, (30, 40)))
    reason = explanation[0]
    left = 1 - sum(label.share for label in reason.most_telling(8))
    assert repr(reason).splitlines()[-1] == f"32 other labels: {left:.1%}"
    assert reason.left_out(reason.labels[:39]).startswith("1 other label: ")
    assert reason.left_out(reason.labels) == ""
    assert repr(explanation).splitlines()[-1] == "and 22 more"
    assert [r.score for r in explanation] == explanation.scores.tolist()


def test_a_detector_of_ones_own_can_be_explained():
    class PositiveSum(ns.Detector):
        """The sum of the positive logits."""

        name = "positive_sum"
        paper = "an example"

        def label_terms(self):
            return Terms("positive part", lambda logits: np.maximum(logits, 0))

        def _score(self, arrays):
            return np.maximum(arrays.logits, 0).sum(1)

    ns.checks.check_detector(PositiveSum())

    class DoesNotAddUp(PositiveSum):
        """Says that its terms are the logits."""

        def label_terms(self):
            return Terms("logit", np.asarray)

    with pytest.raises(AssertionError, match="the terms are not the score"):
        ns.checks.check_explains_or_refuses(DoesNotAddUp())


@pytest.fixture(scope="module")
def train():
    return make_outputs(200)


@pytest.fixture(scope="module")
def combined(train):
    detector = ns.Combined(["joint_energy", "mahalanobis", "knn(k=2)"], weights=[2, 1, 1])
    return detector.fit(train).calibrate(make_outputs(300, seed=1))


def test_each_part_has_a_score_a_p_value_and_a_share(train):
    detector = ns.Combined(["max_logit", "mahalanobis"]).fit(train)
    detector.calibrate(make_outputs(300, seed=1))
    new = make_outputs(20, seed=2, shift=1.0)
    explanation = detector.explain(new)
    assessed = detector.assess(new)
    np.testing.assert_array_equal(explanation.scores, assessed.scores)
    np.testing.assert_array_equal(explanation.p_values, assessed.p_values)
    np.testing.assert_array_equal(explanation.in_distribution, assessed.in_distribution)
    for index, part in enumerate(detector.detectors_):
        scores = part.score_samples(new)
        np.testing.assert_array_equal(explanation.part_scores[:, index], scores)
        reference = reference_scores(part)
        p_values = continuous_p_values(reference, scores)
        assert p_values.min() < 1 / (len(reference) + 1)  # extrapolated: not what is known
        known = np.maximum(p_values, 1 / (len(reference) + 1))
        np.testing.assert_array_equal(explanation.part_p_values[:, index], known)
    np.testing.assert_allclose(explanation.shares.sum(1), 1)


def test_shares_are_those_of_the_terms(combined):
    explanation = combined.explain(make_outputs(10, seed=2))
    terms = -np.array([0.5, 0.25, 0.25]) / combined._p_values(explanation.part_scores)
    np.testing.assert_allclose(explanation.shares, terms / terms.sum(1, keepdims=True))
    np.testing.assert_allclose(explanation.scores, terms.sum(1))


def test_one_input(combined, train):
    new = make_outputs(5, seed=2, shift=2.0)
    new = ns.Outputs(new.logits, features=new.features, ids=list("abcde"))
    explanation = combined.explain(new)
    reason = explanation[3]
    assert isinstance(reason, Reason)
    assert (reason.id, reason.in_distribution) == ("d", False)
    assert [part.share for part in reason.parts] == sorted(explanation.shares[3])[::-1]
    assert reason.summary().startswith(f"{reason.parts[0].detector} has ")
    by_name = {part.detector: part for part in reason.parts}
    assert set(by_name) == {"joint_energy", "mahalanobis", "knn(k=2)"}
    energies = by_name["joint_energy"].reason
    assert energies is reason.by_label()
    alone = combined.detectors_[0].explain(new)[3]
    assert energies.score == alone.score == by_name["joint_energy"].score
    assert [label.term for label in energies.labels] == [label.term for label in alone.labels]
    assert energies.labels[0].label.startswith("label ")  # the names of the calibration data
    assert energies.id == "d"
    assert by_name["mahalanobis"].reason is None
    rows = combined.detectors_[2].nearest(new, 3)[3].tolist()
    assert by_name["knn(k=2)"].nearest == tuple(rows)
    assert f"knn(k=2): nearest training samples {', '.join(map(str, rows))}" in repr(reason)


def test_a_sample_without_neighbours(combined, train):
    new = make_outputs(2, seed=2)
    new = ns.Outputs(new.logits, features=new.features * [[1], [0]])
    nearest = [part.nearest for part in combined.explain(new)[1].parts]
    assert nearest == [(), (), ()]


def test_text_and_json(combined):
    explanation = combined.explain(make_outputs(12, seed=2, shift=2.0))
    lines = str(explanation).splitlines()
    assert lines[0] == "12 explained, 12 flagged"
    assert lines[1].endswith("verdict  largest share of the evidence")
    assert lines[-1] == "and 4 more"
    result = json.loads(json.dumps(explanation.as_dict(), allow_nan=False))["samples"][0]
    assert result["detector"] == "combined"
    parts = {part["detector"]: part for part in result["parts"]}
    assert len(parts["joint_energy"]["reason"]["labels"]) == 6
    assert len(parts["knn(k=2)"]["nearest"]) == 3
    assert parts["mahalanobis"]["reason"] is None
    for part in (part for part in parts.values() if part["reason"]):
        assert part["reason"]["p_value"] == part["p_value"]
        assert "in_distribution" not in part["reason"]  # of the combination
    first, *others = explanation[0].parts
    small = replace(explanation[0], parts=(first, *(replace(part, share=0.004) for part in others)))
    assert "and 2 more" in str(small).splitlines()
    assert f"\n{others[0].detector} " not in str(small)
    text = str(explanation[0])
    assert text.splitlines()[0] == explanation[0].headline()
    assert "\njoint_energy: Its strongest label is " in text
    first = explanation[0].parts[0]
    assert f"{100 * first.p_value:.2g}% of ordinary inputs, or fewer, score as low." in text


def test_a_row_that_cannot_be_used():
    detector = ns.Combined(["joint_energy", "msp"], nonfinite="out")
    detector.calibrate(make_outputs(200).logits)
    logits = make_outputs(3, seed=1).logits.copy()
    logits[1, 2] = np.nan
    explanation = detector.explain(logits)
    assert np.isnan(explanation.part_scores).all(1).tolist() == [False, True, False]
    reason = explanation[1]
    assert reason.summary() == "NaN or infinity in label 2."
    assert "label 2" in reason.by_label().summary()
    json.dumps(explanation.as_dict(), allow_nan=False)
    json.dumps(detector.explain(logits[[1]]).as_dict(), allow_nan=False)


def test_endless_evidence(rng):
    logits = rng.normal(-1, 3, (400, 6))
    detector = ns.Combined(["joint_energy", "max_logit"]).calibrate(logits)
    masked = detector.explain(np.full((1, 6), -np.inf))  # no logit at all: no largest one
    assert masked.shares.tolist() == [[0, 1]]
    json.dumps(masked.as_dict(), allow_nan=False)


def test_a_combination_inside_a_combination(rng):
    logits = rng.normal(-1, 3, (400, 3))
    detector = ns.Combined([ns.Combined(["msp", "max_logit"]), "msp"])
    detector.calibrate(ns.Outputs(logits, label_names=["cat", "dog", "car"]))
    reason = detector.explain(logits[:2])[0]
    (inner,) = [part.reason for part in reason.parts if part.reason is not None]
    assert isinstance(inner, Reason)
    assert len(inner.parts) == 2
    assert isinstance(reason.by_label(), Reason)
    assert {label.label for label in reason.by_label().labels} == {"cat", "dog", "car"}
    only = ns.Combined(["msp"]).calibrate(logits).explain(logits[:1])[0]
    assert only.by_label() is None


def test_few_training_samples(train):
    detector = ns.Combined(["joint_energy", "knn(k=1, bank=2)"]).fit(train)
    explanation = detector.calibrate(make_outputs(100, seed=1)).explain(make_outputs(5, seed=2))
    assert explanation.nearest[1].shape == (5, 2)


# --- column by column -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guard():
    return ns.OutOfRange(held_out=True).calibrate(np.random.default_rng(0).normal(5, 1, (400, 6)))


def test_values_out_of_their_range_are_named_the_furthest_first(guard):
    row = np.array([[5.0, 4, 900, 5, -30, 6]])
    reason = guard.explain(row)[0]
    columns = [c.column for c in reason.ranges if c.column != "distance to the mean"]
    assert columns == ["feature 2", "feature 4"]
    first = reason.ranges[0]
    assert first.value == 900
    assert [first.low, first.high] == pytest.approx([guard.low_[2], guard.high_[2]], rel=1e-3)
    assert len(str(first.low)) < 7  # without the digits of rounding
    excess = np.array([c.excess for c in reason.ranges if c.column.startswith("feature")])
    beyond = next(c.excess for c in reason.ranges if c.column == "distance to the mean")
    np.testing.assert_allclose(reason.score, -100 * np.sqrt((excess**2).sum() / 6 + beyond**2))
    assert reason.to_dict()["column"][0] == "feature 2"
    assert repr(reason).splitlines()[2].split() == ["column", "value", "usual", "excess"]
    many = guard.explain(np.full((2, 6), 99.0))
    assert many[0].summary().endswith("; and 3 more.")  # the distance of the row is not named
    assert many[0].ranges[-1].column == "distance to the mean"
    assert "feature" in many.columns()["unusual"][1]
    assert "largest excess" in str(many)
    json.dumps(many.as_dict(), allow_nan=False)


def test_a_usual_row_and_one_that_is_too_close_to_the_mean(guard):
    usual = guard.explain([[5.0, 4, 6, 5, 4, 7]])
    assert usual[0].summary() == "All values are in their usual ranges."
    named = usual.with_columns(lambda *ends: {"names": list("abcdef")})[0]
    assert named.summary().startswith("All values are in their usual ranges. Furthest from")
    assert len(named.ranges) == 5
    assert usual.columns()["unusual"] == [""]
    close = guard.explain(guard.mean_[None] + 1e-4)[0]
    assert close.summary().startswith("No single value is unusual. Together, they are closer to")
    extreme = np.where(np.arange(6) % 2, guard.high_, guard.low_)
    far = guard.explain(extreme[None])
    assert "they are further from the mean than usual" in far[0].summary()
    named = far.with_columns(lambda *ends: {"names": list("abcdef")})[0].summary()
    first = "abcdef"[np.argmax(np.abs(extreme - guard.mean_) / guard.scale_)]
    assert f". Furthest from the mean: {first} = " in named


def test_what_is_out_of_range_but_does_not_decide(rng):
    data = ns.Outputs(rng.normal(-1, 3, (400, 6)), features=rng.normal(5, 1, (400, 6)))
    guards = [f"out_of_range(layer={layer}, held_out=true)" for layer in ("features", "logits")]
    guard = ns.Combined(["joint_energy", *guards], weights=[1, 1e-4, 1e-4]).calibrate(data)
    shifted = data.features[:1] + np.array([0, 0, 0, 0, 0, 9])
    reason = guard.explain(ns.Outputs(data.logits[:1], features=shifted))[0]
    assert reason.in_distribution
    assert reason.by_column().summary().endswith(" This is not enough to flag it.")
    assert reason.by_column().in_distribution
    far = guard.explain(ns.Outputs(data.logits[:1], features=data.features[:1] * 1e9))[0]
    assert "not enough" not in str(far)
    assert "\nout_of_range(held_out=true): Out of the usual range: " in str(far)


def test_a_card_shows_what_decided(rng):
    data = ns.Outputs(rng.normal(-1, 3, (400, 6)), features=rng.normal(5, 1, (400, 6)))
    guard = ns.Combined(["joint_energy", "out_of_range(held_out=true)"]).calibrate(data)
    features = np.array([[5.0, 4, 900, 5, 4, 6], [5.0, 4, 6, 5, 4, 7]])
    logits = np.stack([data.logits[0] + 3, np.full(6, -20.0)])
    far, weak = guard.explain(ns.Outputs(logits, features=features))
    assert "feature 2 = 900" in far._repr_html_()
    assert "The energy of each label" not in far._repr_html_()
    assert "The energy of each label" in weak._repr_html_()
    assert "usual ranges" not in weak._repr_html_()


def test_the_names_of_columns_labels_and_masked_labels(rng):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rng.normal(size=(300, 3)), columns=["length", "width", "height"])
    named = ns.OutOfRange(tpr=0.99, held_out=True).calibrate(frame)
    assert named.explain(frame[:1].assign(width=99.0))[0].ranges[0].column == "width"
    logits = rng.normal(-1, 3, (300, 3))
    logits[:, 1] = -np.inf
    guard = ns.Combined(["msp", "out_of_range(layer=logits, held_out=true)"])
    guard.calibrate(ns.Outputs(logits, label_names=["cat", "dog", "car"]))
    reason = guard.explain([[900.0, 7.0, 1.0]])[0]
    assert reason.by_column().ranges[0].column == "cat"
    usual = guard.explain(logits[:1])[0]  # the verdict is that of the combination
    assert str(usual).startswith("in-distribution. combined")
    for part in usual.parts:
        assert part.reason is None or part.reason.headline().endswith(f": score {part.score:.5g}.")
    assert "OUT" not in str(reason.by_column())
    assert "out_of_range" in reason.by_column().headline().split(", a part of combined")[0]
    assert "dog" not in [column.column for column in reason.by_column().ranges]
    table = str(guard.explain(np.vstack([logits[:1], [[900.0, 7.0, 1.0]]]))).splitlines()
    assert (table[1].split()[-1], table[-1].endswith("  cat = 900")) == ("unusual", True)


def test_a_value_that_cannot_be_used_is_named(guard):
    out = ns.OutOfRange(nonfinite="out", held_out=True)
    out.calibrate(np.random.default_rng(0).normal(size=(99, 4)))
    reason = out.explain([[0.0, np.nan, 1.0, 0.0]])[0]
    assert (reason.ranges[0].column, reason.in_distribution) == ("feature 1", False)
    json.dumps(reason.as_dict(), allow_nan=False)
