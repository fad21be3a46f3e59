"""Inputs of a report, as cards, and those on which detectors disagree."""

import base64
import io
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from nescio.lab.report import build_report
from nescio.lab.report.cases import case_groups, energy_bars, thumbnail, why_no_pictures
from nescio.lab.report.figures import USUAL_PAIR
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
    assert _names(case_groups(evidence, 0.95, USUAL_PAIR)) == {
        ("stones", "joint_energy", "max_logit"): ["2.jpg", "0.jpg"],
        ("stones", "max_logit", "joint_energy"): ["1.jpg"],
        ("pets", "joint_energy", "max_logit"): ["0.jpg"],
        ("pets", "max_logit", "joint_energy"): ["50.jpg"],
    }


def test_a_wrong_verdict_says_how(evidence):
    groups = case_groups(evidence, 0.95, USUAL_PAIR)
    said = [[verdict["right"] for verdict in group["cases"][0]["verdicts"]] for group in groups]
    right = "right\N{NO-BREAK SPACE}verdict"
    stones, pets = [right, "missed"], [right, "false alarm"]
    assert said == [stones, stones[::-1], pets, pets[::-1]]


def test_a_chosen_detector_leads(evidence):
    chosen = Scored(np.arange(100.0), {"stones": np.array([0.0, 1, 99, 2])})
    changed = replace(evidence, scores={"mine": chosen, **evidence.scores})
    groups = case_groups(changed, 0.95, ("mine", "joint_energy"))
    assert list(_names(groups)) == [
        (name, *pair)
        for name in ("stones", "pets")
        for pair in (("mine", "joint_energy"), ("joint_energy", "mine"))
    ]
    first = groups[0]["cases"][0]["verdicts"]
    assert [verdict["detector"] for verdict in first] == ["mine", "joint_energy"]
    assert first[0]["strange"] == "as strange as 1 in 50"  # two of the 100 ID scores are at most 1
    assert first[1]["strange"] == "100 in 100 are as strange"


def _pictures(evidence, ids, root):
    named = replace(
        evidence,
        ood_outputs={"stones": Outputs(np.ones((4, 3)), ids=ids)},
        image_roots={"stones": root},
    )
    return [case["picture"] for case in case_groups(named, 0.95, USUAL_PAIR)[0]["cases"]]


def test_pictures_are_small_square_jpegs(evidence, class_tree):
    image = pytest.importorskip("PIL.Image")
    root = class_tree("stones", classes=("x",), n_images=1, pixels=300) / "x"
    image.open(root / "0000.jpg").resize((300, 200)).save(root / "2.jpg")
    groups = case_groups(replace(evidence, image_roots={"stones": root}), 0.95, USUAL_PAIR)
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


def test_the_reason_for_no_pictures_is_the_true_one(evidence, tmp_path):
    def why(changed):
        return why_no_pictures(changed, case_groups(changed, 0.95, USUAL_PAIR))

    assert "name the folders of the images (--images" in why(evidence)
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
    assert f"none can be read in {tmp_path}" in why(with_root)


def test_texts_are_shown_escaped_and_shortened(evidence, make_lines):
    stones = evidence.ood_outputs["stones"]
    long = "<script>alert(1)</script> " + 600 * "0123456789"
    texts = np.array(["short & sweet", None, long, "never shown"], dtype=object)
    changed = replace(evidence, ood_outputs={"stones": replace(stones, kept={"text": texts})})
    first, second = case_groups(changed, 0.95, USUAL_PAIR)[0]["cases"]
    assert second["text"] == {"start": "short & sweet", "rest": ""}
    assert first["text"]["start"] == long[:280]
    assert first["text"]["rest"] == long[280:5000] + f" … ({len(long) - 5000:,} more characters)"
    groups = {
        (g["set_name"], g["right"]): g["cases"] for g in case_groups(changed, 0.95, USUAL_PAIR)
    }
    assert groups["stones", "max_logit"][0]["text"] is None
    assert groups["pets", "max_logit"][0]["text"] is None
    page = build_report(make_lines(changed), [changed], title="t")
    assert '<p class="text" dir="auto">short &amp; sweet</p>' in page
    assert "<summary>&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "never shown" not in page
