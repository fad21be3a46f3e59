"""nescio calibrate, score, explain, detectors and info."""

import json
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from fixtures.commands import in_a_process
from nescio.checks import make_outputs
from nescio.detectors import DETECTORS
from nescio.errors import MissingDependencyError

# --- calibrate ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["joint_energy", "isolation_forest", "combined"])
def test_detectors_of_each_kind_from_the_command_line(here, nescio, succeeds, name):
    train = ("--train", "train.safetensors") if DETECTORS[name]().learns_from else ()
    code, _, err = nescio("calibrate", "held.safetensors", "-d", name, "-o", "x.nescio", *train)
    assert (code, err) == (0, "")
    code, out, _ = nescio("score", "x.nescio", "far.safetensors", "--json")
    assert (code, json.loads(out)["n_samples"]) == (0, 100)
    out = succeeds("info", "x.nescio")
    assert f"detector             {name}" in out
    assert "true TPR" in out


def test_groups_rates_and_settings(here, nescio, succeeds):
    fit = ("calibrate", "held.safetensors", "-o", "x.nescio", "--force")
    out = succeeds(*fit, "--by", "label_count", "--confidence", "0.9")
    assert "(2 groups by label_count" in out
    assert "\n0-2  " in out
    assert next(iter(ns.load("x.nescio").calibration_.thresholds.values())).confidence == 0.9
    rows = json.loads(nescio("score", "x.nescio", "far.safetensors", "--json")[1])["rows"]
    assert {row["group"] for row in rows} <= set(ns.load("x.nescio").calibration_.threshold_values)
    assert " group " in nescio("score", "x.nescio", "far.safetensors")[1]
    by_threshold = sum(not row["in_distribution"] for row in rows)
    _, out, _ = nescio("score", "x.nescio", "far.safetensors", "--fdr", "0.1", "--json")
    expected = ns.load("x.nescio").assess(ns.Outputs.load("far.safetensors"), fdr=0.1)
    assert json.loads(out)["n_flagged"] == len(expected.flagged) != by_threshold
    assert "confidence           0.9" in nescio("info", "x.nescio")[1]
    assert "top_k_joint_energy(k=2): in-d" in succeeds(*fit, "-d", "top_k_joint_energy(k=2)")
    assert ns.load("x.nescio").k == 2


