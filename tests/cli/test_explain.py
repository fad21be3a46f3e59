"""nescio explain: which input, and what is printed."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import nescio as ns
from nescio.checks import make_outputs

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


def test_without_a_row_the_most_suspicious_input_is_explained_as_in_python(here, nescio):
    code, out, err = nescio("explain", "x.nescio", "new.safetensors")
    assert (code, err) == (0, "")
    reason = ns.load("x.nescio").explain(ns.Outputs.load("new.safetensors"))[7]
    assert out == f"row 7, {reason}\n"
    assert out.startswith("row 7, img7: OUT. joint_energy 0.01")


def test_a_row_or_an_id_can_be_asked_for(here, nescio):
    by_row = nescio("explain", "x.nescio", "new.safetensors", "--row", "3")
    assert by_row[1].startswith("row 3, img3: in-distribution. ")
    assert by_row == nescio("explain", "x.nescio", "new.safetensors", "--id", "img3")
    assert nescio("explain", "x.nescio", "new.safetensors", "--row", "0")[1].startswith("row 0,")


def test_machines_read_json(here, nescio):
    code, out, _ = nescio("explain", "x.nescio", "new.safetensors", "--json")
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


def test_other_alphabets_and_control_characters(here):
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
        text = finished.stdout.decode(encoding)
        assert "\x1b" not in text
        assert "猫と犬" in text or "???" in text
        assert "[31m" in text


def test_a_combination_is_explained_by_part(here, nescio):
    parts = "combined(detectors=[joint_energy, msp, top_k_logit(k=2)])"
    code, _, err = nescio("calibrate", "held.safetensors", "-d", parts, "-o", "both.nescio")
    assert code == 0, err
    code, out, err = nescio("explain", "both.nescio", "new.safetensors", "--row", "7")
    assert (code, err) == (0, "")
    reason = ns.load("both.nescio").explain(ns.Outputs.load("new.safetensors"))[7]
    assert out == f"row 7, {reason}\n\n{reason.by_label()}\n"
    code, out, err = nescio("explain", "both.nescio", "new.safetensors", "--row", "7", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["row"], found["id"]) == (7, "img7")
    assert [part["detector"] for part in found["parts"]] == [p.detector for p in reason.parts]
