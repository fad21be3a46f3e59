"""Inputs of a report: those on which detectors disagree, false alarms, the first of each set."""

import base64
import io
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from fixtures.reports import Page
from nescio.detectors import MaxLogit
from nescio.lab.benchmark.tables import Column, Table, TablePart
from nescio.lab.report import build_report
from nescio.lab.report.cases import (
    Introduction,
    case_groups,
    energy_bars,
    false_alarms,
    introduced,
    thumbnail,
    why_no_pictures,
)
from nescio.metrics.comparison import Scored
from nescio.outputs import Outputs


def _names(groups):
    return {
        (group["set_name"], group["right"], group["wrong"]): [
            case["name"] for case in group["cases"]
        ]
        for group in groups
    }


def test_cases_are_those_judged_differently_furthest_apart_first(evidence):
    assert _names(case_groups(evidence, 0.95)) == {
        ("stones", "joint_energy", "max_logit"): ["2.jpg", "0.jpg"],
        ("stones", "max_logit", "joint_energy"): ["1.jpg"],
        ("pets", "joint_energy", "max_logit"): ["0.jpg"],
        ("pets", "max_logit", "joint_energy"): ["50.jpg"],
    }


def _pictures(evidence, ids, root):
    named = replace(
        evidence,
        ood_outputs={"stones": Outputs(np.ones((4, 3)), ids=ids)},
        image_roots={"stones": root},
    )
    return [case["picture"] for case in case_groups(named, 0.95)[0]["cases"]]


def test_pictures_are_small_square_jpegs(evidence, class_tree):
    image = pytest.importorskip("PIL.Image")
    root = class_tree("stones", classes=("x",), n_images=1, pixels=300) / "x"
    image.open(root / "0000.jpg").resize((300, 200)).save(root / "2.jpg")
    groups = case_groups(replace(evidence, image_roots={"stones": root}), 0.95)
    with_file, without_file = groups[0]["cases"]
    head, _, data = with_file["picture"].partition(",")
    assert head == "data:image/jpeg;base64"
    assert image.open(io.BytesIO(base64.b64decode(data))).size == (112, 112)
    assert without_file["picture"] == ""


@pytest.mark.parametrize("how", ["parent", "absolute"])
def test_no_picture_from_outside_of_the_root(evidence, class_tree, how, monkeypatch):
    pytest.importorskip("PIL.Image")
    folder = class_tree("stones", classes=("root", "secret"), n_images=1)
    root, secret = folder / "root", folder / "secret" / "0000.jpg"
    inside = root / "0000.jpg"
    names = {"parent": "../secret/0000.jpg", "absolute": str(secret)}
    (root / "link.jpg").symlink_to(secret)  # as data sets spread over disks have them
    (root / "loop").symlink_to(root / "loop")
    (root / "damaged.jpg").write_bytes(b"\xff\xd8 no more")
    assert thumbnail(root / names[how])  # it is there to be read
    for ids, pictures in {
        ("0000.jpg", "b", str(inside), "d"): [thumbnail(inside)] * 2,
        ("link.jpg", "b", "./link.jpg", "d"): [thumbnail(secret)] * 2,
        (names[how], "b", names[how], "d"): ["", ""],
        ("loop/0.jpg", "b", "\0", "d"): ["", ""],  # names that no file can have
        ("damaged.jpg", "b", "gone.jpg", "d"): ["", ""],
    }.items():
        assert _pictures(evidence, ids, root) == pictures
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert thumbnail(inside) == ""


def test_bars_show_the_largest_and_the_sum_of_the_rest():
    names = [f"label {number}" for number in range(20)]
    bars = energy_bars(names, np.arange(20.0), np.full(20, 2.0))
    assert "label 19 19 · 10 %, label 18 18 · 9 %" in bars
    assert "14 others 91 · 48 %" in bars
    assert ">19 · 10 %</text>" in bars
    assert ">91 · 48 %</text>" in bars
    assert "label 19: 19, 10 % of the joint energy; median over ID 2<" in bars
    assert bars.count('class="mark"') == 6
    for nothing in (0.0, 5e-324):
        assert "nan" not in energy_bars(["one"], np.full(1, nothing), np.zeros(1))
    # A number says neither nothing nor all of what is almost so.
    bars = energy_bars(["a", "b", "c"], np.array([150.0, 0.2, 0.0002]), np.zeros(3))
    assert re.findall(r">([^<>]+ · [^<>]+)</text>", bars) == [
        *("150 · &gt;99 %", "0.2 · &lt;1 %", "&lt;0.001 · &lt;1 %")
    ]


