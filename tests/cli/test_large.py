"""Commands on inputs that are read in blocks of rows: the results are those of whole files."""

import json
import subprocess
import sys

import numpy as np
import pytest

import nescio as ns
from nescio.calibration import sampling
from nescio.outputs import Outputs, large

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def in_blocks(monkeypatch):
    """Treat every Parquet, Arrow and safetensors file as large, in blocks of 256 rows."""

    def switch():
        monkeypatch.setattr(large, "LARGE", 0)
        monkeypatch.setattr("nescio.outputs.streams._MOST_ROWS", 256)

    return switch


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


def test_calibrate_writes_the_same_file(rng, tmp_path, run, in_blocks):
    logits = logits_of(rng, 0)
    table = write(tmp_path / "val.parquet", logits)
    tensors = tmp_path / "val.safetensors"
    Outputs(logits, label_names=list("abcde")).save(tensors)
    folder = tmp_path / "parts"
    folder.mkdir()
    for at, part in enumerate(np.array_split(logits, 3)):
        write(folder / f"part-{at}.parquet", part)

    def calibrated(held_out, *options):
        target = tmp_path / "made.nescio"
        shown = run("calibrate", held_out, "-o", target, "-d", "max_logit", "--force", *options)
        return target.read_bytes(), shown

    whole = [calibrated(table), calibrated(table, "--by-label-count")]
    in_blocks()
    assert [calibrated(table), calibrated(table, "--by-label-count")] == whole
    assert calibrated(folder)[0] == calibrated(f"{folder}/*.parquet")[0] == whole[0][0]
    assert ns.load(tmp_path / "made.nescio").calibration_.n_samples == 1_500
    assert calibrated(tensors)[1] == whole[0][1]


def test_calibrate_says_that_the_threshold_is_of_a_sample(
    rng, tmp_path, run, in_blocks, monkeypatch
):
    table = write(tmp_path / "val.parquet", logits_of(rng, 0))
    in_blocks()
    monkeypatch.setattr(sampling.ScoreSample.__init__, "__defaults__", (400,))
    monkeypatch.setattr("nescio.cli.calibrate.MAX_SAMPLES", 400)
    target = tmp_path / "made.nescio"
    shown = run("calibrate", table, "-o", target, "-d", "joint_energy")
    assert "1,500 rows" in shown
    assert "400 of the rows, drawn at random" in shown
    found = json.loads(run("calibrate", table, "-o", target, "--force", "--json"))
    assert (found["n_rows"], found["n_samples"]) == (1_500, 400)


def test_a_detector_that_needs_all_rows_says_so_if_they_do_not_fit(
    rng, tmp_path, nescio, in_blocks, monkeypatch
):
    table = write(tmp_path / "val.parquet", logits_of(rng, 0))
    train = write(tmp_path / "train.parquet", logits_of(rng, 0, 300))
    in_blocks()
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 20, "SC_PAGE_SIZE": 1_000}.get)
    target = tmp_path / "made.nescio"
    arguments = ("calibrate", table, "-o", target, "-d", "combined", "--train", train)
    code, _, shown = nescio(*map(str, arguments))
    assert code == 1
    assert "does not fit in memory: 1,500 rows need about" in shown
    assert not target.exists()


def test_eval_prints_the_same_tables(rng, tmp_path, run, in_blocks):
    test = write(tmp_path / "test.parquet", logits_of(rng, 0))
    near = write(tmp_path / "near.parquet", logits_of(rng, -1, 700))
    far = tmp_path / "far.safetensors"
    # Another order of the labels: they are matched by name.
    Outputs(logits_of(rng, -3, 600)[:, ::-1], label_names=list("edcba")).save(far)
    arguments = ("eval", "--id", test, "--ood", near, "--ood", far, "--bootstrap", 30)
    arguments += ("-d", "max_logit", "-d", "label_gap")
    whole = run(*arguments), run(*arguments, "--json")
    in_blocks()
    assert (run(*arguments), run(*arguments, "--json")) == whole
    shown = run("eval", "--id", test, "--ood", "n*.parquet", "--bootstrap", 0, "-d", "max_logit")
    assert "n*.parquet: 1,500 ID" in shown


