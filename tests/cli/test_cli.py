import json
import subprocess
import sys

import numpy as np
import pytest

import nescio as ns
from nescio.checks import make_outputs
from nescio.detectors import DETECTORS


@pytest.fixture
def here(tmp_path, monkeypatch, rng):
    """A folder with the files of the README."""
    monkeypatch.chdir(tmp_path)
    np.save("val.npy", rng.normal(-1, 3, (500, 6)))
    np.save("test.npy", rng.normal(-1, 3, (300, 6)))
    np.save("textures.npy", rng.normal(-4, 2, (200, 6)))
    np.save("objects.npy", rng.normal(-3, 2, (200, 6)))
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    new = rng.normal(-2, 3, (40, 6))
    columns = {f"label {i}": new[:, i] for i in range(6)}
    pq.write_table(pa.table({"id": [f"img{i}" for i in range(40)], **columns}), "new.parquet")
    for name, seed in (("train", 0), ("held", 1)):
        make_outputs(1500, seed=seed).save(f"{name}.safetensors")
    make_outputs(100, seed=3, shift=2.0).save("far.safetensors")
    return tmp_path


def test_the_commands_of_the_readme(here, nescio):
    fit = ("fit", "val.npy", "--detector", "joint_energy", "--tpr", "0.95", "-o", "tagger.nescio")
    code, out, err = nescio(*fit)
    assert (code, err) == (0, "")
    assert "With 500 calibration samples, the true TPR lies in" in out
    assert "saved tagger.nescio" in out
    code, out, _ = nescio("score", "tagger.nescio", "new.parquet", "-o", "scored.parquet")
    assert code == 0
    assert "40 scored" in out
    import pyarrow.parquet as pq

    table = pq.read_table("scored.parquet").to_pydict()
    expected = ns.load("tagger.nescio").assess(ns.Outputs.load("new.parquet"))
    assert table["id"][3] == "img3"
    assert table["score"] == expected.scores.tolist()
    assert table["in_distribution"] == expected.in_distribution.tolist()
    code, out, _ = nescio(
        "eval", "--id", "test.npy", "--ood", "textures.npy", "--ood", "objects.npy",
        "--detector", "all", "--bootstrap", "50",
    )  # fmt: skip
    assert code == 0
    assert "textures: 300 ID against 200 OOD" in out
    assert "objects: 300 ID against 200 OOD" in out
    assert "DeLong" in out
    assert "left out mahalanobis: it reads features" in out
    code, out, _ = nescio("detectors")
    assert code == 0
    for name in DETECTORS:
        assert name in out


def test_machines_read_json(here, nescio):
    code, out, _ = nescio("fit", "val.npy", "-o", "x.nescio", "--json")
    fitted = json.loads(out)
    assert (code, fitted["n_samples"], fitted["detector"]) == (0, 500, "joint_energy")
    assert fitted["threshold"]["all"] == ns.load("x.nescio").offset_
    low, high = fitted["tpr_interval_99"]["all"]
    assert low < 0.95 < high
    scored = json.loads(nescio("score", "x.nescio", "new.parquet", "--json")[1])
    assert scored["n_samples"] == len(scored["rows"]) == 40
    assert set(scored["rows"][0]) == {"id", "score", "p_value", "in_distribution"}
    to_file = json.loads(nescio("score", "x.nescio", "new.parquet", "-o", "y.csv", "--json")[1])
    assert to_file == {"n_samples": 40, "n_flagged": scored["n_flagged"], "output": "y.csv"}
    evaluated = json.loads(
        nescio("eval", "--id", "test.npy", "--ood", "objects.npy", "-d", "msp", "--json")[1]
    )
    assert evaluated["results"][0]["detector"] == "msp"
    assert evaluated["lead"] == {}
    listed = json.loads(nescio("detectors", "--json")[1])
    assert [row["name"] for row in listed] == list(DETECTORS)
    info = json.loads(nescio("info", "x.nescio", "--json")[1])
    assert (info["n_labels"], info["n_samples"]) == (6, 500)
    assert info["tpr_interval_99"] == fitted["tpr_interval_99"]


@pytest.mark.parametrize("name", DETECTORS)
def test_every_detector_from_the_command_line(here, nescio, name):
    train = ("--train", "train.safetensors") if DETECTORS[name].learned else ()
    code, _, err = nescio("fit", "held.safetensors", "-d", name, "-o", "x.nescio", *train)
    assert (code, err) == (0, "")
    code, out, _ = nescio("score", "x.nescio", "far.safetensors", "--json")
    assert code == 0
    assert json.loads(out)["n_samples"] == 100
    code, out, _ = nescio("info", "x.nescio")
    assert code == 0
    assert f"detector             {name}" in out
    assert "true TPR" in out


