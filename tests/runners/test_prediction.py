import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

import nescio as ns
from nescio.errors import (
    LabelMismatchError,
    MissingInputError,
    ParameterError,
    ShapeError,
)

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
    np.testing.assert_array_equal(prediction.labels, model.predict(held_out[:12]) == 1)
    for row, one in enumerate(prediction):
        assert one.labels == tuple(np.array(NAMES)[prediction.labels[row]])
        assert one.verdict == prediction.assessment[row] == prediction[row].verdict
        np.testing.assert_array_equal(one.probs, prediction.probs[row])
    columns = prediction.columns()
    assert list(columns) == ["id", "score", "p_value", "in_distribution", "labels"]
    assert columns["labels"] == prediction.label_lists()
    np.testing.assert_array_equal(prediction.flagged, np.flatnonzero(~prediction.in_distribution))


def test_labels_without_names_are_positions(model, held_out):
    prediction = ns.wrap(model).calibrate(held_out)(held_out[:3])
    rows = [tuple(np.flatnonzero(row)) for row in model.predict(held_out[:3])]
    assert prediction.label_lists() == rows


def test_the_threshold_of_a_label_can_be_another(model, held_out):
    wrapped = ns.wrap(model).calibrate(held_out)
    prediction = wrapped(held_out, threshold=0.9)
    np.testing.assert_array_equal(prediction.labels, prediction.probs > 0.9)
    with pytest.raises(ParameterError, match="threshold must lie between"):
        wrapped(held_out, threshold=1.0)


def test_it_reads_as_a_table(model, held_out):
    logits = ns.Outputs(
        [[3.0, -1.0, 2.0, 1.0, 0.5], [-9.0] * 5], label_names="abcde", ids=["x", "y"]
    )
    detector = ns.JointEnergy().calibrate(np.random.default_rng(0).normal(size=(99, 5)))
    assert repr(ns.Prediction(logits, detector.assess(logits))).splitlines() == [
        "2 predicted, 1 flagged",
        "                score   p_value  verdict  labels",
        "       x       7.7761    0.9900  in       a 0.95, c 0.88, d 0.73, and 1 more",
        "       y   0.00061701    0.0100  OUT      none",
    ]
    long = ns.wrap(model).calibrate(held_out)(held_out)
    assert repr(long).splitlines()[-1].strip() == "..."


def test_groups_and_fdr_go_to_the_detector(model, held_out):
    outputs = ns.wrap(model).outputs(held_out)
    names = np.where(held_out[:, 0] > 0, "high", "low")
    detector = ns.JointEnergy().calibrate(outputs, groups=names)
    wrapped = ns.wrap(model, detector=detector)
    assert wrapped(held_out, groups=names).assessment.groups.tolist() == names.tolist()
    wrapped = wrapped.calibrate(held_out, detector)
    detector = wrapped.detector
    found = wrapped(held_out, fdr=0.1).in_distribution
    np.testing.assert_array_equal(found, detector.assess(outputs, fdr=0.1).in_distribution)


# --- the detector -----------------------------------------------------------------------------


def test_without_a_detector_there_is_no_verdict(model, held_out):
    with pytest.raises(ns.NotCalibratedError, match=r"wrap\(model, detector="):
        ns.wrap(model)(held_out)


def test_a_detector_without_a_threshold_is_refused(model):
    with pytest.raises(ns.NotCalibratedError, match="no threshold yet"):
        ns.wrap(model, detector=ns.JointEnergy())
    with pytest.raises(ParameterError, match="must be a calibrated Detector"):
        ns.wrap(model, detector=7)


def test_a_detector_can_be_a_file(model, held_out, tmp_path):
    wrapped = ns.wrap(model, label_names=NAMES).calibrate(held_out)
    wrapped.detector.save(tmp_path / "d.nescio")
    again = ns.wrap(model, detector=tmp_path / "d.nescio")
    assert again.label_names == NAMES  # the detector's
    np.testing.assert_array_equal(
        again(held_out).assessment.p_values, wrapped(held_out).assessment.p_values
    )


def test_calibrating_leaves_what_it_was_given(model, held_out):
    wrapped, detector = ns.wrap(model), ns.MaxLogit()
    calibrated = wrapped.calibrate(held_out, detector, tpr=0.8)
    assert wrapped.detector is None
    assert not hasattr(detector, "offset_")
    expected = ns.MaxLogit().calibrate(wrapped.outputs(held_out), tpr=0.8)
    assert calibrated.detector.offset_ == expected.offset_
    named = wrapped.calibrate(held_out, "top_k_joint_energy(k=2)")
    assert named.detector.k == 2


def test_a_detector_of_other_labels_is_refused(model, held_out):
    detector = ns.wrap(model, label_names=NAMES).calibrate(held_out).detector
    with pytest.raises(LabelMismatchError, match="another order"):
        ns.wrap(model, detector=detector, label_names=NAMES[::-1])
    with pytest.raises(LabelMismatchError, match="'cat' is missing, 'ox' is new"):
        ns.wrap(model, label_names=("ox", *NAMES[1:])).with_detector(detector)
    five = ns.JointEnergy().calibrate(np.random.default_rng(0).normal(size=(99, 5)))
    with pytest.raises(ShapeError, match="made for 5 labels, and the model has 4"):
        ns.wrap(model, detector=five, label_names=NAMES)
    with pytest.raises(ShapeError, match="made for 5 labels, got 4"):
        ns.wrap(model, detector=five)(held_out)


def test_a_detector_that_reads_perturbed_outputs_is_refused(model, held_out):
    logits = np.random.default_rng(0).normal(size=(99, 4))
    odin = ns.ODIN().calibrate(ns.Outputs(logits, perturbed={"odin_max": logits}))
    with pytest.raises(MissingInputError, match="perturbed inputs, which a wrapped model"):
        ns.wrap(model, detector=odin)


def test_names_of_a_detector_go_with_it(model, held_out):
    first = ns.wrap(model, label_names=NAMES).calibrate(held_out).detector
    second = ns.wrap(model, label_names=NAMES[::-1]).calibrate(held_out).detector
    wrapped = ns.wrap(model, detector=first)
    assert wrapped.with_detector(second).label_names == NAMES[::-1]
    assert wrapped.label_names == NAMES


# --- wrapping again ---------------------------------------------------------------------------


def test_a_wrapped_model_is_wrapped_anew(model, held_out):
    first = ns.wrap(model, label_names=NAMES, features="inputs").calibrate(held_out)
    again = ns.wrap(first)
    assert again is not first
    assert again.model is model
    assert (again.detector, again.label_names, again.features) == (first.detector, NAMES, "inputs")
    other = ns.MaxLogit().calibrate(first.outputs(held_out))
    assert ns.wrap(first, detector=other).detector is other


def test_it_says_what_it_is(model, held_out):
    text = repr(ns.wrap(model, features="inputs").calibrate(held_out))
    assert text == (
        "Wrapped(sklearn: sklearn.multiclass.OneVsRestClassifier, features='inputs', "
        "detector=JointEnergy())"
    )
