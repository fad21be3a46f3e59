"""Verdicts on streams: those of whole files, written once and completely."""

import datetime
import decimal
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from nescio._io.tables import Columns
from nescio.detectors.verdicts import score_stream
from nescio.errors import InputError, NonFiniteError, ParameterError
from nescio.outputs import files
from nescio.outputs.files import OutputsStream

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pandas = pytest.importorskip("pandas")

LABELS = ("cat", "dog", "zebra")
N = 1000
SIZE = 128


@pytest.fixture(autouse=True)
def _small_blocks_in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "_MOST_ROWS", SIZE)


@pytest.fixture
def detector(rng):
    held_out = ns.Outputs(rng.normal(-1, 3, (400, 3)).astype(np.float32), label_names=LABELS)
    return ns.JointEnergy().calibrate(held_out)


@pytest.fixture
def frame(rng):
    """A shuffled frame of pandas, as users have them."""
    made = pandas.DataFrame(rng.normal(-4, 4, (N, 3)).astype(np.float32), columns=LABELS)
    made.insert(0, "id", [f"image-{row}" for row in range(N)])
    made["taken"] = pandas.Timestamp("2026-01-01", tz="UTC") + pandas.to_timedelta(range(N), "h")
    made["text"] = [f"a text, {row}" for row in range(N)]
    made["n"] = pandas.array([None if row == 500 else 2**53 + row for row in range(N)], "Int64")
    made["price"] = [decimal.Decimal(row) / 100 for row in range(N)]
    made["tags"] = [["a"] * (row % 3) for row in range(N)]
    return made.sample(frac=1, random_state=0)


def opened(path, **said):
    return OutputsStream(path, Columns(**{"expected": LABELS, "keep_rest": True, **said}))


@pytest.mark.parametrize("fdr", [None, 0.3])
@pytest.mark.parametrize("by", [None, "label_count"])
def test_a_table_gets_the_verdicts_of_the_whole_and_keeps_its_columns(frame, rng, fdr, by):
    held_out = ns.Outputs(rng.normal(-1, 3, (900, 3)), label_names=LABELS)
    detector = ns.JointEnergy().calibrate(held_out, groups=by)
    frame.to_parquet("x.parquet", row_group_size=177)
    whole = detector.assess(ns.Outputs.load("x.parquet", labels=LABELS), fdr=fdr)
    rows = []
    result = score_stream(detector, opened("x.parquet"), "y.parquet", fdr=fdr, on_rows=rows.append)
    assert (result.n_samples, sum(rows)) == (N, N)
    assert 0 < result.n_flagged == len(whole.flagged) < N
    thresholds = detector.calibration_.threshold_of(whole.groups)
    keys = (whole.scores - thresholds, whole.p_values, whole.in_distribution)
    expected = np.lexsort(keys)[:20]
    assert result.lowest["row"].tolist() == expected.tolist()
    assert result.lowest["score"].tolist() == whole.scores[expected].tolist()
    written, data = parquet.read_table("y.parquet"), parquet.read_table("x.parquet")
    kept = ["taken", "text", "n", "price", "tags"]
    assert written.column_names == [*whole.columns(), *kept]
    for name, column in whole.columns().items():
        np.testing.assert_array_equal(np.asarray(written[name]), column)
    assert written.select(kept).equals(data.select(kept).replace_schema_metadata(None))
    assert sorted(path.name for path in Path().iterdir()) == ["x.parquet", "y.parquet"]


def test_text_files_hold_the_same_values(detector, frame):
    frame.to_parquet("x.parquet")
    whole = detector.assess(ns.Outputs.load("x.parquet", labels=LABELS))
    for name in ("y.csv", "y.jsonl"):
        score_stream(detector, opened("x.parquet"), name)
    lines = [json.loads(line) for line in Path("y.jsonl").read_text("utf-8").splitlines()]
    cells = pandas.read_csv("y.csv", dtype={"n": "Int64", "price": str})
    for row, data in enumerate(frame.to_dict("records")):
        line, cell = lines[row], cells.iloc[row]
        assert line["id"] == cell.id == data["id"]
        assert line["score"] == whole.scores[row] == pytest.approx(cell.score, abs=0)
        assert line["price"] == cell.price == f"{data['price']:.2f}"
        assert line["tags"] == json.loads(cell.tags) == data["tags"]
        assert datetime.datetime.fromisoformat(line["taken"]) == data["taken"]
        missing = data["id"] == "image-500"
        assert (line["n"] is None) == (cell.n is pandas.NA) == missing
        assert missing or line["n"] == cell.n == data["n"]


def test_categories_of_several_files_are_kept(detector, frame):
    Path("x").mkdir()
    for name in ("a", "b"):
        kinds = [f"{name}-{row}" for row in range(200)]
        part = frame[:200].assign(kind=pandas.Categorical(kinds))
        part.to_parquet(f"x/{name}.parquet")
    score_stream(detector, opened("x", keep="kind"), "y.parquet")
    written = parquet.read_table("y.parquet")["kind"].to_pylist()
    assert written == [f"{name}-{row}" for name in ("a", "b") for row in range(200)]


def test_predictions_are_added(detector, frame):
    frame.to_parquet("x.parquet")
    score_stream(detector, opened("x.parquet", keep=["text"]), "y.parquet", with_labels=True)
    written = pandas.read_parquet("y.parquet")
    assert list(written)[4:] == ["text", "predicted", *(f"prob_{name}" for name in LABELS)]
    logits = frame[list(LABELS)].to_numpy()
    np.testing.assert_allclose(written[[f"prob_{n}" for n in LABELS]], 1 / (1 + np.exp(-logits)))
    expected = ["; ".join(np.array(LABELS)[row > 0]) for row in logits]
    assert written["predicted"].tolist() == expected