def test_groups_rates_and_settings(here, nescio):
    fit = ("fit", "held.safetensors", "-o", "x.nescio", "--force")
    code, out, _ = nescio(*fit, "--by-label-count", "--confidence", "0.9")
    assert code == 0
    assert "(predicted labels: " in out
    assert next(iter(ns.load("x.nescio").calibration_.thresholds.values())).confidence == 0.9
    rows = json.loads(nescio("score", "x.nescio", "far.safetensors", "--json")[1])["rows"]
    assert {row["group"] for row in rows} <= set(ns.load("x.nescio").calibration_.threshold_values)
    code, out, _ = nescio("score", "x.nescio", "far.safetensors")
    assert "predicted labels" in out
    by_tau = sum(not row["in_distribution"] for row in rows)
    _, out, _ = nescio("score", "x.nescio", "far.safetensors", "--fdr", "0.1", "--json")
    expected = ns.load("x.nescio").assess(ns.Outputs.load("far.safetensors"), fdr=0.1)
    assert json.loads(out)["n_flagged"] == len(expected.flagged) != by_tau
    code, out, _ = nescio("info", "x.nescio")
    assert "confidence           0.9" in out
    assert nescio(*fit, "-d", "top_k_joint_energy", "--set", "k=2")[0] == 0
    assert ns.load("x.nescio").k == 2
    code, _, _ = nescio(
        *fit, "-d", "mahalanobis", "--set", "aggregate=sum", "--train", "train.safetensors"
    )
    assert code == 0
    assert ns.load("x.nescio").aggregate == "sum"


def test_probabilities_are_refused_unless_announced(here, nescio, rng):
    np.save("probs.npy", rng.random((200, 4)))
    code, out, err = nescio("fit", "probs.npy", "-o", "x.nescio")
    assert (code, out) == (1, "")
    assert "look like probabilities" in err
    assert "--from-probs" in err
    assert not (here / "x.nescio").exists()
    assert nescio("fit", "probs.npy", "-o", "x.nescio", "--from-probs")[0] == 0
    assert nescio("score", "x.nescio", "probs.npy")[0] == 1
    assert nescio("score", "x.nescio", "probs.npy", "--from-probs")[0] == 0
    np.save("few.npy", np.array([[0.2, 0.3, 0.4, 0.5]]))
    assert nescio("score", "x.nescio", "few.npy")[0] == 1
    assert nescio("score", "x.nescio", "few.npy", "--from-logits")[::2] == (0, "")
    assert nescio("fit", "probs.npy", "-o", "y.nescio", "--from-logits")[::2] == (0, "")
    np.save("other.npy", rng.random((200, 4)))
    evaluate = ("eval", "--id", "probs.npy", "--ood", "other.npy", "-d", "msp")
    assert nescio(*evaluate)[0] == 1
    assert nescio(*evaluate, "--from-probs")[0] == 0


def test_bad_rows_can_be_told_to_count_as_out(here, nescio):
    spoiled = np.load("val.npy")
    spoiled[7, 2] = np.nan
    np.save("spoiled.npy", spoiled)
    code, _, err = nescio("fit", "spoiled.npy", "-o", "x.nescio")
    assert code == 1
    assert "in 1 of 500 rows: 7." in err
    assert nescio("fit", "spoiled.npy", "-o", "x.nescio", "--nonfinite", "out")[0] == 0
    rows = json.loads(nescio("score", "x.nescio", "spoiled.npy", "--json")[1])["rows"]
    assert rows[7]["score"] is None
    assert rows[7]["in_distribution"] is False
    np.save("probs.npy", ns.scores.label_prob(spoiled))
    fit = ("fit", "probs.npy", "-o", "y.nescio")
    code, _, err = nescio(*fit, "--nonfinite", "out")
    assert (code, "look like probabilities" in err) == (1, True)
    assert nescio(*fit, "--nonfinite", "out", "--from-probs")[0] == 0


def test_scoring_and_evaluating_can_count_bad_rows_as_out_too(here, nescio):
    nescio("fit", "val.npy", "-o", "x.nescio")
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


def test_masked_labels_leave_out_only_the_detectors_that_cannot_take_them(here, nescio):
    masked = np.load("textures.npy")
    masked[:, 0] = -np.inf
    np.save("masked.npy", masked)
    _, out, _ = nescio(
        "eval", "--id", "test.npy", "--ood", "masked.npy", "--train", "val.npy", "--json"
    )
    found = json.loads(out)
    assert {"lof", "isolation_forest"} <= set(found["skipped"])
    assert "masked labels" in found["skipped"]["lof"]
    assert len(found["results"]) == 10


