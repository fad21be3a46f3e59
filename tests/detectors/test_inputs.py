import warnings

"""What a detector accepts: arrays, data frames and outputs, and what is wrong with the others."""

from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from nescio.detectors import inputs as reading
from nescio.errors import (
    IgnoredLabelsWarning,
    ImplausibleValuesWarning,
    InputError,
    LabelMismatchError,
    MissingInputError,
    NonFiniteError,
    ProbabilitiesError,
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


@pytest.mark.parametrize(
    "method", ["fit", "calibrate", "score_samples", "decision_function", "predict", "assess"]
)
def test_probabilities_are_refused_unless_they_are_said_to_be(detector, logits, method):
    probs = 1 / (1 + np.exp(-logits))
    call = getattr(detector, method)
    with pytest.raises(ProbabilitiesError, match=r"from_probs=True.*from_probs=False"):
        call(probs)
    with pytest.raises(ProbabilitiesError):
        call(ns.Outputs(probs))
    call(probs, from_probs=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImplausibleValuesWarning)
        call(probs, from_probs=False)  # logits that only look like probabilities


def test_probabilities_give_the_verdicts_of_their_logits(logits):
    probs = 1 / (1 + np.exp(-logits))
    detector = ns.JointEnergy().calibrate(probs, from_probs=True)
    expected = ns.JointEnergy().calibrate(logits).assess(logits[:50])
    for data in (probs[:50], ns.Outputs(probs[:50])):
        found = detector.assess(data, from_probs=True)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-9)
        np.testing.assert_array_equal(found.in_distribution, expected.in_distribution)
    explanation = detector.explain(ns.Outputs(probs[:5]), from_probs=True)
    np.testing.assert_allclose(explanation.scores, expected.scores[:5], rtol=1e-9)


def test_a_relu_is_warned_of_in_calibration(rng):
    with pytest.warns(ImplausibleValuesWarning, match="no value is negative.*may be a ReLU"):
        ns.JointEnergy().calibrate(1 + 1000 * rng.random((100, 6)))


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


LIBRARIES = pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])


def frame_of(library, columns):
    """Return a data frame of one of the libraries."""
    module = pytest.importorskip(library)
    return (module.table if library == "pyarrow" else module.DataFrame)(columns)


def named(logits):
    return dict(zip("abcdef", logits.T, strict=True))


@LIBRARIES
def test_a_data_frame_is_matched_by_name(library, logits, tmp_path):
    columns = named(logits)
    detector = ns.JointEnergy().calibrate(frame_of(library, columns))
    assert detector.label_names_ == tuple("abcdef")
    expected = ns.JointEnergy().calibrate(logits).assess(logits)
    detector.save(tmp_path / "x.nescio")
    turned = frame_of(library, {name: columns[name] for name in "fbdcae"})
    more = frame_of(library, {"id": [f"s{i}" for i in range(400)], "lion": [0.5] * 400, **columns})
    for known in (detector, ns.load(tmp_path / "x.nescio")):
        np.testing.assert_array_equal(known.assess(turned).p_values, expected.p_values)
        with pytest.warns(IgnoredLabelsWarning, match=r"ignored 1 column .*: 'lion'\.") as caught:
            found = known.assess(more)
        assert caught[0].filename == __file__
        np.testing.assert_array_equal(found.p_values, expected.p_values)
        assert found.ids[3] == "s3"
        with pytest.raises(LabelMismatchError, match="'f'"):
            known.predict(frame_of(library, {name: columns[name] for name in "abcde"}))


@LIBRARIES
def test_empty_cells_of_a_data_frame_are_bad_values(library, logits):
    columns = {**named(logits), "b": [None, *logits[1:, 1].tolist()]}
    detector = ns.JointEnergy(nonfinite="out").calibrate(logits)
    frame = frame_of(library, columns)
    assert np.flatnonzero(np.isneginf(detector.score_samples(frame))).tolist() == [0]
    with pytest.raises(NonFiniteError, match="in 1 of 400 rows: 0"):
        detector.set_params(nonfinite="raise").predict(frame)


@LIBRARIES
def test_a_column_that_may_not_be_a_label_is_an_error(library, logits):
    frame = frame_of(library, {"text": ["x"] * 400, **named(logits)})
    with pytest.raises(InputError, match=r"'text'.*Outputs\.from_frame\(frame, \.\.\.\)"):
        ns.JointEnergy().calibrate(frame)


