"""scikit-learn models become graphs with their detectors, in float64."""

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.svm import SVC, LinearSVC

import nescio as ns
from fixtures.export import run
from nescio.errors import ExportError

pytest.importorskip("skl2onnx")
pytestmark = [
    pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

rng = np.random.default_rng(0)
LABELS = rng.random((900, 3)) < 0.4
INPUTS = LABELS @ rng.normal(0, 2, (3, 5)) + rng.normal(size=(900, 5))
INPUTS[:, 1] = 1e6 + 1e3 * INPUTS[:, 1]  # a column that float32 would round
TRAIN, HELD_OUT, NEW = slice(400), slice(400, 800), slice(800, 900)
NAMES = [f"column {number}" for number in range(5)]


def by_name():
    scaled = ColumnTransformer([("scaled", StandardScaler(), NAMES[:2])], remainder="passthrough")
    return make_pipeline(scaled, MultiOutputClassifier(LogisticRegression()))


MODELS = {
    "linear": lambda: make_pipeline(StandardScaler(), MultiOutputClassifier(LogisticRegression())),
    "missing values": lambda: make_pipeline(
        SimpleImputer(), StandardScaler(), OneVsRestClassifier(LinearSVC())
    ),
    "columns by name": by_name,
    "forest": lambda: RandomForestClassifier(10, random_state=0),
    "scaled forest": lambda: make_pipeline(
        StandardScaler(), RandomForestClassifier(60, random_state=0)
    ),
    "network": lambda: make_pipeline(
        StandardScaler(), MLPClassifier((8,), max_iter=20, random_state=0)
    ),
    # New values equal the thresholds of trees, and trees send missing values to either side.
    "forest, rounded values": lambda: RandomForestClassifier(20, random_state=0),
    "forests, rounded values": lambda: MultiOutputClassifier(
        RandomForestClassifier(5, random_state=0)
    ),
    "boosted, rounded values": lambda: MultiOutputClassifier(
        HistGradientBoostingClassifier(max_iter=5)
    ),
    "boosted": lambda: MultiOutputClassifier(GradientBoostingClassifier(n_estimators=5)),
    "indicator, rounded values": lambda: make_pipeline(
        SimpleImputer(add_indicator=True), MultiOutputClassifier(LogisticRegression())
    ),
    "neighbours": lambda: make_pipeline(StandardScaler(), KNeighborsClassifier()),
    "neighbours of each label": lambda: OneVsRestClassifier(KNeighborsClassifier()),
}


def data(name):
    inputs = INPUTS.copy()
    if name == "missing values":
        inputs[::7, 0] = np.nan
    if name.endswith("rounded values"):
        inputs = inputs.round(1)
        inputs[rng.random(inputs.shape) < 0.1] = np.nan
    return pd.DataFrame(inputs, columns=NAMES) if name == "columns by name" else inputs


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_is_the_model_with_its_detector(name, tmp_path):
    inputs = data(name)
    model = MODELS[name]().fit(inputs[TRAIN], LABELS[TRAIN])
    wrapped = ns.wrap(model, label_names=["a", "b", "c"]).fit(inputs[TRAIN], LABELS[TRAIN])
    wrapped = wrapped.calibrate(inputs[HELD_OUT], self_check=False)
    assert (wrapped.detector.name, wrapped.runner.layers) == ("combined", ("prepared",))
    path, expected = tmp_path / "model.onnx", wrapped(inputs[NEW])
    exported = ns.export_onnx(wrapped, path, samples=inputs[NEW][:20])
    assert exported.inputs == {"input": ("batch", 5)}
    rows = np.asarray(inputs[NEW], np.float64)
    outputs = run(path, input=rows)
    np.testing.assert_allclose(outputs["probs"], expected.probs, atol=1e-6)
    np.testing.assert_allclose(outputs["features"], expected.outputs.features, atol=1e-9)
    assert (outputs["in_distribution"] == expected.in_distribution).all()
    # The file is served as any other: by its path and the detector.
    served = ns.wrap(path, detector=wrapped.detector)(rows)
    assert (served.in_distribution == expected.in_distribution).all()
    assert served.label_lists() == expected.label_lists()


@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("linear", "input"),
        ("linear", "penultimate"),
        ("linear", StandardScaler().fit(INPUTS[TRAIN])),
        ("missing values", ns.TableFeatures().fit(data("missing values")[TRAIN])),
    ],
    ids=str,
)
def test_a_layer_or_a_transformer_of_ones_own(name, features, tmp_path):
    inputs, path = data(name), tmp_path / "model.onnx"
    model = MODELS[name]().fit(inputs[TRAIN], LABELS[TRAIN])
    wrapped = ns.wrap(model, features=features, detector="knn").fit(inputs[TRAIN])
    wrapped = wrapped.calibrate(inputs[HELD_OUT], self_check=False)
    ns.export_onnx(wrapped, path, samples=inputs[NEW])
    expected = wrapped.outputs(inputs[NEW]).features
    given = run(path, input=inputs[NEW])["features"]
    np.testing.assert_allclose(given, expected, rtol=1e-12)


