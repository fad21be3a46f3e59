"""nescio explain: which input, what is printed, and how the bars look."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import nescio as ns
from nescio.checks import make_outputs
from nescio.cli.explain import _ASCII_SIGNS, _bar
from nescio.explain import LabelTerm

NAMES = ("person", "dog", "car", "traffic light", "bird", "a chair")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with detectors and new data, of which row 7 is the strangest."""
    monkeypatch.chdir(tmp_path)
    logits = make_outputs(12, seed=3).logits.copy()
    logits[7] = -6, -5, -8, -7, -9, -7.5
    ids = [f"img{row}" for row in range(12)]
    ns.Outputs(logits, ids=ids, label_names=NAMES).save("new.safetensors")
    held = ns.Outputs(make_outputs(1500).logits, label_names=NAMES)
    held.save("held.safetensors")
    ns.JointEnergy().calibrate(held).save("x.nescio")
    return tmp_path


def row(line):
    """The cells of a line of a table; a median may be drawn as the sign between cells."""
    return [cell.strip() for cell in line.strip("┃│ ").replace("┃", " │ ").split(" │ ")]


def test_without_a_row_the_most_suspicious_input_is_explained(here, nescio):
    code, out, err = nescio("explain", "x.nescio", "new.safetensors")
    assert (code, err) == (0, "")
    reason = ns.load("x.nescio").explain(ns.Outputs.load("new.safetensors"))[7]
    lines = out.splitlines()
    assert lines[0] == f"row 7, img7: {reason.headline()}"
    assert lines[0].startswith("row 7, img7: OUT. joint_energy 0.01")
    assert lines[1] == reason.summary()
    table = [row(line) for line in lines[3:]]
    assert table[0][2:] == ["energy", "share", "median", "rank median"]
    assert [cells[0] for cells in table[2:4]] == ["dog", "person"]
    assert {"│", "○"} < set(lines[5])
    assert f"{reason.labels[0].share:.1%}" in lines[5]
    assert "\x1b" not in out


def test_a_row_or_an_id_can_be_asked_for(here, nescio):
    by_row = nescio("explain", "x.nescio", "new.safetensors", "--row", "3")
    assert by_row[1].startswith("row 3, img3: in-distribution. ")
    assert by_row == nescio("explain", "x.nescio", "new.safetensors", "--id", "img3")
    assert nescio("explain", "x.nescio", "new.safetensors", "--row", "0")[1].startswith("row 0,")
    _, out, _ = nescio("explain", "x.nescio", "new.safetensors", "--top", "2")
    assert sum(line[2:].startswith(NAMES) for line in out.splitlines()) == 2
    assert "4 other labels: " in out


def test_machines_read_json(here, nescio):
    code, out, _ = nescio("explain", "x.nescio", "new.safetensors", "--top", "2", "--json")
    found = json.loads(out)
    assert (code, found["row"], found["id"], found["in_distribution"]) == (0, 7, "img7", False)
    assert {label["label"] for label in found["labels"]} == set(NAMES)
    assert sum(label["share"] for label in found["labels"]) == pytest.approx(1)
    assert found["score"] == pytest.approx(sum(label["term"] for label in found["labels"]))
    assert (found["group"], found["term"], found["detector"]) == (None, "energy", "joint_energy")


def test_probabilities_and_bad_rows_as_in_score(here, nescio):
    new = ns.Outputs.load("new.safetensors").logits
    np.save("probs.npy", ns.scores.label_prob(new))
    code, _, err = nescio("explain", "x.nescio", "probs.npy")
    assert (code, "--from-probs" in err) == (1, True)
    code, out, _ = nescio("explain", "x.nescio", "probs.npy", "--from-probs")
    assert (code, out.startswith("row 7: OUT.")) == (0, True)
    spoiled = new.copy()
    spoiled[4, 1] = np.nan
    np.save("spoiled.npy", spoiled)
    code, _, err = nescio("explain", "x.nescio", "spoiled.npy")
    assert code == 1
    assert err.startswith("error: spoiled.npy: logits hold NaN")
    assert nescio("explain", "x.nescio", "spoiled.npy", "--row", "0")[0] == 0  # only row 4 is bad
    _, out, _ = nescio("explain", "x.nescio", "spoiled.npy", "--nonfinite", "out")
    assert out.startswith("row 4: OUT. joint_energy -inf is below")
    assert "Its logits hold NaN or infinity: dog." in out


