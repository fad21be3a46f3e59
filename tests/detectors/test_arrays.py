"""What a detector accepts: arrays, data frames and outputs, and what is wrong with the others."""

import numpy as np
import pytest

import nescio as ns
from nescio.errors import (
    ImplausibleValuesWarning,
    InputError,
    LabelMismatchError,
    MissingInputError,
    NonFiniteError,
    ProbabilitiesWarning,
    ShapeError,
    TooFewSamplesError,
)


def test_bad_rows_are_named(detector, logits):
    logits[[3, 5, 8, 9, 11, 20], 2] = np.nan
    with pytest.raises(NonFiniteError, match=r"in 6 of 400 rows: 3, 5, 8, 9, 11, \.\.\..*'out'"):
        detector.predict(logits)


def test_bad_rows_can_count_as_out(logits):
    logits[5, 0], logits[6, 0] = np.nan, np.inf
    detector = ns.JointEnergy(nonfinite="out").calibrate(logits)
    report = detector.assess(logits)
    assert report.scores[5] == report.scores[6] == -np.inf
    assert not report.in_distribution[[5, 6]].any()
    assert report.p_values[5] == pytest.approx(3 / 401)
    assert report.in_distribution.mean() >= 0.95
    assert (detector.predict(np.full((2, 6), np.nan)) == -1).all()
    logits[:100] = np.nan
    with pytest.raises(InputError, match="have no finite score"):
        ns.JointEnergy(nonfinite="out").calibrate(logits)


def test_masked_labels_are_allowed_where_they_make_sense(detector, logits):
    masked = logits.copy()
    masked[:, 0] = -np.inf
    assert np.isfinite(detector.score_samples(masked)).all()
    with pytest.raises(NonFiniteError, match=r"-inf \(masked labels\), which"):
        ns.LocalOutlierFactor().fit(masked)
    with pytest.raises(NonFiniteError):
        ns.Mahalanobis().fit(masked)


def test_probabilities_get_a_warning(detector, rng):
    with pytest.warns(ProbabilitiesWarning, match="logits_from_probs") as caught:
        detector.score_samples(rng.random((10, 6)))
    assert caught[0].filename == __file__
    with pytest.warns(ProbabilitiesWarning, match="logits_from_probs"):
        detector.predict(rng.random((10, 6)))
    probabilities = rng.random((100, 6))
    probabilities[0, 0] = np.nan
    with pytest.warns(ProbabilitiesWarning):
        ns.JointEnergy(nonfinite="out").fit(probabilities)
    detector.predict(rng.random((8, 6)))  # 48 values may be an accident


def test_percentages_and_other_positive_values_get_a_warning(detector, rng):
    values = rng.random((10, 6))
    with pytest.warns(
        ProbabilitiesWarning, match=r"percentages.*logits_from_probs\(values / 100\)"
    ):
        detector.predict(100 * values)
    with pytest.warns(ImplausibleValuesWarning, match="no value is negative.*may be a ReLU"):
        detector.predict(1 + 1000 * values)
    detector.predict(100 * values[:8])  # 48 values may be an accident
    detector.predict(100 * values - 1)


def test_another_number_of_labels_is_refused(detector, logits):
    with pytest.raises(ShapeError, match="made for 6 labels"):
        detector.predict(logits[:, :5])
    with pytest.raises(ShapeError, match=r"got \(6,\)"):
        detector.predict(logits[0])
    with pytest.raises(InputError, match="0 sample"):
        detector.predict(logits[:0])
    with pytest.raises(ShapeError, match=r"got \(2, 3, 1\)"):
        detector.predict(np.zeros((2, 3, 1)))


def test_a_transposed_array_gets_a_hint(detector, logits):
    with pytest.raises(ShapeError, match=r"got 400\. The array has 6 rows and 400 columns, and ro"):
        detector.predict(logits.T)
    with pytest.raises(TooFewSamplesError, match=r"got 6\. The array has 6 rows and 400 columns"):
        ns.JointEnergy().calibrate(logits.T)
    with pytest.raises(TooFewSamplesError, match=r"got 10\.$"):
        ns.JointEnergy().calibrate(logits[:10])


def test_a_data_frame_names_its_labels(logits, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(logits, columns=list("abcdef"))
    detector = ns.JointEnergy().calibrate(frame)
    assert detector.label_names_ == tuple("abcdef")
    detector.save(tmp_path / "x.nescio")
    loaded = ns.load(tmp_path / "x.nescio")
    assert np.array_equal(loaded.predict(frame), detector.predict(frame))
    for known in (detector, loaded):
        with pytest.raises(LabelMismatchError):
            known.predict(frame[list("bacdef")])


def test_labels_come_from_one_place(rng):
    outputs = ns.Outputs(rng.normal(size=(50, 3)), rng.normal(size=(50, 2)))
    with pytest.raises(MissingInputError, match="reads labels, which these outputs do not have"):
        ns.Mahalanobis().fit(outputs)
    with pytest.raises(InputError, match="not both"):
        ns.Mahalanobis().fit(outputs, np.ones((50, 3)))
    with pytest.raises(MissingInputError, match="reads features"):
        ns.Mahalanobis().fit(ns.Outputs(rng.normal(size=(50, 3))))
