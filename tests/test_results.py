"""What every result shows in a notebook: short, escaped, and a table for other libraries."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

import nescio as ns
from fixtures.labelled import labelled
from nescio._charts.results import View, result_card, result_text

NASTY = "<script>alert(1)</script> & a name that is much longer than anyone would like to read "
N_LABELS = 60
VOID = {"meta", "br", "img"}


def nasty(n, what):
    return [f"{NASTY}{what} {number}" for number in range(n)]


def outputs_of(rng, n, shift=0.0):
    logits = rng.normal(shift, 3, (n, N_LABELS))
    return ns.Outputs(
        logits,
        ids=nasty(n, "sample"),
        label_names=nasty(N_LABELS, "label"),
        features=np.tanh(logits[:, :8]),
        kept={name: np.arange(n) for name in nasty(20, "column")},
        arrays={name: np.zeros((n, 2)) for name in nasty(20, "array")},
    )


@pytest.fixture(scope="module")
def results():
    rng = np.random.default_rng(0)
    held_out, new, far = (outputs_of(rng, n, shift) for n, shift in ((300, 0), (200, 0), (200, -4)))
    detector = ns.JointEnergy().calibrate(held_out)
    grouped = ns.JointEnergy().calibrate(held_out, groups=np.array(nasty(12, "group")).repeat(25))
    monitor = ns.Monitor(detector, window=50)
    for outputs in (new, far):
        monitor.update(detector.assess(outputs))
    kinds = ["joint_energy", "max_logit", "knn", "msp", "gen", "sum_logit", "max_prob", "sum_prob"]
    named = dict(zip(nasty(len(kinds), "detector"), kinds, strict=True))
    sets_of_far = dict.fromkeys(nasty(5, "set"), far)
    compared = ns.compare(new, sets_of_far, named, train=held_out, n_bootstrap=0)
    both = ns.Combined(detectors=["joint_energy", "knn(k=3)"]).fit(held_out[:100])
    parts = both.calibrate(held_out[100:]).explain(far[:3])
    inputs = rng.normal(size=(300, 4))
    model = OneVsRestClassifier(LogisticRegression()).fit(inputs[:100], inputs[:100] > 0)
    wrapped = ns.wrap(model, label_names=nasty(4, "label")).calibrate(inputs[100:])
    scores = detector.score_samples(new), detector.score_samples(far)
    sets = (labelled(seed=seed, features=False, label_names=nasty(8, "label")) for seed in (0, 1))
    choice = ns.choose(*sets, detectors=["joint_energy", "max_logit"], n_folds=2)
    return {
        "outputs": held_out,
        "assessment": detector.assess(far),
        "few verdicts": detector.assess(far[:3]),
        "fdr": detector.assess(far, fdr=0.1),
        "calibration": detector.calibration_,
        "groups": grouped.calibration_,
        "evaluation": ns.evaluate(*scores, n_bootstrap=10),
        "worse than chance": ns.evaluate(*scores[::-1], n_bootstrap=10),
        "comparison": compared,
        "by label": compared.by_label(next(iter(named)), next(iter(sets_of_far))),
        "choice": choice,
        "explanation": detector.explain(far),
        "reason": detector.explain(far)[0],
        "negative terms": ns.SumLogit().calibrate(held_out).explain(far)[0],
        "parts": parts,
        "reason of parts": parts[0],
        "monitor": monitor,
        "report": monitor,
        "empty report": ns.Monitor(detector),
        "self-check": grouped.self_check(new, groups=nasty(1, "group") * 200),
        "wrapped": wrapped,
        "not calibrated": ns.wrap(model),
        "prediction": wrapped(inputs),
    }


class Markup(HTMLParser):
    """Reads HTML; raises unless every element is closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags = [], set()
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_text_is_short_whatever_the_names(results):
    for name, result in results.items():
        text = repr(result)
        assert len(text) <= 1_800, name
        assert text.count("\n") < 14, name
        assert "object at 0x" not in text, name


def test_sentences_and_notes_are_not_cut():
    long = f"{'word ' * 100}and the end."
    view = View("title", text=long, notes=[long])
    assert result_text(view).count("and the end.") == 2
    assert result_card(view).count("and the end.") == 2


def test_the_html_is_small_well_formed_and_escaped(results):
    for name, result in results.items():
        html = result._repr_html_()
        assert len(html) < 40_000, name
        assert "script" not in Markup(html).tags, name
        assert not re.search(r"(?<![\w-])nan(?![\w-])", html), name
        assert html.startswith('<div class="nescio">'), name


@pytest.mark.parametrize(
    ("name", "picture"),
    [
        ("assessment", "Histogram of the calibration scores"),
        ("calibration", "Histogram of the calibration scores"),
        ("prediction", "Histogram of the calibration scores"),
        ("wrapped", "Histogram of the calibration scores"),
        ("comparison", "ROC curves on"),
        ("reason", "The energy of each label"),
        ("reason of parts", "The energy of each label"),
        ("report", "Evidence of a change over time"),
    ],
)
def test_a_picture_says_more(results, name, picture):
    assert f'aria-label="{picture}' in results[name]._repr_html_()


def test_without_a_threshold_there_is_no_picture_of_one(results):
    assert results["fdr"].calibration is None
    assert "svg" not in Markup(results["fdr"]._repr_html_()).tags
    assert "svg" not in Markup(results["negative terms"]._repr_html_()).tags


TABLES = {  # the name of the index, and the number of rows
    "outputs": ("id", 300),
    "assessment": ("id", 200),
    "groups": ("group", 13),
    "evaluation": ("measure", 6),
    "comparison": (None, 40),
    "choice": ("detector", 2),
    "explanation": ("id", 200),
    "reason": ("label", N_LABELS),
    "parts": ("id", 3),
    "reason of parts": ("part", 2),
    "report": (None, 8),
    "self-check": ("fault", 6),
    "prediction": (None, 300),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_agree(results, name):
    result, (index, n_rows) = results[name], TABLES[name]
    plain, frame, other = result.to_dict(), result.to_pandas(), result.to_polars()
    assert len(frame) == len(other) == n_rows
    assert frame.index.name == index
    assert list(plain) == other.columns == list(frame.reset_index(drop=not index).columns)
    assert all(len(column) == n_rows for column in plain.values())


def test_the_numbers_of_the_tables_are_those_of_the_results(results):
    evaluation = results["evaluation"].to_pandas()
    assert evaluation.loc["auroc", "value"] == results["evaluation"].auroc.value
    terms = results["explanation"].to_pandas()
    np.testing.assert_array_equal(terms.to_numpy(), results["explanation"].terms)
    compared = results["comparison"]
    row = compared.to_pandas().iloc[0]
    best = compared.results[row.ood][row.detector]
    assert (row["rank"], row.auroc, row.fpr) == (1, best.auroc.value, best.fpr.value)
    assert row.detector == compared.ranked(row.ood)[0]
    groups = results["groups"]
    assert groups.to_pandas()["threshold"].to_dict() == groups.threshold_values
    windows = results["report"].to_pandas()
    assert windows["flagged"].sum() == results["report"].flagged
    assert windows["n"].sum() == results["report"].n_samples


def test_a_part_of_an_assessment_keeps_its_calibration(results):
    assessment = results["assessment"]
    assert assessment[:3].calibration is assessment.calibration
    joined = ns.Assessment.concat([assessment[:3], assessment[3:]])
    assert joined.calibration is assessment.calibration
    other = results["few verdicts"]
    assert other.calibration is assessment.calibration
    assert ns.Assessment.concat([assessment, results["fdr"]]).calibration is None
