"""One table for pandas, polars and plain Python."""

import sys

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline

import nescio as ns
from nescio._charts.results import Result
from nescio.errors import InputError, MissingDependencyError, ShapeError


class Table(Result):
    index_column = "id"

    def __init__(self, **columns):
        self.values = columns

    def columns(self):
        return self.values


def make_table():
    ids, times = np.array(["a", "b"]), np.array(["2026-01-01", "NaT"], "datetime64[D]")
    names = [("cat", "dog"), ()]
    odd = np.array(["x", None], object)
    return Table(id=ids, score=np.array([1.5, np.nan]), time=times, names=names, odd=odd)


def test_a_pandas_frame_has_the_ids_as_its_index():
    pytest.importorskip("pandas")
    frame = make_table().to_pandas()
    assert frame.index.tolist() == ["a", "b"]
    assert frame.index.name == "id"
    assert frame.loc["a", "score"] == 1.5
    assert frame["names"].tolist() == [("cat", "dog"), ()]
    assert frame["time"].dtype.kind == "M"
    assert Table(score=np.zeros(2)).to_pandas().index.tolist() == [0, 1]


def test_a_polars_frame_has_the_ids_as_a_column():
    polars = pytest.importorskip("polars")
    frame = make_table().to_polars()
    assert frame["id"].to_list() == ["a", "b"]
    assert frame["names"].to_list() == [["cat", "dog"], []]
    assert frame["odd"].to_list() == ["x", None]
    assert frame["time"].dtype == polars.Date


def test_a_dict_has_plain_values():
    plain = make_table().to_dict()
    assert plain["id"] == ["a", "b"]
    assert type(plain["score"][0]) is float
    assert plain["time"] == ["2026-01-01", None]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_missing_library_is_named(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError, match=f"pip install {library}"):
        getattr(make_table(), f"to_{library}")()


def test_outputs_survive_a_frame():
    logits = np.array([[1.0, -2.0], [0.5, 3.0]])
    kept = {"text": np.array(["one", "two"])}
    outputs = ns.Outputs(logits, ids=["a", "b"], label_names=["cat", "dog"], kept=kept)
    for frame in (outputs.to_pandas(), outputs.to_polars()):
        again = ns.Outputs.from_frame(frame, keep="text")
        np.testing.assert_array_equal(again.logits, logits)
        assert again.label_names == ("cat", "dog")
        assert again.ids.tolist() == ["a", "b"]
        assert again.kept["text"].tolist() == ["one", "two"]


def test_two_columns_of_one_name_are_an_error():
    with pytest.raises(InputError, match="two columns named 'id'"):
        ns.Outputs(np.zeros((2, 1)), ids=["a", "b"], label_names=["id"]).columns()


# --- the index of a pandas frame ---------------------------------------------------------------


def indexes(pd):
    times = pd.date_range("2026-01-01", periods=6, freq="h")
    return {
        "integers": pd.Index([4, 0, 5, 1, 3, 2], name="row"),
        "texts": pd.Index(list("fbacde")),
        "times": times[::-1],
        "times in a zone": times.tz_localize("Europe/Zurich"),
        "two levels": pd.MultiIndex.from_product([["a", "b"], [2, 0, 1]]),
        "rows": pd.RangeIndex(6),
    }


@pytest.fixture(params=["integers", "texts", "times", "times in a zone", "two levels", "rows"])
def frame(request):
    pd = pytest.importorskip("pandas")
    logits = np.random.default_rng(0).normal(size=(6, 3)) * 3
    return pd.DataFrame(logits, columns=["cat", "dog", "cow"], index=indexes(pd)[request.param])


def assert_joined(frame, result, expected):
    """The rows of a result are beside those that they came from."""
    both = frame.join(result.add_prefix("result "))
    assert both.index.equals(frame.index)
    np.testing.assert_array_equal(both[f"result {expected.name}"], expected)


def test_results_keep_the_index_of_their_frame(frame):
    pd = pytest.importorskip("pandas")
    energies = pd.Series(ns.scores.joint_energy(frame.to_numpy()), name="score")
    outputs = ns.Outputs.from_frame(frame)
    assert_joined(frame, outputs.to_pandas(), frame["cat"])
    assert_joined(frame, ns.Outputs(frame).to_pandas(), frame["dog"])
    detector = ns.JointEnergy().calibrate(np.random.default_rng(1).normal(size=(50, 3)) * 3)
    assert_joined(frame, detector.assess(frame).to_pandas(), energies)
    assert_joined(frame, detector.assess(outputs).to_pandas(), energies)
    assert detector.explain(frame).to_pandas().index.equals(frame.index)
    some = [5, 0, 2]
    for rows in (some, slice(1, 4), np.arange(6) % 2 == 0):
        expected = frame.index[rows]
        assert outputs[rows].to_pandas().index.equals(expected)
        assert detector.assess(outputs)[rows].to_pandas().index.equals(expected)
    halves = [outputs[:2], outputs[2:]]
    assert ns.Outputs.concat(halves).to_pandas().index.equals(frame.index)
    verdicts = [detector.assess(half) for half in halves]
    assert ns.Assessment.concat(verdicts).to_pandas().index.equals(frame.index)


def test_a_wrapped_model_keeps_the_index_of_a_frame_and_of_a_column(frame):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    x = pd.DataFrame(rng.normal(size=(60, 3)), columns=frame.columns)
    model = OneVsRestClassifier(LogisticRegression()).fit(x, x.to_numpy() > 0)
    predictions = ns.wrap(model).calibrate(x)(frame).to_pandas()
    energies = ns.scores.joint_energy(model.decision_function(frame))
    assert_joined(frame, predictions, pd.Series(energies, name="score"))
    words = ["cat dog", "dog", "cow cat", "cow", "cat", "dog cow"]
    truth = np.array([["cat" in text, "dog" in text] for text in words]).astype(int)
    pipeline = make_pipeline(CountVectorizer(), OneVsRestClassifier(LogisticRegression()))
    column = pd.Series(words, index=frame.index)
    outputs = ns.wrap(pipeline.fit(words, truth)).outputs(column).to_pandas()
    assert outputs["text"].equals(column.rename("text"))


def test_other_ids_come_before_the_index():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"id": ["x", "y"], "cat": [0.5, -2.5]}, index=[7, 3])
    assert ns.Outputs.from_frame(frame).to_pandas().index.tolist() == ["x", "y"]
    assert ns.Outputs(frame[["cat"]], ids=["u", "v"]).to_pandas().index.tolist() == ["u", "v"]
    with pytest.raises(ShapeError, match="index 2"):
        ns.Outputs(np.zeros((3, 1)), index=frame.index)


def test_a_label_named_id_stays_a_column():
    pytest.importorskip("pandas")
    outputs = ns.Outputs(np.zeros((2, 3)), label_names=["id", "b", "c"])
    assert outputs.to_pandas().columns.tolist() == ["id", "b", "c"]