def test_eval_does_as_it_is_told(here, nescio):
    def run(*options):
        files = ("--id", "test.npy", "--ood", "objects.npy", "-d", "msp", "--json")
        return json.loads(nescio("eval", *files, *options)[1])["results"][0]

    assert run("--tpr", "0.8")["tpr"] == 0.8
    assert run("--tpr", "0.8")["fpr"]["value"] < run()["fpr"]["value"]
    assert run("--seed", "1")["auroc"]["low"] != run()["auroc"]["low"]
    assert run("--bootstrap", "0")["auroc"]["low"] is None


MISTAKES = {
    "no such data": (("fit", "nowhere.npy", "-o", "x.nescio"), "there is no file nowhere.npy"),
    "no such detector": (
        ("fit", "val.npy", "-o", "x.nescio", "-d", "softmax"),
        "no detector 'softmax'. Choose from: joint_energy",
    ),
    "no such setting": (
        ("fit", "val.npy", "-o", "x.nescio", "--set", "k=3"),
        "joint_energy has no parameter 'k' to set; it has none",
    ),
    "a setting of the wrong type": (
        ("fit", "val.npy", "-o", "x.nescio", "-d", "top_k_logit", "--set", "k=many"),
        "expected a value of type int",
    ),
    "nothing to learn from": (
        ("fit", "val.npy", "-o", "x.nescio", "-d", "lof"),
        "lof learns from data: pass its training outputs with --train",
    ),
    "a share of two": (("fit", "val.npy", "-o", "x.nescio", "--tpr", "2"), "tpr must lie between"),
    "nothing to learn": (
        ("fit", "held.safetensors", "-o", "x.nescio", "--train", "train.safetensors"),
        "joint_energy learns nothing from data",
    ),
    "calibrating on training data": (
        ("fit", "held.safetensors", "-o", "x.nescio", "-d", "lof", "--train", "./held.safetensors"),
        "would void the guarantee",
    ),
    "a semicolon file": (
        ("fit", "german.csv", "-o", "x.nescio"),
        "line 2: expected 1 cells, got 3. Is the file separated by semicolons?",
    ),
    "a name too long": (("info", "a" * 300), "File name too long"),
    "an output name too long": (("fit", "val.npy", "-o", "a" * 300), "File name too long"),
    "in the way, said before reading": (("fit", "nowhere.npy", "-o", "val.npy"), "exists already"),
    "too few": (
        ("fit", "val.npy", "-o", "x.nescio", "--tpr", "0.999"),
        "needs at least 999 calibration samples, got 500",
    ),
    "in the way": (("fit", "val.npy", "-o", "val.npy"), "val.npy exists already"),
    "output is input": (("fit", "val.npy", "-o", "val.npy", "--force"), "val.npy is an input"),
    "scored over itself": (
        ("score", "tagger.nescio", "four.csv", "-o", "./four.csv", "--force"),
        "is an input",
    ),
    "not a folder": (("demo", "-o", "val.npy"), "val.npy is not a folder"),
    "no such folder": (("fit", "val.npy", "-o", "a/x.nescio"), "there is no directory"),
    "not a detector": (("score", "val.npy", "new.parquet"), "not a detector saved by nescio fit"),
    "outputs for a detector": (
        ("score", "far.safetensors", "new.parquet"),
        "not a saved detector: it holds 'nescio.outputs'",
    ),
    "other labels": (("score", "tagger.nescio", "four.csv"), "made for 6 labels"),
    "truncated": (("score", "tagger.nescio", "cut.npy"), "cut.npy is truncated or damaged"),
    "no rows": (("score", "tagger.nescio", "empty.npy"), "has no rows"),
    "unknown ending": (
        ("score", "tagger.nescio", "new.parquet", "-o", "x.xls"),
        "must end in .parquet, .csv or .jsonl",
    ),
    "cannot be evaluated": (
        ("eval", "--id", "test.npy", "--ood", "objects.npy", "-d", "lof"),
        "lof cannot be evaluated: it learns from data",
    ),
    "settings for all": (
        ("eval", "--id", "test.npy", "--ood", "objects.npy", "--set", "k=3"),
        "--set goes with a single --detector",
    ),
    "the same twice": (
        ("eval", "--id", "test.npy", "--ood", "objects.npy", "--ood", "objects.npy"),
        "given twice",
    ),
}


