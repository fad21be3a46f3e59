"""The explanation of a combination: which part flagged an input, and why."""

import json

import numpy as np
import pytest

import nescio as ns
from nescio.checks import make_outputs
from nescio.detectors.combined import RULES, continuous_p_values, reference_scores
from nescio.errors import InputError
from nescio.explain import Reason


@pytest.fixture(scope="module")
def train():
    return make_outputs(200)


@pytest.fixture(scope="module")
def combined(train):
    detector = ns.Combined(
        ["joint_energy", "mahalanobis", "knn(k=2)"], weights=[2, 1, 1], rule="fisher"
    )
    return detector.fit(train).calibrate(make_outputs(300, seed=1))


@pytest.mark.parametrize("rule", RULES)
def test_each_part_has_a_score_a_p_value_and_a_share(rule, train):
    detector = ns.Combined(["max_logit", "mahalanobis"], rule=rule).fit(train)
    detector.calibrate(make_outputs(300, seed=1))
    new = make_outputs(20, seed=2, shift=1.0)
    explanation = detector.explain(new)
    assessed = detector.assess(new)
    np.testing.assert_array_equal(explanation.scores, assessed.scores)
    np.testing.assert_array_equal(explanation.p_values, assessed.p_values)
    np.testing.assert_array_equal(explanation.in_distribution, assessed.in_distribution)
    for at, part in enumerate(detector.detectors_):
        scores = part.score_samples(new)
        np.testing.assert_array_equal(explanation.part_scores[:, at], scores)
        p_values = continuous_p_values(reference_scores(part), scores)
        np.testing.assert_array_equal(explanation.part_p_values[:, at], p_values)
    known = ~np.isnan(explanation.shares).any(1)
    assert known.mean() > 0.8
    np.testing.assert_allclose(explanation.shares[known].sum(1), 1)
    low = explanation.part_p_values.argmin(1)
    np.testing.assert_array_equal(explanation.shares[known].argmax(1), low[known])


def test_shares_are_those_of_the_terms(combined):
    explanation = combined.explain(make_outputs(10, seed=2))
    logs = np.log(explanation.part_p_values) * [0.5, 0.25, 0.25]
    np.testing.assert_allclose(explanation.shares, logs / logs.sum(1, keepdims=True))
    np.testing.assert_allclose(explanation.scores, logs.sum(1))


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
    named = explanation.with_train_ids([f"img {row}" for row in range(len(train))])[3]
    found = next(part for part in named.parts if part.nearest)
    assert found.nearest == tuple(f"img {row}" for row in rows)
    names = ", ".join(found.nearest)
    assert f"knn(k=2): nearest training samples {names}" in repr(named)


def test_a_sample_without_neighbours(combined, train):
    new = make_outputs(2, seed=2)
    new = ns.Outputs(new.logits, features=new.features * [[1], [0]])
    for explanation in (combined.explain(new), combined.explain(new).with_train_ids(["a"] * 200)):
        nearest = [part.nearest for part in explanation[1].parts]
        assert nearest == [(), (), ()]


def test_text_and_json(combined):
    explanation = combined.explain(make_outputs(12, seed=2, shift=2.0))
    lines = str(explanation).splitlines()
    assert lines[0] == "12 explained, 12 flagged"
    assert lines[1].endswith("verdict  largest share of the evidence")
    assert lines[-1] == "and 4 more"
    found = json.loads(json.dumps(explanation.as_dict(), allow_nan=False))["samples"][0]
    assert found["detector"] == "combined"
    parts = {part["detector"]: part for part in found["parts"]}
    assert len(parts["joint_energy"]["reason"]["labels"]) == 6
    assert len(parts["knn(k=2)"]["nearest"]) == 3
    assert parts["mahalanobis"]["reason"] is None
    text = str(explanation[0])
    assert text.splitlines()[0] == explanation[0].headline()
    assert "joint_energy alone: " in text


def test_a_row_that_cannot_be_used():
    detector = ns.Combined(["joint_energy", "msp"], nonfinite="out")
    detector.calibrate(make_outputs(200).logits)
    logits = make_outputs(3, seed=1).logits.copy()
    logits[1, 2] = np.nan
    explanation = detector.explain(logits)
    assert np.isnan(explanation.part_scores).all(1).tolist() == [False, True, False]
    reason = explanation[1]
    assert reason.summary() == "It has values that the detector cannot use: NaN or infinity."
    assert "label 2" in reason.by_label().summary()
    json.dumps(explanation.as_dict(), allow_nan=False)
    json.dumps(detector.explain(logits[[1]]).as_dict(), allow_nan=False)


def test_no_evidence_and_endless_evidence(rng):
    logits = rng.normal(-1, 3, (400, 6))
    detector = ns.Combined(["joint_energy", "max_logit"], rule="stouffer").calibrate(logits)
    best = detector.explain(np.full((1, 6), 30.0))
    assert np.isnan(best.shares).all()
    assert best[0].summary() == "No part has any evidence against it."
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


def test_few_training_samples_and_ids_that_are_too_few(train):
    detector = ns.Combined(["joint_energy", "knn(k=1, bank=2)"]).fit(train)
    explanation = detector.calibrate(make_outputs(100, seed=1)).explain(make_outputs(5, seed=2))
    assert explanation.nearest[1].shape == (5, 2)
    with pytest.raises(InputError, match="Pass the ids of the training data"):
        explanation.with_train_ids(["only one"])