LOSE_NAN = {  # what makes a number of NaN or infinity, as a graph
    "power": lambda: make_pipeline(PowerTransformer(), LogisticRegression()),
    "quantile": lambda: make_pipeline(QuantileTransformer(n_quantiles=50), LogisticRegression()),
    "neighbours": KNeighborsClassifier,
    "boosted": lambda: GradientBoostingClassifier(n_estimators=3),
    "forest": lambda: RandomForestClassifier(5, random_state=0),
    "boosted by histograms": lambda: HistGradientBoostingClassifier(max_iter=3),
    "linear": LogisticRegression,
}


@pytest.mark.parametrize("name", LOSE_NAN)
def test_a_row_that_python_rejects_is_out(name, tmp_path):
    steps, inputs = LOSE_NAN[name](), INPUTS[:, [0, 2, 3, 4]]
    final = MultiOutputClassifier(steps[-1] if hasattr(steps, "steps") else steps)
    model = make_pipeline(*[step for _, step in getattr(steps, "steps", [])[:-1]], final)
    model.fit(inputs[TRAIN], LABELS[TRAIN])
    wrapped = ns.wrap(model, detector="joint_energy").calibrate(inputs[HELD_OUT], self_check=False)
    ns.export_onnx(wrapped, tmp_path / "model.onnx", samples=inputs[NEW])
    for bad in (np.nan, np.inf, -np.inf):
        rows = inputs[NEW][:4].copy()
        np.fill_diagonal(rows, bad)
        outputs = run(tmp_path / "model.onnx", input=rows)
        try:
            expected = wrapped(rows).assessment
        except ns.NescioError:
            assert not outputs["in_distribution"].any()
            assert (outputs["score"] == -np.inf).all()
        else:
            np.testing.assert_allclose(outputs["score"], expected.scores, rtol=1e-6)


def test_a_missing_value_that_an_imputer_fills_later_stays_in(tmp_path):
    inputs = data("missing values")
    steps = (QuantileTransformer(n_quantiles=50), SimpleImputer())
    model = make_pipeline(*steps, MultiOutputClassifier(LogisticRegression()))
    model.fit(inputs[TRAIN], LABELS[TRAIN])
    wrapped = ns.wrap(model, detector="joint_energy").calibrate(inputs[HELD_OUT], self_check=False)
    ns.export_onnx(wrapped, tmp_path / "model.onnx", samples=inputs[NEW])
    outputs = run(tmp_path / "model.onnx", input=inputs[NEW])
    assert np.isnan(inputs[NEW]).any()
    assert (outputs["in_distribution"] == wrapped(inputs[NEW]).in_distribution).all()