@pytest.mark.filterwarnings("default::nescio.errors.GroupWarning")
def test_groups_in_a_column(here, nescio, succeeds, fails, rng):
    pandas = pytest.importorskip("pandas")

    def table(n, cameras):
        logits = pandas.DataFrame(rng.normal(-2, 3, (n, 5)), columns=list("abcde"))
        camera = np.resize(cameras, n)
        logits.loc[camera == "007", list("abcde")] -= 2.0
        return logits.assign(camera=camera)

    table(800, ["007", "12"]).to_csv("val.csv", index=False)
    new = table(90, ["007", "12", "99"])
    new.to_csv("new.csv", index=False)
    new.to_parquet("new.parquet")
    cameras = {"camera": new["camera"].to_numpy()}
    logits = new[list("abcde")].to_numpy()
    ns.Outputs(logits, label_names=list("abcde"), kept=cameras).save("new.safetensors")
    by_camera = ("--group-column", "camera")
    fit = ("calibrate", "val.csv", "-d", "joint_energy", "-o", "x.nescio", "--no-self-check")
    out = succeeds(*fit, *by_camera)
    assert re.search(r"^007 +-?[\d.]+ +400 ", out, re.MULTILINE)  # not the number 7
    assert re.search(r"^all +-?[\d.]+ +800 ", out, re.MULTILINE)
    new.rename(columns={"camera": "id"}).to_csv("id.csv", index=False)
    err = fails("score", "x.nescio", "id.csv", "--group-column", "id", "-o", "s.csv")
    assert "Rename it or, unless it holds the groups," in err
    detector = ns.load("x.nescio")
    with pytest.warns(ns.errors.GroupWarning):
        expected = detector.assess(logits, groups=new["camera"])
    for name in ("new.csv", "new.parquet", "new.safetensors"):
        code, _, err = nescio("score", "x.nescio", name, *by_camera, "-o", "s.csv", "--force")
        assert code == 0
        assert "warning: no threshold was calibrated for 1 group: '99', with " in err
        scored = pandas.read_csv("s.csv", dtype={"group": str, "camera": str})
        assert scored["camera"].tolist() == new["camera"].tolist()
        assert scored["group"].tolist() == expected.groups.tolist()
        assert set(scored["group"]) == {"007", "12", "all"}
        assert scored["in_distribution"].tolist() == expected.in_distribution.tolist()
        assert nescio("explain", "x.nescio", name, *by_camera, "--row", "0")[0] == 0
    # The rows are ranked by p-value, and only equal ones by the distance from their own threshold.
    above = expected.scores - detector.calibration_.threshold_of(expected.groups)
    lowest = np.lexsort((above, expected.p_values))
    assert lowest[:20].tolist() != np.argsort(above)[:20].tolist()
    code, out, _ = nescio("score", "x.nescio", "new.csv", *by_camera)
    shown = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    rows = [
        dict(zip(("row", "score", "p", "group", "camera"), r, strict=False)) for r in shown if r
    ]
    assert [int(row["row"]) for row in rows] == lowest[:20].tolist()
    assert [row["camera"] for row in rows] == new["camera"][lowest[:20]].tolist()
    assert [row["p"] for row in rows] == [f"{p:.4f}" for p in expected.p_values[lowest[:20]]]
    numbers = pandas.DataFrame(logits, columns=list("abcde")).assign(camera=12.0)
    numbers.to_csv("floats.csv", index=False)  # 12.0
    numbers.to_parquet("floats.parquet")
    ns.Outputs(logits, label_names=list("abcde"), kept={"camera": numbers["camera"]}).save(
        "floats.safetensors"
    )
    for name in ("floats.csv", "floats.parquet", "floats.safetensors"):
        rows = json.loads(succeeds("score", "x.nescio", name, *by_camera, "--json"))["rows"]
        assert {row["group"] for row in rows} == {"12"}
    assert succeeds("score", "x.nescio", "val.csv", *by_camera, "--keep", "camera")
    assert "by group: pass --group-column camera, with one of '007', '12'" in fails(
        "score", "x.nescio", "new.csv", "--ignore", "camera"
    )
    assert json.loads(succeeds("info", "x.nescio", "--json"))["column"] == "camera"
    new.assign(camera="99").to_csv("wrong.csv", index=False)
    wrong = ("wrong.csv", *by_camera, "-o", "w.csv")
    said = "no row is in a group that was calibrated: '007', '12'. Is it the wrong column"
    assert said in (err := fails("score", "x.nescio", *wrong))
    assert "Theirs was --group-column camera." in err
    assert not Path("w.csv").exists()
    assert "Did you mean 'camera'" in fails(*fit, "--group-column", "kamera", "--force")
    gap = pandas.read_csv("val.csv", dtype={"camera": str})
    gap.loc[700, "camera"] = None
    gap.to_csv("gap.csv", index=False)
    assert "row 700 has no group" in fails("calibrate", "gap.csv", *by_camera, "-o", "y.nescio")
    assert "pass --group-column" in fails(*fit, "--by", "camera", "--force")
    assert "Pass only one" in fails(*fit, *by_camera, "--by", "top_label", "--force")
    assert succeeds(*fit, "--ignore", "camera", "--by", "top_label", "--force")
    assert "finds them itself" in fails("score", "x.nescio", "new.csv", *by_camera)


def test_calibrate_says_which_faults_the_detector_sees(here, succeeds):
    fit = ("calibrate", "held.safetensors", "-d", "joint_energy", "-o", "x.nescio", "--force")
    out = succeeds(*fit)
    expected = ns.load("x.nescio").self_check(ns.Outputs.load("held.safetensors"))
    assert str(expected) in out
    rows = json.loads(succeeds(*fit, "--json"))["self_check"]
    assert {row["fault"]: row["flagged"] for row in rows} == expected.flagged
    assert {row["n_samples"] for row in rows} == {200}
    assert "Self-check" not in succeeds(*fit, "--no-self-check")
    assert json.loads(succeeds(*fit, "--no-self-check", "--json"))["self_check"] is None


