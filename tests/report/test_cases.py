"""Case studies: the right inputs, with pictures if there are any."""

import base64
import io
import re
import sys
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from nescio.metrics.comparison import Scored
from nescio.outputs import Outputs
from nescio.report import build_report
from nescio.report.cases import case_groups, energy_bars, thumbnail, why_no_pictures


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


def test_verdicts_say_score_and_threshold(evidence):
    verdicts = case_groups(evidence, 0.95)[0]["cases"][0]["verdicts"]
    assert [tuple(one.values()) for one in verdicts] == [
        ("joint_energy", "2", "5", False, True),
        ("max_logit", "90", "5", True, False),
    ]


def test_no_case_without_a_threshold(evidence):
    lost = Scored(np.full(100, -np.inf), evidence.scores["max_logit"].ood_scores)
    changed = replace(evidence, scores={**evidence.scores, "max_logit": lost})
    assert case_groups(changed, 0.95) == []


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


def test_a_heat_map_over_the_picture_where_there_are_crops(evidence, class_tree, make_lines):
    pytest.importorskip("PIL.Image")
    root = class_tree("stones", classes=("x",), n_images=3) / "x"
    for at in range(3):
        (root / f"000{at}.jpg").rename(root / f"{at}.jpg")
    crops = np.zeros((100, 27))
    crops[:, 26] = np.linspace(-1, 0, 100)  # the last crop of an ID image is the lowest
    dark = np.full((4, 27), -0.1)  # as the lowest crop of most ID images
    dark[:, :9] = -20.0  # the upper crops of the OOD images show nothing
    ood = evidence.ood_outputs["stones"]
    changed = replace(
        evidence,
        id_outputs=replace(evidence.id_outputs, arrays={"crops_logits": crops}),
        ood_outputs={"stones": replace(ood, arrays={"crops_logits": dark})},
        image_roots={"stones": root},
    )
    case = case_groups(changed, 0.95)[0]["cases"][0]
    opacities = re.findall('fill-opacity="([0-9.]+)"', case["heat"])
    expected = np.repeat([0.6, 0.3, 0, 0], 4)  # half of the crops over the second row
    np.testing.assert_allclose(np.float64(opacities), expected, atol=0.05)
    assert case["picture"]
    page = build_report(make_lines(changed), [changed], title="t")
    assert '<div class="heated">' in page
    assert "The redder a place" in page
    assert case_groups(evidence, 0.95)[0]["cases"][0]["heat"] == ""


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


def test_numbers_stay_within_the_picture():
    rng = np.random.default_rng(0)
    for size in (1e-3, 1.0, 1e3):
        bars = energy_bars([*"abcdefgh"], size * rng.random(8), size * rng.random(8))
        width = float(re.search(r'viewBox="0 0 (\d+) ', bars)[1])
        found = re.findall(r'<text x="([\d.]+)" y="\d+">([^<]*)</text>', bars)
        assert len(found) == 7
        # Liberation Sans of 10.5 px: a digit is 5.84 wide, a space 2.92, "%" 9.34.
        ends = [
            float(x)
            + 5.84 * sum(one not in " .·%" for one in unescape(text))
            + 2.92 * (text.count(" ") + text.count("."))
            + 3.5
            + 9.34
            for x, text in found
        ]
        assert max(ends) <= width + 1


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


def test_the_reason_for_no_pictures_is_the_true_one(evidence, tmp_path, monkeypatch):
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
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert "Pillow is not installed" in why(with_root)


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