def test_what_cannot_become_a_graph_says_what_to_do(tmp_path):
    def exported(model, inputs, **options):
        model.fit(inputs[TRAIN], LABELS[TRAIN])
        wrapped = ns.wrap(model, detector="joint_energy", **options)
        wrapped = wrapped.calibrate(inputs[HELD_OUT], self_check=False)
        return ns.export_onnx(wrapped, tmp_path / "model.onnx", samples=inputs[NEW])

    with pytest.raises(ExportError, match=r"only decisions of linear.*output='predict_proba'"):
        exported(OneVsRestClassifier(SVC()), INPUTS)
    with pytest.raises(ExportError, match="a ClassifierChain cannot become a graph"):
        exported(ClassifierChain(LogisticRegression()), INPUTS)
    kinds = INPUTS.round() % 5
    by_kind = HistGradientBoostingClassifier(max_iter=3, categorical_features=[0])
    with pytest.raises(ExportError, match="with categorical features cannot become a graph"):
        exported(MultiOutputClassifier(by_kind), kinds)
    unknown = make_pipeline(FunctionTransformer(np.abs), OneVsRestClassifier(LinearSVC()))
    with pytest.raises(ExportError, match=r"skl2onnx cannot convert this FunctionTransformer: \w"):
        exported(unknown, INPUTS)
    texts = np.array([f"word{number % 7} and more" for number in range(900)], object)
    with pytest.raises(ExportError, match="takes numbers, and words of a pandas data frame, but s"):
        exported(make_pipeline(TfidfVectorizer(), OneVsRestClassifier(LinearSVC())), texts)
    table = pd.DataFrame({"size": kinds[:, 1], "site": texts, "kind": pd.Categorical(kinds[:, 0])})
    for encoder, columns, fault in (
        (
            OneHotEncoder(),
            ["site", "kind"],
            r"must hold text, but row 0 has -?\d.*wrapped\.outputs",
        ),
        (OneHotEncoder(), ["site", "size"], r"OneHotEncoder\(\) takes words, or words and numbers"),
        (TfidfVectorizer(), "site", r"TfidfVectorizer\(\) takes words, .*only OneHotEncoder and"),
        (SimpleImputer(strategy="most_frequent", add_indicator=True), ["site"], "takes words, or"),
    ):
        encoded = make_pipeline(encoder, OneHotEncoder()) if columns == ["site"] else encoder
        words = ColumnTransformer([("words", encoded, columns)])
        words = make_pipeline(words, OneVsRestClassifier(LinearSVC()))
        with pytest.raises(ExportError, match=fault):
            exported(words, table if "kind" in columns else table[["size", "site"]])
    filled = make_pipeline(KNNImputer(), OneVsRestClassifier(LinearSVC()))
    with pytest.raises(ExportError, match="skl2onnx cannot convert this KNNImputer: Opset"):
        exported(filled, INPUTS)
    assert not list(tmp_path.iterdir())
    boosted = MultiOutputClassifier(GradientBoostingClassifier(n_estimators=3))
    exported(boosted, INPUTS, output="predict_proba")
    assert onnxruntime.InferenceSession(tmp_path / "model.onnx")


def table_with_words():
    """Two columns of numbers between three of words, in which cells are missing."""
    words = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "site": words.choice(["north", "south", "east"], 900),
            "age": INPUTS[:, 0],
            "kind": words.choice(["a", "b", "c", "d"], 900, p=[0.5, 0.3, 0.19, 0.01]),
            "visits": words.integers(0, 9, 900),
            "grade": pd.Categorical(words.choice(["low", "high"], 900)),
        }
    )
    table.loc[::9, "kind"], table.loc[::11, "age"] = np.nan, np.nan
    return table


def encoded_table(final, **unknown):
    filled = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(**unknown))
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    parts = [
        ("numbers", numbers, ["age", "visits"]),
        ("filled", filled, ["kind", "site"]),
        ("ordinal", make_pipeline(ordinal, StandardScaler()), ["grade"]),
        ("raw", OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=30), ["kind"]),
    ]
    return make_pipeline(ColumnTransformer(parts), MultiOutputClassifier(final))