def test_probabilities_are_rejected_unless_announced(here, nescio, rng):
    np.save("probs.npy", rng.random((200, 4)))
    code, out, err = nescio("calibrate", "probs.npy", "-o", "x.nescio")
    assert (code, out) == (1, "")
    assert "look like probabilities" in err
    assert "Pass --from-probs with probabilities. If they are logits, pass --from-logits." in err
    assert not (here / "x.nescio").exists()
    np.save("other.npy", rng.random((200, 4)))
    for command in (
        ("calibrate", "probs.npy", "-o", "x.nescio"),
        ("score", "x.nescio", "probs.npy"),
        ("explain", "x.nescio", "probs.npy"),
        ("eval", "--id", "probs.npy", "--ood", "other.npy", "-d", "msp"),
    ):
        assert nescio(*command)[0] == 1
        assert nescio(*command, "--from-probs")[0] == 0
    np.save("softmax.npy", rng.dirichlet(np.ones(4), 200))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = nescio("calibrate", "softmax.npy", "-o", "s.nescio", "--from-probs")
    assert code == 0
    assert err.startswith("warning: the probabilities of every sample sum to 1")


def test_bad_rows_can_be_told_to_count_as_out(here, nescio, fails):
    spoiled = np.load("val.npy")
    spoiled[7, 2] = np.nan
    np.save("spoiled.npy", spoiled)
    assert "in 1 of 500 rows: 7 (" in fails("calibrate", "spoiled.npy", "-o", "x.nescio")
    nescio("calibrate", "val.npy", "-o", "x.nescio")
    for command in (
        ("score", "x.nescio", "spoiled.npy"),
        ("explain", "x.nescio", "spoiled.npy"),
        ("eval", "--id", "test.npy", "--ood", "spoiled.npy", "-d", "msp"),
    ):
        err = fails(*command)
        assert err.startswith("error: spoiled")
        assert ": logits hold NaN" in err
        assert "Clean them, or pass --nonfinite out to count such rows" in err
        assert nescio(*command, "--nonfinite", "out")[0] == 0
    assert nescio("explain", "x.nescio", "spoiled.npy", "--row", "0")[0] == 0  # only row 7 is bad
    fit = ("calibrate", "spoiled.npy", "-o", "x.nescio", "--force", "--nonfinite", "out")
    assert nescio(*fit)[0] == 0
    assert ", 1 of them with NaN or infinity" in nescio("score", "x.nescio", "spoiled.npy")[1]
    row = json.loads(nescio("score", "x.nescio", "spoiled.npy", "--json")[1])["rows"][7]
    assert (row["score"], row["in_distribution"]) == (None, False)


def test_a_full_disk_is_one_line_and_leaves_nothing(here):
    import resource

    def no_large_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    before = sorted(here.iterdir())
    # A truncated .pyc file would break all later processes.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    finished = in_a_process(
        "calibrate", "val.npy", "-o", "x.nescio", preexec_fn=no_large_files, env=environment
    )
    assert finished.returncode == 1
    assert finished.stderr == "error: cannot write x.nescio: File too large.\n"
    assert sorted(here.iterdir()) == before


def test_a_combination_is_written_in_brackets(here, nescio, succeeds):
    name = "combined(detectors=[joint_energy, top_k_joint_energy(k=3)], weights=[1, 2])"
    out = succeeds("calibrate", "val.npy", "-d", name, "-o", "x.nescio")
    assert "combined(detectors=[joint_energy, top_k_joint_energy(k=3)], weights=[1, 2])" in out
    _, out, _ = nescio("calibrate", "val.npy", "-d", name, "-o", "x.nescio", "--force", "--json")
    assert json.loads(out)["parameters"]["weights"] == [1, 2]
    assert "weights=[1, 2]" in nescio("info", "x.nescio")[1]


@pytest.mark.filterwarnings("default::nescio.errors.DefaultDetectorWarning")
def test_the_default_is_chosen_by_what_is_there(here, nescio, succeeds):
    out = succeeds("calibrate", "val.npy", "-o", "x.nescio")
    assert "Chosen: joint energy" in out
    assert "features and labels (--train; " in out
    command = ("calibrate", "val.npy", "-o", "x.nescio", "--force", "--train", "test.npy")
    reason = "warning: --train was not used: the training outputs have no features and no labels."
    assert reason in nescio(*command)[2]
    train = ("--train", "train.safetensors", "--force", "--json")
    out = succeeds("calibrate", "held.safetensors", "-o", "x.nescio", *train)
    saved = json.loads(out)
    expected = ns.detectors.combined.default_detector(
        ns.Outputs.load("train.safetensors"), ns.Outputs.load("held.safetensors")
    )
    assert (saved["detector"], saved["reason"]) == (expected.detector.name, expected.reason)