MISTAKES = {
    "no such row": (("x.nescio", "new.safetensors", "--row", "12"), "the rows are 0 to 11."),
    "no such id": (
        ("x.nescio", "new.safetensors", "--id", "img33"),
        "new.safetensors: there is no id 'img33'. Did you mean 'img3'",
    ),
    "an id twice": (("x.nescio", "twice.safetensors", "--id", "b"), "2 rows have the id 'b'"),
    "no ids": (("x.nescio", "plain.npy", "--id", "img3"), "Pass --row instead"),
    "both": (("x.nescio", "new.safetensors", "--id", "a", "--row", "1"), "Pass only one of them"),
    "no labels": (("x.nescio", "new.safetensors", "--top", "0"), "--top must be a whole"),
    "not made of labels": (("msp.nescio", "new.safetensors"), "msp cannot be explained"),
    "groups of one's own": (("own.nescio", "new.safetensors"), "explain(..., groups=...)"),
    "other labels": (("x.nescio", "four.npy"), "four.npy: the detector was made for 6 labels"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "reason"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_one_line(here, nescio, arguments, reason):
    held = ns.Outputs.load("held.safetensors")
    ns.Outputs(held.logits[:3], ids=["a", "b", "b"]).save("twice.safetensors")
    np.save("plain.npy", held.logits[:3])
    ns.MSP().calibrate(held).save("msp.nescio")
    ns.JointEnergy().calibrate(held, groups=["a", "b"] * 750).save("own.nescio")
    np.save("four.npy", held.logits[:3, :4])
    code, out, err = nescio("explain", *arguments)
    assert (code, out, err.count("\n"), err[:7]) == (1, "", 1, "error: ")
    assert reason in err


# --- how it looks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "median", "rank_median", "expected"),
    [
        (5.0, 0.0, 10.0, "|####    o"),
        (10.0, 2.0, 4.0, "##|#o#####"),
        (0.0, 3.0, 3.0, "   |      "),
        (np.nan, 0.0, 10.0, "|        o"),
        (-np.inf, -np.inf, 5.0, "     o    "),
    ],
)
def test_a_bar(term, median, rank_median, expected):
    label = LabelTerm("x", term, 0.5, median, 1, rank_median)
    assert _bar(label, (0.0, 10.0), 10, _ASCII_SIGNS) == expected


@pytest.mark.parametrize("width", ["70", "90"])
def test_a_narrow_terminal(here, nescio, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    _, out, _ = nescio("explain", "x.nescio", "new.safetensors", "--row", "3")
    assert max(len(line) for line in out.splitlines() if line[0] in "│┃") <= int(width)
    assert "█" in out
    assert "traffic" in out


def test_a_terminal_without_bars_and_other_alphabets(here):
    names = ["猫と犬", "dog\n\x1b[31m", *NAMES[2:]]
    new = ns.Outputs.load("new.safetensors")
    ns.JointEnergy().calibrate(make_outputs(200).logits).save("plain.nescio")
    ns.Outputs(new.logits, label_names=names).save("odd.safetensors")
    command = "from nescio.__main__ import run; run()"
    for encoding in ("ascii", "utf-8"):
        finished = subprocess.run(
            [sys.executable, "-c", command, "explain", "plain.nescio", "odd.safetensors"],
            capture_output=True,
            check=False,
            env=os.environ | {"PYTHONIOENCODING": encoding, "COLUMNS": "120"},
        )
        assert (finished.returncode, finished.stderr) == (0, b"")
        lines = finished.stdout.decode(encoding).splitlines()
        assert not any("\x1b" in line for line in lines)
        assert any("猫と犬" in line or "???" in line for line in lines)
        assert any("[31m" in line for line in lines)
        legend = "# this input  | in-dist" if encoding == "ascii" else "█ this input  │ in-dist"
        assert lines[-1].startswith(legend)


def test_a_combination_is_explained_by_part(here, nescio):
    parts = "combined(detectors=[joint_energy, msp, top_k_logit(k=2)])"
    code, _, err = nescio("calibrate", "held.safetensors", "-d", parts, "-o", "both.nescio")
    assert code == 0, err
    code, out, err = nescio("explain", "both.nescio", "new.safetensors", "--row", "7", "--top", "2")
    assert (code, err) == (0, "")
    reason = ns.load("both.nescio").explain(ns.Outputs.load("new.safetensors"))[7]
    lines = out.splitlines()
    assert lines[:2] == [f"row 7, img7: {reason.headline()}", reason.summary()]
    assert row(lines[3]) == ["part", "score", "p-value", "share"]
    assert [row(line)[0] for line in lines[5:8]] == [part.detector for part in reason.parts]
    assert "joint_energy: Its largest energy is " in out
    assert "top_k_logit(k=2): Its largest logit is " in out
    assert "4 other labels" in out
    code, out, err = nescio("explain", "both.nescio", "new.safetensors", "--row", "7", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["row"], found["id"]) == (7, "img7")
    assert [part["detector"] for part in found["parts"]] == [p.detector for p in reason.parts]
    options = ("--row", "7", "--train", "held.safetensors")
    code, _, err = nescio("explain", "both.nescio", "new.safetensors", *options)
    assert code == 1
    assert "held.safetensors: the samples have no ids. Omit --train." in err


def test_the_nearest_training_samples_are_named(here, nescio):
    made = make_outputs(1500, seed=4)
    ids = [f"train{row}" for row in range(1500)]
    ns.Outputs(made.logits, features=made.features, ids=ids).save("train.safetensors")
    detector = ns.Combined(["joint_energy", "knn"]).fit(made)
    detector.calibrate(make_outputs(500, seed=5)).save("knn.nescio")
    make_outputs(3, seed=6).save("some.safetensors")
    rows = detector.detectors_[1].nearest(make_outputs(3, seed=6), 3)[1]
    given = ("explain", "knn.nescio", "some.safetensors", "--row", "1")
    _, out, _ = nescio(*given)
    assert f"knn: nearest training samples {', '.join(map(str, rows))}" in out
    code, out, err = nescio(*given, "--train", "train.safetensors")
    assert code == 0, err
    assert f"knn: nearest training samples {', '.join(f'train{row}' for row in rows)}" in out
    turned = ns.Outputs(made.logits, features=made.features, ids=ids)[np.arange(1500)[::-1]]
    turned.save("turned.safetensors")
    code, _, err = nescio(*given, "--train", "turned.safetensors")
    assert code == 1
    assert "turned.safetensors: the detector has not learned from this data, or not with the" in err
    others = make_outputs(1500, seed=7)
    ns.Outputs(others.logits, features=others.features, ids=ids).save("others.safetensors")
    code, _, err = nescio(*given, "--train", "others.safetensors")
    assert code == 1
    assert "others.safetensors: the detector has not learned from this data" in err