def test_the_index_of_pandas_gives_the_ids(logits):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(named(logits))
    detector = ns.JointEnergy().calibrate(frame)
    assert detector.assess(frame).ids is None
    assert detector.assess(frame[::-1]).ids[:2].tolist() == ["399", "398"]
    assert detector.explain(frame[5:7]).ids.tolist() == ["5", "6"]
    nullable = frame.astype("Float64")
    nullable.iloc[3, 1] = pandas.NA
    with pytest.raises(NonFiniteError, match="rows: 3"):
        detector.predict(nullable)
    unnamed = pandas.DataFrame(logits)
    for known in (detector, ns.JointEnergy().calibrate(unnamed)):
        with pytest.raises(InputError, match=r"not in order|Missing: 'a'"):
            known.predict(unnamed[[5, 4, 3, 2, 1, 0]])
    assert ns.JointEnergy().calibrate(unnamed).label_names_ is None
    np.testing.assert_array_equal(detector.predict(unnamed), detector.predict(frame))


@LIBRARIES
def test_features_in_a_data_frame_are_matched_too(library, rng):
    features, labels = rng.normal(size=(300, 6)), np.eye(2)[rng.integers(0, 2, 300)]
    columns = named(features)
    detector = ns.Mahalanobis().fit(frame_of(library, columns), labels)
    assert detector.feature_names_in_.tolist() == list("abcdef")
    assert detector.label_names_ is None
    turned = frame_of(library, {name: columns[name] for name in "fbdcae"})
    np.testing.assert_array_equal(detector.score_samples(turned), detector.score_samples(features))
    with pytest.raises(MissingInputError, match="needs logits, and only features"):
        detector.calibrate(frame_of(library, named(features + 1)), groups="label_count")
    detector.fit(features, labels)
    assert not hasattr(detector, "feature_names_in_")


def test_a_truth_in_a_data_frame_belongs_to_the_rows(rng):
    pandas = pytest.importorskip("pandas")
    features = pandas.DataFrame(rng.normal(size=(300, 3)), rng.permutation(300)).add_prefix("f")
    truth = pandas.DataFrame(np.eye(2)[rng.integers(0, 2, 300)], features.index, ["cat", "dog"])
    expected = ns.Mahalanobis().fit(features.to_numpy(), truth.to_numpy()).means_
    for data in (features, features.to_numpy()):
        assert ns.Mahalanobis().fit(data, truth).means_ == pytest.approx(expected)
    with pytest.raises(InputError, match="row 0 of labels has the id"):
        ns.Mahalanobis().fit(features, truth[::-1])
    with pytest.raises(InputError, match=r"hold numbers: 'text' .*Drop"):
        ns.Mahalanobis().fit(features.assign(text="x"), truth)
    detector = ns.JointEnergy().fit(features, truth[::-1])  # it does not read the truth
    assert detector.label_names_ == ("f0", "f1", "f2")


def test_labels_come_from_one_place(rng):
    outputs = ns.Outputs(rng.normal(size=(50, 3)), rng.normal(size=(50, 2)))
    with pytest.raises(MissingInputError, match="reads labels, which these outputs do not have"):
        ns.Mahalanobis().fit(outputs)
    with pytest.raises(InputError, match="not both"):
        ns.Mahalanobis().fit(outputs, np.ones((50, 3)))
    with pytest.raises(MissingInputError, match="reads features"):
        ns.Mahalanobis().fit(ns.Outputs(rng.normal(size=(50, 3))))


def test_a_plain_array_is_taken_as_scikit_learns_check_takes_it(detector, logits):
    """Plain arrays skip that check, which takes longer than their scores."""
    found = {char: reading.read(detector, logits.astype(char), ["logits"]) for char in "defi"}
    assert [found[char].arrays.logits.dtype.char for char in "defi"] == ["d", "f", "f", "d"]
    assert found["d"].arrays.logits is found["d"].source
    swapped = logits.astype(np.dtype(np.float32).newbyteorder())
    matrix = reading.read(detector, swapped, ["logits"]).arrays.logits
    assert matrix.dtype.isnative
    assert (matrix == swapped).all()
    for empty in (logits[:0], logits[:, :0]):
        with pytest.raises(InputError, match=r"0 (sample|feature)|got \(400, 0\)"):
            detector.score_samples(empty)


@pytest.mark.parametrize(
    "data", ["a.csv", Path("a.csv"), ["a.csv", "b"], [["a.csv", "low"]], np.array([["a.csv", "b"]])]
)
def test_text_in_place_of_numbers_is_named(data):
    detector = ns.JointEnergy().calibrate(np.random.default_rng(0).normal(size=(50, 2)))
    with pytest.raises(
        InputError, match=r"logits must be numbers, got text: .*a\.csv.*Outputs\.load"
    ):
        detector.assess(data)