def test_brackets_in_names_are_nothing_special(here, nescio, succeeds):
    (here / "x[").mkdir()
    assert "saved x[/b].nescio" in succeeds("calibrate", "val.npy", "-o", "x[/b].nescio")
    np.save("far[v2].npy", np.load("objects.npy"))
    _, out, _ = nescio("eval", "--id", "test.npy", "--ood", "far[v2].npy", "-d", "msp")
    assert "far[v2]: 300 ID" in out


# --- score ----------------------------------------------------------------------------------------


def test_the_most_suspicious_rows_are_printed(here, nescio, succeeds):
    nescio("calibrate", "val.npy", "-o", "x.nescio")
    scores = ns.load("x.nescio").score_samples(np.load("textures.npy"))
    out = succeeds("score", "x.nescio", "textures.npy")
    assert "the 20 most suspicious of 200 rows" in " ".join(out.split())
    cells = [line.strip("│ ").split("│") for line in out.splitlines() if line[0] == "│"]
    assert sorted(int(row[0]) for row in cells) == sorted(np.argsort(scores)[:20].tolist())


@pytest.mark.parametrize("data", ["data", "data/**/part.parquet"])
def test_a_folder_or_a_pattern_is_one_input(here, nescio, rng, data):
    pandas = pytest.importorskip("pandas")
    names = ["cat", "dog", "bus"]
    held_out = ns.Outputs(rng.normal(-1, 3, (200, 3)), label_names=names)
    ns.JointEnergy().calibrate(held_out).save("x.nescio")
    logits = rng.normal(-3, 3, (90, 3))
    np.save("x.npy", logits)
    for index in range(3):
        place = Path("data", f"day={index + 9}")
        place.mkdir(parents=True)
        frame = pandas.DataFrame(logits[30 * index : 30 * index + 30], columns=names)
        frame.assign(text="x").to_parquet(place / "part.parquet")
    code, out, err = nescio("score", "x.nescio", data, "-o", "y.csv")
    assert (code, err) == (0, "")
    assert "90 rows x 3 labels (cat, dog, bus); copied columns: text\n" in out
    nescio("score", "x.nescio", "x.npy", "-o", "clean.csv")
    rows, clean = (Path(name).read_text().splitlines() for name in ("y.csv", "clean.csv"))
    assert rows == [",".join(row) for row in zip(clean, ["text", *["x"] * 90], strict=True)]
    result = json.loads(nescio("score", "x.nescio", data, "--json", "--keep", "")[1])
    assert (result["kept_columns"], result["ignored_columns"]) == ([], ["text"])


# --- explain --------------------------------------------------------------------------------------

NAMES = ("person", "dog", "car", "traffic light", "bird", "a chair")


@pytest.fixture
def files(tmp_path):
    """A detector and new data, of which row 7 is the strangest."""
    logits = make_outputs(12, seed=3).logits.copy()
    logits[7] = -6, -5, -8, -7, -9, -7.5
    ids = [f"img{row}" for row in range(12)]
    ns.Outputs(logits, ids=ids, label_names=NAMES).save("new.safetensors")
    held = ns.Outputs(make_outputs(1500).logits, label_names=NAMES)
    held.save("held.safetensors")
    ns.JointEnergy().calibrate(held).save("x.nescio")
    return held


def test_the_most_suspicious_input_or_a_chosen_one_is_explained_as_in_python(files, nescio):
    command = ("explain", "x.nescio", "new.safetensors")
    explanation = ns.load("x.nescio").explain(ns.Outputs.load("new.safetensors"))
    code, out, err = nescio(*command)
    assert (code, out, err) == (0, f"row 7, {explanation[7]}\n", "")
    for options in (("--row", "3"), ("--id", "img3")):
        assert nescio(*command, *options)[1] == f"row 3, {explanation[3]}\n"
    result = json.loads(nescio(*command, "--json")[1])
    assert (result["row"], result["id"], result["in_distribution"]) == (7, "img7", False)
    assert {label["label"] for label in result["labels"]} == set(NAMES)


