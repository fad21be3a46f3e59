"""Commands on inputs that are read in blocks of rows: the results are those of whole files."""

import json

import numpy as np
import pytest

import nescio as ns
from nescio.metrics.comparison import read_sets
from nescio.outputs import Outputs

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def run(nescio):
    """Run a command that succeeds, and return what it prints."""

    def succeed(*arguments, code=0):
        found, out, err = nescio(*map(str, arguments))
        assert (found, err) == (code, "")
        return out

    return succeed


def logits_of(rng, mean, n=1_500):
    return rng.normal(mean, 2, (n, 5)).astype(np.float32)


def write(path, logits):
    parquet.write_table(
        pyarrow.table({name: logits[:, at] for at, name in enumerate("abcde")}), path
    )
    return path


def test_calibrate_reads_the_same_rows_from_any_files(rng, tmp_path, run):
    logits = logits_of(rng, 0)
    table = write(tmp_path / "val.parquet", logits)
    tensors = tmp_path / "val.safetensors"
    Outputs(logits, label_names=list("abcde")).save(tensors)
    folder = tmp_path / "parts"
    folder.mkdir()
    for at, part in enumerate(np.array_split(logits, 3)):
        write(folder / f"part-{at}.parquet", part)

    def calibrated(held_out):
        target = tmp_path / "made.nescio"
        shown = run("calibrate", held_out, "-o", target, "-d", "max_logit", "--force")
        return target.read_bytes(), shown

    whole = calibrated(table)
    assert calibrated(folder) == calibrated(f"{folder}/*.parquet") == whole
    assert ns.load(tmp_path / "made.nescio").calibration_.n_samples == 1_500
    assert calibrated(tensors)[1] == whole[1]


def test_calibrate_draws_a_sample_of_many_rows(rng, tmp_path, run, monkeypatch):
    table = write(tmp_path / "val.parquet", logits_of(rng, 0))
    monkeypatch.setattr("nescio.cli.verdicts.MAX_ROWS", 400)
    target = tmp_path / "made.nescio"
    shown = run("calibrate", table, "-o", target, "-d", "joint_energy")
    assert "1,500 rows" in shown
    assert "400 of the rows, drawn at random" in shown
    found = json.loads(run("calibrate", table, "-o", target, "--force", "--json"))
    assert (found["n_rows"], found["n_samples"]) == (1_500, 400)


def test_eval_takes_tables_and_arrays(rng, tmp_path, run):
    test = write(tmp_path / "test.parquet", logits_of(rng, 0))
    near = write(tmp_path / "near.parquet", logits_of(rng, -1, 700))
    far = tmp_path / "far.safetensors"
    # Another order of the labels: they are matched by name.
    Outputs(logits_of(rng, -3, 600)[:, ::-1], label_names=list("edcba")).save(far)
    arguments = ("eval", "--id", test, "--ood", near, "--ood", far, "--bootstrap", 30)
    arguments += ("-d", "max_logit", "-d", "label_gap")
    results = json.loads(run(*arguments, "--json"))["results"]
    assert [result["n_ood"] for result in results[:2]] in ([700, 600], [700, 700])
    shown = run("eval", "--id", test, "--ood", "n*.parquet", "--bootstrap", 0, "-d", "max_logit")
    assert "n*.parquet: 1,500 ID" in shown


def test_eval_says_that_it_read_a_sample(rng, tmp_path, run, monkeypatch):
    test = write(tmp_path / "test.parquet", logits_of(rng, 0))
    near = write(tmp_path / "near.parquet", logits_of(rng, -1, 700))
    monkeypatch.setitem(read_sets.__kwdefaults__, "max_rows", 1_000)
    arguments = ("eval", "--id", test, "--ood", near, "--bootstrap", 0, "-d", "joint_energy")
    assert "ID: a random sample of the 1,500 rows was read" in run(*arguments)
    printed = json.loads(run(*arguments, "--json"))
    assert printed["sampled"] == {"ID": 1_500}
    assert (printed["results"][0]["n_id"], printed["results"][0]["n_ood"]) == (1_000, 700)


@pytest.mark.parametrize("with_outputs", [False, True])
def test_monitor_has_the_same_report_and_state(rng, tmp_path, run, monkeypatch, with_outputs):
    """Blocks of 4,096 rows: so many are counted at once in any case, so nothing is rounded anew."""
    detector = ns.MaxLogit().calibrate(Outputs(logits_of(rng, 0), label_names=list("abcde")))
    detector.save(tmp_path / "made.nescio")
    logits = np.concatenate([logits_of(rng, 0, 5_000), logits_of(rng, -0.4, 4_000)])
    times = [f"2026-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}" for at in range(9_000)]
    found = detector.assess(Outputs(logits, ids=[f"row {at}" for at in range(9_000)]))
    columns = {**found.columns(), "when": times}
    scored = tmp_path / "scored.parquet"
    parquet.write_table(pyarrow.table(columns), scored, row_group_size=1_000)
    folder = tmp_path / "scored"
    folder.mkdir()
    for at in range(3):
        part = pyarrow.table(columns).slice(at * 3_000, 3_000)
        parquet.write_table(part, folder / f"{at}.parquet")
    outputs = ["--outputs", write(tmp_path / "logits.parquet", logits)] if with_outputs else []

    def monitored(path):
        state = tmp_path / "state.safetensors"
        state.unlink(missing_ok=True)
        rest = ("--detector", "made.nescio", "--state", state, "--time-column", "when", *outputs)
        return run("monitor", path, *rest, "--json", code=3), state.read_bytes()

    whole = monitored(scored)
    assert json.loads(whole[0])["change"]["since"]["id"].startswith("row")
    monkeypatch.setattr("nescio.cli.monitor._BLOCK", 4_096)
    monkeypatch.setattr("nescio.outputs.reading._MOST_ROWS", 4_096)
    assert monitored(scored) == whole
    shown, state = monitored(folder)
    assert shown == whole[0]
    assert len(state) == len(whole[1])  # only the hash of the files differs


def test_remote_addresses_are_read_too(rng, tmp_path, run):
    fsspec = pytest.importorskip("fsspec")
    logits = logits_of(rng, 0)
    local = write(tmp_path / "val.parquet", logits)
    ood = write(tmp_path / "ood.parquet", logits_of(rng, -2, 300))
    detector = ns.MaxLogit().calibrate(Outputs(logits, label_names=list("abcde")))
    detector.assess(Outputs(logits)).save(tmp_path / "scored.parquet")
    store = fsspec.filesystem("memory")
    for name in ("val", "ood", "scored"):
        store.pipe(f"/large/{name}.parquet", (tmp_path / f"{name}.parquet").read_bytes())

    def printed(*places):
        made = ("calibrate", places[0], "-o", "made.nescio", "-d", "max_logit", "--force")
        compared = ("eval", "--id", places[0], "--ood", places[1], "--bootstrap", 0)
        watched = ("monitor", places[2], "--detector", "made.nescio", "--json")
        return run(*made), run(*compared, "-d", "max_logit"), run(*watched)

    remote = [f"memory://large/{name}.parquet" for name in ("val", "ood", "scored")]
    assert printed(*remote) == printed(local, ood, "scored.parquet")
