"""The report as a file, its figures, its results, and what it does without some of its data."""

import base64
import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest

from fixtures.reports import Page, build, result_line
from nescio import scores
from nescio._charts.svg import sheet
from nescio.errors import FileError, InputError
from nescio.lab.benchmark.results import Line, summarise
from nescio.lab.report import build_report, write_report
from nescio.lab.report.page import _standings, resource
from nescio.metrics import auroc, evaluate
from nescio.metrics.comparison import Scored
from nescio.outputs import Outputs

# --- the file: inert, offline, repeatable and small ---


def test_user_text_is_inert(make_evidence, make_lines, make_outputs):
    nasty = '<script>alert("x")</script>'
    evidence = make_evidence(id_name=nasty, oods=(nasty + "2",))
    plain = evidence.id_outputs
    named = Outputs(
        plain.logits,
        labels=plain.labels,
        ids=[f"{nasty}{number}" for number in range(len(plain))],
        label_names=[f"{nasty}{number}" for number in range(plain.n_labels)],
    )
    with_nasty_name = {nasty: evidence.scores["msp"], **evidence.scores}
    evidence = replace(evidence, id_outputs=named, scores=with_nasty_name)
    lines = make_lines(evidence, manifest={nasty: {nasty: [nasty]}})
    page = build_report(lines, [evidence], title=nasty)
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    Page(page)


def test_the_policy_lets_only_the_page_s_own_script_run(make_evidence, make_lines):
    evidence = make_evidence()
    page = build_report(make_lines(evidence), [evidence], title="Tiny")
    assert page == build_report(make_lines(evidence), [make_evidence()], title="Tiny")
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    content = next(
        attrs["content"]
        for tag, attrs in Page(page).tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    policy = dict(rule.split(maxsplit=1) for rule in content.split(";"))
    assert policy == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "img-src": "data:",
        "style-src": "'unsafe-inline'",
        "script-src": f"'sha256-{digest}'",
    }


def test_a_large_benchmark_stays_small(make_evidence, make_lines, class_tree):
    root = class_tree("folder", classes=("folder",), n_images=1, pixels=128)
    (root / "folder" / "0000.jpg").rename(root / "folder" / "0.jpg")
    for number in range(1, 300):
        (root / "folder" / f"{number}.jpg").symlink_to(root / "folder" / "0.jpg")
    detectors = {
        f"top_k_joint_energy(k={k})": lambda logits, k=k: scores.top_k_joint_energy(logits, k)
        for k in range(1, 19)
    }
    detectors |= {"joint_energy": scores.joint_energy, "max_logit": scores.max_logit}
    names = [f"pets{number}" for number in range(3)]
    oods, roots = ("stones", "leaves"), dict.fromkeys(("stones", "leaves", *names), root)
    options = {"n_samples": 300, "n_labels": 80, "detectors": detectors, "roots": roots}
    evidence = [make_evidence(name, oods, **options) for name in names]
    page = build_report(make_lines(*evidence, n_bootstrap=2), evidence, title="Large")
    assert page.count("data:image/jpeg") > 30
    assert len(page.encode()) < 5_000_000


def test_write_report_replaces_only_by_force(tmp_path):
    with pytest.raises(InputError, match="needs at least one result line"):
        write_report(tmp_path / "none.html", [], [], title="Tiny")
    path, lines = tmp_path / "report.html", [result_line("msp", 0.1)]
    write_report(path, lines, [], title="Ä first")
    assert "Ä first" in path.read_text("utf-8")
    with pytest.raises(FileError, match="exists already"):
        write_report(path, lines, [], title="second")
    write_report(path, lines, [], title="second", force=True)
    assert "<title>second</title>" in path.read_text("utf-8")


def test_every_colour_is_in_the_palette():
    palette = set(re.findall(r"(--[\w-]+):", sheet("palette.css")))
    assert {"--in", "--out", "--accent", "--ink", "--muted", "--grid", "--paper"} <= palette
    rules = {"charts.css": sheet("charts.css"), "style.css": resource("style.css")}
    for name, text in {**rules, "palette.css": sheet("palette.css")}.items():
        used = set(re.findall(r"var\((--[\w-]+)\)", text)) - {"--c"}
        assert used <= palette, name
    for name, text in rules.items():
        assert not re.search(r":[^;{]*#[0-9a-f]{6}", text), name


# --- the page as a whole ---


def test_every_figure_is_there(make_evidence, make_lines):
    evidence = make_evidence(oods=("stones", "leaves"), n_labels=9)
    page = build(make_lines(evidence), [evidence])
    for name in (
        "ROC curves, pets against stones",
        "ROC curves, pets against leaves",
        "Densities of max_logit, ID against OOD",
        "Densities of the energy of label-8, ID against OOD",
    ):
        assert page.count("svg", role="img", aria_label=name) >= 1, name
    # Two densities for each OOD set and six labels are shown at first.
    panels = [attrs for tag, attrs in page.tags if tag == "figure" and "data-key" in attrs]
    assert len(panels) == 2 * 5 + 9
    assert sum("hidden" not in attrs for attrs in panels) == 2 * 2 + 6
    check_links(page)


