"""Tables as users have them go through every command, with the verdicts of the clean matrix."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import nescio as ns

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

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
    options = shlex.split(re.search(r"--ignore \S+", err)[0])
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
    assert list(scored) == [
        "id", "score", "p_value", "in_distribution", "taken", "text"
    ]  # fmt: skip
    assert scored.id[0] == "far-" + scored.text[0].split(", ")[1]
    assert scored.taken[0].startswith("2026-01-0")

    reasons = [
        json.loads(nescio("explain", *files, "--json")[1])
        for files in (("t.nescio", f"far-{kind}"), ("clean.nescio", "far.npy"))
    ]
    assert reasons[0]["row"] == reasons[1]["row"]
    monitored = [
        nescio(
            "monitor", f"{name}.csv", "--detector", f"{name}.nescio", "--outputs", data, "--json"
        )
        for name, data in (("t", f"far-{kind}"), ("clean", "far.npy"))
    ]
    assert monitored[0][0] == monitored[1][0] == 3
    evidence = [json.loads(out)["log10_martingale"] for _, out, _ in monitored]
    assert evidence[0] == pytest.approx(evidence[1])


@pytest.mark.parametrize("kind", KINDS)
def test_one_set_of_options_serves_all_files(tables, nescio, kind):
    files = ("--id", f"test-{kind}", "--ood", f"far-{kind}")
    evaluate = ("-d", "joint_energy", "--bootstrap", "0", "--json")
    code, out, err = nescio("eval", *files, *evaluate)
    assert (code, out) == (1, "")
    assert "'user_id'" in err
    clean = json.loads(
        nescio("eval", "--id", "test.npy", "--ood", "far.npy", *evaluate)[1].replace(
            '"far"', f'"far-{kind.split(".")[0]}"'
        )
    )
    for options in (
        ("--ignore", "user_id,taken,text"),
        ("--labels", "cat,dog", "--labels", "zebra,bus"),
        ("--ignore", "user_id", "--ignore", "t*"),
    ):
        code, out, err = nescio("eval", *files, *evaluate, *options)
        assert (code, err) == (0, "")
        assert json.dumps(json.loads(out)["results"]) == json.dumps(clean["results"])


def test_a_report_of_tables_has_the_numbers_of_the_clean_matrix(tables, nescio):
    report = ("report", "--id", "test-x.parquet", "--ood", "far-x.parquet", "-o", "r.html")
    assert nescio(*report)[0] == 1
    assert nescio(*report, "--labels", "bus,cat,dog")[::2] == (0, "")
    page = Path("r.html").read_text("utf-8")
    assert all(name in page for name in ("bus", "cat", "dog", "far-x", "test-"))
    ignored = ", ".join(f"&#34;{name}&#34;" for name in ("user_id", "zebra", "taken", "text"))
    assert f"[{ignored}]" in page
    for name in ("test", "far"):
        np.save(f"{name}-x.npy", np.load(f"{name}.npy")[:, [3, 0, 1]])
    report = ("report", "--id", "test-x.npy", "--ood", "far-x.npy", "-o", "clean.html")
    assert nescio(*report)[::2] == (0, "")
    clean = Path("clean.html").read_text("utf-8")
    found, expected = (re.findall(r"\d+\.\d\d(?=[ <,\]])", text) for text in (page, clean))
    assert len(expected) > 100
    assert found == expected


@pytest.mark.filterwarnings("ignore:ignored 1 column that the detector was not made for")
def test_a_detector_takes_its_labels_by_name(tables, nescio):
    nescio("calibrate", "val-x.parquet", "--labels", "cat,dog,zebra,bus", "-o", "t.nescio")
    frame = pandas.read_parquet("far-x.parquet")
    turned = frame[["text", "bus", "zebra", "id", "dog", "cat"]].assign(lion=0.5)
    turned.to_csv("turned.csv", index=False)
    score = ("score", "t.nescio", "turned.csv", "--with-labels", "-o", "turned-scored.csv")
    code, out, _ = nescio(*score)
    assert code == 0
    assert "150 rows x 4 labels (cat, dog, zebra, bus); copied columns: text, lion" in out
    nescio("score", "t.nescio", "far-x.parquet", "--with-labels", "-o", "scored.csv")
    scored = pandas.read_csv("scored.csv")
    assert list(scored)[4:7] == ["user_id", "taken", "text"]
    others = ["user_id", "taken"]
    turned_scored = pandas.read_csv("turned-scored.csv").drop(columns="lion")
    assert turned_scored.equals(scored.drop(columns=others))
    ignore = ("--ignore", "user_id,t*", "-o", "less.csv")
    assert "ignored columns: user_id, taken, text\n" in nescio(*score[:2], "far-x.csv", *ignore)[1]
    assert list(pandas.read_csv("less.csv")) == ["id", "score", "p_value", "in_distribution"]
    # The score is a sum over the labels: only the columns of the labels depend on their order.
    np.testing.assert_allclose(scored.prob_bus, 1 / (1 + np.exp(-frame.bus)))
    turned.drop(columns="bus").to_csv("less.csv", index=False)
    code, _, err = nescio("score", "t.nescio", "less.csv")
    assert code == 1
    assert "Missing: 'bus'. Not known to the detector: 'text', 'lion'.\n" in err
    assert nescio("explain", "t.nescio", "turned.csv", "--row", "0")[0] == 0


@pytest.mark.filterwarnings("ignore:ignored 2 columns that the detector was not made for")
def test_labels_from_a_file_and_nulls_as_bad_rows(tables, nescio, tmp_path):
    (tmp_path / "names.txt").write_text("dog\ncat\n\n")
    code, _, _ = nescio("calibrate", "val-x.csv", "--labels", "names.txt", "-o", "t.nescio")
    assert code == 0
    assert ns.load("t.nescio").label_names_ == ("dog", "cat")
    frame = pandas.read_parquet("far-x.parquet")
    frame.loc[frame.index[3], "cat"] = None
    for name in ("bad.parquet", "bad.csv"):
        getattr(frame, "to_" + name.split(".")[1])(name)
        code, _, err = nescio("score", "t.nescio", name)
        assert (code, "in 1 of 150 rows: 3." in err) == (1, True)
        score = ("score", "t.nescio", name, "--nonfinite", "out", "--json")
        rows = json.loads(nescio(*score)[1])["rows"]
        assert rows[3]["score"] is None
        assert rows[3]["in_distribution"] is False
    code, _, err = nescio("calibrate", "val-x.csv", "--labels", "no.txt", "-o", "u.nescio")
    assert (code, "there is no file no.txt" in err) == (1, True)


def test_predicted_labels_and_probabilities_can_be_added(tables, nescio):
    nescio("calibrate", "val-x.parquet", "--labels", "cat,dog,zebra,bus", "-o", "t.nescio")
    score = ("score", "t.nescio", "test-x.parquet", "--with-labels", "--keep", "text")
    assert nescio(*score, "-o", "t.parquet")[0] == 0
    scored, logits = pandas.read_parquet("t.parquet"), np.load("test.npy")
    assert list(scored)[-6:] == ["text", "predicted", *(f"prob_{name}" for name in LABELS)]
    np.testing.assert_allclose(scored["prob_dog"], 1 / (1 + np.exp(-logits[:, 1])))
    expected = "; ".join(np.array(LABELS)[logits[0] > 0])
    assert scored.predicted[0] == expected
    monitored = nescio("monitor", "t.parquet", "--detector", "t.nescio")
    assert monitored[0] in (0, 3)
    renamed = scored.rename(columns={"id": "photo"})
    renamed.to_csv("renamed.csv", index=False)
    outputs = ("--outputs", "test-x.parquet", "--id-column", "photo")
    pandas.read_parquet("test-x.parquet").rename(columns={"id": "photo"}).to_parquet(outputs[1])
    command = ("monitor", "renamed.csv", "--detector", "t.nescio", *outputs)
    assert nescio(*command)[0] == monitored[0]
    code, _, err = nescio("monitor", "test-x.csv", "--detector", "t.nescio")
    assert code == 1
    assert "is not a scored table: it has no column score" in err
    assert "nescio score DETECTOR DATA -o" in err


def test_the_most_suspicious_rows_are_printed(tables, nescio):
    nescio("calibrate", "val.npy", "-o", "t.nescio")
    scores = ns.load("t.nescio").score_samples(np.load("far.npy"))
    code, out, _ = nescio("score", "t.nescio", "far.npy")
    assert code == 0
    assert "the 20 most suspicious of 150 rows" in out
    shown = [int(row) for row in re.findall(r"^\W*(\d+)\W+-?\d+\.\S+\W+0\.", out, re.MULTILINE)]
    assert sorted(shown) == sorted(np.argsort(scores)[:20].tolist())


def test_calibrate_shows_the_parameters_and_info_reads_well(tables, nescio):
    names = [f"label {at}" for at in range(8)]
    outputs = ns.Outputs(np.random.default_rng(0).normal(size=(1500, 8)), label_names=names)
    outputs.save("eight.safetensors")
    calibrate = ("calibrate", "eight.safetensors", "-o", "t.nescio", "--force", "-d")
    assert "top_k_joint_energy(k=5): in-d" in nescio(*calibrate, "top_k_joint_energy")[1]
    _, out, _ = nescio(*calibrate, "top_k_joint_energy(k=2)")
    assert "top_k_joint_energy(k=2): in-d" in out
    _, out, _ = nescio(*calibrate, "joint_energy", "--json")
    assert json.loads(out)["parameters"] == {}
    ns.TopKJointEnergy(k=2).calibrate(outputs).save("u.nescio")
    _, out, _ = nescio("info", "u.nescio")
    assert "n_samples            1,500" in out
    assert "label 6, label 7\n" in out
    assert not re.search(r"[{}\[']|None|True", out.partition("With")[0])


def test_a_kept_column_may_not_hide_a_verdict(tables, nescio, tmp_path):
    nescio("calibrate", "val-x.csv", "--labels", "cat", "-o", "t.nescio")
    pandas.read_csv("far-x.csv").rename(columns={"text": "score"}).to_csv("far.csv", index=False)
    code, _, err = nescio("score", "t.nescio", "far.csv", "--keep", "score", "-o", "s.csv")
    assert (code, "column 'score' cannot be kept" in err) == (1, True)
    assert not (tmp_path / "s.csv").exists()


def test_the_other_files_may_lack_the_column_of_the_ids(tables, nescio):
    pandas.read_csv("test-x.csv").rename(columns={"id": "photo"}).to_csv("named.csv", index=False)
    options = ("--id-column", "photo", "--ignore", "user_id,taken,text")
    train = ("--train", "val-x.parquet", "-d", "isolation_forest", "-o", "t.nescio")
    assert nescio("calibrate", "named.csv", *train, *options)[0] == 0
    code, _, err = nescio("eval", "--id", "named.csv", "--ood", "far-x.csv", *options)
    assert (code, err) == (0, "")
    pandas.read_csv("val-x.csv").drop(columns="cat").to_csv("less.csv", index=False)
    train = ("--train", "less.csv", "-d", "isolation_forest", "-o", "u.nescio")
    code, _, err = nescio("calibrate", "named.csv", *train, *options)
    assert code == 1
    assert err.startswith("error: less.csv: the data does not have the labels of the first file ")
