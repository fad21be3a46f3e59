"""Outputs in blocks of rows: the same rows and the same rules as those of whole files."""

import os
from dataclasses import replace

import numpy as np
import pytest

from nescio._io.tables import Columns
from nescio.errors import FileError, FileFormatError, InputError, ShapeError
from nescio.outputs import Head, Outputs, files
from nescio.outputs.files import OutputsStream, read_outputs

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
ipc = pytest.importorskip("pyarrow.ipc")

N = 1000
SIZE = 128
LABELS = ("cat", "dog", "zebra")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(files, "_MOST_ROWS", SIZE)


@pytest.fixture
def table(rng):
    """A table of logits, ids, and columns of other types."""
    logits = {name: rng.normal(-1, 3, N).astype(np.float32) for name in LABELS}
    return pyarrow.table(
        {
            "id": [f"image-{row}" for row in range(N)],
            **logits,
            "taken": pyarrow.array(np.arange(N), pyarrow.timestamp("ms", "Europe/Rome")),
            "price": pyarrow.array(np.arange(N)).cast(pyarrow.decimal128(24, 2)),
            "tags": [["a"] * (row % 3) for row in range(N)],
        }
    )


def write_parquet(table, path, rows=177):
    parquet.write_table(table, path, row_group_size=rows)


def write_arrow(table, path, rows=177):
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


def read(address, columns=Columns(), first=0, **options):  # noqa: B008
    """Return all blocks as one, with the kept columns of Arrow."""
    blocks = list(OutputsStream(address, columns, **options).blocks(first))
    assert [block.start for block in blocks] == [
        SIZE * number for number in range(first, first + len(blocks))
    ]
    ids = [None if block.ids is None else np.asarray(block.ids) for block in blocks]
    whole = Outputs.concat([replace(b.outputs, ids=i) for b, i in zip(blocks, ids, strict=True)])
    if whole.kept or not blocks[0].kept:
        return whole, None
    return whole, pyarrow.concat_tables([pyarrow.table(block.kept) for block in blocks])


REST = Columns(labels=LABELS, keep_rest=True)


@pytest.fixture(params=["one", "arrow", "feather", "glob", "folder", "nested", "memory", "file"])
def source(request, table, tmp_path):
    """Write the table in some way; return the address, and the table that it is."""
    kind = request.param
    if kind in ("one", "file"):
        write_parquet(table, tmp_path / "x.parquet", 177 if kind == "file" else 500)
        start = "" if kind == "one" else "file://"
        return f"{start}{tmp_path}/x.parquet", table
    if kind in ("arrow", "feather"):
        write_arrow(table, tmp_path / f"x.{kind}", 50 if kind == "feather" else 500)
        return f"{tmp_path}/x.{kind}", table
    if kind == "memory":
        fsspec = pytest.importorskip("fsspec")
        write_parquet(table, tmp_path / "x.parquet")
        system = fsspec.filesystem("memory")
        system.rm("/", recursive=True) if system.ls("/") else None
        system.put(str(tmp_path / "x.parquet"), "/in/x-1.parquet")
        return "memory://in/*.parquet", table
    for part, start in enumerate(range(0, N, 90)):  # 12 files: part-10 comes after part-9
        folder = tmp_path / "parts" / (f"year={2020 + part // 6}" if kind == "nested" else "")
        folder.mkdir(parents=True, exist_ok=True)
        write_parquet(table.slice(start, 90), folder / f"part-{part}.parquet", 50)
    (tmp_path / "parts" / "_SUCCESS").touch()
    return f"{tmp_path}/parts" + ("/*.parquet" if kind == "glob" else ""), table


