"""One table for pandas, polars and plain Python."""

import sys

import numpy as np
import pytest

import nescio as ns
from nescio._io.tabular import Tabular
from nescio.errors import InputError, MissingDependencyError


class Table(Tabular):
    index_column = "id"

    def __init__(self, **columns):
        self.given = columns

    def columns(self):
        return self.given


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
    found = make_table().to_dict()
    assert found["id"] == ["a", "b"]
    assert type(found["score"][0]) is float
    assert found["time"] == ["2026-01-01", None]


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
