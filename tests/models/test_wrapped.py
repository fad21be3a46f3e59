"""A model with its detector: fit, calibrate, predict, assess, explain and save."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nescio as ns
from nescio.errors import (
    InputError,
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


def test_fit_and_calibrate_are_all_that_a_feature_detector_needs(model, multi_label, held_out):
    inputs, truth = multi_label
    plain = ns.wrap(model, detector="mahalanobis", features="input")
    fitted = plain.fit(inputs, truth)
    wrapped = fitted.calibrate(held_out, tpr=0.9)
    assert not wrapped(held_out + 50).in_distribution.any()
    assert wrapped(held_out).in_distribution.mean() >= 0.9
    # They are values: each step left the one before it unchanged.
    assert not hasattr(plain.detector, "center_")
    assert not hasattr(fitted.detector, "calibration_")
    outputs = plain.outputs(inputs, labels=truth)
    expected = ns.Mahalanobis().fit(outputs).calibrate(plain.outputs(held_out), tpr=0.9)
    assert wrapped.detector.offset_ == expected.offset_
    with pytest.raises(ns.NotCalibratedError, match="fit"):
        plain.calibrate(held_out)
    batches = [(inputs[:150], truth[:150]), (inputs[150:], truth[150:])]
    again = plain.fit(iter(batches)).calibrate(held_out, tpr=0.9)
    assert again.detector.offset_ == pytest.approx(expected.offset_)


class Reading(ns.Detector):
    """Reads the arrays that it is told to."""

    name = "reading"

    def __init__(self, reads=("logits",), *, tpr=0.95, nonfinite="raise"):
        self.reads = reads
        super().__init__(tpr=tpr, nonfinite=nonfinite)

    @property
    def scores_from(self):
        return self.reads

    def _score(self, arrays):
        return arrays[self.reads[0]].sum(1)


@pytest.mark.parametrize(
    ("reads", "chosen", "layers"),
    [
        (("logits",), None, ()),
        (("features",), None, ("pooled",)),
        (("features", "penultimate", "head"), None, ("pooled", "penultimate")),
        (("penultimate", "head"), None, ("penultimate", "penultimate")),
        (("features", "head"), None, ("penultimate",)),  # features are the input of the head
        (("0", "1"), None, ("0", "0", "1")),
        (("features", "0"), "input", ("input", "0")),
        (("features",), ("0", "1"), ("0", "1")),
        (("1",), ("0", "1"), ("0", "1")),
        (("features", "head"), "pooled", ("pooled",)),
    ],
)
def test_layers_that_a_detector_reads_are_added(reads, chosen, layers):
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(
        *(torch.nn.Conv1d(3, 4, 1), torch.nn.Flatten(), torch.nn.Linear(8, 5), torch.nn.ReLU()),
        torch.nn.Linear(5, 4),
    )
    model = ns.wrap(network, detector=Reading(reads), features=chosen)
    assert model.runner.layers == layers
    outputs = model.outputs(torch.randn(9, 3, 2)) if "0" not in layers else None
    assert outputs is None or set(reads) <= {*outputs.names, "head"}


def test_a_layer_that_a_model_does_not_have(model, held_out):
    with pytest.raises(MissingInputError, match="reads conv, which a wrapped model does not give"):
        ns.wrap(model, detector=Reading(("conv",)))
    torch = pytest.importorskip("torch")
    message = r"reads features, and the model has no layer that is known.*features="
    with pytest.raises(MissingInputError, match=message):
        ns.wrap(torch.nn.Conv1d(3, 4, 1), detector=Reading(("features",)))
    network = torch.nn.Sequential(
        torch.nn.Conv1d(3, 3, 1), torch.nn.Flatten(), torch.nn.Linear(6, 4)
    )
    inputs = np.random.default_rng(0).normal(size=(300, 3, 2)).astype("f4")
    calibrated = ns.wrap(network).calibrate(inputs).detector
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 4))
    with pytest.raises(MissingInputError, match="the model has no layer 'pooled', with which"):
        ns.wrap(other, detector=calibrated)


def test_a_detector_remembers_its_layers(model, held_out, multi_label, tmp_path):
    """Features of another layer would be valid numbers, and wrong."""
    inputs, truth = multi_label
    pipeline = make_pipeline(StandardScaler(), model).fit(inputs, truth)
    wrapped = ns.wrap(pipeline, detector="mahalanobis", features="input")
    wrapped = wrapped.fit(inputs, truth).calibrate(held_out)
    assert wrapped.detector.layers_ == ("input",)
    wrapped.save(tmp_path / "d.nescio")
    again = ns.wrap(pipeline, detector=tmp_path / "d.nescio")
    assert again.runner.layers == ("input",)  # "auto" would be "penultimate"
    np.testing.assert_array_equal(
        again(held_out).assessment.p_values, wrapped(held_out).assessment.p_values
    )
    # Fitted on features of unknown origin, it forgets them, and no layer is guessed.
    detector = wrapped.detector.fit(inputs, truth).calibrate(held_out)
    assert not hasattr(detector, "layers_")
    with pytest.raises(MissingInputError, match=r"not known from which layer.*features="):
        ns.wrap(pipeline, detector=detector)


def test_assess_and_explain_are_the_detectors_own(model, held_out):
    wrapped = ns.wrap(model, label_names=NAMES).calibrate(held_out)
    outputs = wrapped.outputs(held_out)
    assessment = wrapped.assess(held_out, fdr=0.1)
    expected = wrapped.detector.assess(outputs, fdr=0.1)
    np.testing.assert_array_equal(assessment.in_distribution, expected.in_distribution)
    for name in ("scores", "p_values"):
        np.testing.assert_array_equal(getattr(wrapped(held_out), name), getattr(expected, name))
    # The model may round the rows of another batch differently.
    explained = wrapped.explain(held_out[:3], ids=["a", "b", "c"])
    np.testing.assert_allclose(
        explained.shares, wrapped.detector.explain(outputs[:3]).shares, rtol=1e-9
    )
    assert explained[2].id == "c"


def test_without_a_calibrated_detector_there_is_no_verdict(model, held_out):
    for detector in (None, ns.JointEnergy()):
        with pytest.raises(ns.NotCalibratedError, match=r"calibrate\(held_out\)"):
            ns.wrap(model, detector=detector)(held_out)
    uncalibrated = ns.wrap(model, detector="knn").fit(held_out)
    with pytest.raises(ns.NotCalibratedError, match=r"wrapped = wrapped.calibrate\(held_out\)"):
        uncalibrated(held_out)
    with pytest.raises(ParameterError, match="expected a detector, such as JointEnergy"):
        ns.wrap(model, detector=7)
    with pytest.raises(ParameterError, match="no detector 'joint_enery'"):
        ns.wrap(model, detector="joint_enery")


def test_a_detector_of_other_labels_is_refused(model, held_out):
    detector = ns.wrap(model, label_names=NAMES).calibrate(held_out).detector
    with pytest.raises(LabelMismatchError, match="another order"):
        ns.wrap(model, detector=detector, label_names=NAMES[::-1])
    with pytest.raises(
        LabelMismatchError, match=r"Missing: 'cat'\. Not known to the detector: 'ox'"
    ):
        ns.wrap(ns.wrap(model, label_names=("ox", *NAMES[1:])), detector=detector)
    logits = np.random.default_rng(0).normal(size=(99, 5))
    with pytest.raises(ShapeError, match="made for 5 labels, got 4"):
        ns.wrap(model, detector=ns.JointEnergy().calibrate(logits))(held_out)
    named = ns.JointEnergy().calibrate(ns.Outputs(logits, label_names=list("abcde")))
    with pytest.raises(ShapeError, match=r"made for 5 labels \('a', 'b', 'c' .* model returns 4"):
        ns.wrap(model, detector=named)(held_out)


# --- predictions ------------------------------------------------------------------------------


def test_labels_probabilities_and_verdict_come_together(model, held_out):
    wrapped = ns.wrap(model, label_names=NAMES).calibrate(held_out, tpr=0.9)
    prediction = wrapped(held_out[:12], ids=[f"s{row}" for row in range(12)])
    assert len(prediction) == 12
    np.testing.assert_allclose(prediction.probs, model.predict_proba(held_out[:12]), atol=1e-12)
    np.testing.assert_array_equal(prediction.predicted, model.predict(held_out[:12]) == 1)
    for row, sample in enumerate(prediction):
        assert sample.predicted == tuple(np.array(NAMES)[prediction.predicted[row]])
        assert sample.verdict == prediction.assessment[row] == prediction[row].verdict
        np.testing.assert_array_equal(sample.probs, prediction.probs[row])
    columns = prediction.columns()
    assert list(columns) == ["id", "score", "p_value", "in_distribution", "predicted"]
    assert columns["predicted"] == prediction.label_lists()
    np.testing.assert_array_equal(prediction.flagged, np.flatnonzero(~prediction.in_distribution))
    for rows in (slice(5, 9), [7, 2], ~prediction.in_distribution):
        some = prediction[rows]
        assert some.ids.tolist() == prediction.ids[rows].tolist()
        np.testing.assert_array_equal(some.predicted, prediction.predicted[rows])
        np.testing.assert_array_equal(some.in_distribution, prediction.in_distribution[rows])


def test_the_threshold_of_a_label_can_be_another(model, held_out):
    wrapped = ns.wrap(model).calibrate(held_out)
    prediction = wrapped(held_out, label_threshold=0.9)
    np.testing.assert_array_equal(prediction.predicted, prediction.probs > 0.9)
    # Without names, labels are positions.
    assert prediction.label_lists() == [tuple(np.flatnonzero(p > 0.9)) for p in prediction.probs]
    with pytest.raises(ParameterError, match="label_threshold must lie between"):
        wrapped(held_out, label_threshold=1.0)


def test_a_logit_at_the_threshold_is_not_above_it_in_any_precision():
    detector = ns.JointEnergy().calibrate(np.random.default_rng(0).normal(size=(99, 5)))
    for threshold in (0.1, 0.3, 0.7, 0.9):
        at_threshold = np.full((1, 5), np.log(threshold / (1 - threshold)))
        for logits in (at_threshold, at_threshold.astype(np.float32)):
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
    # Of many rows, those that are flagged are shown, under their own numbers.
    wrapped = ns.wrap(model).calibrate(held_out)
    many = np.concatenate([held_out[:20], [1000 + held_out[0]]])
    for result in (wrapped(many), wrapped.assess(many), wrapped.explain(many)):
        last = repr(result).splitlines()[9]
        assert last.split()[0] == "20", result
        assert "OUT" in last, result


def test_rows_that_cannot_be_used(rng):
    torch = pytest.importorskip("torch")
    x = rng.normal(size=(900, 6)).astype(np.float32)
    bad = x[500:].copy()
    bad[3] = np.nan
    model = torch.nn.Linear(6, 6)
    torch.nn.init.eye_(model.weight)
    fitted = ns.wrap(model).fit(x[:500], x[:500] > 0)
    with pytest.raises(ns.errors.NonFiniteError, match=r"wrapped\.detector\.set_params, if it has"):
        fitted.calibrate(bad)
    fitted.detector.set_params(nonfinite="out")
    assert not fitted.calibrate(bad, self_check=False)(bad).in_distribution[3]
    # The default does not leave the features out because of one such row.
    with pytest.raises(ns.errors.NonFiniteError, match="in 1 of 400 rows: 3 "):
        ns.wrap(model).fit(bad, x[500:] > 0)

    # A model may take what its layers may not hold.
    class TakesMissing(torch.nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs).nan_to_num()

    with pytest.warns(ns.errors.DefaultDetectorWarning, match="no features: .* NaN or infinity"):
        ns.wrap(TakesMissing(6, 6)).fit(bad, x[500:] > 0)


# --- wrapping again ---------------------------------------------------------------------------


def test_a_wrapped_model_is_wrapped_anew(model, held_out):
    first = ns.wrap(model, label_names=NAMES, features="input").calibrate(held_out)
    again = ns.wrap(first)
    assert repr(again) == (
        "Wrapped(sklearn: sklearn.multiclass.OneVsRestClassifier, features='input', "
        "detector=combined of 2 parts, tpr=0.95)"
    )
    assert again is not first
    assert again.runner is first.runner
    assert (again.detector, again.label_names) == (first.detector, NAMES)
    assert repr(ns.wrap(model, detector="msp")).endswith(", detector=msp, not calibrated)")
    assert ns.wrap(first, label_names=list("abcd"), detector="msp").runner.model is model
    probs = ns.wrap(pytest.importorskip("torch").nn.Identity(), from_probs=True)
    assert ns.wrap(probs).runner.from_probs is True
    assert ns.wrap(probs, from_probs=False).runner.from_probs is False
    other = ns.MaxLogit().calibrate(first.outputs(held_out))
    assert ns.wrap(first, detector=other).detector is other


def test_the_default_learns_from_features_if_there_are_labels():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(900, 7)).astype("f4")
    model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4))
    with torch.no_grad():
        logits = model(torch.tensor(inputs)).numpy()
    labels = (logits > np.median(logits, axis=0)).astype(int)
    guarded = ns.wrap(model).fit(inputs[:400], labels[:400]).calibrate(inputs[400:])
    assert guarded.detector.name == "combined"
    assert "linear probe" in guarded.reason
    # In the other order, `fit` chooses again.
    first = ns.wrap(model).calibrate(inputs[400:])
    assert "training outputs" in first.reason
    assert first.detector.text() == (
        "combined(detectors=[joint_energy, out_of_range(held_out=true), "
        "out_of_range(held_out=true, layer=input)])"
    )
    again = first.fit(inputs[:400], labels[:400])
    assert "linear_probe" in again.detector.detectors
    # Too few held-out samples, as on the command line.
    with pytest.warns(ns.errors.DefaultDetectorWarning, match="and there are 70"):
        few = again.calibrate(inputs[400:470])
    assert few.detector.name == "joint_energy"
    assert "80 held-out samples, and there are 70" in few.reason
    # Too few for both: what `fit` has said stays, and nobody who has called it is sent to it.
    with pytest.warns(ns.errors.DefaultDetectorWarning, match="160 training samples"):
        short = ns.wrap(model).fit(inputs[:100], labels[:100])
    with (
        pytest.warns(ns.errors.BlindSpotWarning) as caught,
        pytest.warns(ns.errors.DefaultDetectorWarning, match="the ranges need 160 held-out"),
    ):
        short = short.calibrate(inputs[400:470])
    assert not any("(fit)" in str(said.message) for said in caught)
    assert "and there are 100. With 70 held-out samples, joint_energy alone" in short.reason
    chosen = ns.wrap(model, detector="combined", features="penultimate")
    kept = chosen.fit(inputs[:400], labels[:400]).calibrate(inputs[400:470])
    assert (kept.detector.name, kept.reason) == ("combined", "")
    assert guarded(inputs[:5]).in_distribution.shape == (5,)
    with pytest.warns(ns.errors.DefaultDetectorWarning, match="have no labels"):
        assert not ns.wrap(model).fit(inputs[:400]).detector.learns_from
    lost = ns.wrap(model)
    lost.fit(inputs[:400], labels[:400])  # as scikit-learn's users do
    with pytest.warns(ns.errors.DefaultDetectorWarning, match="Keep its result: wrapped = wrapped"):
        lost.calibrate(inputs[400:])


def test_the_default_guards_an_input_that_the_layers_do_not_show():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = torch.nn.Sequential(  # its features are the same for 1 and for 1,000
        torch.nn.Hardtanh(), torch.nn.Linear(7, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4)
    )
    inputs = rng.normal(size=(1000, 7)).astype("f4")
    far = 10 * inputs[:50] + 50
    labels = inputs[:400, :4] > 0
    for guarded in (
        ns.wrap(model).fit(inputs[:400], labels).calibrate(inputs[400:]),
        ns.wrap(model).calibrate(np.array_split(inputs[400:], 4)),
        ns.wrap(model).calibrate(iter(np.array_split(inputs[400:], 4))),
    ):
        assert guarded.runner.layers == ("penultimate", "input")
        assert "features and the input" in guarded.reason
        assert not guarded(far).in_distribution.any()
        assert guarded(inputs[400:500]).in_distribution.mean() > 0.8
    # Its features alone do not show it.
    alone = ns.wrap(model, features="penultimate", detector=ns.Combined()).fit(inputs[:400], labels)
    assert alone.calibrate(inputs[400:])(far).in_distribution.any()
    # A later batch that is wrong is an error, and does not lead to fewer samples.
    with pytest.raises(ns.NescioError, match="batch"):
        ns.wrap(model).calibrate(iter([inputs[:300], inputs[:300, :5]]))
    # Whole numbers, such as tokens, have no guard.
    embedding = torch.nn.Sequential(
        torch.nn.EmbeddingBag(30, 9), torch.nn.Linear(9, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4)
    )
    tokens = rng.integers(0, 30, (400, 5))
    assert "input" not in ns.wrap(embedding).calibrate(tokens).runner.layers


def test_a_model_whose_inner_layer_is_no_matrix_is_judged_by_its_logits():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Unflatten(1, (2, 5)), torch.nn.Linear(5, 2), torch.nn.Flatten()
    )
    inputs = np.random.default_rng(0).normal(0, 5, (300, 10)).astype("f4")
    guarded = ns.wrap(model).calibrate(inputs)
    assert guarded.detector.scores_from == ("logits",)
    with pytest.raises(ns.NescioError, match="the model"):
        ns.wrap(model).calibrate(inputs[:, :7])
    with pytest.warns(ns.errors.DefaultDetectorWarning, match="features: layer '1' takes shape"):
        ns.wrap(model).fit(inputs, inputs[:, :4] > 0)
    with pytest.warns(ns.errors.DefaultDetectorWarning, match="no layer that is known .* Choose"):
        ns.wrap(torch.nn.Hardtanh()).fit(inputs, inputs > 0)


def test_the_default_does_not_make_a_vocabulary_dense():
    texts = [f"a{row} b{row} {'x' if row % 2 else 'y'}" for row in range(2100)]
    labels = np.array([[row % 2, row % 3 == 0] for row in range(2100)])
    model = make_pipeline(CountVectorizer(), OneVsRestClassifier(LogisticRegression()))
    model.fit(texts, labels)
    with pytest.warns(ns.errors.DefaultDetectorWarning, match="4,200 features.*max_features=4000"):
        guarded = ns.wrap(model).fit(texts[:100], labels[:100])
    assert guarded.runner.layers == ()
    assert guarded.detector.scores_from == ("logits",)


@pytest.mark.slow
def test_scikit_learn_and_onnx_models_run_without_torch(onnx_file):
    code = (
        "import sys, numpy as np, nescio as ns\n"
        "from sklearn.ensemble import RandomForestClassifier\n"
        "x = np.random.default_rng(0).normal(size=(100, 6))\n"
        f"for model in (RandomForestClassifier(3).fit(x, x > 0), {str(onnx_file())!r}):\n"
        "    ns.wrap(model).calibrate(x)(x)\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == "[]"


# --- ordinary mistakes ---


def a_network(first, *rest):
    torch = pytest.importorskip("torch")
    return torch.nn.Sequential(first, torch.nn.ReLU(), *rest)


def as_list(row):
    return row.tolist()


def as_tensor(row):
    return pytest.importorskip("torch").tensor(row, dtype=pytest.importorskip("torch").float32)


@pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")
@pytest.mark.parametrize("form", [np.asarray, as_tensor, as_list])
def test_one_sample_without_the_batch_axis(model, multi_label, held_out, onnx_file, form):
    torch = pytest.importorskip("torch")
    inputs, truth = multi_label
    one, message = form(inputs[0]), r"shape \(6,\), are a single sample.*pass x\[None\]"
    network = a_network(torch.nn.Linear(6, 8), torch.nn.Linear(8, 4))
    for each in (model, network, onnx_file()):
        plain = ns.wrap(each)
        wrapped = plain.calibrate(held_out, self_check=False)
        for call in (wrapped, wrapped.explain, plain.outputs, plain.fit, plain.calibrate):
            with pytest.raises(ShapeError, match=message):
                call(one)
        with pytest.raises(ShapeError, match=message):
            plain.fit(one, truth[0])
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ShapeError, match=r"frame.iloc\[\[row\]\]"):
        ns.wrap(model).outputs(pandas.DataFrame(inputs).iloc[0])
    frame = pandas.DataFrame(inputs, columns=list("abcdef")).assign(word="x")
    named = ns.wrap(clone(model).fit(frame[list("abcdef")], truth))
    for row in (frame.iloc[0], frame[list("abcdef")].iloc[0]):  # with words, and of numbers alone
        with pytest.raises(ShapeError, match=r"one row of a table.*frame.iloc\[\[row\]\]\.$"):
            named.outputs(row)
    with pytest.raises(InputError, match=r"got a Series. .*frame\[names\].iloc\[\[row\]\]"):
        ns.wrap(network).outputs(frame["a"])


def test_one_image_without_the_batch_axis_and_other_images():
    torch = pytest.importorskip("torch")
    pooled = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 3))
    network = a_network(torch.nn.Conv2d(3, 4, 3), *pooled)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (5, 3, 8, 8), dtype=np.uint8)
    wrapped = ns.wrap(network, preprocessing=ns.Preprocessing(8))
    assert len(wrapped.outputs(pixels)) == 5
    for images in (pixels[0], pixels[0] / 255):
        with pytest.raises(ShapeError, match=r"\(3, 8, 8\), are a single sample"):
            wrapped.outputs(images)
    for images in (np.moveaxis(pixels, 1, -1), torch.from_numpy(pixels).permute(0, 2, 3, 1)):
        with pytest.raises(ShapeError, match=r"\(5, 8, 8, 3\). If the colours are last"):
            wrapped.outputs(images)
    with pytest.raises(InputError, match=r"uint8 of shape.*images of bytes.*preprocessing="):
        ns.wrap(network).outputs(pixels)
    image = pytest.importorskip("PIL.Image").new("RGB", (8, 8))
    for images in ("a.jpg", ["a.png", "b.png"], image, [image, image]):
        with pytest.raises(InputError, match=r"p.pixels\(PIL.Image.open\(path\)"):
            wrapped.outputs(images)
    with pytest.raises(ParameterError, match=r"must be a nescio.Preprocessing, got 224"):
        ns.wrap(network, preprocessing=224)


@pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")
def test_the_contrast_of_a_flat_image_is_0():
    torch = pytest.importorskip("torch")
    pooled = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 3))
    network = a_network(torch.nn.Conv2d(3, 4, 3), *pooled)
    images = torch.rand(200, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    wrapped = ns.wrap(network).calibrate(images, self_check=False)
    for level in (0.1, 0.3, 0.7):
        flat = wrapped.explain(torch.full((1, 3, 8, 8), level))
        parts = [part.reason for part in flat[0].parts if "layer=input" in part.detector]
        values = {c.column: c.value for c in parts[0].ranges if c.column.startswith("contrast")}
        assert set(values.values()) == {0.0}


@pytest.mark.filterwarnings("error::nescio.errors.ImplausibleValuesWarning")
def test_softmax_outputs_are_no_probabilities_of_labels(held_out):
    torch = pytest.importorskip("torch")
    network = a_network(torch.nn.Linear(6, 8), torch.nn.Linear(8, 4), torch.nn.Softmax(1))
    with pytest.raises(ns.errors.ProbabilitiesError, match="one sigmoid per label") as raised:
        ns.wrap(network).outputs(held_out)
    assert "from_probs=True" not in str(raised.value)  # which would not help
    with pytest.raises(ns.errors.ImplausibleValuesWarning, match="these look like softmax"):
        ns.wrap(network, from_probs=True).outputs(held_out)


def test_lists_and_wide_tensors_are_rows(held_out):
    torch = pytest.importorskip("torch")
    wrapped = ns.wrap(a_network(torch.nn.Linear(6, 8), torch.nn.Linear(8, 4)))
    expected = wrapped.outputs(held_out[:3]).logits
    for rows in (held_out[:3].tolist(), torch.from_numpy(held_out[:3])):
        np.testing.assert_array_equal(wrapped.outputs(rows).logits, expected)
    with pytest.raises(ShapeError, match=r"np.stack\(samples\)"):
        wrapped.outputs(list(held_out[:3]))
    with pytest.raises(InputError, match=r"TensorDataset. Pass .*DataLoader\(dataset"):
        wrapped.outputs(torch.utils.data.TensorDataset(torch.from_numpy(held_out)))


def test_labels_beside_held_out_data_and_inputs_that_are_used_up(model, multi_label, held_out):
    detector = ns.JointEnergy()
    for calibrate in (ns.wrap(model).calibrate, detector.calibrate):
        for labels in (multi_label[1], 0.95):
            with pytest.raises(InputError, match=r"calibrate takes held-out data alone.*tpr=0.95"):
                calibrate(held_out, labels)
    assert ns.wrap(model).calibrate(held_out)(*multi_label).outputs.labels is not None
    batches = iter([held_out])
    ns.wrap(model).outputs(batches)
    with pytest.raises(ShapeError, match="A generator gives its batches once"):
        ns.wrap(model).outputs(batches)
    for call in (ns.wrap(model).outputs, ns.wrap(model).fit, ns.wrap(model).calibrate):
        with pytest.raises(ShapeError, match=r"not a single sample was given\.$"):
            call([])
    with pytest.raises(ShapeError, match="There are no samples"):
        detector.calibrate([])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([["a", "b"], ["a"]] * 150, r"lists of different lengths.*MultiLabelBinarizer\(classes="),
        ([["a", "b"], ["a", "c"]] * 150, r"0 or 1, got 'a'.*MultiLabelBinarizer"),
        ([["0", "1"]] * 300, r"0 or 1, got '0'"),
        ([[0, 1], [2, 3]] * 150, r"0 or 1, got 2. If inputs and labels are exchanged"),
        (np.tile([[1, -1]], (300, 2)), r"0 or 1, got -1. For .* pass labels > 0\.$"),
        (np.array([[0, 0.5, "a"]] * 300, object), r"0 or 1, got 0.5. If inputs and labels are"),
        ([{"a"}] * 300, r"got \(300,\).*MultiLabelBinarizer"),
        (["a"] * 300, r"got \(300,\).*MultiLabelBinarizer"),
        (np.arange(300), r"got \(300,\).*np.eye\(n_labels\)\[labels\]"),
        (np.arange(300) / 7, r"got \(300,\).*continuous numbers"),
        (np.zeros((300, 3)), r"of shape \(n_samples, 4\), got \(300, 3\)\.$"),
        (np.full((300, 4), np.nan), r"0 or 1, got nan. For rows without known labels, leave out"),
        (np.full((300, 4), 0.9), r"0 or 1, got 0.9. If inputs and labels are exch"),
    ],
)
def test_labels_that_are_not_multi_hot(model, multi_label, labels, message):
    inputs, _ = multi_label
    for fit in (ns.wrap(model).fit, lambda x, y: ns.Outputs(np.zeros((300, 4)), labels=y)):
        with pytest.raises(InputError, match=message):
            fit(inputs, labels)


def test_labels_may_be_sparse(model, multi_label):
    inputs, truth = multi_label
    labels = ns.wrap(model).outputs(inputs, labels=sparse.csr_array(truth)).labels
    np.testing.assert_array_equal(labels, truth)


def test_the_self_check_hides_no_error_of_ones_own(model, held_out, monkeypatch):
    wrapped = ns.wrap(model, detector="joint_energy").calibrate(held_out, self_check=False)
    outputs = wrapped.outputs(held_out)  # of which the faults would be made instead

    def broken(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(wrapped.runner, "run", broken)
    with pytest.raises(RuntimeError, match="broken"):
        wrapped.self_check(held_out, outputs=outputs)
