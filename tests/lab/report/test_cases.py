"""Single inputs of a report: cases on which detectors disagree, and false alarms."""

import base64
import io
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from nescio.lab.report import build_report
from nescio.lab.report.cases import (
    case_groups,
    energy_bars,
    false_alarms,
    flagged,
    thumbnail,
    why_no_pictures,
)
from nescio.metrics.comparison import Scored
from nescio.outputs import Outputs


def _names(evidence):
    return {
        (group["set_name"], group["right"]): [case["name"] for case in group["cases"]]
        for group in case_groups(evidence, 0.95)
    }


def test_cases_are_those_judged_differently_furthest_apart_first(evidence):
    assert _names(evidence) == {
        ("stones", "joint_energy"): ["2.jpg", "0.jpg"],
        ("stones", "max_logit"): ["1.jpg"],
        ("pets", "joint_energy"): ["0.jpg"],
        ("pets", "max_logit"): ["50.jpg"],
    }


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
def test_no_picture_from_outside_of_the_root(evidence, class_tree, how):
    pytest.importorskip("PIL.Image")
    folder = class_tree("stones", classes=("root", "secret"), n_images=1)
    root, secret = folder / "root", folder / "secret" / "0000.jpg"
    inside = root / "0000.jpg"
    names = {"parent": "../secret/0000.jpg", "absolute": str(secret)}
    (root / "link.jpg").symlink_to(secret)  # as data sets spread over disks have them
    assert thumbnail(root / names[how])  # it is there to be read

    def pictures(ids):
        named = replace(
            evidence,
            ood_outputs={"stones": Outputs(np.ones((4, 3)), ids=ids)},
            image_roots={"stones": root},
        )
        return [case["picture"] for case in case_groups(named, 0.95)[0]["cases"]]

    assert pictures(["0000.jpg", "b", str(inside), "d"]) == [thumbnail(inside)] * 2
    assert pictures(["link.jpg", "b", "./link.jpg", "d"]) == [thumbnail(secret)] * 2
    assert pictures([names[how], "b", names[how], "d"]) == ["", ""]


