"""Tables as users have them go through every command, with the verdicts of the clean matrix.

Files that are read in blocks, or of which a sample is read, give the same results.
"""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from nescio.outputs import Outputs
from nescio.outputs.sets import read_sets

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

LABELS = ["cat", "dog", "zebra", "bus"]
KINDS = ["x.parquet", "x.csv", "indexed.csv"]


@pytest.fixture
def tables(tmp_path, rng):
    """Write each set as .npy and as a shuffled pandas frame; return the orders of the rows."""

    def write(name, n_samples, mean):
        logits = rng.normal(mean, 3, (n_samples, len(LABELS)))
        frame = pandas.DataFrame(logits, columns=LABELS)
        frame.insert(0, "id", [f"{name}-{row}" for row in range(n_samples)])
        frame.insert(1, "user_id", rng.integers(1000, 9999, n_samples))
        frame["taken"] = pandas.Timestamp("2026-01-01") + pandas.to_timedelta(
            np.arange(n_samples), "h"
        )
        frame["text"] = [f"a text, {row}" for row in range(n_samples)]
        frame = frame.sample(frac=1, random_state=0)
        np.save(f"{name}.npy", frame[LABELS].to_numpy())
        frame.to_parquet(f"{name}-x.parquet")
        frame.to_csv(f"{name}-x.csv", index=False)
        frame.to_csv(f"{name}-indexed.csv")

    write("val", 600, -1)
    write("test", 200, -1)
    write("far", 150, -4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_gets_the_verdicts_of_the_clean_matrix(tables, nescio, kind):
    code, out, err = nescio("calibrate", f"val-{kind}", "-o", "t.nescio")
    assert (code, out) == (1, "")
    for name in ("user_id", "taken", "text"):
        assert repr(name) in err
    options = shlex.split(re.search(r"--ignore [^ ]+(?=\. )", err)[0])
    assert options == ["--ignore", "user_id,taken,text"]
    code, out, err = nescio("calibrate", f"val-{kind}", *options, "-o", "t.nescio")
    assert (code, err) == (0, "")
    assert (
        "600 rows x 4 labels (cat, dog, zebra, bus); ignored columns: user_id, taken, text" in out
    )
    nescio("calibrate", "val.npy", "-o", "clean.nescio")
    assert ns.load("t.nescio").offset_ == pytest.approx(ns.load("clean.nescio").offset_)

    score = ("score", "t.nescio", f"far-{kind}", "--keep", "taken,text", "-o", "t.csv")
    assert nescio(*score)[::2] == (0, "")
    nescio("score", "clean.nescio", "far.npy", "-o", "clean.csv")
    scored, clean = pandas.read_csv("t.csv"), pandas.read_csv("clean.csv")
    assert scored.in_distribution.tolist() == clean.in_distribution.tolist()
    np.testing.assert_allclose(scored.score, clean.score)
    assert list(scored) == ["id", "score", "p_value", "in_distribution", "taken", "text"]
    assert scored.id[0] == "far-" + scored.text[0].split(", ")[1]
    assert scored.taken[0].startswith("2026-01-0")

    reasons = [
        json.loads(nescio("explain", *files, "--json")[1])
        for files in (("t.nescio", f"far-{kind}"), ("clean.nescio", "far.npy"))
    ]
    assert reasons[0]["row"] == reasons[1]["row"]
    monitored = [
        nescio("monitor", f"{name}.csv", "--detector", f"{name}.nescio", "--json")
        for name in ("t", "clean")
    ]
    assert monitored[0][0] == monitored[1][0] == 3
    evidence = [json.loads(out)["log10_martingale"] for _, out, _ in monitored]
    assert evidence[0] == pytest.approx(evidence[1])


def test_one_set_of_options_serves_all_files(tables, nescio):
    files = ("--id", "test-x.parquet", "--ood", "far-x.parquet")
    evaluate = ("-d", "joint_energy", "--bootstrap", "0", "--json")
    code, out, err = nescio("eval", *files, *evaluate)
    assert (code, out) == (1, "")
    assert "'user_id'" in err
    _, clean, _ = nescio("eval", "--id", "test.npy", "--ood", "far.npy", *evaluate)
    expected = json.loads(clean.replace('"far"', '"far-x"'))["results"]
    for options in (
        ("--ignore", "user_id,taken,text"),
        ("--labels", "cat,dog", "--labels", "zebra,bus"),
        ("--ignore", "user_id", "--ignore", "t*"),
    ):
        code, out, err = nescio("eval", *files, *evaluate, *options)
        assert (code, err) == (0, "")
        assert json.dumps(json.loads(out)["results"]) == json.dumps(expected)


def test_a_report_of_tables(tables, nescio):
    report = ("report", "--id", "test-x.parquet", "--ood", "far-x.parquet", "-o", "r.html")
    assert nescio(*report)[0] == 1
    assert nescio(*report, "--labels", "bus,cat,dog")[::2] == (0, "")
    page = Path("r.html").read_text("utf-8")
    assert all(name in page for name in ("bus", "cat", "dog", "far-x", "test-"))
    ignored = ", ".join(f"&#34;{name}&#34;" for name in ("user_id", "zebra", "taken", "text"))
    assert f"[{ignored}]" in page


@pytest.mark.filterwarnings("ignore:ignored 1 column that the detector was not made for")
def test_a_detector_takes_its_labels_by_name(tables, nescio, succeeds, fails):
    nescio("calibrate", "val-x.parquet", "--labels", "cat,dog,zebra,bus", "-o", "t.nescio")
    frame = pandas.read_parquet("far-x.parquet")
    turned = frame[["text", "bus", "zebra", "id", "dog", "cat"]].assign(lion=0.5)
    turned.to_csv("turned.csv", index=False)
    score = ("score", "t.nescio", "turned.csv", "--with-labels", "-o", "turned-scored.csv")
    out = succeeds(*score)
    assert "150 rows x 4 labels (cat, dog, zebra, bus); copied columns: text, lion" in out
    nescio("score", "t.nescio", "far-x.parquet", "--with-labels", "-o", "scored.csv")
    scored = pandas.read_csv("scored.csv")
    assert list(scored)[4:7] == ["user_id", "taken", "text"]
    turned_scored = pandas.read_csv("turned-scored.csv").drop(columns="lion")
    assert turned_scored.equals(scored.drop(columns=["user_id", "taken"]))
    ignore = ("--ignore", "user_id,t*", "-o", "less.csv")
    assert "ignored columns: user_id, taken, text\n" in nescio(*score[:2], "far-x.csv", *ignore)[1]
    assert list(pandas.read_csv("less.csv")) == ["id", "score", "p_value", "in_distribution"]
    # The score is a sum over the labels: only the columns of the labels depend on their order.
    np.testing.assert_allclose(scored.prob_bus, 1 / (1 + np.exp(-frame.bus)))
    turned.drop(columns="bus").to_csv("less.csv", index=False)
    assert "Missing: 'bus'. Not known to the detector: 'lion'.\n" in fails(
        "score", "t.nescio", "less.csv"
    )
    assert nescio("explain", "t.nescio", "turned.csv", "--row", "0")[0] == 0


@pytest.mark.filterwarnings("ignore:ignored 2 columns that the detector was not made for")
def test_labels_from_a_file_and_nulls_as_bad_rows(tables, nescio, succeeds, fails, tmp_path):
    (tmp_path / "names.txt").write_text("dog\ncat\n\n")
    succeeds("calibrate", "val-x.csv", "--labels", "names.txt", "-o", "t.nescio")
    assert ns.load("t.nescio").label_names_ == ("dog", "cat")
    frame = pandas.read_parquet("far-x.parquet")
    frame.loc[frame.index[3], "cat"] = None
    frame.to_parquet("bad.parquet")
    assert "in 1 of 150 rows: 3 (" in fails("score", "t.nescio", "bad.parquet")
    _, out, _ = nescio("score", "t.nescio", "bad.parquet", "--nonfinite", "out", "--json")
    assert json.loads(out)["rows"][3]["in_distribution"] is False
    assert "there is no file no.txt" in fails(
        "calibrate", "val-x.csv", "--labels", "no.txt", "-o", "u.nescio"
    )


def test_a_monitor_reads_verdicts_with_other_columns(tables, nescio, fails):
    nescio("calibrate", "val-x.parquet", "--labels", "cat,dog,zebra,bus", "-o", "t.nescio")
    score = ("score", "t.nescio", "test-x.parquet", "--with-labels", "--keep", "text")
    assert nescio(*score, "-o", "t.parquet")[0] == 0
    scored = pandas.read_parquet("t.parquet")
    assert list(scored)[-6:] == ["text", "predicted", *(f"prob_{name}" for name in LABELS)]
    monitored = nescio("monitor", "t.parquet", "--detector", "t.nescio")
    assert monitored[0] in (0, 3)
    renamed = scored.rename(columns={"id": "photo"})
    renamed.to_csv("renamed.csv", index=False)
    command = ("monitor", "renamed.csv", "--detector", "t.nescio", "--id-column", "photo")
    assert nescio(*command)[0] == monitored[0]
    for command in (("report", "--id"), ("calibrate", "-o", "u.nescio"), ("score", "t.nescio")):
        for rest in ((), ("--ignore", "in_distribution,text,predicted")):
            assert "t.parquet: this is a table of verdicts" in fails(*command, "t.parquet", *rest)
    err = fails("monitor", "test-x.csv", "--detector", "t.nescio")
    assert "is not a scored table: it has no column score" in err
    assert "nescio score DETECTOR DATA -o" in err


def test_the_other_files_may_lack_the_column_of_the_ids(tables, nescio, fails):
    pandas.read_csv("test-x.csv").rename(columns={"id": "photo"}).to_csv("named.csv", index=False)
    options = ("--id-column", "photo", "--ignore", "user_id,taken,text")
    train = ("--train", "val-x.parquet", "-d", "isolation_forest", "-o", "t.nescio")
    assert nescio("calibrate", "named.csv", *train, *options)[0] == 0
    code, _, err = nescio("eval", "--id", "named.csv", "--ood", "far-x.csv", *options)
    assert (code, err) == (0, "")
    pandas.read_csv("val-x.csv").drop(columns="cat").to_csv("less.csv", index=False)
    train = ("--train", "less.csv", "-d", "isolation_forest", "-o", "u.nescio")
    err = fails("calibrate", "named.csv", *train, *options)
    assert err.startswith("error: less.csv: the data does not have the labels of the first data ")


def test_semicolons_and_decimal_commas_in_every_command(tables, nescio, fails):
    for name in ("val", "far"):
        frame = pandas.read_csv(f"{name}-x.csv")[["id", *LABELS]]
        frame.to_csv(f"{name}-german.csv", sep=";", decimal=",", index=False)
    nescio("calibrate", "val.npy", "-o", "clean.nescio")
    evaluate = ("eval", "--id", "val-german.csv", "--ood", "far-german.csv", "-d", "msp")
    for options in ((), ("--sep", ";", "--decimal", ",")):  # it is found in the files, or said
        calibrate = ("calibrate", "val-german.csv", "-o", "t.nescio", "--force")
        code, _, err = nescio(*calibrate, *options)
        assert (code, err) == (0, "")
        assert ns.load("t.nescio").offset_ == pytest.approx(ns.load("clean.nescio").offset_)
        for command in ("score", "explain"):
            assert nescio(command, "t.nescio", "far-german.csv", *options)[0] == 0
        assert nescio(*evaluate, *options)[0] == 0
    assert "--sep must be one character" in fails(*evaluate, "--sep", ";;")


# --- large files ---------------------------------------------------------------------------------


def logits_of(rng, mean, n=1_500):
    return rng.normal(mean, 2, (n, 5)).astype(np.float32)


def write(path, logits):
    parquet.write_table(
        pyarrow.table({name: logits[:, index] for index, name in enumerate("abcde")}), path
    )
    return path


def test_calibrate_draws_a_sample_of_many_rows(rng, tmp_path, succeeds, monkeypatch):
    table = write(tmp_path / "val.parquet", logits_of(rng, 0))
    monkeypatch.setattr("nescio.cli.verdicts.MAX_ROWS", 400)
    target = tmp_path / "made.nescio"
    shown = succeeds("calibrate", table, "-o", target, "-d", "joint_energy")
    assert "1,500 rows" in shown
    assert "400 of the rows, drawn at random" in shown
    result = json.loads(succeeds("calibrate", table, "-o", target, "--force", "--json"))
    assert (result["n_rows"], result["n_samples"]) == (1_500, 200)  # half of the sample


def test_eval_says_that_it_read_a_sample(rng, tmp_path, succeeds, monkeypatch):
    test = write(tmp_path / "test.parquet", logits_of(rng, 0))
    near = write(tmp_path / "near.parquet", logits_of(rng, -1, 700))
    monkeypatch.setitem(read_sets.__kwdefaults__, "max_rows", 1_000)
    arguments = ("eval", "--id", test, "--ood", near, "--bootstrap", 0, "-d", "joint_energy")
    assert "ID: a random sample of the 1,500 rows was read" in succeeds(*arguments)
    printed = json.loads(succeeds(*arguments, "--json"))
    assert printed["sampled"] == {"ID": 1_500}
    assert (printed["results"][0]["n_id"], printed["results"][0]["n_ood"]) == (1_000, 700)


def test_monitor_has_the_same_report_and_state(rng, tmp_path, nescio, monkeypatch):
    """Blocks of 4,096 rows: so many are counted at once in any case, so nothing is rounded anew."""
    detector = ns.MaxLogit().calibrate(Outputs(logits_of(rng, 0), label_names=list("abcde")))
    detector.save(tmp_path / "made.nescio")
    logits = np.concatenate([logits_of(rng, 0, 5_000), logits_of(rng, -0.4, 4_000)])
    times = np.datetime_as_string(np.datetime64("2026-01-01T00:00:00") + np.arange(9_000)).tolist()
    result = detector.assess(Outputs(logits, ids=[f"row {index}" for index in range(9_000)]))
    columns = {**result.columns(), "when": times}
    scored = tmp_path / "scored.parquet"
    parquet.write_table(pyarrow.table(columns), scored, row_group_size=1_000)
    folder = tmp_path / "scored"
    folder.mkdir()
    for index in range(3):
        part = pyarrow.table(columns).slice(index * 3_000, 3_000)
        parquet.write_table(part, folder / f"{index}.parquet")

    def monitored(path):
        state = tmp_path / "state.safetensors"
        state.unlink(missing_ok=True)
        rest = ("--detector", "made.nescio", "--state", state, "--time-column", "when")
        code, out, err = nescio("monitor", path, *rest, "--json")
        assert (code, err) == (3, "")
        return out, state.read_bytes()

    whole = monitored(scored)
    assert json.loads(whole[0])["change"]["since"]["id"].startswith("row")
    monkeypatch.setattr("nescio.cli.monitor._BLOCK", 4_096)
    assert monitored(scored) == whole
    shown, state = monitored(folder)
    assert shown == whole[0]
    assert len(state) == len(whole[1])  # only the hash of the files differs


def test_remote_addresses_are_read_too(rng, tmp_path, succeeds):
    fsspec = pytest.importorskip("fsspec")
    local = write(tmp_path / "val.parquet", logits_of(rng, 0))
    store = fsspec.filesystem("memory")
    store.pipe("/large/val.parquet", local.read_bytes())

    def printed(place):
        made = ("calibrate", place, "-o", "made.nescio", "-d", "max_logit", "--force")
        return succeeds(*made), succeeds("score", "made.nescio", place)

    assert printed("memory://large/val.parquet") == printed(local)