def test_the_best_detector_has_cases_too(evidence):
    """It is compared with joint energy, on its own OOD set and on the ID set."""
    best = Scored(np.arange(100.0), {"stones": np.array([0.0, 1, 99, 2])})
    changed = replace(evidence, scores={**evidence.scores, "lof": best})
    groups = case_groups(changed, 0.95, {"stones": "lof"})
    shown = _names(groups)
    assert shown["stones", "lof", "joint_energy"] == ["1.jpg", "3.jpg"]
    assert shown["stones", "joint_energy", "lof"] == ["2.jpg"]
    assert shown["pets", "lof", "joint_energy"] == ["50.jpg"]
    assert len(shown) == 8
    [case] = groups[2]["cases"]
    assert (groups[2]["right"], groups[2]["wrong"]) == ("joint_energy", "lof")
    detectors = [verdict["detector"] for verdict in case["verdicts"]]
    assert detectors == ["joint_energy", "max_logit", "lof"]


def test_the_reason_for_no_pictures_is_the_true_one(evidence, tmp_path):
    def why(changed):
        return why_no_pictures(changed, case_groups(changed, 0.95))

    assert "folders of the images are not named (--images" in why(evidence)
    texts = [f"sentence {number}" for number in range(100)]
    of_text = replace(
        evidence,
        id_outputs=Outputs(np.zeros((100, 3)), ids=texts),
        ood_outputs={"stones": Outputs(np.ones((4, 3)), ids=texts[:4])},
    )
    assert why(of_text) == ""
    same = replace(evidence, scores=dict.fromkeys(evidence.scores, evidence.scores["max_logit"]))
    assert why(same) == ""  # there are no cases
    pytest.importorskip("PIL.Image")
    with_root = replace(evidence, image_roots={"stones": tmp_path})
    assert f"no image file of the cases can be read in {tmp_path}" in why(with_root)


def test_texts_are_shown_escaped_and_shortened(evidence, make_lines):
    stones = evidence.ood_outputs["stones"]
    long = "<script>alert(1)</script> " + 600 * "0123456789"
    texts = np.array(["short & sweet", None, long, "never shown"], dtype=object)
    changed = replace(evidence, ood_outputs={"stones": replace(stones, kept={"text": texts})})
    first, second = case_groups(changed, 0.95)[0]["cases"]
    assert second["text"] == {"start": "short & sweet", "rest": ""}
    assert first["text"]["start"] == long[:280]
    assert first["text"]["rest"] == long[280:5000] + f" … ({len(long) - 5000:,} more characters)"
    groups = {(g["set_name"], g["right"]): g["cases"] for g in case_groups(changed, 0.95)}
    assert groups["stones", "max_logit"][0]["text"] is None
    assert groups["pets", "max_logit"][0]["text"] is None
    page = build_report(make_lines(changed), [changed], title="t")
    assert '<p class="text" dir="auto">short &amp; sweet</p>' in page
    assert "<summary>&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "never shown" not in page


def test_false_alarms_are_counted_by_true_label(evidence):
    labels = np.zeros((100, 3), dtype=np.uint8)
    labels[:20, 0] = 1  # joint energy flags 1 to 4 of these, and 50, which has no label
    labels[20:40, 1] = 1
    labelled = replace(evidence, id_outputs=Outputs(np.zeros((100, 3)), labels=labels))
    alarms = false_alarms(labelled, 0.95)
    assert alarms["kind"] == alarms["label_kind"] == "true"
    assert (
        "5 of 100 inputs are flagged by joint_energy, 5 by max_logit, 4 by both" in alarms["totals"]
    )
    rows = [
        (row["label"], row["n_inputs"], row["by_detector"]["joint_energy"]["flagged"])
        for row in alarms["by_label"]
    ]
    assert rows == [("label 0", 20, 4), ("label 1", 20, 0)]
    assert alarms["by_label"][0]["by_detector"]["max_logit"]["share"] == 0.25
    assert "joint_energy: 1 of 60 inputs with 0 true labels, 1.7 %" in alarms["by_count"]