def test_blocks_are_the_rows_of_the_whole_file(source):
    address, table = source
    stream = OutputsStream(address, REST)
    assert (stream.n_rows, stream.n_blocks, stream.block_rows) == (N, 8, SIZE)
    outputs, kept = read(address, REST)
    expected = np.column_stack([table[name] for name in LABELS])
    np.testing.assert_array_equal(outputs.logits, expected)
    assert outputs.logits.dtype == np.float32
    assert outputs.label_names == LABELS
    assert outputs.ids.tolist() == table["id"].to_pylist()
    copied = [name for name in table.column_names if name not in ("id", *LABELS)]
    assert kept.equals(table.select(copied))
    later, later_kept = read(address, REST, first=5)
    np.testing.assert_array_equal(later.logits, expected[5 * SIZE :])
    assert later_kept.equals(kept.slice(5 * SIZE))
    whole = Outputs.load(address, labels=LABELS)
    np.testing.assert_array_equal(whole.logits, expected)


def test_a_safetensors_file_is_read_in_blocks(tmp_path, rng):
    outputs = Outputs(
        rng.normal(size=(N, 3)).astype(np.float16),
        features=rng.normal(size=(N, 5)),
        labels=rng.integers(0, 2, (N, 3)),
        ids=["é" * (row % 5) for row in range(N)],
        label_names=LABELS,
        head=Head(rng.normal(size=(3, 5)), rng.normal(size=3)),
        arrays={"penultimate": rng.normal(size=(N, 5))},
        kept={"text": np.array([f"t{row}" for row in range(N)]), "n": np.arange(N)},
        manifest={"split": "val"},
    )
    outputs.save(tmp_path / "x.safetensors")
    remote = f"file://{tmp_path}/x.safetensors"
    for address, block in ((tmp_path / "x.safetensors", 0), (remote, 3)):
        loaded, first = read(address, first=block)[0], block * SIZE
        for name in ("logits", "features", "labels", "ids"):
            expected = getattr(outputs, name)[first:]
            np.testing.assert_array_equal(getattr(loaded, name), expected)
        np.testing.assert_array_equal(loaded.get("penultimate"), outputs.get("penultimate")[first:])
        assert {name: column.tolist() for name, column in loaded.kept.items()} == {
            name: column[first:].tolist() for name, column in outputs.kept.items()
        }
        assert loaded.head.same_as(outputs.head)
        assert (loaded.label_names, loaded.manifest) == (LABELS, {"split": "val"})
    chosen, _ = read(tmp_path / "x.safetensors", Columns(labels=["zebra", "cat"]))
    np.testing.assert_array_equal(chosen.logits, outputs.logits[:, [2, 0]])


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.csv"])
def test_other_files_are_streams_too(tmp_path, table, name):
    logits = np.column_stack([table[label] for label in LABELS])
    if name == "x.npy":
        np.save(tmp_path / name, logits)
    elif name == "x.npz":
        np.savez(tmp_path / name, logits=logits)
    else:
        table.select(["id", *LABELS]).to_pandas().to_csv(tmp_path / name, index=False)
    np.testing.assert_allclose(read(tmp_path / name)[0].logits, logits)


def test_lists_are_logits_in_blocks(tmp_path, rng):
    logits = rng.normal(size=(N, 4))
    write_parquet(pyarrow.table({"logits": list(logits), "n": range(N)}), tmp_path / "x.parquet")
    np.testing.assert_array_equal(read(tmp_path / "x.parquet")[0].logits, logits)
    uneven = [[0.5] * (4 if row < 300 else 5) for row in range(384)]
    write_parquet(pyarrow.table({"logits": uneven}), tmp_path / "y.parquet")
    with pytest.raises(InputError, match=r"rows 256 to 383 .*: the lists of column 'logits' must"):
        read(tmp_path / "y.parquet")
    write_parquet(pyarrow.table({"logits": uneven[:256] + uneven[300:]}), tmp_path / "z.parquet")
    with pytest.raises(ShapeError, match="the first rows have 4 labels, but these have 5"):
        read(tmp_path / "z.parquet")


# --- samples and columns ---


