"""What all commands share: the README's commands in a row, one-line errors, exit codes, help."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from fixtures.commands import in_a_process
from nescio.detectors import DETECTORS


def test_the_commands_of_the_readme(here, nescio, succeeds):
    fit = ("val.npy", "--detector", "joint_energy", "--tpr", "0.95", "-o", "tagger.nescio")
    code, out, err = nescio("calibrate", *fit)
    assert (code, err) == (0, "")
    assert "With 500 calibration samples, the true TPR lies in" in out
    assert "saved tagger.nescio" in out
    out = succeeds("score", "tagger.nescio", "new.parquet", "-o", "scored.parquet")
    assert "40 scored" in out
    import pyarrow.parquet as pq

    table = pq.read_table("scored.parquet").to_pydict()
    expected = ns.load("tagger.nescio").assess(ns.Outputs.load("new.parquet"))
    assert table["id"][3] == "img3"
    assert table["score"] == expected.scores.tolist()
    assert table["in_distribution"] == expected.in_distribution.tolist()
    out = succeeds(
        "eval", "--id", "test.npy", "--ood", "textures.npy", "--ood", "objects.npy",
        "--detector", "all", "--bootstrap", "50",
    )  # fmt: skip
    assert "textures: 300 ID against 200 OOD" in out
    assert "objects: 300 ID against 200 OOD" in out
    assert "DeLong" in out
    assert "and 15 more): --json has the reasons" in out
    out = succeeds("detectors")
    for name in DETECTORS:
        assert name in out


def test_machines_read_json(here, nescio):
    code, out, _ = nescio("calibrate", "val.npy", "-o", "x.nescio", "--json")
    fitted = json.loads(out)
    assert (code, fitted["n_samples"], fitted["detector"]) == (0, 250, "combined")
    assert fitted["threshold"]["all"] == ns.load("x.nescio").offset_
    low, high = fitted["tpr_interval_99"]["all"]
    assert low < 0.95 < high
    scored = json.loads(nescio("score", "x.nescio", "new.parquet", "--json")[1])
    assert scored["n_samples"] == len(scored["rows"]) == 40
    assert set(scored["rows"][0]) == {"id", "score", "p_value", "in_distribution"}
    to_file = json.loads(nescio("score", "x.nescio", "new.parquet", "-o", "y.csv", "--json")[1])
    assert to_file == {
        "n_samples": 40,
        "n_labels": 6,
        "ignored_columns": [],
        "kept_columns": [],
        "n_flagged": scored["n_flagged"],
        "n_nonfinite": 0,
        "output": "y.csv",
    }
    evaluated = json.loads(
        nescio("eval", "--id", "test.npy", "--ood", "objects.npy", "-d", "msp", "--json")[1]
    )
    assert evaluated["results"][0]["detector"] == "msp"
    assert evaluated["lead"] == {}
    listed = json.loads(nescio("detectors", "--json")[1])
    assert [row["name"] for row in listed] == list(DETECTORS)
    info = json.loads(nescio("info", "x.nescio", "--json")[1])
    assert (info["n_columns"], info["n_samples"]) == ({"logits": 6}, 250)
    assert info["tpr_interval_99"] == fitted["tpr_interval_99"]


MISTAKES = {
    "no such data": (
        ("calibrate", "nowhere.npy", "-o", "x.nescio"),
        "there is no file nowhere.npy",
    ),
    "no such detector": (
        ("calibrate", "val.npy", "-o", "x.nescio", "-d", "softmax"),
        "no detector 'softmax'. 'nescio detectors' lists all",
    ),
    "nothing to learn from": (
        ("calibrate", "val.npy", "-o", "x.nescio", "-d", "lof"),
        "lof learns from data: pass training outputs with --train",
    ),
    "calibrating on training data": (
        (
            *("calibrate", "held.safetensors", "-o", "x.nescio", "-d", "lof"),
            *("--train", "./held.safetensors"),
        ),
        "would void the guarantee",
    ),
    "in the way, said before reading": (
        ("calibrate", "nowhere.npy", "-o", "val.npy"),
        "val.npy exists already. Pass --force to replace it.",
    ),
    "output is input": (
        ("calibrate", "val.npy", "-o", "val.npy", "--force"),
        "val.npy is an input",
    ),
    "scored over itself": (
        ("score", "tagger.nescio", "four.csv", "-o", "./four.csv", "--force"),
        "is an input",
    ),
    "not a folder": (("demo", "-o", "val.npy"), "val.npy is not a folder"),
    "no such folder": (("calibrate", "val.npy", "-o", "a/x.nescio"), "there is no directory"),
    "not a detector": (
        ("score", "val.npy", "new.parquet"),
        "not a detector saved by nescio calibrate",
    ),
    "other labels": (("score", "tagger.nescio", "four.csv"), "made for 6 labels"),
    "no rows": (("score", "tagger.nescio", "empty.npy"), "has no rows"),
    "unknown ending": (
        ("score", "tagger.nescio", "new.parquet", "-o", "x.xls"),
        "must end in .parquet, .csv or .jsonl",
    ),
    "the same twice": (
        ("eval", "--id", "test.npy", "--ood", "objects.npy", "--ood", "objects.npy"),
        "given twice",
    ),
}


@pytest.mark.parametrize(("arguments", "reason"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_one_line_and_writes_nothing(here, nescio, arguments, reason):
    nescio("calibrate", "val.npy", "-o", "tagger.nescio")
    (here / "four.csv").write_text("a,b,c,d\n1.5,2.5,3.5,-4.5\n")
    np.save("empty.npy", np.zeros((0, 6)))
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    code, out, err = nescio(*arguments)
    assert (code, out, err.count("\n"), err[:7]) == (1, "", 1, "error: ")
    assert reason in err
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before


@pytest.mark.parametrize(
    "arguments",
    [(), ("calibrate",), ("calibrate", "val.npy"), ("fly",), ("score", "--fdr", "lots", "a", "b")],
)
def test_wrong_usage_is_exit_code_2(nescio, arguments):
    assert nescio(*arguments)[0] == 2


def test_python_dash_m():
    assert in_a_process("--version").stdout == f"nescio {ns.__version__}\n"


_INTERRUPTED_AT = """
import os, signal, sys
module = sys.argv.pop(1)
class Finder:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
sys.meta_path.insert(0, Finder())
from nescio.__main__ import run
run()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
@pytest.mark.parametrize("module", ["nescio.cli", "numpy", "nescio.detectors.saving"])
def test_ctrl_c_is_one_line_at_any_moment(here, module):
    """A real signal, sent while this module is imported: at the start, or during the work."""
    command = ("calibrate", "val.npy", "-o", "x.nescio")
    finished = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_AT, module, *command],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (finished.returncode, finished.stderr) == (130, "interrupted\n")
    assert not (here / "x.nescio").exists()


