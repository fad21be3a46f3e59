"""What commands print, and progress."""

import subprocess
import sys
from subprocess import PIPE

import numpy as np

import nescio as ns
from nescio.cli import console
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


def test_the_help_shows_the_choices_of_an_option(succeeds):
    assert "raise|out" in succeeds("score", "--help")
    assert "local|ray" in succeeds("score", "--help")
    assert "head|none|auto" in succeeds("choose", "--help")


def test_an_output_that_nobody_reads_ends_the_command_quietly(tmp_path):
    rng = np.random.default_rng(0)
    ns.JointEnergy().calibrate(rng.normal(size=(50, 3))).save(tmp_path / "d.nescio")
    np.save(tmp_path / "x.npy", rng.normal(size=(9000, 3)))
    command = [sys.executable, "-m", "nescio", "score", "d.nescio", "x.npy", "--json"]
    for arguments in (command, [*command[:3], "info", "d.nescio"]):
        with subprocess.Popen(arguments, cwd=tmp_path, stdout=PIPE, stderr=PIPE) as running:
            running.stdout.close()
            assert (running.stderr.read(), running.wait()) == (b"", 141)


def test_sentences_of_an_explanation_are_whole(tmp_path, succeeds):
    names = [f"a label with a long name, which has the number {number}" for number in range(9)]
    values = np.random.default_rng(0).normal(size=(300, 9))
    detector = ns.detectors.OutOfRange("logits", held_out=True)
    detector.calibrate(ns.Outputs(values, label_names=names)).save(tmp_path / "d.nescio")
    ns.Outputs(values + 9, label_names=names).save(tmp_path / "x.safetensors")
    out = succeeds("explain", tmp_path / "d.nescio", tmp_path / "x.safetensors", "--row", 0)
    reason = detector.explain(ns.Outputs(values + 9, label_names=names))[0]
    assert reason._view().text in out
    assert all(note in out for note in reason._view().notes)


def test_errors_have_the_words_of_the_command_line():
    message = "pass ignore=['a', 'b'] (--ignore a,b) or groups=... (--group-column), force=True."
    expected = "pass --ignore a,b or --group-column, --force."
    assert console._with_options(message) == expected
    truth = "Add the truth: Outputs(..., labels=...)."
    assert "lists in a column labels" in console._with_options(truth)


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
