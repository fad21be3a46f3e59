"""What a detector accepts: arrays, data frames and outputs; and what is probably a mistake."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

import nescio as ns
from fixtures.own_detectors import Together
from fixtures.rectified import relu_outputs
from nescio.checks import make_outputs
from nescio.detectors import DETECTORS
from nescio.detectors.inputs import read
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


def test_a_tpr_that_is_meant_as_its_opposite(logits):
    with pytest.warns(ImplausibleValuesWarning, match=r"0\.95 of it is flagged.*pass tpr=0\.95"):
        ns.JointEnergy().calibrate(logits, tpr=0.05)
    ns.JointEnergy().calibrate(logits, tpr=0.5)


@pytest.mark.parametrize(
    "method", ["fit", "calibrate", "score_samples", "decision_function", "predict", "assess"]
)
def test_probabilities_are_refused_unless_they_are_said_to_be(detector, logits, method):
    probs = 1 / (1 + np.exp(-logits))
    call = getattr(detector, method)
    with pytest.raises(
        ProbabilitiesError, match=r"from_probs=True to wrap, calib.*from_probs=False"
    ):
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
        result = detector.assess(data, from_probs=True)
        np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-9)
        np.testing.assert_array_equal(result.in_distribution, expected.in_distribution)
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
    for scorer in (detector, ns.load(tmp_path / "x.nescio")):
        np.testing.assert_array_equal(scorer.assess(turned).p_values, expected.p_values)
        with pytest.warns(IgnoredLabelsWarning, match=r"ignored 1 column .*: 'lion'\.") as caught:
            result = scorer.assess(more)
        assert caught[0].filename == __file__
        np.testing.assert_array_equal(result.p_values, expected.p_values)
        assert result.ids[3] == "s3"
        with pytest.raises(LabelMismatchError, match="'f'"):
            scorer.predict(frame_of(library, {name: columns[name] for name in "abcde"}))


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
    for scorer in (detector, ns.JointEnergy().calibrate(unnamed)):
        with pytest.raises(InputError, match=r"not in order|Missing: 'a'"):
            scorer.predict(unnamed[[5, 4, 3, 2, 1, 0]])
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
    with pytest.raises(MissingInputError, match=r"reads features.*column of lists named features"):
        ns.Mahalanobis().fit(ns.Outputs(rng.normal(size=(50, 3))))


def test_a_plain_array_is_taken_as_scikit_learns_check_takes_it(detector, logits):
    """Plain arrays skip that check, which takes longer than their scores."""
    result = {char: read(detector, logits.astype(char), ["logits"]) for char in "defi"}
    assert [result[char].arrays.logits.dtype.char for char in "defi"] == ["d", "f", "f", "d"]
    assert result["d"].arrays.logits is result["d"].source
    swapped = logits.astype(np.dtype(np.float32).newbyteorder())
    matrix = read(detector, swapped, ["logits"]).arrays.logits
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
    with pytest.raises(InputError, match=r"(got text: b?'a\.csv'|got a \w+Path).*Outputs\.load"):
        detector.assess(data)


LEARNING = [name for name, kind in DETECTORS.items() if kind().learns_from]


@pytest.mark.parametrize("name", LEARNING)
def test_data_that_was_learned_from_cannot_calibrate(name):
    train = make_outputs(200)
    detector = DETECTORS[name]().fit(train)
    same = replace(train, logits=train.logits.copy(), features=train.features.astype(np.float32))
    order = np.random.default_rng(0).permutation(200)
    for data in (train, same, train[order]):
        with pytest.raises(InputError, match=r"learned from this very data \(200 samples\).*held"):
            detector.calibrate(data)
    assert not hasattr(detector, "offset_")
    detector.calibrate(make_outputs(200, seed=1))
    detector.fit(make_outputs(200, seed=2)).calibrate(train)
    ns.JointEnergy().fit(train).calibrate(train)  # it learns nothing


def test_samples_that_were_learned_from_are_noticed(rng, tmp_path):
    train = rng.normal(-1, 2, (3000, 4))
    detector = ns.LocalOutlierFactor().fit(train)
    with pytest.warns(ImplausibleValuesWarning, match=r"about 100% of these samples are equal to"):
        detector.calibrate(train[:1500].astype(np.float32))
    detector.save(tmp_path / "detector.nescio")
    half = train.copy()
    half[::2] += 1
    with pytest.warns(ImplausibleValuesWarning, match=r"about [3-6]\d% of these samples are equal"):
        ns.load(tmp_path / "detector.nescio").calibrate(half)
    few = train.copy()
    few[150:] += 1  # a twentieth: some data has equal rows by nature
    detector.calibrate(few)


def test_rows_of_zeros_are_not_taken_for_learned_samples(rng):
    train, new = rng.normal(size=(2, 4000, 4))
    train[:120] = new[:120] = 0.0  # dead features; their hash is the lowest of all
    ns.NearestNeighbours().fit(train).calibrate(new)


def test_a_small_training_set_is_compared_whole(rng):
    train = rng.normal(-1, 2, (100, 4))
    with pytest.warns(ImplausibleValuesWarning, match="about 50% of these samples"):
        ns.LocalOutlierFactor().fit(train).calibrate(
            np.concatenate([train[:30], rng.normal(-1, 2, (30, 4))])
        )


def test_a_detector_inside_another_may_calibrate_on_its_arrays():
    class Inner(Together):
        """Calibrates its parts on what it learns from; the guarantee is its own."""

        def _learn(self, arrays):
            super()._learn(arrays)
            self.detectors_ = [clone(part).fit(arrays).calibrate(arrays) for part in self.detectors]

    train = make_outputs(200)
    detector = Inner([ns.JointEnergy(), ns.LocalOutlierFactor()]).fit(train)
    with pytest.raises(InputError, match="together has learned from this very data"):
        detector.calibrate(train)
    detector.calibrate(make_outputs(200, seed=1))


def test_constant_labels_are_named(logits):
    logits[:, 2] = 1.5
    with pytest.warns(ImplausibleValuesWarning, match=r"^all 400 .* for these labels: 2\. A"):
        ns.JointEnergy().calibrate(logits)
    logits[:, 4] = -1.0
    named = ns.Outputs(logits, label_names=list("abcdef"))
    with pytest.warns(ImplausibleValuesWarning, match=r"these labels: 'c', 'e'\. A const"):
        ns.JointEnergy().calibrate(named)


def test_labels_that_hold_the_truth_are_named(logits):
    logits[:, 1] = logits[:, 0] > 0
    logits[:, 2] = logits[:, 3] > 0
    logits[0, 3], logits[-1, 3] = 1.0, -2.0
    with pytest.warns(
        ImplausibleValuesWarning, match=r"^all 400 .* are 0 or 1 .*: 1, 2\. Such"
    ) as w:
        ns.JointEnergy().calibrate(logits)
    assert len(w) == 1


def test_masked_labels_and_labels_that_differ_late_are_not_constant(logits):
    logits[:, 2] = -np.inf
    logits[:-1, 3] = -0.5
    ns.JointEnergy().calibrate(logits)


def test_more_labels_than_samples_may_be_a_transposed_array(rng):
    """With 20 labels or more, a transposed array has enough rows to calibrate on."""
    logits = rng.normal(-2, 3, (300, 20))
    hint = r"20 rows and 300 columns, .*array\.T"
    with pytest.warns(ImplausibleValuesWarning, match=hint) as said:
        ns.JointEnergy().calibrate(logits.T)
    assert len(said) == 1
    names = [f"label {label}" for label in range(300)]
    ns.JointEnergy().calibrate(ns.Outputs(logits.T, label_names=names))  # named, so meant
    ns.JointEnergy().calibrate(logits[:20])  # a square


def test_features_of_another_layer_than_the_input_of_the_head():
    outputs = relu_outputs()
    ns.ASH().fit(outputs)
    halves = replace(outputs, features=outputs.features.astype(np.float16))
    ns.ASH().fit(halves)
    other = replace(outputs, features=outputs.features[:, ::-1])  # as wide, but not its input
    with pytest.warns(ImplausibleValuesWarning, match="the head does not give the logits"):
        ns.ASH().fit(other)


def of_a_model(seed, **manifest):
    about = {"kind": "torch", "model_hash": "aaa", "preprocessing": {"size": 224}} | manifest
    return replace(make_outputs(200, seed=seed), manifest=about)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"model_hash": "bbb"}, r"outputs of another model \(aaa, here bbb\)"),
        ({"preprocessing": {"size": 256}}, r"prepared in another way \(size 224, here size 256\)"),
    ],
)
def test_outputs_of_another_model(manifest, message, tmp_path):
    detector = ns.Mahalanobis().fit(of_a_model(0))
    with pytest.warns(ImplausibleValuesWarning, match=message):
        detector.calibrate(of_a_model(1, **manifest))
    detector.calibrate(of_a_model(1)).save(tmp_path / "x.nescio")
    loaded = ns.load(tmp_path / "x.nescio")
    with pytest.warns(ImplausibleValuesWarning, match=message):
        loaded.assess(of_a_model(2, **manifest))
    # The same model, and one that may be the same: as a graph, or not known.
    for rest in (of_a_model(2), of_a_model(2, kind="onnx", model_hash="b"), make_outputs(9)):
        loaded.assess(rest)
    loaded.fit(of_a_model(0, **manifest)).calibrate(of_a_model(1, **manifest))