def check_links(page):
    """Every id is unique, and every link leads to one of them."""
    assert len(page.ids) == len(set(page.ids))
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= set(page.ids)


def test_no_evidence_gives_tables_only(make_evidence, make_lines):
    page = build(make_lines(make_evidence()))
    assert "They need the outputs of the network" in page.text
    assert page.count("table", **{"class": "results"}) == 1
    assert page.count("svg", role="img") == 0


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("n_labels", [1, 2, 90])
def test_any_number_of_labels(make_evidence, make_lines, n_labels, labels):
    evidence = make_evidence(n_labels=n_labels, labels=labels, ids=False, names=False)
    page = build(make_lines(evidence), [evidence])
    assert ("The ID density is over the inputs that have the label" in page.text) == labels
    assert "label 0" in page.text


@pytest.mark.parametrize("n_samples", [1, 2])
def test_hardly_any_inputs(make_evidence, make_lines, n_samples):
    evidence = make_evidence(n_samples=n_samples)
    page = build(make_lines(evidence), [evidence])
    assert f"{n_samples} ID and {n_samples} OOD inputs" in page.text


def test_without_joint_energy_the_first_detectors_are_shown(make_evidence, make_lines):
    evidence = make_evidence(detectors={"msp": scores.msp, "sum_prob": scores.sum_prob})
    page = build(make_lines(evidence), [evidence])
    assert "on which joint_energy and max_logit disagree" in page.text  # from the logits
    panels = [attrs for tag, attrs in page.tags if tag == "figure" and "data-key" in attrs]
    assert sum("hidden" not in attrs for attrs in panels) == 2 + 6


def test_masked_and_missing_scores_leave_no_nan(make_evidence, make_lines):
    evidence = make_evidence()
    logits = evidence.id_outputs.logits.copy()
    logits[:3] = -np.inf
    logits[3:5] = np.nan
    out = {
        name: Scored(np.where(np.arange(120) < 12, -np.inf, scored.id_scores), scored.ood_scores)
        for name, scored in evidence.scores.items()
    }
    nowhere = Scored(np.full(120, -np.inf), {"stones": np.full(120, -np.inf)})
    same = Scored(np.ones(120), {"stones": np.ones(120)})
    evidence = replace(
        evidence,
        id_outputs=Outputs(logits),
        scores={**out, "none": nowhere, "same": same},
    )
    page = build_report(make_lines(evidence, n_bootstrap=0), [evidence], title="Tiny")
    drawn = re.findall(r' (?:d|x|y|cx|cy|width|height|transform)="([^"]*)"', page)
    assert drawn
    assert not [value for value in drawn if re.search("nan|inf|e[+-]", value)]
    assert "inputs lie further left, to −∞." in page
    assert "No threshold keeps 95 % of ID inputs" in page


def test_manifest_lists_every_fact_by_seed():
    manifest = {"data": {"id": "pets@test", "n": 3}, "versions": {"torch": None}, "x": "y" * 9999}
    lines = [replace(result_line("msp", 0.1, seed=seed), manifest=manifest) for seed in (0, 1)]
    page = build(lines)
    for words in ("pets, seed 1", "data.id pets@test", "data.n 3", "versions.torch null"):
        assert words in page.text
    assert len(page.text) < 9999


def test_joint_energy_on_several_id_sets_together(make_evidence, make_lines):
    sets = [make_evidence(name, ("stones", "leaves")) for name in ("pets", "birds", "cars")]
    page = build(make_lines(*sets, n_bootstrap=0), sets)
    for ood in ("stones", "leaves"):
        name = f"ROC curves of joint energy on all ID sets against {ood}"
        assert page.count("svg", role="img", aria_label=name) == 1
    scored = sets[0].scores["joint_energy"]
    area = 100 * auroc(scored.id_scores, scored.ood_scores["stones"])
    assert f"pets {area:.2f}" in page.text
    check_links(page)


def test_worse_than_chance_is_said(make_evidence, make_lines):
    evidence = make_evidence()
    assert "Worse than chance" not in build(make_lines(evidence), [evidence]).text
    lines = []
    for line in make_lines(evidence):
        scored = evidence.scores[line.detector]
        swapped = evaluate(scored.ood_scores["stones"], scored.id_scores, n_bootstrap=20)
        lines.append(replace(line, evaluation=swapped))
    page = build(lines)
    assert page.text.count("all 5 detectors. The likely cause: the ID and the OOD data are") == 2


