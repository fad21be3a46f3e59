"""Tables of the documentation are those that the benchmarks print from committed results."""

import json
import re
import sys
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks" / "detection"))

import beside_paper
import claims
import which_detector

IMAGES = ("textures", "objects", "left out")
THE_DEFAULT = "docs/explanation/the-default.md"


def words_of(page: str) -> str:
    """The text of a page with single spaces."""
    return " ".join((ROOT / page).read_text("utf-8").split())


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
    page = (ROOT / THE_DEFAULT).read_text("utf-8")
    for table in (
        claims.claims(),
        claims.claims_on_tables(),
        claims.images(),
        claims.elsewhere(),
    ):
        assert table in page, f"expected:\n{table}"
    readme = words_of("README.md")
    worst = max(value for by_set in claims.worse_on_tables().values() for value in by_set.values())
    assert f"it was {worst:.1f} points worse" in readme
    rows = claims.claims().splitlines()[2:]
    trained, *untrained, unseen = (float(re.search(r"([+-][\d.]+) points", row)[1]) for row in rows)
    assert trained <= 0
    assert "worse than joint energy on none of the 30 sets" in readme
    assert f"had not seen, at most {unseen} points worse (24 sets)" in readme
    assert f"without training data, at most {max(untrained)}." in readme


def test_the_table_of_the_readme_is_that_of_the_committed_results():
    results = claims.read_results()
    images = [(trained, ood) for trained in ("coco70", "voc20") for ood in IMAGES]
    sets = [*images, ("digits", "unseen digits"), ("packages", "topics"), ("packages", "licences")]
    names = [claims.DEFAULT, "joint_energy", "max_logit", "label_neighbours", "linear_probe"]
    lines = (ROOT / "README.md").read_text("utf-8").partition("| detector |")[2].splitlines()[2:7]
    for name, line in zip(names, lines, strict=True):
        head, *cells = line.replace("*", "").strip("| ").split(" | ")
        assert name in head or (name == claims.DEFAULT and head.startswith("the default"))
        expected = [f"{mean(results[key][name].values()):.1f}" for key in sets]
        assert cells == expected, head


def test_speeds_in_the_readme_are_those_that_the_benchmarks_print():
    readme, speed = words_of("README.md"), words_of("docs/explanation/speed.md")
    rows = re.search(r"rows per second, 50,000,000 rows: ([\d,]+)", speed)[1].replace(",", "")
    assert f"at {int(rows) / 1e6:.1f} million rows per second" in readme
    peak = re.search(r"peak memory, 50,000,000 rows \| at most 1000 MB \| (\d+) MB", speed)[1]
    assert f"with a peak of {peak} MB of memory" in readme
    served = re.search(r"- the service, 1 client: requests per second: (\d+)", speed)[1]
    assert f"{round(int(served), -3):,} requests of 1,000 x 80 logits per second" in readme
    cost = re.search(r"\| the default \| ([\d.]+) ms \(([\d.]+) %\)", words_of(THE_DEFAULT))
    assert f"takes {float(cost[1]):.1f} ms per image on one thread, {cost[2]} % of" in readme


def test_sentences_on_tables_have_the_numbers_of_the_table():
    """Of prepared columns: the detector, then the share of each set, then the mean."""
    page = words_of("docs/explanation/tables.md")
    rows = re.findall(r"\| table \| `(\w+)` \| ([\d.]+) ± [^`]* \| ([\d.]+) ± [\d.]+ \|", page)
    group = {name: value for name, value, _ in rows}
    whole = {name: value for name, _, value in rows}
    assert f"{whole['combined']} % get through instead of {whole['label_neighbours']} %" in page
    others = f"{group['mahalanobis']} % and {group['lof']} %"
    assert f"let through {others}, `label_neighbours` {group['label_neighbours']} %" in page


def test_the_rows_beside_the_papers_are_those_of_the_committed_results(capsys):
    beside_paper.main()
    beside, of_voc = tables(capsys.readouterr().out.strip())
    assert beside in (ROOT / "docs" / "explanation" / "coco70.md").read_text("utf-8")
    assert of_voc in (ROOT / "docs" / "explanation" / "voc20.md").read_text("utf-8")
    assert "| PASCAL-VOC, `voc20` | JointEnergy | 41.01 / 91.10 / 86.33 | 10.87 / " in beside
    text = words_of("docs/explanation/voc20.md")
    lines = beside_paper.read_lines(beside_paper.RESULTS / "voc20.jsonl")
    maps = [line.manifest["training"]["best"]["val_map"] for line in lines]
    assert f"a validation mAP of {min(maps):.4f} to {max(maps):.4f}" in text


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