@pytest.mark.parametrize("large_files", [False, True])
def test_only_the_first_file_needs_the_columns_that_options_name(
    rng, tmp_path, run, in_blocks, large_files
):
    """Of the others, the labels are known by then."""
    first, other = tmp_path / "first.parquet", tmp_path / "other.parquet"
    for path, name in ((first, "user_id"), (other, "photo_id")):
        write(path, logits_of(rng, 0, 300))
        numbers = pyarrow.array(range(300))
        parquet.write_table(parquet.read_table(path).append_column(name, numbers), path)
    arrays = tmp_path / "arrays.safetensors"
    Outputs(logits_of(rng, 0, 300), label_names=list("abcde")).save(arrays)
    if large_files:
        in_blocks()
    for option in ("--ignore", "--id-column"):
        for path in (other, arrays):
            said = (option, "user_id")
            run("eval", "--id", first, "--ood", path, "-d", "max_logit", "--bootstrap", 0, *said)
            made = ("-o", tmp_path / "made.nescio", "--force")
            run("calibrate", first, "--train", path, "-d", "lof", *made, *said)


def test_the_same_files_by_the_same_address_are_an_error(rng, tmp_path, nescio):
    path = write(tmp_path / "test.parquet", logits_of(rng, 0, 50))
    for address in (path, tmp_path / "t*.parquet", f"file://{path}"):
        code, _, shown = nescio("eval", "--id", str(address), "--ood", str(address))
        assert code == 1
        assert f"{address} is given as ID data (--id) and as OOD data (--ood)" in shown


def test_eval_states_the_error_if_scores_are_counted(rng, tmp_path, run, in_blocks, monkeypatch):
    from nescio.metrics import streams

    test = write(tmp_path / "test.parquet", logits_of(rng, 0))
    near = write(tmp_path / "near.parquet", logits_of(rng, -1, 700))
    arguments = ("eval", "--id", test, "--ood", near, "--bootstrap", 30, "-d", "joint_energy")
    exact = json.loads(run(*arguments, "--json"))["results"][0]
    in_blocks()
    monkeypatch.setitem(streams.compare_streams.__kwdefaults__, "max_exact", 1_000)
    monkeypatch.setitem(streams.compare_streams.__kwdefaults__, "max_cells", 1_000)
    shown = run(*arguments)
    assert "counted in cells" in shown
    assert "DeLong's test is left out" in shown
    found = json.loads(run(*arguments, "--json"))["results"][0]
    for name in ("fpr", "auroc", "aupr"):
        assert (name == "auroc") <= (found[name]["error"] > 0)
        assert found[name]["error"] < 0.05
        assert abs(found[name]["value"] - exact[name]["value"]) <= found[name]["error"]


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
        return run("monitor", path, *rest, "--json", "--trace", code=3), state.read_bytes()

    whole = monitored(scored)
    assert json.loads(whole[0])["change"]["since"]["id"].startswith("row")
    monkeypatch.setattr("nescio.cli.monitor._BLOCK", 4_096)
    monkeypatch.setattr("nescio.outputs.streams._MOST_ROWS", 4_096)
    assert monitored(scored) == whole
    shown, state = monitored(folder)
    assert shown == whole[0]
    assert len(state) == len(whole[1])  # only the hash of the files differs


# The bounds are scaled down as the data is: at most 65,536 scores are kept.
IN_BOUNDED_MEMORY = """
import json, resource, sys
from nescio.__main__ import run
from nescio.calibration.sampling import ScoreSample
from nescio.outputs import large
from nescio.metrics.streams import compare_streams

large.LARGE = 2**20
ScoreSample.__init__.__defaults__ = (2**16,)
compare_streams.__kwdefaults__.update(max_exact=2**16, max_cells=2**14)

def peak(*arguments):
    sys.argv = ["nescio", *arguments]
    try:
        run()
    except SystemExit as end:
        assert not end.code, end.code
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def commands(data):
    yield "calibrate", data, "-o", "made.nescio", "-d", "max_logit", "--force"
    yield "eval", "--id", data, "--ood", "ood.parquet", "-d", "max_logit", "--bootstrap", "0"

before = [peak(*one) for one in commands("few.parquet")][-1]
print("few", "many", sep="\\n")
print(json.dumps([(peak(*one) - before) / 1024 for one in commands("many.parquet")]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units")
def test_memory_does_not_grow_with_the_input(rng, tmp_path):
    """The input has 77 MB, of which a command that read it as a whole would make copies."""
    part = pyarrow.table({f"{at}": rng.normal(-1, 2, 16_000).astype("f4") for at in range(40)})
    for name, times in (("few", 3), ("ood", 3), ("many", 30)):
        file = tmp_path / f"{name}.parquet"
        with parquet.ParquetWriter(
            file, part.schema, compression="none", use_dictionary=False
        ) as out:
            for _ in range(times):
                out.write_table(part)
    found = subprocess.run(
        [sys.executable, "-c", IN_BOUNDED_MEMORY],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "480,000 rows" in found.stdout
    assert "counted in cells" in found.stdout
    assert max(json.loads(found.stdout.splitlines()[-1])) < 60


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