@pytest.mark.parametrize("pictured", ["a.jpg", "a sentence"])
def test_inputs_without_pictures_have_no_empty_boxes(make_evidence, make_lines, pictured):
    evidence = make_evidence()
    ids = [f"{number} {pictured}" for number in range(120)]
    evidence = replace(evidence, id_outputs=Outputs(evidence.id_outputs.logits, ids=ids))
    html = build_report(make_lines(evidence), [evidence], title="Tiny")
    assert 'class="case"' in html
    first = re.findall(r'<article class="case">\s*<header>\s*<(\w+)', html)
    assert set(first) == {"ul"}  # the verdicts, with nothing before them
    assert "<img" not in html


# --- the results of a pair of sets ---


@pytest.mark.parametrize(
    ("fprs", "said"),
    [
        (
            {"sum_prob": (0.07, 0.09), "joint_energy": (0.10, 0.12), "msp": (0.5, 0.6)},
            "On pets against stones: joint_energy lets 11.00 ± 1.41 % through (place 2) of 3 "
            "detectors (FPR95 over 2 seeds). In hindsight, sum_prob is the best, with 8.00 ± 1.41 "
            "% over 2 seeds.",
        ),
        (
            {"max_logit": [0.1], "joint_energy": [0.1]},
            "joint_energy lets 10.00 % through (place 1), max_logit lets 10.00 % through (place 1) "
            "of 2 detectors (FPR95).",
        ),
        (
            {"a": [0.1], "b": [0.2], "c": [0.2], "joint_energy": [0.2]},
            "joint_energy lets 20.00 % through (place 2) of 4 detectors",
        ),
        ({"msp": [0.1]}, "On pets against stones: In hindsight, msp is the best, with 10.00 %."),
    ],
)
def test_summary_says_who_is_best_and_where_joint_energy_stands(fprs, said):
    lines = [
        result_line(name, fpr, seed=seed)
        for name, values in fprs.items()
        for seed, fpr in enumerate(values)
    ]
    assert said in build(lines).text


def test_equal_fprs_are_ranked_by_auroc():
    def said(**fprs):
        areas = {"knn": 0.8, "label_neighbours": 0.9}
        lines = [result_line(name, 0.1, auroc=area) for name, area in areas.items()]
        lines += [result_line(name, fpr, auroc=0.7) for name, fpr in fprs.items()]
        spreads = summarise(lines)["pets", "stones"]
        return _standings(lines, spreads, [], ("mine", "joint_energy"))

    behind = said(mine=0.2, joint_energy=0.3)
    assert [row["detector"] for row in behind["rows"]][:2] == ["label_neighbours", "knn"]
    assert [row["cells"][0]["best"] for row in behind["rows"]] == [True, True, False, False]
    assert behind["sentence"].endswith("In hindsight, label_neighbours is the best, with 10.00 %.")
    assert "hindsight" not in said(mine=0.1, joint_energy=0.3)["sentence"]  # it is 1st too


def test_one_seed_gives_the_interval(make_evidence, make_lines):
    evidence = make_evidence()
    page = build(make_lines(evidence), [evidence])
    assert "Small print: the 95 % bootstrap interval" in page.text
    assert re.search(r"\d\.\d\d \[\d+\.\d\d, \d+\.\d\d\]", page.text)


def test_several_seeds_give_the_deviation(make_evidence, make_lines):
    evidence = [make_evidence(seed=seed) for seed in range(3)]
    page = build(make_lines(*evidence), evidence)
    assert "Mean ± standard deviation over 3 seeds. Small print: seed 0" in page.text
    assert "The figures show seed 0." in page.text


def test_small_print_is_of_the_first_seed_only():
    def line(detector, seed, fpr):
        whole = result_line(detector, fpr, seed=seed)
        estimate = replace(whole.evaluation.fpr, low=fpr - 0.01, high=fpr + 0.01)
        return replace(whole, evaluation=replace(whole.evaluation, fpr=estimate))

    skipped = Line("tiny", "pets", "stones", "knn", 0, None, "no <features>.")
    lines = [line("msp", 0, 0.1), line("msp", 1, 0.2), line("msp", 2, 0.3), skipped]
    lines += [line("knn", 1, 0.4), line("knn", 2, 0.5)]
    page = build(lines)
    assert "Small print: seed 0 with its 95 % bootstrap interval" in page.text
    assert "20.00 ± 10.00 10.00 [9.00, 11.00]" in page.text
    assert "45.00 ± 7.07" in page.text
    assert "40.00" not in page.text
    once = build([*lines[:4], line("knn", 2, 0.5)])  # one seed, and not the first
    assert "50.00" in once.text
    assert "[49.00, 51.00]" not in once.text
    assert "knn: no <features>." in build(lines[:4]).text
    assert "no detector could run" in build([skipped]).text
