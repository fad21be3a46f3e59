import numpy as np
import pytest

import nescio as ns
from nescio.calibration.calibration import group_counts
from nescio.errors import (
    DetectorError,
    InputError,
    MissingInputError,
    NonFiniteError,
    ParameterError,
    TooFewSamplesError,
    error_context,
)

few_samples_are_meant = pytest.mark.filterwarnings("ignore::nescio.errors.GroupWarning")


def test_assess_gives_a_row_a_sample(detector, logits):
    outputs = ns.Outputs(logits[:3], ids=["x", "y", "z"])
    report = detector.assess(outputs)
    assert len(report) == 3
    assert report.ids.tolist() == ["x", "y", "z"]
    score, p_value, inside = report[1]
    assert (score, p_value) == (report.scores[1], report.p_values[1])
    assert inside is True
    assert [verdict.score for verdict in report] == report.scores.tolist()
    assert list(report.columns()) == ["id", "score", "p_value", "in_distribution"]
    assert report[1:].scores.tolist() == report.scores[1:].tolist()
    assert report[[2]].ids.tolist() == ["z"]
    text = repr(detector.assess(np.vstack([np.full((1, 6), -9.0), logits])))
    assert text.startswith("401 assessed")
    assert "OUT" in text.splitlines()[2]


def test_one_threshold_flags_inputs_without_labels_and_groups_do_not(rng):
    """The reason for calibration by label count."""

    def draw(n):
        counts = rng.choice(4, n, p=[0.1, 0.4, 0.3, 0.2])
        present = np.arange(8) < counts[:, None]
        return counts, np.where(present, rng.normal(3, 1, (n, 8)), rng.normal(-4, 0.5, (n, 8)))

    _, held_out = draw(4000)
    counts, new = draw(4000)
    first = ns.JointEnergy().calibrate(held_out)
    by_count = ns.JointEnergy().calibrate(held_out, groups="label_count")
    assert (first.predict(new)[counts == 0] == -1).mean() > 0.3
    flagged = by_count.predict(new) == -1
    for count in range(4):
        assert flagged[counts == count].mean() < 0.09
    report = by_count.assess(new)
    assert set(report.groups) == {"0", "1", "2", "3+"}
    assert np.array_equal(report.in_distribution, ~flagged)


def test_groups_of_ones_own(logits):
    groups = np.repeat(["a", "b"], 200)
    detector = ns.JointEnergy().calibrate(logits, groups=groups)
    assert set(detector.calibration_.threshold_values) == {"a", "b", "all"}
    assert detector.predict(logits, groups=groups).shape == (400,)
    assert detector.assess(logits[:2], groups=["a", "b"]).groups.tolist() == ["a", "b"]
    with pytest.raises(ParameterError, match="'label_count', 'top_label' or an array"):
        detector.calibrate(logits, groups="label-count")


@few_samples_are_meant
def test_groups_are_not_silently_ignored(logits):
    for groups in (None, "label_count"):
        detector = ns.JointEnergy().calibrate(logits, groups=groups)
        with pytest.raises(ParameterError, match="groups were passed"):
            detector.predict(logits, groups=["a"] * 400)


def test_scoring_alone_leaves_no_trace(logits):
    detector = ns.MaxLogit()
    before = dict(vars(detector))
    detector.score_samples(ns.Outputs(logits, label_names=list("abcdef")))
    assert vars(detector) == before
    assert detector.score_samples(logits[:, :4]).shape == (400,)


def test_a_failed_calibration_changes_nothing(detector, logits):
    before = detector.predict(logits)
    with pytest.raises(TooFewSamplesError):
        detector.calibrate(logits[:5], tpr=0.99)
    assert detector.tpr == 0.95
    assert np.array_equal(detector.predict(logits), before)
    with pytest.raises(NonFiniteError):
        ns.LocalOutlierFactor().fit(np.full((50, 4), np.nan))
    assert len(detector.assess(logits)) == 400


@few_samples_are_meant
def test_features_alone_cannot_be_grouped_by_label_count(rng):
    features, labels = rng.normal(size=(300, 4)), rng.integers(0, 2, (300, 3))
    fitted = ns.Mahalanobis().fit(features, labels)
    with pytest.raises(MissingInputError, match="Pass Outputs"):
        fitted.calibrate(features + 1, groups="label_count")
    outputs = ns.Outputs(rng.normal(size=(300, 3)), rng.normal(size=(300, 4)))
    fitted.calibrate(outputs, groups="label_count")
    with pytest.raises(MissingInputError, match="needs the logits"):
        fitted.predict(outputs.features)
    assert fitted.predict(outputs).shape == (300,)


def test_a_batch_can_be_flagged_at_a_bounded_false_alarm_rate(detector, rng):
    batch = np.vstack([rng.normal(-1, 3, (200, 6)), rng.normal(-9, 0.1, (50, 6))])
    report = detector.assess(batch, fdr=0.1)
    assert not report.in_distribution[200:].any()
    assert len(report.flagged) <= 60


def test_fit_after_calibrate_gives_up_the_threshold(detector, logits):
    detector.fit(logits)
    for method in (detector.assess, detector.predict):
        with pytest.raises(ns.NotCalibratedError, match="no threshold yet"):
            method(logits)


def test_a_label_is_predicted_above_a_logit_of_zero():
    assert group_counts(np.array([[0.0, 1e-9, 2.0, -1.0]]), "label_count").tolist() == [2]


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (lambda logits: logits, r"got shape \(400, 6\) and dtype float64"),
        (lambda logits: logits.sum(), r"got shape \(\) and dtype float64"),
        (lambda logits: logits[:, 0].astype(str), r"got shape \(400,\) and dtype <U"),
        (lambda logits: None, "got a NoneType"),
    ],
)
def test_a_score_of_a_wrong_shape_names_the_detector(returned, what, logits):
    class Mine(ns.Detector):
        """A detector with a mistake."""

        name = "mine"

        def _score(self, arrays):
            return returned(arrays.logits)

    with (
        pytest.raises(DetectorError, match=rf"^Mine\._score must return one number .*{what}"),
        error_context("val.npy"),
    ):
        Mine().calibrate(logits)


def test_a_detector_works_inside_scikit_learn(logits):
    from sklearn.model_selection import ParameterGrid
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    pipeline = make_pipeline(FunctionTransformer(), ns.TopKJointEnergy()).fit(logits)
    pipeline[-1].calibrate(pipeline[:-1].transform(logits))
    assert (pipeline.predict(logits) == 1).mean() >= 0.95
    assert [ns.TopKJointEnergy(**grid).k for grid in ParameterGrid({"k": [1, 2]})] == [1, 2]


def test_features_of_another_layer_are_an_error_though_their_width_is_the_same():
    def outputs_of(layer, seed):
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(60, 4))
        return ns.Outputs(rng.normal(size=(60, 3)), features, manifest={"layers": [layer]})

    detector = (
        ns.NearestNeighbours().fit(outputs_of("pooled", 0)).calibrate(outputs_of("pooled", 1))
    )
    with pytest.raises(InputError, match=r"layer 'penultimate', but knn was made with .*pool"):
        detector.assess(outputs_of("penultimate", 2))
    with pytest.raises(InputError, match="Choose the same layer"):
        detector.calibrate(outputs_of("input", 2))
    assert len(detector.assess(outputs_of("features", 2))) == 60  # an ONNX output of that name