def test_labels_in_another_order_are_matched_in_every_block(detector, frame):
    logits = frame[list(LABELS)].to_numpy()
    more = np.column_stack([logits[:, ::-1], logits[:, :1]])
    ns.Outputs(more, label_names=[*LABELS[::-1], "lion"]).save("x.safetensors")
    with pytest.warns(ns.errors.IgnoredLabelsWarning, match="'lion'") as warned:
        score_stream(detector, OutputsStream("x.safetensors"), "y.parquet")
    assert len(warned) == 1
    written = parquet.read_table("y.parquet")
    np.testing.assert_allclose(written["score"], detector.score_samples(logits), rtol=1e-6)


def test_a_block_without_negative_values_gives_no_warning(detector, frame):
    frame.iloc[7 * SIZE :, 1:4] = 2.5
    frame.to_parquet("x.parquet")
    score_stream(detector, opened("x.parquet"))


def test_bad_rows_are_named_by_their_block(detector, frame):
    frame.iloc[300, 1] = np.nan
    frame.to_parquet("x.parquet")
    reason = r"^x.parquet, rows 256 to 383 .*: logits hold NaN or infinity in 1 of 128 rows: 44 "
    with pytest.raises(NonFiniteError, match=reason):
        score_stream(detector, opened("x.parquet"), "y.parquet")
    assert [path.name for path in Path().iterdir()] == ["x.parquet"]
    detector.set_params(nonfinite="out")
    for fdr in (None, 1e-9):
        result = score_stream(detector, opened("x.parquet"), "y.parquet", fdr=fdr, force=True)
        written = parquet.read_table("y.parquet")
        flagged = np.flatnonzero(~np.asarray(written["in_distribution"]))
        assert result.n_flagged == len(flagged)
        assert 300 in flagged
        assert written["score"][300].as_py() == -np.inf


@pytest.mark.parametrize("name", ["score", "p_value", "in_distribution", "group"])
def test_a_name_that_the_output_has_is_an_error_before_any_work(detector, frame, name):
    frame.rename(columns={"text": name}).to_parquet("x.parquet")
    with pytest.raises(InputError, match=rf"'{name}' cannot be kept.* Rename .* --ignore {name}\."):
        score_stream(detector, opened("x.parquet"), "y.parquet")
    assert sorted(path.name for path in Path().iterdir()) == ["x.parquet"]
    score_stream(detector, opened("x.parquet", ignore=[name]), "y.parquet")
    frame.rename(columns={"text": "prob_dog"}).to_parquet("x.parquet")
    with pytest.raises(InputError, match="'prob_dog' cannot be kept, because --with-labels"):
        score_stream(detector, opened("x.parquet"), "z.parquet", with_labels=True)
    assert not Path("z.parquet").exists()


def test_a_wrong_rate_is_an_error_before_any_work(detector, frame):
    frame.to_parquet("x.parquet")
    with pytest.raises(ParameterError, match="fdr must lie between 0 and 1"):
        score_stream(detector, opened("x.parquet"), "y.parquet", fdr=1.5)
    assert not Path("y.parquet").exists()


@pytest.mark.parametrize("name", ["y.parquet", "y.csv", "y.jsonl"])
def test_a_run_that_ends_early_leaves_nothing(detector, frame, name):
    frame.to_parquet("x.parquet")
    done = []

    def on_rows(count):
        done.append(count)
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_stream(detector, opened("x.parquet"), name, on_rows=on_rows)
    assert [path.name for path in Path().iterdir()] == ["x.parquet"]
    Path(name).write_text("before")
    done.clear()
    with pytest.raises(KeyboardInterrupt):
        score_stream(detector, opened("x.parquet"), name, on_rows=on_rows, force=True)
    assert Path(name).read_text() == "before"


def test_all_columns_can_be_returned(detector, frame):
    frame.to_parquet("x.parquet")
    result = score_stream(detector, opened("x.parquet"), fdr=0.3, in_memory=True)
    assert sum(len(part["score"]) for part in result.parts) == N
    inside = np.concatenate([part["in_distribution"] for part in result.parts])
    assert result.n_flagged == N - inside.sum()


# --- memory ---

_PEAK = """
import resource, sys
import numpy, pyarrow.parquet, scipy.special
import nescio as ns
from nescio.cli import main
from nescio._threads import limit_cpus
from nescio.detectors import verdicts
limit_cpus(2)
pyarrow.set_cpu_count(2)
def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
ns.load(sys.argv[2])
before = peak()
code = main(sys.argv[1:])
print("peak", code, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no resource module")
def test_memory_does_not_grow_with_the_file(rng):
    names = [f"label {label}" for label in range(80)]
    held_out = ns.Outputs(rng.normal(-1, 3, (100, 80)).astype(np.float32), label_names=names)
    ns.JointEnergy().calibrate(held_out).save("d.nescio")
    # As a matrix, 4 x 125,000 rows take 160 MB, and the whole file at once takes 550 MB or more;
    # as constants in a file they take next to nothing.
    group = pyarrow.table(dict.fromkeys(names, np.full(125_000, -1.5, np.float32)))
    with parquet.ParquetWriter("x.parquet", group.schema) as writer:
        for _ in range(4):
            writer.write_table(group, row_group_size=125_000)
    finished = subprocess.run(
        [sys.executable, "-c", _PEAK, "score", "d.nescio", "x.parquet", "-o", "y.parquet"],
        capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    code, peak = map(int, finished.stdout.rpartition("peak ")[2].split())
    assert code == 0
    assert parquet.read_metadata("y.parquet").num_rows == 500_000
    assert peak < 300e6, f"{peak / 1e6:.0f} MB"
