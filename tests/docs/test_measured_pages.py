"""Tables of the documentation are those that the benchmarks print from committed results."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks" / "detection"))

import claims
import which_detector


def tables(text: str) -> list[str]:
    """Blocks of lines that are tables."""
    return [block for block in text.split("\n\n") if block.startswith("|")]


def test_which_detector_shows_the_committed_results():
    page = (ROOT / "docs" / "how-to" / "which-detector.md").read_text("utf-8")
    assert which_detector.table() in page


@pytest.fixture(scope="module")
def measured():
    return which_detector.all_results()


@pytest.mark.parametrize("row", which_detector.ROWS, ids=lambda row: row.have)
def test_what_is_recommended_has_the_lowest_mean_of_all_that_read_no_more(row, measured):
    means = which_detector.means_of(measured, row.chosen_on, row.reads)
    assert min(means, key=lambda name: means[name]) == row.use
    assert set(row.sets) <= set(row.chosen_on)


@pytest.mark.parametrize("row", which_detector.ROWS, ids=lambda row: row.have)
def test_nothing_measured_is_better_than_the_best_in_hindsight(row, measured):
    _, use, hindsight, *_ = (cell.strip() for cell in row.text(measured).split("|")[1:-1])
    best = use if hindsight == "the same" else hindsight
    shown = float(best.split(": ")[1].strip("*"))
    sums = {}
    for name in measured[row.sets[0]]:
        if which_detector.inputs_of(name) <= row.reads:
            values = [measured[key].get(name) for key in row.sets]
            if all(values):
                means = [sum(item.values()) / len(item) for item in values]
                sums[name] = sum(means) / len(means)
    assert f"{min(sums.values()):.1f}" == f"{shown:.1f}"


def test_rows_on_few_and_many_labels_are_measured_on_such_sets(measured):
    """With at most 20 labels, the joint energy of the 20 largest is joint energy."""
    top_20 = "top_k_joint_energy(k=20)"
    for sets, same in ((which_detector.FEW_LABELS, True), (which_detector.MANY_LABELS, False)):
        both = [measured[key] for key in sets if top_20 in measured[key]]
        assert len(both) > 9
        for result in both:
            assert (result[top_20] == result["joint_energy"]) == same


def test_the_claims_on_the_default_are_those_of_the_committed_results():
    page = (ROOT / "docs" / "explanation" / "the-default.md").read_text("utf-8")
    for table in (claims.claims(), claims.claims_on_tables()):
        assert table in page, f"expected:\n{table}"
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    worst = max(value for by_set in claims.worse_on_tables().values() for value in by_set.values())
    assert f"it was up to {worst:.1f} points worse" in readme
    first, *_, last = claims.claims().splitlines()[2:]
    for row, sentence in ((first, "at most {} points worse"), (last, "({} on the seeds")):
        points = row.split("+")[1].split(" points")[0]
        assert sentence.format(points) in readme


def test_compared_with_shows_the_committed_results():
    pytest.importorskip("torch")
    import compared

    page = (ROOT / "docs" / "explanation" / "compared-with.md").read_text("utf-8")
    rendered = compared.render(json.loads(compared.RESULTS.read_text("utf-8")))
    versions, *_ = rendered.splitlines()
    assert versions in page
    result = tables(rendered)
    assert len(result) == 2
    for table in result:
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
            for item, other in zip(rows["nescio", ours][ood], rows[theirs][ood], strict=True):
                assert item == pytest.approx(other, abs=0.25), (ours, theirs)