def test_a_combination_is_explained_by_part(files, nescio):
    parts = "combined(detectors=[joint_energy, msp, top_k_logit(k=2)])"
    nescio("calibrate", "held.safetensors", "-d", parts, "-o", "both.nescio")
    code, out, err = nescio("explain", "both.nescio", "new.safetensors", "--row", "7")
    assert (code, err) == (0, "")
    reason = ns.load("both.nescio").explain(ns.Outputs.load("new.safetensors"))[7]
    assert out.startswith(f"row 7, {reason}\n\n")
    details = out.removeprefix(f"row 7, {reason}\n\n")
    for part in reason.parts:  # only those that decided, and no sentence twice
        told = part.reason is not None and part.share >= 0.1
        assert (f"{part.detector} in detail:\n" in details) == told
        assert not told or all(label.label in details for label in part.reason.labels)
    assert "in detail" in details
    assert "threshold" not in details
    sentences = [line for line in out.splitlines() if line.endswith(".")]
    assert len(sentences) == len(set(sentences))
    _, out, _ = nescio("explain", "both.nescio", "new.safetensors", "--row", "7", "--json")
    parts = json.loads(out)["parts"]
    assert [part["detector"] for part in parts] == [part.detector for part in reason.parts]


MISTAKES = {
    "no such row": (("x.nescio", "new.safetensors", "--row", "12"), "the rows are 0 to 11."),
    "no such id": (
        ("x.nescio", "new.safetensors", "--id", "img33"),
        "new.safetensors: there is no id 'img33'. Did you mean 'img3'",
    ),
    "an id twice": (("x.nescio", "twice.safetensors", "--id", "b"), "2 rows have the id 'b'"),
    "no ids": (("x.nescio", "plain.npy", "--id", "img3"), "Name their column (--id-column)"),
    "both": (("x.nescio", "new.safetensors", "--id", "a", "--row", "1"), "Pass only one of them"),
    "not made of labels": (("msp.nescio", "new.safetensors"), "msp cannot be explained"),
    "groups of one's own": (("own.nescio", "new.safetensors"), "pass --group-column"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "reason"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_one_line(files, nescio, arguments, reason):
    ns.Outputs(files.logits[:3], ids=["a", "b", "b"]).save("twice.safetensors")
    np.save("plain.npy", files.logits[:3])
    ns.MSP().calibrate(files).save("msp.nescio")
    ns.JointEnergy().calibrate(files, groups=["a", "b"] * 750).save("own.nescio")
    code, out, err = nescio("explain", *arguments)
    assert (code, out, err.count("\n"), err[:7]) == (1, "", 1, "error: ")
    assert reason in err


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_other_alphabets_and_control_characters(files, encoding):
    names = ["猫と犬", "dog\n\x1b[31m", *NAMES[2:]]
    new = ns.Outputs.load("new.safetensors")
    ns.JointEnergy().calibrate(make_outputs(200).logits).save("plain.nescio")
    ns.Outputs(new.logits, label_names=names).save("odd.safetensors")
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    finished = in_a_process("explain", "plain.nescio", "odd.safetensors", env=environment)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "\x1b" not in finished.stdout
    assert ("猫と犬" if encoding == "utf-8" else "???") in finished.stdout
    assert "[31m" in finished.stdout


# --- detectors and info ---------------------------------------------------------------------------


def test_info_reads_well(here, nescio):
    names = [f"label {index}" for index in range(34)]
    outputs = ns.Outputs(np.random.default_rng(0).normal(size=(1500, 34)), label_names=names)
    ns.TopKJointEnergy(k=2).calibrate(outputs).save("x.nescio")
    _, out, _ = nescio("info", "x.nescio")
    assert "n_samples            1,500" in out
    named = "label 0, label 1, label 2, label 3, label 4, ..., label 32, label 33"
    assert f"34 labels ({named})\n" in out
    assert "[" not in out.partition("With")[0]
    assert "None" not in out


def test_shell_completion_knows_the_detectors():
    from nescio.cli.console import detector_names

    assert detector_names("top") == ["top_k_joint_energy", "top_k_logit", "top_k_prob"]


def test_without_ray_the_error_names_the_extra(nescio, fails, monkeypatch, tmp_path):
    def missing(module, extra):
        raise MissingDependencyError(f"this needs {module}: pip install '.[{extra}]'")

    monkeypatch.setattr("nescio.cli.verdicts.require", missing)
    np.save(tmp_path / "val.npy", np.random.default_rng(0).normal(-1, 3, (200, 3)))
    assert nescio("calibrate", tmp_path / "val.npy", "-o", tmp_path / "d.nescio")[0] == 0
    command = ("score", tmp_path / "d.nescio", tmp_path / "val.npy", "--engine")
    assert nescio(*command, "ray")[::2] == (1, "error: this needs ray: pip install '.[ray]'\n")
    assert "--engine must be 'local' or 'ray'" in fails(*command, "spark")
