import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

import nescio as ns
from nescio.errors import ParameterError

NAMES = ("cat", "dog", "cow", "hen")


@pytest.fixture
def model(multi_label):
    return OneVsRestClassifier(LogisticRegression()).fit(*multi_label)


@pytest.fixture
def held_out():
    return np.random.default_rng(3).normal(size=(200, 6))


def test_labels_probabilities_and_verdict_come_together(model, held_out):
    wrapped = ns.wrap(model, label_names=NAMES).calibrate(held_out, tpr=0.9)
    prediction = wrapped(held_out[:12], ids=[f"s{at}" for at in range(12)])
    assert len(prediction) == 12
    np.testing.assert_allclose(prediction.probs, model.predict_proba(held_out[:12]), atol=1e-12)
    np.testing.assert_array_equal(prediction.predicted, model.predict(held_out[:12]) == 1)
    for row, one in enumerate(prediction):
        assert one.predicted == tuple(np.array(NAMES)[prediction.predicted[row]])
        assert one.verdict == prediction.assessment[row] == prediction[row].verdict
        np.testing.assert_array_equal(one.probs, prediction.probs[row])
    columns = prediction.columns()
    assert list(columns) == ["id", "score", "p_value", "in_distribution", "predicted"]
    assert columns["predicted"] == prediction.label_lists()
    np.testing.assert_array_equal(prediction.flagged, np.flatnonzero(~prediction.in_distribution))


def test_some_samples_are_a_prediction_too(model, held_out):
    whole = ns.wrap(model, label_names=NAMES).calibrate(held_out, tpr=0.9)(
        held_out[:40], ids=[f"s{at}" for at in range(40)], label_threshold=0.3
    )
    for rows in (slice(5, 9), [7, 2], ~whole.in_distribution):
        some = whole[rows]
        assert some.ids.tolist() == whole.ids[rows].tolist()
        assert some.label_lists() == [whole.label_lists()[at] for at in np.arange(40)[rows]]
        np.testing.assert_array_equal(some.in_distribution, whole.in_distribution[rows])


def test_labels_without_names_are_positions(model, held_out):
    prediction = ns.wrap(model).calibrate(held_out)(held_out[:3])
    rows = [tuple(np.flatnonzero(row)) for row in model.predict(held_out[:3])]
    assert prediction.label_lists() == rows


def test_the_threshold_of_a_label_can_be_another(model, held_out):
    wrapped = ns.wrap(model).calibrate(held_out)
    prediction = wrapped(held_out, label_threshold=0.9)
    np.testing.assert_array_equal(prediction.predicted, prediction.probs > 0.9)
    with pytest.raises(ParameterError, match="label_threshold must lie between"):
        wrapped(held_out, label_threshold=1.0)


def test_a_logit_at_the_threshold_is_not_above_it_in_any_precision():
    detector = ns.JointEnergy().calibrate(np.random.default_rng(0).normal(size=(99, 5)))
    for threshold in (0.1, 0.3, 0.7, 0.9):
        at = np.full((1, 5), np.log(threshold / (1 - threshold)))
        for logits in (at, at.astype(np.float32)):
            assessment = detector.assess(logits)
            prediction = ns.Prediction(ns.Outputs(logits), assessment, threshold)
            assert not prediction.predicted.any()


def test_it_reads_as_a_table(model, held_out):
    logits = ns.Outputs(
        [[3.0, -1.0, 2.0, 1.0, 0.5], [-9.0] * 5], label_names=list("abcde"), ids=["x", "y"]
    )
    detector = ns.JointEnergy().calibrate(np.random.default_rng(0).normal(size=(99, 5)))
    assert repr(ns.Prediction(logits, detector.assess(logits))).splitlines() == [
        "2 samples, 1 flagged",
        "sample       score  p_value  verdict  predicted",
        "x           7.7761   0.9900  in       a 0.95, c 0.88, d 0.73, and 1 more",
        "y       0.00061701   0.0100  OUT      none",
    ]
    long = ns.wrap(model).calibrate(held_out)(held_out)
    assert repr(long).splitlines()[-1] == f"and {len(held_out) - 8} more"
