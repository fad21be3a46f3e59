"""nescio tables."""

import csv
import io

import pytest

pytest.importorskip("torchvision")


def test_tables_of_results_in_every_format(nescio, small_run):
    results = small_run.folder / "results.jsonl"
    code, text, _ = nescio("tables", results)
    assert code == 0
    assert "digits against noise" in text
    assert nescio("tables", small_run.folder)[1] == text
    _, markdown, _ = nescio("tables", results, "-f", "markdown")
    assert markdown.count("| detector | FPR95 ↓ | AUROC ↑ | AUPR ↑ |") == 2
    _, latex, _ = nescio("tables", results, "-f", "latex")
    assert latex.count(r"\begin{tabular}") == 3
    _, table, _ = nescio("tables", results, "-f", "csv")
    networks, first, _ = table.split("\n\n")
    assert [row["seed"] for row in csv.DictReader(io.StringIO(networks))] == ["0", "1"]
    assert 0 <= float(next(csv.DictReader(io.StringIO(first)))["FPR95"]) <= 100


def test_the_papers_tables_and_ours_beside_them(nescio, small_run):
    code, out, _ = nescio("tables", "--paper", "topk", "-f", "markdown")
    assert code == 0
    assert "33.48" in out
    assert nescio("tables", "-f", "latex")[1].count(r"\begin{tabular}") == 8
    _, beside, _ = nescio("tables", small_run.folder, "--paper", "main", "-f", "markdown")
    assert "not run / " in beside
    assert "None of the results is of a set" in beside


WRONG = {
    "no such paper table": (("tables", "--paper", "9"), "the paper has no table '9'"),
    "no such format": (("tables", "-f", "pdf"), "--format must be"),
    "no such results": (("tables", "nothing.jsonl"), "there is no file nothing.jsonl"),
    "no results at all": (("tables", "empty.jsonl"), "empty.jsonl contains no results"),
    "other lines": (("tables", "other.jsonl"), "line 1 of other.jsonl is not a result"),
    "not text": (("tables", "logits.npy"), "logits.npy is not a results file"),
    "a folder without results": (
        ("tables", "."),
        "there is no results.jsonl in .. Name the folder",
    ),
}


@pytest.mark.parametrize(("arguments", "reason"), WRONG.values(), ids=WRONG)
def test_mistakes_are_explained(mistake, arguments, reason):
    mistake(arguments, reason)