def test_without_truth_the_most_likely_label_counts(evidence):
    logits = np.full((100, 3), -3.0)
    logits[:10, 2] = -1  # nothing is predicted, yet this one is the likeliest
    alarms = false_alarms(replace(evidence, id_outputs=Outputs(logits)), 0.95)
    assert (alarms["kind"], alarms["label_kind"]) == ("predicted", "most likely")
    assert [(row["label"], row["n_inputs"]) for row in alarms["by_label"]] == [
        ("label 2", 10),
        ("label 0", 90),
    ]
    assert "joint_energy: 5 of 100 inputs with 0 predicted labels" in alarms["by_count"]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((12, 10, 9), "Labels with fewer than 10 inputs are not listed."),
        ((7, 4, 3), "Labels with fewer than 7 inputs are not listed."),
        ((1, 0, 0), "Labels without inputs are not listed."),
        ((12, 11, 10), ""),
    ],
)
def test_the_cut_that_was_used_is_said(evidence, sizes, said):
    labels = (np.arange(100)[:, None] < sizes).astype(np.uint8)
    labelled = replace(evidence, id_outputs=Outputs(np.zeros((100, 3)), labels=labels))
    alarms = false_alarms(labelled, 0.95)
    assert alarms["left_out"] == said
    least = min(10, max(sizes))
    assert sorted(row["n_inputs"] for row in alarms["by_label"]) == sorted(
        size for size in sizes if size >= least
    )


def test_the_best_detectors_are_beside_the_two(evidence):
    later = Scored(np.arange(100.0)[::-1].copy(), {})
    more = {f"d{number}": later for number in range(9)}
    changed = replace(evidence, scores={**evidence.scores, **more})
    alarms = false_alarms(changed, 0.95, ["d0", "joint_energy", "d0"])
    assert list(alarms["styles"]) == ["joint_energy", "max_logit", "d0"]
    assert "4 by both; 5 by d0." in alarms["totals"]
    assert "d0: 5 of 100 inputs" in alarms["by_count"]
    assert alarms["by_count"].count('class="bar c0"') == alarms["by_count"].count(
        'class="bar joint"'
    )
    # At most as many detectors as there are colours.
    assert len(false_alarms(changed, 0.95, list(more))["styles"]) == 5


# --- the first inputs of each set ---

TABLE = Table(
    "Let through <if>",
    (Column("detector", number=False), Column("stones")),
    (((TablePart("max_logit"),), (TablePart("12.00", best=True),)),),
    ("In hindsight.",),
)


def introduction(evidence):
    detector = MaxLogit().calibrate(evidence.id_outputs, tpr=0.9)
    return Introduction(("The model knows <seven> labels.",), TABLE, detector)


def test_the_first_inputs_of_each_set_are_shown_with_their_verdicts(make_evidence):
    evidence = make_evidence(oods=("stones", "leaves"))
    beginning = introduction(evidence)
    sets = introduced(beginning, evidence)["sets"]
    assert [shown["name"] for shown in sets if shown["is_id"]] == ["pets"]
    all_outputs = {"pets": evidence.id_outputs, **evidence.ood_outputs}
    for shown, (name, outputs) in zip(sets, all_outputs.items(), strict=True):
        assert shown["name"] == name
        inside = beginning.detector.predict(outputs) == 1
        assert shown["n_flagged"] == (~inside).sum()
        assert [case["name"] for case in shown["cases"]] == outputs.ids[:6].tolist()
        assert [case["verdicts"][0]["inside"] for case in shown["cases"]] == inside[:6].tolist()
        right = inside if shown["is_id"] else ~inside
        assert [case["verdicts"][0]["right"] for case in shown["cases"]] == right[:6].tolist()
        for case, logits in zip(shown["cases"], outputs.logits, strict=False):
            labels = [f"label-{label}" for label in range(7) if logits[label] > 0]
            assert case["predicted"] == (", ".join(labels) or "nothing")


def test_the_section_comes_first_and_only_if_asked_for(make_evidence, make_lines):
    evidence = make_evidence()
    lines = make_lines(evidence, n_bootstrap=0)
    html = build_report(lines, [evidence], title="Tiny", introduction=introduction(evidence))
    page = Page(html)
    assert page.ids.index("verdicts") < page.ids.index("summary")
    checked = introduction(evidence).detector.self_check(evidence.id_outputs)
    parts = ("knows <seven> labels.", "Let through <if>", "12.00", "In hindsight.", "predicted: ")
    parts += ("What this detector does not see", checked.summary(), "all values times 10")
    for part in parts:
        assert part in page.text
    plain = Page(build_report(lines, [evidence], title="Tiny"))
    assert "verdicts" not in plain.ids
    assert "predicted: " not in plain.text