@pytest.mark.parametrize("name", ["x.parquet", "x.safetensors"])
def test_a_sample_has_random_rows_in_their_order(tmp_path, table, name):
    write_parquet(table.select(["id", *LABELS]), tmp_path / "x.parquet")
    whole = Outputs.load(tmp_path / "x.parquet")
    whole.save(tmp_path / "x.safetensors")
    sample = read_outputs(tmp_path / name, from_probs=None, max_rows=300)
    rows = [int(name.removeprefix("image-")) for name in sample.ids]
    assert len(set(rows)) == 300
    assert rows == sorted(rows)
    assert 400 < np.mean(rows) < 600
    np.testing.assert_array_equal(sample.logits, whole.logits[rows])
    assert sample.manifest == {"sampled_from": N}
    again = read_outputs(tmp_path / name, from_probs=None, max_rows=300)
    assert again.ids.tolist() == sample.ids.tolist()
    assert len(read_outputs(tmp_path / name, from_probs=None, max_rows=N)) == N


def test_large_rows_make_a_smaller_sample(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((N, 10)) - 1)
    monkeypatch.setattr(files, "_MAX_BYTES", 80 * 50)
    assert len(read_outputs(tmp_path / "x.npy", from_probs=None, max_rows=N)) == 50


def test_columns_that_are_no_labels_are_an_error_before_any_row_is_read(tmp_path, table):
    write_parquet(table, tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"x.parquet: not all .*'tags' .list<"):
        OutputsStream(tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"'taken' .timestamp.*, 'price' .decimal"):
        OutputsStream(tmp_path / "x.parquet", Columns(ignore="tags"))


def test_probabilities_are_refused_unless_one_says_what_they_are(tmp_path, rng):
    probs = {name: rng.uniform(size=N) for name in LABELS}
    write_parquet(pyarrow.table(probs), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"x.parquet: every value lies within \[0, 1\]"):
        next(OutputsStream(tmp_path / "x.parquet", from_probs=None).blocks())
    for from_probs in (True, False):
        streamed = read(tmp_path / "x.parquet", from_probs=from_probs)[0]
        whole = Outputs.load(tmp_path / "x.parquet", from_probs=from_probs)
        np.testing.assert_array_equal(streamed.logits, whole.logits)


# --- files that do not fit, or are missing ---


def test_files_with_other_columns_are_named(tmp_path, table):
    small = table.select(LABELS)
    write_parquet(small, tmp_path / "a.parquet")
    for name, other in {
        "'zebra' is missing here, and is float there": small.drop_columns("zebra"),
        "'n' is int64 here, and is missing there": small.append_column(
            "n", pyarrow.array(range(N))
        ),
        "'dog' is double here": small.set_column(1, "dog", small["dog"].cast("double")),
    }.items():
        write_parquet(other, tmp_path / "b.parquet")
        with pytest.raises(InputError, match=r"b.parquet has other columns than ") as raised:
            OutputsStream(tmp_path)
        assert name in str(raised.value)
    write_parquet(small.select(LABELS[::-1]), tmp_path / "b.parquet")  # another order does no harm
    np.testing.assert_array_equal(np.diff(read(tmp_path)[0].logits.reshape(2, N, 3), axis=0), 0)


def test_missing_files_are_explained(tmp_path, table):
    for address, reason in {
        tmp_path / "x.parquet": "there is no file",
        tmp_path / "*.parquet": "matches no .parquet",
        tmp_path: "matches no .parquet",
        "memory://nothing/x.parquet": "there is no file memory:",
        "memory://nothing/*.parquet": "nothing/.* matches no .parquet",
        "nosuch://x/y.parquet": "cannot read .nosuch:",
    }.items():
        with pytest.raises(FileError, match=reason):
            OutputsStream(address)
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with pytest.raises(FileError, match=r"npy matches .npy files. The files"):
        OutputsStream(tmp_path / "*.npy")
    with pytest.raises(FileError, match="NumPy files cannot be remote"):
        OutputsStream(f"file://{tmp_path}/x.npy")


def test_a_part_that_is_replaced_while_the_input_is_read_is_named(tmp_path, table):
    for name in ("a.parquet", "b.parquet"):
        write_parquet(table, tmp_path / name)
    for blocks_before in (0, 2):  # before the first row is read, and in the middle
        blocks = OutputsStream(tmp_path, REST).blocks()
        for _ in range(blocks_before):
            next(blocks)
        write_parquet(table.slice(1), tmp_path / "b.parquet")
        with pytest.raises(FileError, match=r"b.parquet was replaced or written to while"):
            list(blocks)
        write_parquet(table, tmp_path / "b.parquet")