def test_almost_nothing_is_imported_before_ctrl_c_is_caught():
    """Until `run` is called, Ctrl-C prints a traceback: typing alone took most of this time."""
    code = (
        f"import sys; sys.path.append({str(Path(ns.__file__).parents[1])!r})\n"
        "old = set(sys.modules); import nescio.__main__; print(*set(sys.modules) - old)"
    )
    # -S: without the modules that an environment imports at the start.
    command = [sys.executable, "-S", "-c", code]
    new = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    small = ("nescio", "importlib", "warnings", "_")  # and private modules
    assert [name for name in new if not name.startswith(small)] == []
    assert "nescio.cli" not in new


def test_a_pattern_without_quotes_says_what_to_do(here, nescio):
    Path("many").mkdir()
    for name in ("a", "b"):
        Path("many", f"{name}.npy").touch()
    code, _, err = nescio("score", "tagger.nescio", "many/a.npy", "many/b.npy")
    assert code == 2
    assert "Put a pattern of several files in quotes: 'many/*.npy'." in err
    assert "in quotes" not in nescio("score", "tagger.nescio", "a.npy", "b.npy")[2]


def test_names_with_spaces_between_them_say_what_to_do(here, nescio):
    code, _, err = nescio("calibrate", "val.npy", "--ignore", "id", "text", "-o", "x.nescio")
    assert code == 2
    assert "Put commas between names, without spaces: --ignore id,text." in err
    assert "commas" not in nescio("calibrate", "--ignore", "id", "val.npy")[2]


def test_help_and_version(nescio, succeeds):
    out = succeeds("--help")
    assert "trusted" in out
    assert "--install-completion" in out
    assert out.index("Verdicts") < out.index("calibrate ") < out.index("Experiments of the paper")
    commands = re.findall(r"^│ ([a-z]+) ", out, re.MULTILINE)
    assert len(commands) > 15
    for command in commands:
        assert "<bool>" not in nescio(command, "-h")[1], command  # a flag takes no value


def test_a_warning_is_one_line_without_a_traceback(here, nescio):
    outputs = ns.Outputs.load("train.safetensors")
    labels = outputs.labels.copy()
    labels[:, 0] = 0
    ns.Outputs(outputs.logits, outputs.features, labels).save("gap.safetensors")
    finished = in_a_process(
        *("calibrate", "held.safetensors", "-d", "mahalanobis", "--train", "gap.safetensors"),
        *("-o", "x.nescio"),
    )
    assert finished.returncode == 0
    assert finished.stderr.count("\n") == 1
    assert finished.stderr.startswith("warning: 1 of 6 labels have no sample")


@pytest.mark.parametrize(("setting", "expected"), [(None, "1"), ("0", "0")])
def test_commands_do_not_let_onnxruntime_send_events(setting, expected, monkeypatch):
    from nescio.__main__ import run

    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", setting or "")
    if setting is None:
        monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    monkeypatch.setattr("sys.argv", ["nescio", "--version"])
    with pytest.raises(SystemExit):
        run()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == expected