@pytest.mark.parametrize(
    "final", [LogisticRegression(), HistGradientBoostingClassifier(max_iter=3)], ids=str
)
def test_a_table_with_words_has_the_verdicts_of_python(final, tmp_path):
    table, path = table_with_words(), tmp_path / "model.onnx"
    model = encoded_table(final, handle_unknown="ignore").fit(table[TRAIN], LABELS[TRAIN])
    wrapped = ns.wrap(model).fit(table[TRAIN], LABELS[TRAIN])
    wrapped = wrapped.calibrate(table[HELD_OUT], self_check=False)
    assert wrapped.detector.name == "combined"
    exported = ns.export_onnx(wrapped, path, samples=table[NEW][:20])
    assert exported.inputs == {"input": ("batch", 2), "words": ("batch", 3)}
    assert exported.n_samples == 3 * 20  # with new words, and with missing ones
    odd = table[NEW][:7].astype(object).reset_index(drop=True)
    odd.loc[0, "site"], odd.loc[1, "site"], odd.loc[2, "site"] = "mars", np.nan, ""
    odd.loc[3, "grade"], odd.loc[4, "grade"], odd.loc[5, "age"] = "none", None, np.nan
    odd = odd.astype({"age": float, "visits": int})
    ours = ns.wrap(path, detector=wrapped.detector)
    for rows in (table[NEW], odd, odd[odd.columns[::-1]].assign(other=1)):
        given, expected = ours(rows), wrapped(rows[list(table)].replace("", np.nan))
        np.testing.assert_allclose(given.assessment.scores, expected.assessment.scores, rtol=1e-4)
        np.testing.assert_allclose(given.probs, expected.probs, atol=1e-6)
    assert not ours(odd).in_distribution[:5].any()
    numbers = odd[["age", "visits"]].to_numpy(np.float64)
    words = np.array([["mars", "a", "low"], ["", "a", "low"]], object)
    raw = run(path, input=numbers[:2], words=words)  # by onnxruntime alone
    assert not raw["in_distribution"].any()
    shown = [ours.explain(odd)[row].by_column().ranges[0] for row in (0, 4)]
    assert [(c.column, c.value) for c in shown] == [
        ("site", "an unusual word"),
        ("grade", "an unusual word"),
    ]
    with pytest.raises(ns.NescioError, match="must hold text, but row 0 has 7"):
        ours(odd.assign(site=7))
    with pytest.raises(ns.NescioError, match="lacks the columns 'site' of the model"):
        ours(odd.drop(columns="site"))
    ns.export_onnx(ours, tmp_path / "again.onnx", samples=table[NEW])
    assert ns.wrap(tmp_path / "again.onnx").runner.columns == ours.runner.columns


@pytest.mark.parametrize(
    "final", [LogisticRegression(), HistGradientBoostingClassifier(max_iter=3)], ids=str
)
def test_a_word_that_python_rejects_is_out(final, tmp_path):
    table, path = table_with_words(), tmp_path / "model.onnx"
    model = encoded_table(final).fit(table[TRAIN], LABELS[TRAIN])
    wrapped = ns.wrap(model, detector="joint_energy").calibrate(table[HELD_OUT], self_check=False)
    assert ns.export_onnx(wrapped, path, samples=table[NEW]).n_samples == 2 * 100  # none is new
    with pytest.raises(ns.NescioError, match="Found unknown categories"):
        wrapped(table[NEW].assign(site="mars"))
    words = np.array([["north", "a", "low"], ["mars", "a", "low"], ["", "", ""]], object)
    outputs = run(path, input=np.full((3, 2), np.nan), words=words)
    assert np.isfinite(outputs["score"]).tolist() == [True, False, True]
    assert not outputs["in_distribution"][1]


def test_a_table_of_words_alone(tmp_path):
    table = table_with_words()[["site", "kind"]].astype(object)
    table = table.where(table.notna(), None)  # which is a word for the encoder
    encoder = OneHotEncoder(handle_unknown="ignore")
    model = make_pipeline(encoder, MultiOutputClassifier(LogisticRegression()))
    model.fit(table[TRAIN], LABELS[TRAIN])
    wrapped = ns.wrap(model).fit(table[TRAIN], LABELS[TRAIN])
    wrapped = wrapped.calibrate(table[HELD_OUT], self_check=False)
    exported = ns.export_onnx(wrapped, tmp_path / "model.onnx", samples=table[NEW])
    assert exported.inputs == {"words": ("batch", 2)}
    rows = table[NEW].assign(site=["mars"] + [None] + ["north"] * 98)
    given = ns.wrap(tmp_path / "model.onnx", detector=wrapped.detector)(rows)
    np.testing.assert_allclose(given.assessment.scores, wrapped(rows).assessment.scores, rtol=1e-9)


