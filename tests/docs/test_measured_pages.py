"""Tables of the documentation are those that the benchmarks print from committed results."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import which_detector  # noqa: E402


def tables(text: str) -> list[str]:
    """Blocks of lines that are tables."""
    return [block for block in text.split("\n\n") if block.startswith("|")]


def test_which_detector_shows_the_committed_results():
    page = (ROOT / "docs" / "how-to" / "which-detector.md").read_text("utf-8")
    assert which_detector.table() in page


def test_what_is_recommended_is_the_best_of_its_row():
    results = which_detector.read_results()
    for row in which_detector.ROWS:
        numbers = [
            float(cell.split()[-1].strip("*;"))
            for cell in row.text(results).split(" | ")[2].replace(";", ",").split(",")
        ]
        assert numbers[0] == min(numbers), row.have


def test_compared_with_shows_the_committed_results():
    pytest.importorskip("torch")
    import compared

    page = (ROOT / "docs" / "explanation" / "compared-with.md").read_text("utf-8")
    rendered = compared.render(json.loads(compared.RESULTS.read_text("utf-8")))
    versions, *_ = rendered.splitlines()
    assert versions in page
    found = tables(rendered)
    assert len(found) == 2
    for table in found:
        assert table in page, f"expected:\n{table}"


def test_methods_that_two_libraries_share_agree():
    """What is compared is the same method on the same arrays."""
    results = json.loads((ROOT / "benchmarks" / "results" / "compared.json").read_text("utf-8"))
    rows = {(row["library"], row["method"]): row for row in results["rows"]}
    for ours, theirs in (
        ("max_logit", ("pytorch-ood", "MaxLogit")),
        ("max_logit", ("oodeel", "MLS")),
        ("msp", ("pytorch-ood", "MaxSoftmax")),
        ("knn(k=50)", ("pytorch-ood", "KNN")),
        ("knn(k=50)", ("oodeel", "DKNN")),
        ("relative_mahalanobis(normalise=false), one class", ("pytorch-ood", "RMD")),
    ):
        for ood in ("unseen", "photos", "noise"):
            for one, other in zip(rows["nescio", ours][ood], rows[theirs][ood], strict=True):
                assert one == pytest.approx(other, abs=0.25), (ours, theirs)