@pytest.mark.parametrize(("arguments", "reason"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_one_line_and_writes_nothing(here, nescio, arguments, reason):
    nescio("fit", "val.npy", "-o", "tagger.nescio")
    (here / "four.csv").write_text("a,b,c,d\n1,2,3,-4\n")
    (here / "cut.npy").write_bytes((here / "val.npy").read_bytes()[:500])
    (here / "german.csv").write_text("cat;dog\n-1,62;-2,4\n")
    np.save("empty.npy", np.zeros((0, 6)))
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    code, out, err = nescio(*arguments)
    assert code == 1
    assert out == ""
    assert reason in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before


@pytest.mark.parametrize(
    "arguments",
    [(), ("fit",), ("fit", "val.npy"), ("fly",), ("score", "--fdr", "lots", "a", "b")],
)
def test_wrong_usage_is_exit_code_2(nescio, arguments):
    assert nescio(*arguments)[0] == 2


def test_a_detector_of_custom_groups_needs_python(here, nescio):
    groups = np.repeat(["a", "b"], 250)
    ns.JointEnergy().calibrate(np.load("val.npy"), groups=groups).save("x.nescio")
    code, _, err = nescio("score", "x.nescio", "new.parquet")
    assert code == 1
    assert "groups=..." in err


def test_ood_files_of_one_name_are_told_apart(here, nescio):
    (here / "other").mkdir()
    np.save("other/objects.npy", np.load("textures.npy"))
    _, out, _ = nescio(
        "eval", "--id", "test.npy", "--ood", "objects.npy", "--ood", "other/objects.npy",
        "-d", "msp", "--bootstrap", "0", "--json",
    )  # fmt: skip
    assert [row["ood"] for row in json.loads(out)["results"]] == [
        "objects.npy",
        "other/objects.npy",
    ]


def test_brackets_in_names_are_nothing_special(here, nescio):
    (here / "x[").mkdir()
    code, out, _ = nescio("fit", "val.npy", "-o", "x[/b].nescio")
    assert (code, "saved x[/b].nescio" in out) == (0, True)
    np.save("far[v2].npy", np.load("objects.npy"))
    _, out, _ = nescio("eval", "--id", "test.npy", "--ood", "far[v2].npy", "-d", "msp")
    assert "far[v2]: 300 ID" in out
    groups = np.repeat(["[day]", "[/night]"], 250)
    ns.JointEnergy().calibrate(np.load("val.npy"), groups=groups).save("y.nescio")
    code, out, _ = nescio("info", "y.nescio")
    assert (code, "group [/night]: With" in out) == (0, True)


def test_a_loop_of_links_is_one_line(here, nescio):
    (here / "a.npy").symlink_to("b.npy")
    (here / "b.npy").symlink_to("a.npy")
    for arguments in (
        ("fit", "val.npy", "-o", "a.npy"),
        ("fit", "a.npy", "-o", "x.nescio"),
        ("fit", "val.npy", "-d", "lof", "--train", "a.npy", "-o", "x.nescio"),
    ):
        code, _, err = nescio(*arguments)
        assert (code, err.count("\n"), err[:7]) == (1, 1, "error: ")


def test_python_dash_m():
    finished = subprocess.run(
        [sys.executable, "-m", "nescio", "--version"], capture_output=True, text=True, check=True
    )
    assert finished.stdout == f"nescio {ns.__version__}\n"


def test_help_and_version(nescio):
    assert nescio("--version")[1] == f"nescio {ns.__version__}\n"
    code, out, _ = nescio("--help")
    assert code == 0
    assert "trusted" in out
    assert "--install-completion" in out


def test_a_warning_is_one_line_without_a_traceback(here, nescio):
    outputs = ns.Outputs.load("train.safetensors")
    labels = outputs.labels.copy()
    labels[:, 0] = 0
    ns.Outputs(outputs.logits, outputs.features, labels).save("gap.safetensors")
    finished = in_a_process(
        *("fit", "held.safetensors", "-d", "mahalanobis", "--train", "gap.safetensors"),
        *("-o", "x.nescio"),
    )
    assert finished.returncode == 0
    assert finished.stderr.count("\n") == 1
    assert finished.stderr.startswith("warning: 1 of 6 labels have no sample")


def in_a_process(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", "from nescio.cli import run; run()", *arguments],
        capture_output=True, text=True, check=False, **options,
    )  # fmt: skip


def test_a_full_disk_is_one_line_and_leaves_nothing(here):
    import resource

    def no_large_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    before = sorted(here.iterdir())
    finished = in_a_process("fit", "val.npy", "-o", "x.nescio", preexec_fn=no_large_files)
    assert finished.returncode == 1
    assert finished.stderr == "error: cannot write x.nescio: File too large.\n"
    assert sorted(here.iterdir()) == before


def test_a_terminal_without_arrows_is_no_reason_to_fail(here):
    import os

    files = ("--id", "test.npy", "--ood", "objects.npy", "-d", "msp", "--bootstrap", "0")
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    finished = in_a_process("eval", *files, env=ascii_only)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "FPR95 ?" in finished.stdout


def test_a_narrow_terminal_still_shows_the_names(here, nescio, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = nescio("eval", "--id", "test.npy", "--ood", "objects.npy", "--bootstrap", "0")
    assert "top_k_joint_energy" in out
    assert max(map(len, out.splitlines()[:10])) <= 60


def test_shell_completion_knows_the_detectors():
    from nescio.cli.options import detector_names

    assert detector_names("top") == ["top_k_joint_energy", "top_k_logit", "top_k_prob"]
