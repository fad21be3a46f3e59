"""The page: what it says, what it escapes, what it does without."""

import base64
import hashlib
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from nescio import scores
from nescio.benchmark.results import Line
from nescio.errors import FileError, InputError, MissingDependencyError
from nescio.metrics import evaluate
from nescio.metrics.comparison import Scored
from nescio.outputs import Outputs
from nescio.report import build_report, write_report
from nescio.report.energies import label_switch

_VOID = {"meta", "link", "img", "br", "input"}


class _Page(HTMLParser):
    """Collects tags, text and ids, and fails on a tag that is closed in the wrong place."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.words, self.ids = [], [], [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def count(self, tag, **attrs):
        wanted = {name.replace("_", "-"): value for name, value in attrs.items()}
        return sum(
            one == tag and all(found.get(name) == value for name, value in wanted.items())
            for one, found in self.tags
        )


@pytest.fixture
def build():
    def make(lines, evidence=(), title="Tiny"):
        return _Page(build_report(lines, evidence, title=title))

    return make


def _line(detector, fpr, *, seed=0, ood="stones", **values):
    """A line of which only the FPR matters."""
    found = evaluate([1.0, 2.0], [0.0, 1.5], n_bootstrap=0)
    changed = {"fpr": fpr, **values}
    new = {name: replace(getattr(found, name), value=value) for name, value in changed.items()}
    return Line("tiny", "pets", ood, detector, seed, replace(found, **new))


# --- sentences --------------------------------------------------------------------------------


def test_summary_says_who_is_best_and_where_joint_energy_stands(build):
    fprs = {"sum_prob": (0.07, 0.09), "joint_energy": (0.10, 0.12), "msp": (0.5, 0.6)}
    lines = [
        _line(name, fpr, seed=seed) for name, both in fprs.items() for seed, fpr in enumerate(both)
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
            "joint_energy and msp have the lowest FPR95 (10.00).",
        ),
        (
            {"a": 0.1, "b": 0.2, "c": 0.2, "joint_energy": 0.2},
            "joint_energy is 2nd of 4 with 20.00.",
        ),
        ({"msp": 0.1}, "msp has the lowest FPR95 (10.00); joint_energy is not among"),
    ],
)
def test_summary_ranks_ties_fairly(build, fprs, said):
    assert said in build([_line(name, fpr) for name, fpr in fprs.items()]).text


def test_one_seed_gives_the_interval_and_p(build, make_evidence, make_lines):
    evidence = make_evidence()
    page = build(make_lines(evidence), [evidence])
    assert "With the 95 % bootstrap interval" in page.text
    assert re.search(r"\d\.\d\d \[\d+\.\d\d, \d+\.\d\d\]", page.text)
    assert re.search(r"DeLong's test gives p (=|<) 0\.\d+\. The two were picked by", page.text)


def test_several_seeds_count_the_sure_ones(build, make_evidence, make_lines):
    far_apart = {"joint_energy": scores.joint_energy, "sum": lambda logits: -logits.sum(1)}
    evidence = [make_evidence(seed=seed, detectors=far_apart) for seed in range(3)]
    page = build(make_lines(*evidence), evidence)
    assert "at p < 0.05 (DeLong's test) in 3 of 3 seeds: joint_energy before sum in 3." in page.text
    assert "Mean ± standard deviation over 3 seeds; in small print, seed 0" in page.text
    assert "The figures show seed 0." in page.text


def test_best_is_bold_at_printed_precision(build):
    close = {"a": 0.100001, "b": 0.100004, "joint_energy": 0.3}
    page = build_report([_line(name, fpr) for name, fpr in close.items()], [], title="Tiny")
    assert page.count("<b>10.00</b>") == 2
    assert "<b>30.00</b>" not in page


def test_small_print_is_of_the_first_seed_only(build):
    def line(detector, seed, fpr):
        found = _line(detector, fpr, seed=seed)
        estimate = replace(found.evaluation.fpr, low=fpr - 0.01, high=fpr + 0.01)
        return replace(found, evaluation=replace(found.evaluation, fpr=estimate))

    skipped = Line("tiny", "pets", "stones", "knn", 0, None, "no features.")
    lines = [line("msp", 0, 0.1), line("msp", 1, 0.2), line("msp", 2, 0.3), skipped]
    lines += [line("knn", 1, 0.4), line("knn", 2, 0.5)]
    page = build(lines)
    assert "in small print, seed 0 with its 95 % bootstrap interval" in page.text
    assert "20.00 ± 10.00 10.00 [9.00, 11.00]" in page.text
    assert "45.00 ± 7.07" in page.text
    assert "40.00" not in page.text
    once = build([*lines[:4], line("knn", 2, 0.5)])  # one seed, and not the first
    assert "50.00" in once.text
    assert "[49.00, 51.00]" not in once.text


def test_skipped_detectors_say_why(build):
    skipped = Line("tiny", "pets", "stones", "mahalanobis", 0, None, "it reads <features>.")
    page = build([_line("msp", 0.1), skipped])
    assert "mahalanobis : it reads <features>." in page.text
    assert "no detector could run" in build([skipped]).text


def test_manifest_lists_every_fact_by_seed(build):
    manifest = {"data": {"id": "pets@test", "n": 3}, "versions": {"torch": None}, "x": "y" * 9999}
    lines = [replace(_line("msp", 0.1, seed=seed), manifest=manifest) for seed in (0, 1)]
    page = build(lines)
    for words in ("pets, seed 1", "data.id pets@test", "data.n 3", "versions.torch null"):
        assert words in page.text
    assert len(page.text) < 9999


# --- what the page is made of -----------------------------------------------------------------


def test_every_figure_is_there(build, make_evidence, make_lines):
    evidence = make_evidence(oods=("stones", "leaves"), n_labels=9)
    page = build(make_lines(evidence), [evidence])
    for name in (
        "ROC curves, pets against stones",
        "ROC curves, pets against leaves, upper left corner",
        "Densities of max_logit, ID against OOD",
        "Densities of the energy of label-8, ID against OOD",
        "FPR95 of the joint energy of the k largest logits, over k",
        "AUROC of the joint energy of the k largest logits, over k",
        "Share kept as tau moves, top_k_joint_energy(k=5)",
        "Share of ID inputs flagged, by number of true labels",
    ):
        assert page.count("svg", role="img", aria_label=name) >= 1, name
    # Two densities for each OOD set, six labels and one tau are shown at first.
    panels = [attrs for tag, attrs in page.tags if tag == "figure" and "data-key" in attrs]
    assert len(panels) == 2 * 5 + 9 + 5
    assert sum("hidden" not in attrs for attrs in panels) == 2 * 2 + 6 + 1
    assert len(page.ids) == len(set(page.ids))
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= set(page.ids)


def _links(page):
    return {attrs["href"] for tag, attrs in page.tags if tag == "a"}


def test_no_link_to_a_section_that_is_not_there(build, make_evidence, make_lines):
    evidence = make_evidence()
    assert "#id0-tau" in _links(build(make_lines(evidence), [evidence]))
    nowhere = Scored(np.full(120, -np.inf), {"stones": np.full(120, -np.inf)})
    evidence = replace(evidence, scores={"none": nowhere})
    page = build(make_lines(evidence, n_bootstrap=0), [evidence])
    assert "id0-tau" not in page.ids
    assert {link.removeprefix("#") for link in _links(page)} <= set(page.ids)


def test_the_corner_is_drawn_if_a_curve_gets_there(build, make_evidence, make_lines):
    def corners(**detectors):
        evidence = make_evidence(detectors=detectors)
        page = build(make_lines(evidence, n_bootstrap=0), [evidence])
        assert page.count("svg", aria_label="ROC curves, pets against stones") == 1
        name = "ROC curves, pets against stones, upper left corner"
        found = page.count("svg", aria_label=name)
        assert ("Upper left corner" in page.text) == ("Whole" in page.text) == bool(found)
        return found

    def backwards(logits):
        return -scores.joint_energy(logits)

    assert corners(backwards=backwards) == 0
    assert corners(same=lambda logits: np.ones(len(logits))) == 0  # the diagonal
    assert corners(backwards=backwards, joint_energy=scores.joint_energy) == 1
    assert corners(forwards=scores.joint_energy, backwards=backwards) == 1


def test_the_strip_is_hidden_from_screen_readers_whole(build):
    page = build([_line("msp", 0.1), _line("joint_energy", 0.2)])
    cells = [attrs for tag, attrs in page.tags if attrs.get("class", "").startswith("strip-")]
    assert len(cells) == 3
    assert all(attrs["aria-hidden"] == "true" for attrs in cells)


def test_no_evidence_gives_tables_only(build, make_evidence, make_lines):
    page = build(make_lines(make_evidence()))
    assert "they need the network's outputs" in page.text
    assert page.count("table", **{"class": "results"}) == 1
    assert page.count("svg", role="img") == 0


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("n_labels", [1, 2, 90])
def test_any_number_of_labels(build, make_evidence, make_lines, n_labels, labels):
    evidence = make_evidence(n_labels=n_labels, labels=labels, ids=False, names=False)
    page = build(make_lines(evidence), [evidence])
    assert ("ID inputs are those that carry the label" in page.text) == labels
    assert ("By number of predicted labels" in page.text) == (not labels)
    assert "label 0" in page.text


@pytest.mark.parametrize("n_samples", [1, 2])
def test_hardly_any_inputs(build, make_evidence, make_lines, n_samples):
    evidence = make_evidence(n_samples=n_samples)
    page = build(make_lines(evidence), [evidence])
    assert f"{n_samples} ID against {n_samples} OOD inputs" in page.text
    assert ("DeLong's test" in page.text) == (n_samples > 1)


def test_without_joint_energy_the_first_detectors_are_shown(build, make_evidence, make_lines):
    evidence = make_evidence(detectors={"msp": scores.msp, "sum_prob": scores.sum_prob})
    page = build(make_lines(evidence), [evidence])
    assert "flagged by joint_energy" in page.text  # computed from the logits
    panels = [attrs for tag, attrs in page.tags if tag == "figure" and "data-key" in attrs]
    assert sum("hidden" not in attrs for attrs in panels) == 2 + 6 + 1


def test_user_text_is_inert(make_evidence, make_lines, make_outputs):
    nasty = '<script>alert("x")</script>'
    evidence = make_evidence(id_name=nasty, oods=(nasty + "2",))
    plain = evidence.id_outputs
    named = Outputs(
        plain.logits,
        labels=plain.labels,
        ids=[f"{nasty}{at}" for at in range(len(plain))],
        label_names=[f"{nasty}{at}" for at in range(plain.n_labels)],
    )
    found = {nasty: evidence.scores["msp"], **evidence.scores}
    evidence = replace(evidence, id_outputs=named, scores=found)
    lines = make_lines(evidence, manifest={nasty: {nasty: [nasty]}})
    page = build_report(lines, [evidence], title=nasty)
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    _Page(page)


def test_masked_and_missing_scores_leave_no_nan(build, make_evidence, make_lines):
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
    assert "inputs of score −∞ are out and not drawn" in page
    assert "No threshold keeps 95 % of ID inputs" in page


def test_same_input_same_bytes(make_evidence, make_lines):
    pages = []
    for _ in range(2):
        evidence = make_evidence(seed=3)
        pages.append(build_report(make_lines(evidence), [evidence], title="Tiny"))
    assert pages[0] == pages[1]


def test_nothing_is_fetched(make_evidence, make_lines):
    evidence = make_evidence()
    page = build_report(make_lines(evidence), [evidence], title="Tiny")
    assert not re.search(r"https?:|url\(|@import|src=\"(?!data:)", page)


def test_the_policy_lets_only_the_page_s_own_script_run(make_evidence, make_lines):
    evidence = make_evidence()
    page = build_report(make_lines(evidence), [evidence], title="Tiny")
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    found = next(
        attrs["content"]
        for tag, attrs in _Page(page).tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    policy = dict(one.split(maxsplit=1) for one in found.split(";"))
    assert policy == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "img-src": "data:",
        "style-src": "'unsafe-inline'",
        "script-src": f"'sha256-{digest}'",
    }


def test_many_labels_stay_small_and_the_rare_are_left_out(make_evidence, make_lines):
    evidence = make_evidence(oods=("a", "b", "c"), n_labels=2000, n_samples=60)
    truth = np.zeros((60, 2000), dtype=np.uint8)
    truth[:, 1000:1100] = 1
    truth[:2, 1100:] = 1
    logits = evidence.id_outputs.logits
    evidence = replace(evidence, id_outputs=Outputs(logits, labels=truth))
    lines = make_lines(evidence, n_bootstrap=0)
    page = build_report(lines, [evidence], title="Large")
    assert len(page.encode()) < 5_000_000
    drawn = re.findall(r"Densities of the energy of label (\d+), ID against OOD", page)
    assert drawn == [str(at) for at in range(1000, 1100)]
    said = "Of the 2,000 labels, the 100 most frequent are drawn; the others are left out."
    assert said in _Page(page).text
    few = make_evidence(n_labels=100)
    assert "most frequent are drawn" not in build_report(make_lines(few), [few], title="Few")


def test_labels_left_out_do_not_change_the_others(make_evidence):
    evidence = make_evidence(n_labels=130, n_samples=60)
    truth = evidence.id_outputs.labels.copy()
    truth[:, :30] = 0
    truth[0, 30:] = 1  # the first 30 labels are the rarest

    def drawn(labels):
        def cut(outputs, truth=None):
            names = [f"label-{at}" for at in labels]
            return Outputs(outputs.logits[:, labels], labels=truth, label_names=names)

        some = replace(
            evidence,
            id_outputs=cut(evidence.id_outputs, truth[:, labels]),
            ood_outputs={ood: cut(one) for ood, one in evidence.ood_outputs.items()},
        )
        return [(one.name, one.chart, one.note) for one in label_switch(some).panels]

    assert drawn(np.arange(130)) == drawn(np.arange(30, 130))


def test_a_large_benchmark_stays_small(make_evidence, make_lines, class_tree):
    root = class_tree("folder", classes=("folder",), n_images=1, pixels=128)
    (root / "folder" / "0000.jpg").rename(root / "folder" / "0.jpg")
    for at in range(1, 300):
        (root / "folder" / f"{at}.jpg").symlink_to(root / "folder" / "0.jpg")
    detectors = {
        f"top_k_joint_energy(k={k})": lambda logits, k=k: scores.top_k_joint_energy(logits, k)
        for k in range(1, 19)
    }
    detectors |= {"joint_energy": scores.joint_energy, "max_logit": scores.max_logit}
    roots = {"stones": root, "leaves": root, **{f"pets{at}": root for at in range(3)}}
    evidence = [
        make_evidence(
            f"pets{at}",
            ("stones", "leaves"),
            n_samples=300,
            n_labels=80,
            detectors=detectors,
            roots=roots,
        )
        for at in range(3)
    ]
    page = build_report(make_lines(*evidence, n_bootstrap=2), evidence, title="Large")
    assert page.count("data:image/jpeg") > 30
    assert len(page.encode()) < 5_000_000


# --- files and dependencies -------------------------------------------------------------------


def test_write_report_replaces_only_by_force(tmp_path):
    path, lines = tmp_path / "report.html", [_line("msp", 0.1)]
    write_report(path, lines, [], title="Ä first")
    assert "Ä first" in path.read_text("utf-8")
    with pytest.raises(FileError, match="exists already"):
        write_report(path, lines, [], title="second")
    write_report(path, lines, [], title="second", force=True)
    assert "<title>second</title>" in path.read_text("utf-8")


def test_no_lines_is_an_error():
    with pytest.raises(InputError, match="needs result lines"):
        build_report([], [], title="Tiny")


def test_missing_jinja2_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingDependencyError, match=r"nescio\[report\]"):
        build_report([_line("msp", 0.1)], [], title="Tiny")
