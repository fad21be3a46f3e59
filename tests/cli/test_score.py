"""nescio score."""

import numpy as np
from rich.text import Text

import nescio as ns
from nescio.cli.options import terminal


def test_scoring_and_evaluating_can_count_bad_rows_as_out_too(here, nescio):
    nescio("calibrate", "val.npy", "-o", "x.nescio")
    spoiled = np.load("test.npy")
    spoiled[7, 2] = np.nan
    np.save("spoiled.npy", spoiled)
    code, _, err = nescio("score", "x.nescio", "spoiled.npy")
    assert code == 1
    assert err.startswith("error: spoiled.npy: logits hold NaN")
    code, _, err = nescio("score", "x.nescio", "spoiled.npy", "--nonfinite", "out")
    assert (code, err) == (0, "")
    evaluate = ("eval", "--id", "test.npy", "--ood", "spoiled.npy", "-d", "msp")
    code, _, err = nescio(*evaluate)
    assert code == 1
    assert err.startswith("error: spoiled: logits hold NaN")
    assert nescio(*evaluate, "--nonfinite", "out")[0] == 0


def test_a_detector_of_custom_groups_needs_python(here, nescio):
    groups = np.repeat(["a", "b"], 250)
    ns.JointEnergy().calibrate(np.load("val.npy"), groups=groups).save("x.nescio")
    code, _, err = nescio("score", "x.nescio", "new.parquet")
    assert code == 1
    assert "groups=..." in err


def test_brackets_in_names_are_nothing_special(here, nescio):
    (here / "x[").mkdir()
    code, out, _ = nescio("calibrate", "val.npy", "-o", "x[/b].nescio")
    assert (code, "saved x[/b].nescio" in out) == (0, True)
    np.save("far[v2].npy", np.load("objects.npy"))
    _, out, _ = nescio("eval", "--id", "test.npy", "--ood", "far[v2].npy", "-d", "msp")
    assert "far[v2]: 300 ID" in out
    groups = np.repeat(["[day]", "[/night]"], 250)
    ns.JointEnergy().calibrate(np.load("val.npy"), groups=groups).save("y.nescio")
    code, out, _ = nescio("info", "y.nescio")
    assert (code, "group [/night]: With" in out) == (0, True)


def test_control_characters_of_ids_do_not_reach_the_terminal(nescio, tmp_path):
    rng = np.random.default_rng(0)
    ns.JointEnergy().calibrate(rng.normal(size=(50, 3))).save(tmp_path / "d.nescio")
    ids = ["\x1b[31mred", "a\x9b2Jb", "\rover"]
    ns.Outputs(rng.normal(size=(3, 3)), ids=ids).save(tmp_path / "x.safetensors")
    code, out, err = nescio("score", tmp_path / "d.nescio", tmp_path / "x.safetensors")
    assert code == 0, err
    assert "\ufffd[31mred" in out
    assert not set(out) & {"\x1b", "\x9b", "\r"}
    code, _, err = nescio("score", tmp_path / "d.nescio", tmp_path / "\x1b]0;title\x07.npy")
    assert code == 1
    assert "\ufffd]0;title\ufffd.npy" in err
    console = terminal()
    with console.capture() as shown:
        console.print(Text("\x1b[31mred"))
    assert shown.get() == "\ufffd[31mred\n"
