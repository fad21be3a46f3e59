"""WithVerdict is a classifier like its estimator, and its verdicts keep their promise."""

import pickle

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_validate
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import estimator_checks_generator

import nescio as ns
from nescio.errors import (
    DefaultDetectorWarning,
    IgnoredColumnsWarning,
    InputError,
    LabelMismatchError,
    MissingInputError,
    NescioWarning,
    ShapeError,
    TooFewSamplesError,
)
from nescio.integrations.sklearn import WithVerdict
from nescio.models.table_features import TableFeatures

LOGISTIC = MultiOutputClassifier(LogisticRegression())
SCALED = make_pipeline(StandardScaler(), LOGISTIC)
CHAIN = make_pipeline(StandardScaler(), ClassifierChain(LogisticRegression()))
BOOSTING = MultiOutputClassifier(HistGradientBoostingClassifier(max_iter=3))

_ONE_COLUMN = "y is one column, and a multi-label classifier needs one per label"
_NOT_MULTI_HOT = "y has other values than 0 and 1"
_LISTS = "MultiOutputClassifier returns one matrix of probabilities per label"
_NOT_MULTI_LABEL = {
    "check_classifiers_one_label": _ONE_COLUMN,
    "check_classifiers_one_label_sample_weights": _ONE_COLUMN,
    "check_classifiers_classes": _ONE_COLUMN,
    "check_classifiers_train": _ONE_COLUMN,
    "check_classifier_not_supporting_multiclass": _ONE_COLUMN,
    "check_transformer_data_not_an_array": _ONE_COLUMN,
    "check_transformer_general": _ONE_COLUMN,
    "check_transformer_preserve_dtypes": _ONE_COLUMN,
    "check_estimators_dtypes": _NOT_MULTI_HOT,
    "check_classifier_data_not_an_array": _NOT_MULTI_HOT,
    "check_fit2d_1feature": _NOT_MULTI_HOT,
    "check_estimator_sparse_array": _LISTS,
    "check_estimator_sparse_matrix": _LISTS,
    "check_methods_sample_order_invariance": _LISTS,
}


RECENT = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 9)  # before, no y was 0 and 1


