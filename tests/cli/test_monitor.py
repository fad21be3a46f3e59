"""nescio monitor on files that nescio score wrote."""

import json
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from nescio._io.files import exclusive

NAMES = ["cat", "dog", "car", "tree", "boat"]


@pytest.fixture
def files(tmp_path, succeeds):
    """A detector, a quiet day and a day on which dogs and trees look different."""
    rng = np.random.default_rng(0)
    held_out = ns.Outputs(rng.normal(-1, 2, (1500, 5)), label_names=NAMES)
    held_out.save("val.safetensors")
    ns.JointEnergy().calibrate(held_out).save("tagger.nescio")
    for day, shift in (("quiet", 0.0), ("strange", -1.5)):
        logits = rng.normal(-1, 2, (1200, 5))
        logits[:, [1, 3]] += shift
        ids = [f"{day} {index}" for index in range(1200)]
        ns.Outputs(logits, label_names=NAMES, ids=ids).save(f"{day}.safetensors")
        for suffix in ("csv", "jsonl"):
            succeeds("score", "tagger.nescio", f"{day}.safetensors", "-o", f"{day}.{suffix}")
    return tmp_path


WITH = ("--detector", "tagger.nescio")


def test_a_quiet_stream_gives_0(files, nescio):
    code, out, err = nescio("monitor", "quiet.csv", *WITH)
    assert (code, err) == (0, "")
    assert out.startswith("No alarm: the 1,200 inputs look like the calibration data.\n")
    assert "window incomplete, inputs 1,001 to 1,200" in out
    assert "To look at them" not in out
    assert out.endswith("at its strongest (alarm at 100).\n")


def test_a_strange_stream_gives_3_and_says_since_when(files, nescio, fails):
    arguments = ("strange.jsonl", *WITH, "--plot", "p.html")
    code, out, _ = nescio("monitor", *arguments)
    assert code == 3
    assert out.startswith("ALARM: since about input ")
    assert "(id strange " in out.split("\n")[0]
    assert "score lower than the calibration data" in out.split("\n")[0]
    assert "saved p.html" in out
    assert "Evidence of a change" in (files / "p.html").read_text("utf-8")
    assert "p.html exists already" in fails("monitor", *arguments)
    assert nescio("monitor", *arguments, "--force")[0] == 3


def test_the_state_goes_on_from_run_to_run(files, nescio, succeeds, fails):
    state = ("--state", "state.safetensors")
    succeeds("monitor", "quiet.csv", *WITH, *state, "--alpha", "0.05", "--json")
    code, out, _ = nescio("monitor", "strange.csv", *WITH, *state, "--json")
    report = json.loads(out)
    assert (code, report["n_samples"], report["alpha"]) == (3, 2400, 0.05)
    assert report["alarm_at"] > 1200
    # What was raised stays raised.
    assert nescio("monitor", *WITH, *state)[0] == 3
    assert "started with --alpha 0.05" in fails(
        "monitor", "quiet.csv", *WITH, *state, "--alpha", "0.01"
    )
    assert "a file that was counted before" in fails(
        "monitor", "quiet.csv", *WITH, *state, "--force"
    )


def test_a_run_goes_on_after_an_acknowledged_alarm(files, nescio, succeeds, fails):
    watch = ("monitor", *WITH, "--state", "state.safetensors")
    assert nescio(*watch, "strange.csv")[0] == 3
    note = ("--acknowledge", "Ann: lens cleaned")
    assert "(Ann: lens cleaned)" in succeeds(*watch, *note)
    report = json.loads(succeeds(*watch, "quiet.csv", "--json"))
    (record,) = report["acknowledged"]
    assert record["alarm"].startswith("ALARM: since about input ")
    assert (report["n_samples"], record["note"]) == (1200, "Ann: lens cleaned")
    assert "there is no alarm and no changed group to acknowledge" in fails(*watch, *note)
    assert "a file that was counted before" in fails(*watch, "strange.csv")
    for name, left_out in (("strange", 1), ("quiet", 2), ("strange", 3)):  # other files
        rows = Path(f"{name}.csv").read_text().splitlines(keepends=True)
        Path(f"{name}-{left_out}.csv").write_text("".join(rows[:-left_out]))
    assert nescio(*watch, "strange-1.csv")[0] == 3
    # The next file can be counted by the same command.
    assert "1,198 inputs" in succeeds(*watch, "quiet-2.csv", *note)
    # Without a table, the state is shown, and it stays as it is.
    before = Path("state.safetensors").read_bytes()
    assert "1,198 inputs" in succeeds(*watch)
    assert Path("state.safetensors").read_bytes() == before
    assert "pass SCORED" in fails(*watch[:3])
    assert "--acknowledge needs --state" in fails(*watch[:3], *note)
    assert "no file none.safetensors" in fails(*watch[:-1], "none.safetensors", *note)
    assert not Path("none.safetensors").exists()
    again = '--state state.safetensors --acknowledge "who, '
    assert again in nescio(*watch, "strange-3.csv")[1]