def test_a_name_that_no_file_can_have_is_no_picture(evidence, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    ids = ["loop/0.jpg", "b", "\0", "d"]
    named = replace(
        evidence,
        ood_outputs={"stones": Outputs(np.ones((4, 3)), ids=ids)},
        image_roots={"stones": tmp_path},
    )
    assert [case["picture"] for case in case_groups(named, 0.95)[0]["cases"]] == ["", ""]


def test_a_damaged_file_or_no_pillow_is_no_picture(tmp_path, monkeypatch, class_tree):
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(b"\xff\xd8 no more")
    assert thumbnail(damaged) == ""
    whole = class_tree("stones", classes=("x",), n_images=1) / "x" / "0000.jpg"
    assert thumbnail(whole)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert thumbnail(whole) == ""


def test_bars_show_the_largest_and_the_sum_of_the_rest():
    names = [f"label {at}" for at in range(20)]
    bars = energy_bars(names, np.arange(20.0), np.full(20, 2.0))
    assert "label 19 19 · 10 %, label 18 18 · 9 %" in bars
    assert "14 others 91 · 48 %" in bars
    assert ">19 · 10 %</text>" in bars
    assert ">91 · 48 %</text>" in bars
    assert "label 19: 19, 10 % of the joint energy; median over ID 2<" in bars
    assert bars.count('class="mark"') == 6
    for nothing in (0.0, 5e-324):
        assert "nan" not in energy_bars(["one"], np.full(1, nothing), np.zeros(1))


def test_a_number_says_neither_nothing_nor_all_of_what_is_almost_so():
    bars = energy_bars(["a", "b", "c"], np.array([150.0, 0.2, 0.0002]), np.zeros(3))
    assert re.findall(r">([^<>]+ · [^<>]+)</text>", bars) == [
        "150 · &gt;99 %",
        "0.2 · &lt;1 %",
        "&lt;0.001 · &lt;1 %",
    ]


def test_the_best_detector_has_cases_too(evidence):
    """It is compared with joint energy, on its own OOD set and on the ID set."""
    best = Scored(np.arange(100.0), {"stones": np.array([0.0, 1, 99, 2])})
    changed = replace(evidence, scores={**evidence.scores, "lof": best})
    groups = case_groups(changed, 0.95, {"stones": "lof"})
    found = {
        (group["set_name"], group["right"], group["wrong"]): [one["name"] for one in group["cases"]]
        for group in groups
    }
    assert found["stones", "lof", "joint_energy"] == ["1.jpg", "3.jpg"]
    assert found["stones", "joint_energy", "lof"] == ["2.jpg"]
    assert found["pets", "lof", "joint_energy"] == ["50.jpg"]
    assert len(found) == 8
    [case] = groups[2]["cases"]
    assert (groups[2]["right"], groups[2]["wrong"]) == ("joint_energy", "lof")
    assert [one["detector"] for one in case["verdicts"]] == ["joint_energy", "max_logit", "lof"]


def test_the_reason_for_no_pictures_is_the_true_one(evidence, tmp_path):
    def why(changed):
        return why_no_pictures(changed, case_groups(changed, 0.95))

    assert "folders of the images are not named (--images" in why(evidence)
    texts = [f"sentence {at}" for at in range(100)]
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


def test_five_per_cent_are_flagged():
    assert np.flatnonzero(flagged(np.arange(100.0), 0.95)).tolist() == [0, 1, 2, 3, 4]
    assert flagged(np.array([-np.inf, 1.0]), 0.95).tolist() == [True, False]


def test_false_alarms_are_counted_by_true_label(evidence):
    labels = np.zeros((100, 3), dtype=np.uint8)
    labels[:20, 0] = 1  # joint energy flags 1 to 4 of these, and 50, which has no label
    labels[20:40, 1] = 1
    labelled = replace(evidence, id_outputs=Outputs(np.zeros((100, 3)), labels=labels))
    found = false_alarms(labelled, 0.95)
    assert found["kind"] == found["label_kind"] == "true"
    assert (
        "5 of 100 inputs are flagged by joint_energy, 5 by max_logit, 4 by both" in found["totals"]
    )
    rows = [
        (one["label"], one["n_inputs"], one["by_detector"]["joint_energy"]["flagged"])
        for one in found["by_label"]
    ]
    assert rows == [("label 0", 20, 4), ("label 1", 20, 0)]
    assert found["by_label"][0]["by_detector"]["max_logit"]["share"] == 0.25
    assert "joint_energy: 1 of 60 inputs with 0 true labels, 1.7 %" in found["by_count"]


def test_without_truth_the_most_likely_label_counts(evidence):
    logits = np.full((100, 3), -3.0)
    logits[:10, 2] = -1  # nothing is predicted, yet this one is the likeliest
    found = false_alarms(replace(evidence, id_outputs=Outputs(logits)), 0.95)
    assert (found["kind"], found["label_kind"]) == ("predicted", "most likely")
    assert [(one["label"], one["n_inputs"]) for one in found["by_label"]] == [
        ("label 2", 10),
        ("label 0", 90),
    ]
    assert "joint_energy: 5 of 100 inputs with 0 predicted labels" in found["by_count"]


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
    labels = np.zeros((100, 3), dtype=np.uint8)
    for at, size in enumerate(sizes):
        labels[:size, at] = 1
    labelled = replace(evidence, id_outputs=Outputs(np.zeros((100, 3)), labels=labels))
    found = false_alarms(labelled, 0.95)
    assert found["left_out"] == said
    least = min(10, max(sizes))
    assert sorted(one["n_inputs"] for one in found["by_label"]) == sorted(
        size for size in sizes if size >= least
    )


def test_the_best_detectors_are_beside_the_two(evidence):
    later = Scored(np.arange(100.0)[::-1].copy(), {})
    more = {f"d{at}": later for at in range(9)}
    changed = replace(evidence, scores={**evidence.scores, **more})
    found = false_alarms(changed, 0.95, ["d0", "joint_energy", "d0"])
    assert list(found["styles"]) == ["joint_energy", "max_logit", "d0"]
    assert "4 by both; 5 by d0." in found["totals"]
    assert "d0: 5 of 100 inputs" in found["by_count"]
    assert found["by_count"].count('class="bar c0"') == found["by_count"].count('class="bar joint"')
    # At most as many detectors as there are colours.
    assert len(false_alarms(changed, 0.95, list(more))["styles"]) == 5
