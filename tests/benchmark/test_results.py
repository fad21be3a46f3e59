"""Result lines on disk, and measures over seeds."""

import json

import pytest

from fixtures.benchmark import result_line
from nescio.benchmark.results import (
    Spread,
    file_name,
    lines_hash,
    read_lines,
    summarise,
    write_lines,
)
from nescio.errors import FileFormatError


def test_lines_are_read_as_they_were_written(tmp_path):
    lines = [result_line("msp", (60, 80, 85)), result_line("odin", "there is no odin_max.")]
    write_lines(tmp_path / "results.jsonl", lines)
    assert read_lines(tmp_path / "results.jsonl") == lines
    first, second = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert first["fpr"]["value"] == 0.6
    assert (second["skipped"], "fpr" in second) == ("there is no odin_max.", False)


def test_an_invalid_line_is_named(tmp_path):
    path = tmp_path / "results.jsonl"
    write_lines(path, [result_line("msp", (60, 80, 85))])
    for wrong in ("{}", "[1]", "no JSON", '{"spec": "x"}'):
        path.write_text(path.read_text().splitlines()[0] + f"\n{wrong}\n")
        with pytest.raises(FileFormatError, match=r"line 2 of .*results.jsonl is not a result"):
            read_lines(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FileFormatError, match="is not a results file"):
        read_lines(path)


def test_the_hash_recognises_lines():
    lines = [result_line("msp", (60, 80, 85))]
    assert lines_hash(lines) == lines_hash([result_line("msp", (60, 80, 85))])
    assert lines_hash(lines) != lines_hash([result_line("msp", (60, 80, 86))])


def test_measures_over_seeds():
    spread = Spread.of([0.60, 0.62])
    assert (spread.mean, spread.n_seeds) == (pytest.approx(0.61), 2)
    assert spread.deviation == pytest.approx(0.02 / 2**0.5)
    assert str(spread) == "61.00 ± 1.41"
    assert str(Spread.of([0.5])) == "50.00"


def test_the_summary_is_in_the_order_of_the_lines():
    lines = [
        result_line("msp", (60, 80, 85), seed=0, ood="b"),
        result_line("lof", (50, 80, 85), seed=0, ood="a"),
        result_line("msp", (70, 80, 85), seed=1, ood="b"),
        result_line("odin", "skipped", ood="c"),
    ]
    found = summarise(lines)
    assert list(found) == [("MS-COCO", "b"), ("MS-COCO", "a")]
    assert found["MS-COCO", "b"]["msp"]["fpr"].mean == pytest.approx(0.65)


def test_names_of_sets_in_file_names():
    assert file_name("a/b [c]-1.x") == "a_b__c_-1.x"