def test_a_table_of_numbers_of_several_types(tmp_path):
    table = pd.DataFrame({"size": INPUTS[:, 0], "used": INPUTS[:, 2] > 0})
    table["visits"] = pd.array(np.arange(900) % 7, dtype="Int64")
    table.loc[::5, "visits"] = pd.NA
    model = MultiOutputClassifier(HistGradientBoostingClassifier(max_iter=3))
    model.fit(table[TRAIN], LABELS[TRAIN])
    wrapped = ns.wrap(model).fit(table[TRAIN], LABELS[TRAIN])
    wrapped = wrapped.calibrate(table[HELD_OUT], self_check=False)
    path = tmp_path / "model.onnx"
    ns.export_onnx(wrapped, path, samples=table[NEW])
    exported = ns.wrap(path, detector=wrapped.detector)
    np.testing.assert_allclose(
        exported(table[NEW]).assessment.scores, wrapped(table[NEW]).assessment.scores, rtol=1e-4
    )
    one = pd.DataFrame([{"size": 0.5, "used": True, "visits": None}])  # a row of JSON
    assert exported(one).assessment.scores == pytest.approx(
        wrapped(one.astype({"visits": float})).assessment.scores, rel=1e-4
    )
    with pytest.raises(ns.NescioError, match="the table must hold numbers: could not convert"):
        exported(one.assign(size="large"))


def test_the_file_knows_the_columns_of_a_table_and_their_units(tmp_path):
    frame = pd.DataFrame(INPUTS, columns=NAMES)
    frame.iloc[::20, 0] = np.nan
    frame["column 2"] = np.exp(frame["column 2"])  # counts by its logarithm
    frame["id"] = range(len(frame))  # not read
    read = ColumnTransformer(
        [("read", make_pipeline(SimpleImputer(), StandardScaler()), NAMES[:3])]
    )
    model = make_pipeline(read, MultiOutputClassifier(LogisticRegression()))
    model.fit(frame[TRAIN], LABELS[TRAIN])
    guarded = ns.wrap(model).fit(frame[TRAIN], LABELS[TRAIN]).calibrate(frame[HELD_OUT])
    path = tmp_path / "table.onnx"
    with pytest.raises(ns.NescioError, match=f"lacks the columns {NAMES[0]!r} of the model"):
        ns.export_onnx(guarded, path, samples=frame[NEW][NAMES[1:]])
    ns.export_onnx(guarded, path, samples=frame[NEW][NAMES[2::-1]])
    exported = ns.wrap(path, detector=guarded.detector)
    assert exported.runner.columns == tuple(NAMES[:3])
    ordinary = pd.DataFrame([exported.runner.metadata("nescio.example", dict)["input"]])
    ordinary.columns = NAMES[:3]
    assert exported(ordinary).in_distribution.all()
    assert not (frame[NAMES[:3]].round(4) == ordinary.loc[0].round(4)).all(axis=1).any()
    strange = frame[NEW][:3].assign(**{"column 2": 1e4})
    strange.iloc[1, 1] = np.nan  # no training row lacks it
    turned = strange[NAMES[2::-1]].assign(other="text")  # columns are found by name
    np.testing.assert_allclose(
        exported(turned).assessment.scores, guarded(strange).assessment.scores
    )
    below = frame[NEW][:3].assign(**{"column 2": [-1.0, 0.0, 1e-9]})
    np.testing.assert_allclose(
        exported(below).assessment.scores, guarded(below).assessment.scores, rtol=1e-4
    )
    for row in range(2):
        ours, theirs = (each.explain(strange)[row].by_column() for each in (guarded, exported))
        assert [c.column for c in theirs.ranges] == [c.column for c in ours.ranges]
        [strangest] = (c for c in theirs.ranges if c.column == "column 2")
        assert strangest.value == pytest.approx(1e4)
        assert strangest.low in [pytest.approx(c.low) for c in ours.ranges]
    assert ("column 1", "missing") in {(c.column, c.value) for c in theirs.ranges}
    with pytest.raises(ns.NescioError, match="lacks the columns 'column 1' of the model"):
        exported(strange.drop(columns="column 1"))
    with pytest.raises(ns.detectors.NotCalibratedError, match="output in_distribution"):
        ns.wrap(path)(strange)
    again = tmp_path / "again.onnx"
    ns.export_onnx(exported, again, samples=strange[NAMES[:3]].to_numpy())
    assert ns.wrap(again).runner.columns == tuple(NAMES[:3])
