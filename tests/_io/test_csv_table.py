"""The header and the cells of CSV files. Outputs from CSV files are tested in tests/outputs."""

import numpy as np
import pytest

from nescio._io.csv_table import CsvTable
from nescio.errors import FileFormatError


@pytest.fixture
def table(tmp_path):
    def made(text):
        (tmp_path / "x.csv").write_text(text)
        return CsvTable(tmp_path / "x.csv")

    return made


def test_only_the_columns_that_are_asked_for_must_hold_numbers(table):
    columns, problems = table("cat,ID,dog\n1,7,2\n-inf,x,nan\n").read(["dog", "cat"], ["ID"])
    assert columns["ID"].tolist() == ["7", "x"]
    assert columns["cat"].tolist() == [1.0, -np.inf]
    assert problems == {}
    columns, problems = table("cat,dog\n1,2\nlion,3\n").read(["dog", "cat"], [])
    assert columns["dog"].tolist() == [2, 3]
    assert problems == {"cat": "line 3: 'lion' is not a number"}


def test_a_late_cell_of_text_is_found_with_its_line(table):
    rows = ["1,2"] * 30_000
    rows[25_000] = "1,x"
    _, problems = table("cat,dog\n" + "\n".join(rows)).read(["cat", "dog"], [])
    assert problems == {"dog": "line 25002: 'x' is not a number"}


@pytest.mark.parametrize(
    ("cells", "read"),
    [
        (["1", "-20"], [1, -20]),
        (["1.5", "-0.25"], [1.5, -0.25]),
        (["007", "8"], ["007", "8"]),
        (["1.50", "2.25"], ["1.50", "2.25"]),
        (["1", ""], ["1", ""]),
        (["9" * 30, "1"], ["9" * 30, "1"]),
    ],
)
def test_other_columns_are_passed_on_as_they_were_written(table, cells, read):
    columns, _ = table("a,b\n" + "".join(f"{cell},0\n" for cell in cells)).read([], ["a"])
    assert columns["a"].tolist() == read


def test_a_first_column_without_a_name_is_an_index(table):
    found = table(",cat,dog\n5,1,2\n")
    assert found.names == ("Unnamed: 0", "cat", "dog")
    assert found.index == ("Unnamed: 0",)
    assert table("id,cat\n5,1\n").index == ()


def test_a_file_with_a_header_only_has_no_rows(table):
    columns, problems = table("id,cat\n").read(["cat"], ["id"])
    assert (len(columns["cat"]), len(columns["id"]), problems) == (0, 0, {})


def test_numbers_in_the_first_line_may_be_labels_in_any_order(table):
    for first in ("2,0,1", "17,3,44"):
        with pytest.raises(FileFormatError, match="logits or as the numbers of labels"):
            table(f"{first}\n0.5,1.5,2.5\n")
    for first in ("2,2,1", "2,-1,0", "2.5,0,1"):
        assert len(table(f"{first}\n0.5,1.5,2.5\n").read(["0"], [])[0]["0"]) == 2


def test_cells_may_hold_long_texts(table):
    long = "x" * 200_000
    columns, _ = table(f"cat,text\n0.5,{long}\n").read(["cat"], ["text"])
    assert columns["text"].tolist() == [long]