def test_a_changed_group_gives_3_until_it_is_acknowledged(tmp_path, nescio, succeeds):
    """A site that is dead flags so few inputs that no alarm is raised."""
    rng = np.random.default_rng(0)
    sites = np.where(np.arange(1000) % 40 == 0, "tiny", "large")
    held_out = ns.Outputs(rng.normal(-1, 2, (1000, 5)), label_names=NAMES, kept={"site": sites})
    held_out.save("val.safetensors")
    by = ("--group-column", "site", "--nonfinite", "out")
    succeeds("calibrate", "val.safetensors", *by, "-d", "joint_energy", "-o", "our tagger.nescio")
    logits = rng.normal(-1, 2, (1000, 5))
    logits[sites == "tiny"] = np.nan
    ns.Outputs(logits, label_names=NAMES, kept={"site": sites}).save("new.safetensors")
    succeeds("score", "our tagger.nescio", "new.safetensors", *by, "-o", "scored.csv")
    watch = ("monitor", "--detector", "our tagger.nescio", "--state", "state.safetensors")
    for arguments in ((*watch, "scored.csv"), watch):
        code, out, _ = nescio(*arguments)
        assert (code, out.partition(":")[0]) == (3, "CHANGED")
    own = "--detector 'our tagger.nescio'"
    look = f"nescio report --id OUTPUTS {own} --group-column site --nonfinite out -o report.html"
    assert f"\nTo look at them: {look}\nTo start again afterwards: nescio monitor {own}" in out
    assert json.loads(nescio(*watch, "--json")[1])["changed"] is True
    out = succeeds(*watch, "--acknowledge", "Ann: the cable is in again")
    assert out.startswith("No inputs since the latest acknowledged change.")
    assert "To look at them" not in out


def test_two_runs_on_one_state_lose_no_rows(files, succeeds, fails):
    """The second one is refused while the first one holds the state."""
    command = ("monitor", "quiet.csv", *WITH, "--state", "state.safetensors")
    with exclusive(Path("state.safetensors")):
        assert "another process is using state.safetensors" in fails(*command)
    succeeds(*command)


def test_a_failed_run_leaves_the_state_alone(files, nescio, fails):
    state = ("--state", "state.safetensors")
    nescio("monitor", "quiet.csv", *WITH, *state)
    before = (files / "state.safetensors").read_bytes()
    ns.JointEnergy().calibrate(ns.Outputs.load("quiet.safetensors")).save("other.nescio")
    assert "another detector" in fails("monitor", "quiet.csv", "--detector", "other.nescio", *state)
    assert "does not match its score" in fails("monitor", "quiet.csv", "--detector", "other.nescio")
    assert (files / "state.safetensors").read_bytes() == before


def test_the_time_since_which_inputs_have_changed_is_named(files, nescio, fails):
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv("strange.csv")
    table["taken"] = pandas.date_range("2026-01-01", periods=len(table), freq="h")
    table.to_parquet("timed.parquet", index=False)
    run = ("monitor", "timed.parquet", *WITH)
    code, out, err = nescio(*run, "--time-column", "taken", "--json")
    assert err == ""
    since = json.loads(out)["change"]["since"]
    assert code == 3
    assert since["id"] == f"strange {since['number'] - 1}"
    assert pandas.Timestamp(since["time"]) == table["taken"][since["number"] - 1]
    for option in ("--time-column", "--id-column"):
        assert "there is no column 'time'. The columns are 'id', 'score'" in fails(
            *run, option, "time"
        )


@pytest.mark.filterwarnings("default::nescio.errors.NescioWarning")
def test_the_inputs_that_calibrated_the_detector_are_noticed(files, nescio):
    nescio("score", "tagger.nescio", "val.safetensors", "-o", "known.csv")
    code, out, err = nescio("monitor", "known.csv", *WITH)
    assert (code, out.partition(":")[0]) == (0, "No alarm")
    assert err.startswith("warning: 1,500 of 1,500 scores are exactly those of calibration inputs.")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("missing.csv", *WITH), "no file missing.csv"),
        (("quiet.safetensors", *WITH), "must end in"),
        (("quiet.csv", *WITH, "--alpha", "2"), "alpha must lie"),
        (("quiet.csv", *WITH, "--window", "1"), "window must be"),
        (("quiet.csv", *WITH, "--state", "quiet.csv"), "is an input"),
        (("quiet.csv", *WITH, "--state", "val.safetensors"), "not a saved monitor"),
        (("quiet.csv", *WITH, "--plot", "plot.png"), "must end in .html"),
    ],
)
def test_mistakes_give_1_and_a_reason(files, fails, arguments, reason):
    assert reason in fails("monitor", *arguments)
    assert not (files / "plot.png").exists()


def test_json_has_the_latest_windows(files, nescio):
    result = json.loads(nescio("monitor", "quiet.csv", *WITH, "--window", "10", "--json")[1])
    assert "trace" not in result
    assert result["n_windows"] == 120
    assert [window["start"] for window in result["windows"]] == list(range(1000, 1200, 10))