def test_what_is_no_file_in_an_input_is_named(tmp_path, table):
    write_parquet(table.select(LABELS), tmp_path / "a.parquet")
    odd = tmp_path / "b.parquet"
    for make, reason in (
        (lambda: odd.symlink_to(tmp_path / "nowhere"), "there is no file .*b.parquet"),
        (lambda: os.mkfifo(odd), "b.parquet is not a regular file"),
    ):
        make()
        for address in (tmp_path, tmp_path / "*.parquet"):
            with pytest.raises(FileError, match=reason):
                OutputsStream(address)
        odd.unlink()
    odd.mkdir()  # of another input
    assert OutputsStream(tmp_path / "*.parquet").n_rows == N


def test_empty_files(tmp_path, table):
    write_parquet(table.slice(0, 0), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="has no rows"):
        list(OutputsStream(tmp_path, REST).blocks())
    write_parquet(table, tmp_path / "b.parquet")
    write_parquet(table.slice(0, 0), tmp_path / "c.parquet")
    assert len(read(tmp_path, REST)[0]) == N
    (tmp_path / "d.parquet").touch()
    with pytest.raises(FileFormatError, match=r"cannot read .*d.parquet as Parquet"):
        OutputsStream(tmp_path)
    (tmp_path / "x.arrow").touch()
    with pytest.raises(FileFormatError, match=r"cannot read .*x.arrow as Arrow"):
        OutputsStream(tmp_path / "x.arrow")


def test_files_that_differ_only_in_how_they_were_written_are_one_input(tmp_path, table):
    """One cannot hold nulls, and each has its own categories, with numbers of one byte."""
    for number, name in enumerate(("a.arrow", "b.arrow")):
        kinds = pyarrow.array([f"{name}-{row % 100}" for row in range(N)]).dictionary_encode()
        kinds = kinds.cast(pyarrow.dictionary(pyarrow.int8(), pyarrow.string()))
        part = table.select(LABELS).append_column("kind", kinds)
        fields = [field.with_nullable(number == 0) for field in part.schema]
        write_arrow(part.cast(pyarrow.schema(fields)), tmp_path / name)
    outputs, kept = read(tmp_path, Columns(labels=LABELS, keep="kind"))
    assert len(outputs) == 2 * N
    expected = [f"{name}-{row % 100}" for name in ("a.arrow", "b.arrow") for row in range(N)]
    assert kept["kind"].to_pylist() == expected
    assert Outputs.load(tmp_path, id_column="kind", labels=LABELS).ids.tolist() == expected


@pytest.mark.parametrize("lists", [[["a", "b"]] * N, [["a"] * (row % 3) for row in range(N)]])
def test_lists_that_are_no_numbers_can_be_left_out_or_kept(tmp_path, rng, lists):
    logits = rng.normal(-1, 3, (N, 3)).tolist()
    path = tmp_path / "x.parquet"
    write_parquet(pyarrow.table({"logits": logits, "tags": lists}), path)
    for columns in (Columns(), Columns(ignore="tags")):
        assert not read(path, columns)[1]
    for columns in (Columns(keep_rest=True), Columns(keep="tags", keep_rest=True)):
        assert read(path, columns)[1]["tags"].to_pylist() == lists


def test_blocks_of_large_rows_are_small():
    """A row may have an image, or the logits of a hundred thousand labels."""
    for row_bytes in (4, 1 << 10, 1 << 19):
        assert files._rows_per_block(row_bytes) * row_bytes <= files._BLOCK_BYTES


def test_a_folder_with_two_kinds_of_files_is_no_input(tmp_path, table):
    write_parquet(table.select(LABELS), tmp_path / "a.parquet")
    write_arrow(table.select(LABELS), tmp_path / "b.arrow")
    with pytest.raises(FileError, match=r"matches \.arrow and \.parquet files.*Name a pattern"):
        OutputsStream(tmp_path)
    (tmp_path / "b.arrow").rename(tmp_path / "_b.arrow")
    assert OutputsStream(tmp_path).n_rows == len(table)
