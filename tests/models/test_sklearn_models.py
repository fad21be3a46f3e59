import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression, Perceptron, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import nescio as ns
from nescio.errors import InputError, LabelMismatchError, ParameterError, ShapeError

_SCALED = make_pipeline(StandardScaler(), MultiOutputClassifier(LogisticRegression()))
DECISIONS = {
    "one vs rest": OneVsRestClassifier(LogisticRegression()),
    "ridge": RidgeClassifier(),
    "chain": ClassifierChain(LogisticRegression()),
    "multi-output": MultiOutputClassifier(LogisticRegression()),
    "pipeline": _SCALED,
    "boosting": MultiOutputClassifier(HistGradientBoostingClassifier(max_iter=3)),
    "chain of boosting": ClassifierChain(HistGradientBoostingClassifier(max_iter=3)),
    "search": GridSearchCV(_SCALED, {"multioutputclassifier__estimator__C": [1.0]}, cv=2),
}
PROBS = {
    "forest": RandomForestClassifier(5, random_state=0),
    "multi-output forest": MultiOutputClassifier(RandomForestClassifier(5, random_state=0)),
    "one vs rest forest": OneVsRestClassifier(RandomForestClassifier(5, random_state=0)),
    "chain of forests": ClassifierChain(RandomForestClassifier(5, random_state=0)),
    "calibrated": MultiOutputClassifier(CalibratedClassifierCV(LogisticRegression(), cv=2)),
    "neighbours": KNeighborsClassifier(),
    # The tolerance ends training after a few epochs on any processor; no solver has to converge.
    "mlp": MLPClassifier([8], tol=10, n_iter_no_change=2, random_state=0),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", [*DECISIONS, *PROBS])
def test_predictions_are_the_models_own(name, multi_label):
    model = (DECISIONS | PROBS)[name].fit(*multi_label)
    wrapped = ns.wrap(model)
    assert wrapped.runner.output == ("decision_function" if name in DECISIONS else "predict_proba")
    assert wrapped.runner.from_probs is (name in PROBS)
    outputs = wrapped.outputs(multi_label[0], batch_size=64)
    np.testing.assert_array_equal(outputs.logits > 0, model.predict(multi_label[0]) == 1)
    assert outputs.manifest["kind"] == "sklearn"


@pytest.mark.parametrize("name", ["multi-output", "pipeline", "search", "forest"])
def test_probabilities_of_each_label_become_logits(name, multi_label):
    model = (DECISIONS | PROBS)[name].fit(*multi_label)
    probs = np.column_stack([part[:, 1] for part in model.predict_proba(multi_label[0])])
    logits = ns.wrap(model).outputs(multi_label[0]).logits
    np.testing.assert_allclose(ns.scores.label_prob(logits), probs, atol=1e-12)


def test_probabilities_can_be_asked_for(multi_label):
    model = DECISIONS["one vs rest"].fit(*multi_label)
    for settings in ({"output": "predict_proba"}, {"from_probs": True}):
        wrapped = ns.wrap(model, **settings)
        assert (wrapped.runner.output, wrapped.runner.from_probs) == ("predict_proba", True)
        expected = model.decision_function(multi_label[0])
        np.testing.assert_allclose(wrapped.outputs(multi_label[0]).logits, expected, atol=1e-6)


def test_a_label_that_was_never_seen_counts_nothing(multi_label):
    inputs, truth = multi_label
    truth = truth.copy()
    truth[:, 1] = 0
    with pytest.warns(UserWarning, match="not 1 is present"):
        constant = OneVsRestClassifier(LogisticRegression()).fit(inputs, truth)
    forest = RandomForestClassifier(5, random_state=0).fit(inputs, truth)
    for model in (constant, forest):
        logits = ns.wrap(model).outputs(inputs).logits
        assert np.isneginf(logits[:, 1]).all()
        assert np.isfinite(logits[:, 0]).any()


# --- inputs -----------------------------------------------------------------------------------


def test_data_frames_and_sparse_matrices_are_taken(multi_label):
    pandas = pytest.importorskip("pandas")
    inputs, truth = multi_label
    frame = pandas.DataFrame(inputs, columns=list("abcdef"))
    model = OneVsRestClassifier(LogisticRegression())
    model.fit(frame, truth)
    expected = model.decision_function(frame)
    logits = ns.wrap(model).outputs(frame, batch_size=50).logits
    np.testing.assert_allclose(logits, expected)
    assert ns.wrap(model).outputs(frame).ids is None
    place = "infinite number is in row 70 of the index, column 'c'"  # and not row 20 of its batch
    infinite = frame.assign(c=np.where(frame.index == 70, np.inf, 0.0))
    with pytest.raises(InputError, match=place):
        ns.wrap(model).outputs(infinite, batch_size=50)
    with_words = frame.assign(a=np.where(frame["a"] > 0, "high", "low"))
    encoder = make_column_transformer((OneHotEncoder(), ["a"]), remainder="passthrough")
    of_words = make_pipeline(encoder, OneVsRestClassifier(LogisticRegression()))
    of_words.fit(with_words, truth)
    empty = with_words[:3].assign(a=np.nan)
    with pytest.raises(InputError, match=r"columns 'a' have no value, so .*frame.astype"):
        ns.wrap(of_words).outputs(empty)
    learned = ns.wrap(of_words).fit(with_words[:200], truth[:200])
    with pytest.raises(InputError, match=r"column 'a' held words in training, but has 3 in row 0 "):
        learned.outputs(with_words.assign(a=3))
    for odd in ("n/a", pandas.Timestamp("2026-01-01")):
        cells = with_words["b"].astype(object).where(frame.index != 270, odd)
        place = rf"column 'b' held numbers in training, but has .*{str(odd)[:3]}.* in row 270 "
        with pytest.raises(InputError, match=place):
            learned.outputs(with_words.assign(b=cells))
    with pytest.raises(InputError, match=r"columns 'a' have no value, so .*frame.astype"):
        learned.outputs(empty)
    # Neither rows as dicts nor an array of objects are a table.
    with pytest.raises(InputError, match=r"got a dict. Pass a table.*pd.DataFrame\(\[row\]\)"):
        ns.wrap(model).outputs(frame.iloc[0].to_dict())
    with pytest.raises(InputError, match=r"was trained on a data frame.*pd.DataFrame\(rows\)"):
        ns.wrap(model).outputs(frame[:2].to_dict("records"))
    labels = pandas.DataFrame(truth)
    with pytest.raises(LabelMismatchError, match=r"row 0 is '0' of the inputs and '\d+' of the la"):
        ns.wrap(model).fit(frame, labels[::-1])
    ns.wrap(model).outputs(frame, labels=labels[::-1].to_numpy())
    with pytest.raises(ShapeError, match="must name 4 labels, got 3 names"):
        ns.wrap(model, label_names=list("abc"))
    turned = ns.wrap(model).calibrate(frame).predict(frame[::-1])
    assert turned.outputs.ids[:2].tolist() == [str(len(frame) - 1), str(len(frame) - 2)]
    assert ns.wrap(model).outputs(frame[:2], ids=["a", "b"]).ids.tolist() == ["a", "b"]
    model.fit(inputs, truth)
    for matrix in (sparse.csr_array(inputs), sparse.coo_matrix(inputs)):
        outputs = ns.wrap(model, features="input").outputs(matrix, batch_size=50)
        np.testing.assert_allclose(outputs.logits, expected)
        np.testing.assert_array_equal(outputs.features, inputs)


@pytest.fixture
def of_texts():
    texts = ["red cat", "red dog", "blue cat", "blue dog"] * 5
    truth = np.array([["red" in text, "cat" in text] for text in texts]).astype(int)
    model = make_pipeline(CountVectorizer(), OneVsRestClassifier(LogisticRegression()))
    return ns.wrap(model.fit(texts, truth)), texts


def test_a_frame_of_texts_is_not_taken_for_the_names_of_its_columns(of_texts):
    pandas = pytest.importorskip("pandas")
    wrapped, texts = of_texts
    with pytest.raises(ShapeError, match=r"returns 1 rows for 20 inputs.*frame\[\"text\"\]"):
        wrapped.outputs(pandas.DataFrame({"text": texts}))
    with pytest.raises(ShapeError, match="returns 1 rows for 20 inputs"):
        ns.wrap(wrapped, features="penultimate").outputs(pandas.DataFrame({"text": texts}))


def test_other_forms_of_texts(of_texts, multi_label):
    wrapped, texts = of_texts
    expected = wrapped.outputs(texts).logits
    for form in (tuple(texts), iter(texts), np.array(texts), iter([texts[:2], texts[2:]])):
        np.testing.assert_array_equal(wrapped.outputs(form).logits, expected)
    with pytest.raises(InputError, match="got a NoneType"):
        wrapped.outputs(text for text in (None, "red"))
    with pytest.raises(InputError, match="the model cannot run on these inputs"):
        wrapped.outputs([["red cat"]])
    with pytest.raises(InputError, match="there are no inputs"):
        wrapped.outputs([])
    with pytest.raises(InputError, match=r"'lower'\. The model takes texts: pass a list of them"):
        wrapped.outputs([1, 2])
    numbers = ns.wrap(DECISIONS["one vs rest"].fit(*multi_label))
    with pytest.raises(InputError, match=r"cannot run on these inputs: X has 3 features"):
        numbers.outputs(np.zeros((2, 3)))
    with pytest.raises(InputError, match=r"For texts, pass a pipeline that begins with a vect"):
        numbers.outputs("text")


# --- what is refused --------------------------------------------------------------------------


def refused(model, message, **settings):
    with pytest.raises(ParameterError, match=message):
        ns.wrap(model, **settings)


def test_classifiers_whose_labels_exclude_each_other_are_refused(multi_label):
    inputs, truth = multi_label
    four = truth[:, 0] * 2 + truth[:, 1]
    refused(LogisticRegression().fit(inputs, truth[:, 0]), "one of 2 classes that exclude")
    refused(RandomForestClassifier(2).fit(inputs, four), "one of 4 classes that exclude")
    refused(OneVsRestClassifier(LogisticRegression()).fit(inputs, four), "one of 4 classes")
    refused(PROBS["mlp"].fit(inputs, truth[:, 0]), "one of 2 classes")
    refused(make_pipeline(StandardScaler(), RidgeClassifier()).fit(inputs, four), "Pipeline")
    many = MultiOutputClassifier(LogisticRegression()).fit(inputs, truth * 2)
    refused(many, r"label 0 of this MultiOutputClassifier has the classes \[0, 2\]")


def test_what_is_no_fitted_classifier_is_refused(multi_label):
    refused(LinearRegression().fit(*multi_label), "is no classifier")
    refused(OneVsRestClassifier(LogisticRegression()), "it is not fitted")
    refused(RandomForestClassifier, "RandomForestClassifier is a class")
    refused(object(), "cannot run a model of type object")


def test_a_classifier_without_scores_is_refused(multi_label):
    class OnlyLabels(BaseEstimator):
        classes_ = [np.array([0, 1])] * 4

        def predict(self, inputs):
            return np.zeros((len(inputs), 4))

    refused(OnlyLabels(), "neither decision_function nor predict_proba")
    no_probs = OneVsRestClassifier(Perceptron()).fit(*multi_label)
    refused(no_probs, "no predict_proba", from_probs=True)
    refused(PROBS["forest"].fit(*multi_label), "no decision_function", output="decision_function")


def test_settings_that_mean_nothing_here_are_refused(multi_label):
    model = DECISIONS["one vs rest"].fit(*multi_label)
    refused(model, "features can only be 'input'", features="head")
    refused(model, "runs on the CPU", device="cuda")
    refused(model, "output must be 'decision_function' or 'predict_proba'", output="logits")
    refused(model, "leave out from_probs", output="decision_function", from_probs=True)
