"""The results of a pair of sets: the sentence, the table and the test of the lead."""

import re
from dataclasses import replace

import pytest

from fixtures.reports import build, result_line
from nescio import scores
from nescio.lab.benchmark.results import Line
from nescio.lab.report import build_report


def test_summary_says_who_is_best_and_where_joint_energy_stands():
    fprs = {"sum_prob": (0.07, 0.09), "joint_energy": (0.10, 0.12), "msp": (0.5, 0.6)}
    lines = [
        result_line(name, fpr, seed=seed)
        for name, both in fprs.items()
        for seed, fpr in enumerate(both)
    ]
    assert (
        "On pets against stones, sum_prob has the lowest FPR95 (8.00 ± 1.41 over 2 seeds), "
        "joint_energy is 2nd of 3 with 11.00 ± 1.41."
    ) in build(lines).text


@pytest.mark.parametrize(
    ("fprs", "said"),
    [
        (
            {"msp": 0.5, "joint_energy": 0.1},
            "joint_energy has the lowest FPR95 (10.00); next is msp with 50.00.",
        ),
        (
            {"msp": 0.1, "joint_energy": 0.1},
            "joint_energy, msp have the lowest FPR95 (10.00).",
        ),
        (
            {"a": 0.1, "b": 0.2, "c": 0.2, "joint_energy": 0.2},
            "joint_energy is 2nd of 4 with 20.00.",
        ),
        ({"msp": 0.1}, "msp has the lowest FPR95 (10.00); joint_energy is not among"),
    ],
)
def test_summary_ranks_ties_fairly(fprs, said):
    assert said in build([result_line(name, fpr) for name, fpr in fprs.items()]).text


def test_one_seed_gives_the_interval_and_p(make_evidence, make_lines):
    evidence = make_evidence()
    page = build(make_lines(evidence), [evidence])
    assert "Small print: the 95 % bootstrap interval" in page.text
    assert re.search(r"\d\.\d\d \[\d+\.\d\d, \d+\.\d\d\]", page.text)
    assert re.search(r"DeLong's test gives p (=|<) 0\.\d+\. The two were selected by", page.text)


def test_several_seeds_count_the_sure_ones(make_evidence, make_lines):
    far_apart = {"joint_energy": scores.joint_energy, "sum": lambda logits: -logits.sum(1)}
    evidence = [make_evidence(seed=seed, detectors=far_apart) for seed in range(3)]
    page = build(make_lines(*evidence), evidence)
    assert (
        "at p < 0.05 (DeLong's test) in 3 of 3 seeds: joint_energy ahead of sum in 3." in page.text
    )
    assert "Mean ± standard deviation over 3 seeds. Small print: seed 0" in page.text
    assert "The figures show seed 0." in page.text


def test_best_is_bold_at_printed_precision():
    close = {"a": 0.100001, "b": 0.100004, "joint_energy": 0.3}
    page = build_report([result_line(name, fpr) for name, fpr in close.items()], [], title="Tiny")
    assert page.count("<b>10.00</b>") == 2
    assert "<b>30.00</b>" not in page


def test_small_print_is_of_the_first_seed_only():
    def line(detector, seed, fpr):
        found = result_line(detector, fpr, seed=seed)
        estimate = replace(found.evaluation.fpr, low=fpr - 0.01, high=fpr + 0.01)
        return replace(found, evaluation=replace(found.evaluation, fpr=estimate))

    skipped = Line("tiny", "pets", "stones", "knn", 0, None, "no features.")
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


def test_skipped_detectors_say_why():
    skipped = Line("tiny", "pets", "stones", "mahalanobis", 0, None, "it reads <features>.")
    page = build([result_line("msp", 0.1), skipped])
    assert "mahalanobis : it reads <features>." in page.text
    assert "no detector could run" in build([skipped]).text