def checks():
    # Their data has few samples: tpr=0.5 needs no more than one to calibrate.
    for estimator, failing in (
        (WithVerdict(LOGISTIC, tpr=0.5), _NOT_MULTI_LABEL),
        (TableFeatures(), {}),
    ):
        yield from estimator_checks_generator(
            estimator, expected_failed_checks=failing, mark="xfail"
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "check"),
    [*checks()] if RECENT else [],
    ids=lambda value: getattr(getattr(value, "func", value), "__name__", type(value).__name__),
)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def table():
    """Inputs in different units, and labels that depend on them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 5))
    y = (x[:, :3] + 0.3 * rng.normal(size=(900, 3)) > 0).astype(int)
    return x * [1, 10, 100, 1, 1] + [0, 50, 0, 0, 3], y


@pytest.fixture(scope="module")
def frame(table):
    """The same as an ordinary shuffled frame, with words, times and missing values."""
    pandas = pytest.importorskip("pandas")
    x, y = table
    inputs = pandas.DataFrame(x.copy(), columns=list("abcde"))
    inputs["id"] = [f"r{row}" for row in range(len(x))]
    inputs["when"] = pandas.date_range("2026-01-01", periods=len(x), freq="h")
    inputs["kind"] = pandas.Categorical(np.where(x[:, 0] > 0, "red", "blue"))
    inputs.loc[::20, "b"] = np.nan
    labels = pandas.DataFrame(y, columns=["cold", "wet", "late"])
    order = np.random.default_rng(1).permutation(len(x))
    return inputs.iloc[order], labels.iloc[order]


# --- predictions and verdicts -------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [LOGISTIC, SCALED, BOOSTING, CHAIN])
def test_it_predicts_as_its_estimator_does_and_flags_what_is_far(estimator, table):
    x, y = table
    model = WithVerdict(estimator).fit(x[:700], y[:700])
    np.testing.assert_array_equal(model.predict(x[700:]), model.estimator_.predict(x[700:]))
    np.testing.assert_array_equal(
        model.predict_proba(x[700:]), model.estimator_.predict_proba(x[700:])
    )
    assert model.score(x[700:], y[700:]) == model.estimator_.score(x[700:], y[700:])
    wrapped = ns.wrap(model.estimator_).fit(x[:525], y[:525])  # by the same code
    assert type(model.detector_) is type(wrapped.detector) is ns.Combined
    assert model.reason_ == wrapped.reason
    assert model.wrapped_.runner.layers == wrapped.runner.layers == ("prepared",)
    verdict = model.verdict(x[700:])
    assert set(verdict) <= {-1, 1}
    assert 0.88 < (verdict == 1).mean() < 1
    assert (model.verdict(x[700:] * [1, 1, 1, 1, 30]) == 1).mean() < 0.2
    assert (model.verdict(np.zeros((1, 5))) == -1).all()


def test_the_estimator_never_sees_the_samples_that_calibrate(table):
    x, y = table

    class Remembers(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            self.seen_, self.weight_ = X, sample_weight
            return super().fit(X, y, sample_weight)

    model = WithVerdict(MultiOutputClassifier(Remembers()), held_out=0.4)
    model.fit(x, y, sample_weight=x[:, 0] ** 2)
    part = model.estimator_.estimators_[0]
    assert len(part.seen_) == 540
    assert model.detector_.calibration_.n_samples == 180  # the others make p-values
    np.testing.assert_array_equal(part.weight_, part.seen_[:, 0] ** 2)  # divided like the rows
    held_out = [row for row in x.tolist() if row not in part.seen_.tolist()]
    scores = model.assess(held_out).scores
    assert np.isclose(scores, model.detector_.offset_).any()  # the score of one of them
    assert (scores >= model.detector_.offset_).mean() >= 0.95


def test_a_fitted_model_is_not_fitted_again(table):
    x, y = table
    inner = clone(SCALED).fit(x[:300], y[:300])
    model = WithVerdict(FrozenEstimator(inner), detector="mahalanobis").fit(x[300:], y[300:])
    np.testing.assert_array_equal(model.predict(x), inner.predict(x))
    assert model.estimator_[-1].estimators_[0] is inner[-1].estimators_[0]
    assert model.verdict([[0, 1e4, 0, 0, 0]]) == [-1]


def test_parameters_of_the_calibration_are_used(table):
    careful = WithVerdict(LOGISTIC, "joint_energy", tpr=0.8, confidence=0.99).fit(*table)
    usual = WithVerdict(LOGISTIC, "joint_energy", tpr=0.8).fit(*table)
    assert careful.detector_.offset_ < usual.detector_.offset_
    assert 0.7 < (usual.verdict(table[0]) == 1).mean() < 0.9
    other = WithVerdict(LOGISTIC, "joint_energy", tpr=0.8, random_state=1).fit(*table)
    assert other.detector_.offset_ != usual.detector_.offset_


# --- data frames --------------------------------------------------------------------------------


def test_an_ordinary_frame_needs_no_preparation(frame):
    x, y = frame
    x = x.drop(columns=["id", "when"])
    boosting = MultiOutputClassifier(HistGradientBoostingClassifier(max_iter=3))
    model = WithVerdict(boosting).fit(x[:700], y[:700])
    assert model.feature_names_in_.tolist() == [*"abcde", "kind"]
    prediction = model.wrapped_(x[700:])
    assert set().union(*prediction.label_lists()) == {"cold", "wet", "late"}
    assert prediction.outputs.ids[0] == str(x.index[700])
    assert (model.verdict(x[700:]) == 1).mean() > 0.88
    assert (model.verdict(x[700:].assign(e=60.0)) == -1).all()
    assert (model.verdict(x[700:].assign(a=np.nan, b=np.nan, c=np.nan, d=np.nan)) == -1).all()


def test_the_detector_reads_the_columns_that_a_pipeline_reads(frame):
    x, y = frame
    x = x.dropna()
    columns = make_column_transformer(
        (StandardScaler(), list("abcd")), (OneHotEncoder(sparse_output=False), ["kind"])
    )
    model = WithVerdict(make_pipeline(columns, LOGISTIC)).fit(x[:600], y.loc[x.index][:600])
    assert "sparse" not in model.reason_
    assert model.detector_.n_columns_["features"] == 12  # 4, whether each is missing, 3, a constant
    np.testing.assert_array_equal(model.verdict(x[600:]), model.verdict(x[600:].assign(e=60.0)))
    assert (model.verdict(x[600:].assign(c=5000.0)) == -1).all()


@pytest.mark.filterwarnings("ignore::nescio.errors.TiedScoresWarning")
@pytest.mark.filterwarnings("ignore:many of the .* same logits")  # few different texts
def test_texts_have_no_table():
    texts = ["red cat", "red dog", "blue cat", "blue dog"] * 50
    truth = np.array([["red" in text, "cat" in text] for text in texts]).astype(int)
    model = make_pipeline(TfidfVectorizer(), OneVsRestClassifier(LogisticRegression()))
    with (
        pytest.warns(DefaultDetectorWarning, match="160 training samples, and there are 150"),
        pytest.warns(DefaultDetectorWarning, match="With 50 held-out .* need 160 held-out samples"),
    ):
        fitted = WithVerdict(model).fit(texts, truth)
    assert "Chosen: joint energy" in fitted.reason_
    assert fitted.predict(["a red cat"]).tolist() == [[1, 1]]
    assert WithVerdict(model, "max_logit").fit(texts, truth).reason_ == ""


def test_features_can_be_a_transformer_or_a_layer(table):
    x, y = table
    own = WithVerdict(SCALED, "knn", features=StandardScaler(with_mean=False)).fit(x, y)
    fitted = own.wrapped_.runner.prepare
    assert fitted.n_samples_seen_ == 675
    assert own.detector_.n_columns_ == {"features": 5}
    layer = WithVerdict(SCALED, "knn", features="penultimate").fit(x, y)
    assert layer.wrapped_.runner.layers == ("penultimate",)
    assert WithVerdict(SCALED, "joint_energy").fit(x, y).wrapped_.runner.layers == ()


# --- in scikit-learn's tools --------------------------------------------------------------------


def test_cross_validation(table):
    x, y = table
    model = WithVerdict(SCALED, held_out=0.4)
    predicted = cross_val_predict(model, x, y, cv=2)
    assert predicted.shape == y.shape
    assert len(cross_val_predict(model, x, y, cv=2, method="predict_proba")) == 3

    def kept(fitted, inputs, labels):
        return (fitted.verdict(inputs) == 1).mean()

    scores = cross_validate(
        model, x, y, cv=2, scoring={"kept": kept, "roc": "roc_auc"}, error_score="raise"
    )
    assert (scores["test_kept"] > 0.85).all()
    assert (scores["test_roc"] > 0.9).all()


def test_a_search_sets_parameters_of_the_estimator_and_of_the_detector(table):
    x, y = table
    strange = x * [1, 1, 1, 1, 3]

    def flagged(fitted, inputs, labels):
        return (fitted.verdict(strange) == -1).mean()

    grid = {
        "estimator__multioutputclassifier__estimator__C": [0.1],
        "detector": [ns.JointEnergy(), ns.Mahalanobis()],
    }
    search = GridSearchCV(WithVerdict(SCALED), grid, cv=2, scoring=flagged).fit(x, y)
    assert isinstance(search.best_params_["detector"], ns.Mahalanobis)
    assert search.best_estimator_.estimator_[-1].estimator.C == 0.1
    nested = clone(WithVerdict(LOGISTIC, ns.NearestNeighbours())).set_params(detector__k=9)
    assert nested.fit(x, y).detector_.k == 9
    assert nested.detector.k == 9
    assert not hasattr(nested.detector, "offset_")  # the parameter itself is never fitted


def test_the_columns_of_transform(frame):
    x, y = frame
    model = WithVerdict(BOOSTING).set_output(transform="pandas")
    x = x.drop(columns=["id", "when", "kind"])
    columns = model.fit(x[:700], y[:700]).transform(x[700:])
    assert columns.columns.tolist() == ["score", "p_value", "verdict"]
    assert columns.index.equals(x.index[700:])
    assessed = model.assess(x[700:])
    np.testing.assert_array_equal(columns["verdict"], model.verdict(x[700:]))
    np.testing.assert_array_equal(columns["p_value"], assessed.p_values)
    np.testing.assert_array_equal(columns["score"], assessed.scores)


def test_weights_are_routed(table):
    x, y = table
    weights = (y[:, 0] == 1) + 1e-3
    with sklearn.config_context(enable_metadata_routing=True):
        tree = DecisionTreeClassifier(max_depth=2).set_fit_request(sample_weight="importance")
        model = WithVerdict(tree, "knn").fit(x, y, importance=weights)
        assert model.predict(x)[:, 0].all()
        scores = cross_validate(model, x, y, cv=2, params={"importance": weights})
        assert np.isfinite(scores["test_score"]).all()
        with pytest.raises(TypeError, match="sample_weight"):
            model.fit(x, y, sample_weight=weights)


def test_it_can_end_a_pipeline_be_pickled_and_be_wrapped(table):
    x, y = table
    pipeline = make_pipeline(StandardScaler(), WithVerdict(LOGISTIC)).fit(x, y)
    assert pipeline.predict(x[:2]).shape == (2, 3)
    np.testing.assert_array_equal(pipeline.transform([[0, 1e4, 0, 0, 0]])[:, 2], [-1])
    model = WithVerdict(SCALED).fit(x, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(x), model.transform(x))
    wrapped = ns.wrap(again)
    np.testing.assert_array_equal(wrapped(x).assessment.scores, model.transform(x)[:, 0])


# --- what is refused ----------------------------------------------------------------------------


def test_labels_must_be_multi_hot(table):
    x, y = table
    for bad, message in (
        (y[:, 0], r"y must be multi-hot.*got \(900,\). If there is only one label, pass y\[:, N"),
        ([["a", "b"], ["a"]] * 450, r"lists of different lengths.*MultiLabelBinarizer\(classes="),
        (None, "the target y is None"),
    ):
        with pytest.raises(InputError, match=message):
            WithVerdict(LOGISTIC).fit(x, bad)
    with pytest.raises(ShapeError):
        WithVerdict(LOGISTIC).fit(x, y[:, 0])
    with pytest.raises(InputError, match=r"every value must be 0 or 1, got 2"):
        WithVerdict(LOGISTIC).fit(x, y + (y == 1))
    assert not hasattr(WithVerdict(LOGISTIC), "decision_function")
    model = WithVerdict(OneVsRestClassifier(LogisticRegression())).fit(x, sparse.csr_array(y))
    assert hasattr(model, "decision_function")
    assert (model.verdict(x) == 1).mean() > 0.88


@pytest.mark.filterwarnings("ignore::nescio.errors.DefaultDetectorWarning")
def test_too_few_samples_name_the_parameter(table):
    x, y = table
    model = WithVerdict(LOGISTIC).fit(x, y)
    before = model.transform(x)
    with pytest.raises(TooFewSamplesError, match=r"needs at least 19.*held_out=0.25 of 60"):
        model.fit(x[:60], y[:60])
    np.testing.assert_array_equal(model.transform(x), before)
    with pytest.raises(
        TooFewSamplesError, match=r"got 8\. The calibration samples are held_out=8 of"
    ):
        WithVerdict(SCALED, held_out=8).fit(x, y)  # no hint about the array of its features
    pd = pytest.importorskip("pandas")
    names = pd.DataFrame(y, columns=["a", "b", "c"])
    with pytest.raises(
        InputError, match=r"45 rows of the training part .* of the labels 'b': pass"
    ):
        WithVerdict(SCALED).fit(x[:60], names[:60].assign(b=0))
    with pytest.raises(LabelMismatchError, match="in another order"):
        WithVerdict(SCALED).fit(pd.DataFrame(x), names[::-1])


# --- wrap ---------------------------------------------------------------------------------------


def test_wrap_takes_a_fitted_transformer_as_features(frame, tmp_path):
    x, y = frame
    x = x.drop(columns=["id", "when"])
    model = clone(BOOSTING).fit(x[:400], y[:400])
    features = TableFeatures().fit(x[:400])
    wrapped = ns.wrap(model, features=features, detector="knn").fit(x[:400], y[:400])
    wrapped = wrapped.calibrate(x[400:700])
    np.testing.assert_array_equal(wrapped.outputs(x).features, features.transform(x))
    assert not wrapped(x[700:].assign(e=60.0)).in_distribution.any()
    with pytest.warns(NescioWarning, match=r"detector alone.*save_pretrained\('FOLDER'\)"):
        wrapped.save(tmp_path / "table.nescio")
    with pytest.raises(MissingInputError, match="not known from which layer"):
        ns.wrap(model, detector=tmp_path / "table.nescio")
    again = ns.wrap(model, detector=tmp_path / "table.nescio", features=features)
    again = ns.wrap(again, label_names=["cold", "wet", "late"])  # made again, with the transformer
    np.testing.assert_array_equal(again(x).assessment.scores, wrapped(x).assessment.scores)


@pytest.mark.filterwarnings("ignore:many of the .* same logits")  # few trees
def test_wrap_takes_words_and_missing_values_too(frame):
    x, y = frame
    some = x[["a", "b", "kind"]]
    model = clone(BOOSTING).fit(some[:400], y[:400])
    wrapped = ns.wrap(model).fit(some[:400], y[:400])
    assert wrapped.runner.layers == ("prepared",)
    assert isinstance(wrapped.calibrate(some[400:]).detector, ns.Combined)
    again = wrapped.fit(some[200:400], y[200:400])  # the features learn again
    assert again.runner.prepare.mean_[0] == pytest.approx(some["a"][200:400].mean())
    # Without training data, there are only logits to read.
    alone = ns.wrap(model).calibrate(some[400:])
    assert alone.runner.layers == ()
    assert alone.detector.scores_from == ("logits",)
    assert ns.wrap(model, detector="knn").fit(some[:400], y[:400]).runner.layers == ("prepared",)


def test_a_detector_that_reads_the_head_gets_the_columns_as_they_are(table):
    x, y = table
    model = OneVsRestClassifier(LogisticRegression()).fit(x[:400], y[:400])
    wrapped = ns.wrap(model, detector="react").fit(x[:400], y[:400])
    assert wrapped.runner.layers == ("input",)


# --- why ----------------------------------------------------------------------------------------


def test_the_nearest_samples_are_rows_of_the_table(table):
    x, y = table
    reasons = WithVerdict(SCALED).fit(x, y).explain(x)
    nearest = [
        next(part.nearest[0] for part in reason.parts if part.detector == "label_neighbours")
        for reason in reasons
    ]
    assert np.mean(np.array(nearest) == np.arange(len(x))) > 0.5  # three in four were learned from


def test_the_columns_that_are_strange_are_named(frame):
    pandas = pytest.importorskip("pandas")
    x, y = frame
    x = x[["a", "b", "c", "kind"]]
    model = WithVerdict(BOOSTING).fit(x[:700], y[:700])
    new = x[700:704].assign(kind=pandas.Categorical(["red", "red", "ultraviolet", "blue"]))
    new.iloc[1, 2], new.iloc[3, 0] = 1e5, np.nan
    explanation = model.explain(new)
    usual, scaled, word, missing = (reason.by_column().ranges for reason in explanation)
    assert {column.column for column in usual} == {"a", "b", "c"}
    assert not any(column.excess for column in usual)
    first = scaled[0]
    assert (first.column, first.value, explanation[1].in_distribution) == ("c", 1e5, False)
    span = np.ptp(x["c"])
    assert x["c"].min() - 1 <= first.low < first.high <= x["c"].max() + 1
    ranges_above = (1e5 - first.high) / (first.high - first.low)  # a tail is a part of the range
    assert ranges_above < first.excess < 100 * ranges_above
    assert first.high - first.low > 0.5 * span
    assert (word[0].column, word[0].value) == ("kind", "ultraviolet")
    assert (missing[0].column, missing[0].value) == ("a", "missing")
    line = f"c = 1e+05 (usually {first.low:.4g} to {first.high:.4g})"
    assert line in repr(explanation[1])
    assert line in explanation[1]._repr_html_()
    assert "Out of the usual range: kind = ultraviolet (rare or new)" in repr(explanation[2])
    assert explanation.to_pandas()["unusual"].tolist()[1:3] == ["c = 1e+05", "kind = ultraviolet"]
    parts = {part["detector"]: part for part in explanation[2].as_dict()["parts"]}
    column = parts["out_of_range"]["reason"]["ranges"][0]
    assert column | {"excess": 1} == {
        "column": "kind", "value": "ultraviolet", "low": None, "high": None, "excess": 1,
    }  # fmt: skip


def test_columns_are_named_in_their_own_units_behind_a_pipeline(frame):
    x, y = frame
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), list("abc")),
        (OneHotEncoder(sparse_output=False), ["kind"]),
    )
    model = WithVerdict(make_pipeline(columns, LOGISTIC)).fit(x[:700], y[:700])
    strange = model.explain(x[700:701].assign(b=-400.0))[0].by_column().ranges[0]
    assert (strange.column, strange.value) == ("b", pytest.approx(-400))
    assert x["b"].min() - 1 <= strange.low < strange.high <= x["b"].max() + 1
    usual = model.explain(x[700:701])[0].by_column().ranges
    assert {column.column for column in usual} == {"a", "b", "c"}  # 0 and 1 say nothing
    wrapped = ns.wrap(model.estimator_).calibrate(x[700:])  # reads the columns as they are
    names = {column.column for column in wrapped.explain(x[:1])[0].by_column().ranges}
    assert "pipeline__a" in names
    guard = ns.OutOfRange(held_out=True)
    reads_input = ns.wrap(model.estimator_, detector=guard, features=columns.fit(x))
    assert "pipeline__b" in str(reads_input.calibrate(x[600:]).explain(x[:1].assign(b=-400.0)))


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_transformers_may_return_data_frames(table, kind):
    pytest.importorskip(kind)
    x, y = table
    with sklearn.config_context(transform_output=kind):
        model = WithVerdict(make_pipeline(StandardScaler(), LOGISTIC)).fit(x, y)
        strange = model.explain([[0, 5e5, 0, 0, 0]])[0].by_column().ranges[0]
    assert (strange.column, strange.value) == ("x1", pytest.approx(5e5))


def test_a_name_and_a_value_belong_together(frame):
    x, y = frame
    x = x.dropna().assign(b=lambda rows: np.exp(rows["b"] / 10))
    y = y.loc[x.index]
    columns = make_column_transformer(
        (FunctionTransformer(np.log, feature_names_out="one-to-one"), ["b"]),
        (StandardScaler(), ["a", "b"]),
    )
    model = WithVerdict(make_pipeline(columns, LOGISTIC)).fit(x[:700], y[:700])
    strange = x[700:701].assign(b=1e6)
    values = {c.column: c.value for c in model.explain(strange)[0].by_column().ranges}
    assert values["b"] == pytest.approx(1e6)  # as the table has it, not as the pipeline does
    batches = model.wrapped_.explain([strange])[0].by_column().ranges
    assert "b" not in {column.column for column in batches}  # the values are standardised


def test_new_words_and_missing_values_show_behind_an_encoder_and_an_imputer(frame):
    x, y = frame
    x = x.dropna()
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), list("abcd")),
        (OneHotEncoder(handle_unknown="ignore"), ["kind"]),
    )
    model = make_pipeline(columns, LOGISTIC).fit(x[:400], y.loc[x.index][:400])
    guarded = ns.wrap(model).fit(x[:400], y.loc[x.index][:400]).calibrate(x[400:])
    assert guarded.label_names == tuple(y.columns)
    for strange in (x.assign(kind="unheard"), x.assign(a=np.nan)):
        assert not guarded(strange[:50]).in_distribution.any()
    assert {"missing", "new words"} <= guarded.checked.flagged.keys() - guarded.checked.lets_through
    reasons = str(guarded.explain(x[:1].assign(kind="unheard", a=np.nan))[0])
    assert "kind = unheard (rare or new)" in reasons
    assert "a = missing" in reasons
    unread = x.assign(id=-1.0, e=1e9)  # columns that the pipeline does not read
    np.testing.assert_array_equal(guarded(unread).in_distribution, guarded(x).in_distribution)


def test_free_texts_are_read_as_the_pipeline_prepares_them(frame):
    x, y = frame
    x = (
        x[["a"]]
        .fillna(0)
        .assign(text=[f"word{row} {'red' if row % 2 else 'blue'}" for row in x.index])
    )
    columns = make_column_transformer(
        (make_pipeline(TfidfVectorizer(), TruncatedSVD(5, random_state=0)), "text"),
        (StandardScaler(), ["a"]),
    )
    model = WithVerdict(make_pipeline(columns, LOGISTIC)).fit(x, y)
    assert model.detector_.n_columns_["features"] == 13  # 6, whether each is missing, a constant


@pytest.mark.filterwarnings("ignore")  # rows are equal by nature
def test_a_table_of_words_alone_has_usual_rows(frame):
    pandas = pytest.importorskip("pandas")
    x, y = frame
    words = pandas.DataFrame({"kind": pandas.Categorical(x["kind"])})
    model = WithVerdict(BOOSTING).fit(words[:700], y[:700])
    assert model.explain(words[:1])[0].by_column().summary() == (
        "All values are in their usual ranges."
    )


@pytest.mark.parametrize("as_frame", [False, True])
def test_infinity_in_a_table_is_out_if_asked_for(table, as_frame):
    pandas = pytest.importorskip("pandas")
    x, y = table
    strange = x[:2].copy()
    strange[0, 0] = np.inf
    if as_frame:
        x, strange = (pandas.DataFrame(rows, columns=list("abcde")) for rows in (x, strange))
    detector = ns.Combined(nonfinite="out")
    assert WithVerdict(BOOSTING, detector).fit(x, y).verdict(strange).tolist() == [-1, 1]


def test_an_id_that_increases_does_not_flag_new_rows(table):
    pandas = pytest.importorskip("pandas")
    x, y = table
    frame = pandas.DataFrame(x, columns=list("abcde")).assign(id=np.arange(len(x)))
    with pytest.warns(IgnoredColumnsWarning, match="'id' hold"):
        model = WithVerdict(BOOSTING).fit(frame[:600], y[:600])
    new = frame[600:].assign(id=lambda rows: rows["id"] + 10_000)
    assert (model.verdict(new) == 1).mean() > 0.88
