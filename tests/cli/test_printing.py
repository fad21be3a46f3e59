"""What commands print, and progress."""

import numpy as np

import nescio as ns
from nescio.cli.console import stages


def test_control_characters_of_ids_do_not_reach_the_terminal(succeeds, fails, tmp_path):
    rng = np.random.default_rng(0)
    ns.JointEnergy().calibrate(rng.normal(size=(50, 3))).save(tmp_path / "d.nescio")
    ids = ["\x1b[31mred", "a\x9b2Jb", "\rover"]
    ns.Outputs(rng.normal(size=(3, 3)), ids=ids).save(tmp_path / "x.safetensors")
    out = succeeds("score", tmp_path / "d.nescio", tmp_path / "x.safetensors")
    assert "\ufffd[31mred" in out
    assert not set(out) & {"\x1b", "\x9b", "\r"}
    assert "\ufffd]0;title\ufffd.npy" in fails(
        "score", tmp_path / "d.nescio", tmp_path / "\x1b]0;title\x07.npy"
    )


def test_a_long_stage_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr("nescio.cli.console._SECONDS_BETWEEN_LINES", 0)
    with stages() as watch, watch("training [x]", 4) as advance:
        advance(1)
        advance(2)
        advance(1)
    said = capsys.readouterr().err.splitlines()
    assert said == ["training [x]", "training [x]: 25%", "training [x]: 75%"]
    monkeypatch.undo()
    with stages() as watch, watch("training", 4) as advance:
        advance(1)
    assert capsys.readouterr().err == "training\n"


def test_a_stage_of_unknown_length(capsys):
    with stages() as watch, watch("waiting", 0) as advance:
        advance(1)
    assert capsys.readouterr().err == "waiting\n"
