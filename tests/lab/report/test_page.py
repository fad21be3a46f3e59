"""The page as a whole: its figures, and what it does without some of its data.

The building blocks in nescio.lab.report.figures are tested here too.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from fixtures.reports import build, result_line
from nescio import scores
from nescio.lab.report import build_report
from nescio.lab.report.figures import best_detectors
from nescio.metrics import auroc, evaluate
from nescio.metrics.comparison import Scored
from nescio.outputs import Outputs


def test_every_figure_is_there(make_evidence, make_lines):
    evidence = make_evidence(oods=("stones", "leaves"), n_labels=9)
    page = build(make_lines(evidence), [evidence])
    for name in (
        "ROC curves, pets against stones",
        "ROC curves, pets against leaves, upper left corner",
        "Densities of max_logit, ID against OOD",
        "Densities of the energy of label-8, ID against OOD",
        "FPR95 of the joint energy of the k largest logits, over k",
        "AUROC of the joint energy of the k largest logits, over k",
        "Share kept over the threshold, top_k_joint_energy(k=5)",
        "Share of ID inputs flagged, by number of true labels",
    ):
        assert page.count("svg", role="img", aria_label=name) >= 1, name
    # Two densities for each OOD set, six labels and one threshold are shown at first.
    panels = [attrs for tag, attrs in page.tags if tag == "figure" and "data-key" in attrs]
    assert len(panels) == 2 * 5 + 9 + 5
    assert sum("hidden" not in attrs for attrs in panels) == 2 * 2 + 6 + 1
    assert len(page.ids) == len(set(page.ids))
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= set(page.ids)


def _links(page):
    return {attrs["href"] for tag, attrs in page.tags if tag == "a"}


def test_no_link_to_a_section_that_is_not_there(make_evidence, make_lines):
    evidence = make_evidence()
    assert "#id0-threshold" in _links(build(make_lines(evidence), [evidence]))
    nowhere = Scored(np.full(120, -np.inf), {"stones": np.full(120, -np.inf)})
    evidence = replace(evidence, scores={"none": nowhere})
    page = build(make_lines(evidence, n_bootstrap=0), [evidence])
    assert "id0-threshold" not in page.ids
    assert {link.removeprefix("#") for link in _links(page)} <= set(page.ids)


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
    assert ("By number of predicted labels" in page.text) == (not labels)
    assert "label 0" in page.text


@pytest.mark.parametrize("n_samples", [1, 2])
def test_hardly_any_inputs(make_evidence, make_lines, n_samples):
    evidence = make_evidence(n_samples=n_samples)
    page = build(make_lines(evidence), [evidence])
    assert f"{n_samples} ID and {n_samples} OOD inputs" in page.text
    assert ("DeLong's test" in page.text) == (n_samples > 1)


def test_without_joint_energy_the_first_detectors_are_shown(make_evidence, make_lines):
    evidence = make_evidence(detectors={"msp": scores.msp, "sum_prob": scores.sum_prob})
    page = build(make_lines(evidence), [evidence])
    assert "flagged by joint_energy" in page.text  # computed from the logits
    panels = [attrs for tag, attrs in page.tags if tag == "figure" and "data-key" in attrs]
    assert sum("hidden" not in attrs for attrs in panels) == 2 + 6 + 1


def test_masked_and_missing_scores_leave_no_nan(make_evidence, make_lines):
    evidence = make_evidence()
    logits = evidence.id_outputs.logits.copy()
    logits[:3] = -np.inf
    logits[3:5] = np.nan
    out = {
        name: Scored(np.where(np.arange(120) < 12, -np.inf, one.id_scores), one.ood_scores)
        for name, one in evidence.scores.items()
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
    assert "inputs with a score of −∞ count as out and are not drawn" in page
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
    found = sets[0].scores["joint_energy"]
    area = 100 * auroc(found.id_scores, found.ood_scores["stones"])
    assert f"pets {area:.2f}" in page.text
    assert {link.removeprefix("#") for link in _links(page)} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_best_detectors_prefers_the_usual_two_among_equals(make_evidence):
    equal = make_evidence(
        detectors={"copy": scores.joint_energy, "joint_energy": scores.joint_energy}
    )
    assert best_detectors(equal, 0.95) == {"stones": "joint_energy"}
    sure = Scored(np.arange(120.0), {"stones": np.full(120, -1.0)})
    lost = Scored(np.full(120, -np.inf), {"stones": np.full(120, -np.inf)})
    assert best_detectors(replace(equal, scores={**equal.scores, "a": sure}), 0.95) == {
        "stones": "a"
    }
    assert best_detectors(replace(equal, scores={"lost": lost}), 0.95) == {}


def test_another_winner_is_in_alarms_and_cases(make_evidence, make_lines):
    evidence = make_evidence()
    winner = Scored(
        evidence.scores["msp"].id_scores + 10,
        {"stones": evidence.scores["msp"].ood_scores["stones"]},
    )
    evidence = replace(evidence, scores={**evidence.scores, "lof": winner})
    page = build(make_lines(evidence), [evidence])
    assert "the highest AUROC: lof against stones." in page.text
    assert "lof is right, joint_energy is wrong" in page.text
    assert "by lof." in page.text


def test_worse_than_chance_is_said(make_evidence, make_lines):
    evidence = make_evidence()
    assert "chance" not in build(make_lines(evidence), [evidence]).text
    lines = []
    for line in make_lines(evidence):
        found = evidence.scores[line.detector]
        swapped = evaluate(found.ood_scores["stones"], found.id_scores, n_bootstrap=20)
        lines.append(replace(line, evaluation=swapped))
    page = build(lines)
    assert page.text.count("all 5 detectors. The likely cause: the ID and the OOD data are") == 2


@pytest.mark.parametrize("pictured", ["a.jpg", "a sentence"])
def test_inputs_without_pictures_have_no_empty_boxes(make_evidence, make_lines, pictured):
    evidence = make_evidence()
    ids = [f"{at} {pictured}" for at in range(120)]
    evidence = replace(evidence, id_outputs=Outputs(evidence.id_outputs.logits, ids=ids))
    html = build_report(make_lines(evidence), [evidence], title="Tiny")
    assert 'class="case"' in html
    first = re.findall(r'<article class="case">\s*<header>\s*<(\w+)', html)
    assert set(first) == {"ul"}  # the verdicts, with nothing before them
    assert "<img" not in html
