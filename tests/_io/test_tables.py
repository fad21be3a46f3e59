"""CSV and Parquet files of outputs are tested in tests/outputs."""

import json

import numpy as np
import pytest

from nescio._io.results import check_table_target, to_json, to_values, write_table
from nescio._optional import require
from nescio.errors import FileError, MissingDependencyError, ParameterError

COLUMNS = {"id": ["a", "b"], "score": np.array([1.5, -np.inf]), "kept": np.array([True, False])}


def test_a_csv_file_has_a_header_and_a_row_per_sample(tmp_path):
    write_table(tmp_path / "x.csv", COLUMNS)
    assert (tmp_path / "x.csv").read_text().split() == [
        "id,score,kept",
        "a,1.5,True",
        "b,-inf,False",
    ]


def test_json_lines_are_strict_json(tmp_path):
    write_table(tmp_path / "x.jsonl", COLUMNS)
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert rows == [
        {"id": "a", "score": 1.5, "kept": True},
        {"id": "b", "score": None, "kept": False},
    ]
    assert to_json({"a": [float("nan"), {"b": (1.0, float("inf"))}]}) == (
        '{"a": [null, {"b": [1.0, null]}]}'
    )


def test_a_parquet_file_has_the_same_columns(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_table(tmp_path / "x.parquet", COLUMNS)
    assert parquet.read_table(tmp_path / "x.parquet").to_pydict() == {
        name: list(column) for name, column in COLUMNS.items()
    }


def test_the_target_is_checked_before_the_work(tmp_path):
    with pytest.raises(ParameterError, match=r"must end in \.parquet, \.csv or \.jsonl"):
        check_table_target(tmp_path / "x.txt", force=False)
    write_table(tmp_path / "x.csv", COLUMNS)
    with pytest.raises(FileError, match="exists already"):
        check_table_target(tmp_path / "x.csv", force=False)
    check_table_target(tmp_path / "x.csv", force=True)


def test_times_are_written_as_text(tmp_path):
    times = np.array(["2026-01-02T03:04:05", "NaT"], "datetime64[ns]")
    assert to_values(times) == ["2026-01-02T03:04:05.000000000", None]
    write_table(tmp_path / "x.csv", {"time": times})
    assert (tmp_path / "x.csv").read_text().split()[1] == "2026-01-02T03:04:05.000000000"


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(MissingDependencyError, match=r"pip install '.\[parquet\]'"):
        require("no_such_package", "parquet")


def test_text_that_a_spreadsheet_would_run_is_quoted(tmp_path):
    ids = ["=1+1", "+x", "-2", "@sum", "-x", "a=1", "'=1"]
    write_table(tmp_path / "x.csv", {"id": ids, "=name": range(7)})
    cells = [line.split(",") for line in (tmp_path / "x.csv").read_text().splitlines()]
    expected = ["'=1+1", "'+x", "-2", "'@sum", "'-x", "a=1", "'=1"]
    assert [row[0] for row in cells[1:]] == expected
    assert cells[0] == ["id", "'=name"]
    write_table(tmp_path / "x.jsonl", {"id": ids})
    assert "=1+1" in (tmp_path / "x.jsonl").read_text().splitlines()[0]
