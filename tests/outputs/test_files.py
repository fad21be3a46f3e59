"""Outputs on disk, and the other formats they are read from."""

import gzip
import pickle
import zipfile

import numpy as np
import pytest

from fixtures.rewriting import write_valid
from nescio import Outputs
from nescio._io.tables import Columns
from nescio._io.tensors import read_tensors
from nescio.errors import (
    FileError,
    FileFormatError,
    InputError,
    MissingDependencyError,
    NescioError,
    ParameterError,
    ShapeError,
)
from nescio.outputs.files import read_outputs, save_in_parts


def test_what_is_saved_is_loaded(tmp_path, outputs):
    outputs.save(tmp_path / "x.safetensors")
    loaded = Outputs.load(tmp_path / "x.safetensors")
    same(loaded, outputs)
    assert loaded.manifest == outputs.manifest
    assert loaded.logits.dtype == np.float32
    assert not loaded.logits.flags.owndata  # still on disk


def test_a_file_may_be_replaced_while_it_is_mapped(tmp_path, outputs):
    path = tmp_path / "x.safetensors"
    outputs.save(path)
    loaded = Outputs.load(path)
    loaded[::-1].save(path, force=True)
    same(loaded, outputs)
    same(Outputs.load(path), outputs[::-1])


def test_numpy_files(tmp_path, outputs, whole):
    np.save(tmp_path / "x.npy", outputs.logits)
    same(Outputs.load(tmp_path / "x.npy"), Outputs(outputs.logits))
    np.savez(tmp_path / "one.npz", outputs.logits)
    same(Outputs.load(tmp_path / "one.npz"), Outputs(outputs.logits))
    np.savez(
        tmp_path / "all.npz",
        logits=outputs.logits,
        features=outputs.features,
        labels=outputs.labels,
        ids=outputs.ids,
        label_names=np.array(outputs.label_names),
        something_else=np.zeros(3),
    )
    same(Outputs.load(tmp_path / "all.npz"), outputs)
    head = {"head.weight": whole.head.weight, "head.bias": whole.head.bias}
    np.savez(tmp_path / "own.npz", logits=whole.logits, mine=whole.arrays["mine"], **head)
    assert Outputs.load(tmp_path / "own.npz").names == ("logits", "head", "mine")
    np.savez(tmp_path / "two.npz", a=outputs.logits, b=outputs.logits)
    with pytest.raises(FileFormatError, match=r"no array named logits; it has \['a', 'b'\]"):
        Outputs.load(tmp_path / "two.npz")


@pytest.mark.parametrize(
    ("text", "ids", "names"),
    [
        ("cat,dog\n1,-2.5\n3e1,-inf\n", None, ("cat", "dog")),
        ("id,cat,dog\nx,1,-2.5\n'y z',3e1,-inf\n", ["x", "'y z'"], ("cat", "dog")),
        ('cat,ID,dog\n1,"a,b",-2.5\n3e1,c,-inf\n', ["a,b", "c"], ("cat", "dog")),
        ("0,1\n1,-2.5\n3e1,-inf\n", None, None),
        ("1,2\n1,-2.5\n3e1,-inf\n", None, None),
        ("\ufeffcat,dog\r\n1,-2.5\r\n3e1,-inf\r\n", None, ("cat", "dog")),
    ],
)
def test_csv_files(tmp_path, text, ids, names):
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    loaded = Outputs.load(tmp_path / "x.csv")
    np.testing.assert_array_equal(loaded.logits, [[1, -2.5], [30, -np.inf]])
    assert loaded.label_names == names
    assert (loaded.ids is None) if ids is None else (loaded.ids.tolist() == ids)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("größe,b\n1,2\n", "not UTF-8 text"),
        ("cat,dog\n1.5,two\n", r"'dog' \(string\)"),
        (
            "cat,dog\n1\n",
            r"as CSV: row 0 \(the first below the header .*: Expected 2 columns, got 1: 1\.",
        ),
        ("cat,dog\n1,2\n\n1,2,3\n", "row 1 .*: Expected 2 columns, got 3"),
        ("1.5,2\n1.5,2\n", "must be a header, but holds the number 1.5"),
        ("1.5,2,\n3,4,\n", "remove the separator at the end"),
        ("cat,dog\n", "has no rows"),
        ("cat,,dog\n0,1,2\n", "column 2 of .* has no name"),
        ("img1,0.3,-1.5\nimg2,1.3,2.5\n", "must be a header, but holds the number 0.3"),
        ("cat,cat\n1,2\n", "two columns of the same name, 'cat'"),
        ("id\nx\n", "no columns of logits"),
        ("cat,path\n1.5,img.jpg\n", r"'path' \(string\)"),
    ],
)
def test_bad_csv_files_are_explained(tmp_path, text, reason):
    (tmp_path / "x.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises((FileFormatError, InputError), match=reason) as raised:
        Outputs.load(tmp_path / "x.csv")
    assert "x.csv" in str(raised.value)


def test_the_place_of_a_bad_cell_is_named(tmp_path):
    (tmp_path / "x.csv").write_text("id,cat,dog\n1,1.5,2\n2,1.5,n/a?\n")
    reason = r"row 1 \(the first .*, column 'dog': 'n/a\?' is not a number\. Correct"
    with pytest.raises(FileFormatError, match=reason):
        Outputs.load(tmp_path / "x.csv", labels="*")


def test_two_decimal_signs_are_named_with_their_columns(tmp_path):
    (tmp_path / "x.csv").write_text('id,cat,dog,note\n1,-1.5,"2,5","1,5"\n2,1.5,"3,5",x\n')
    reason = r"comma in column 'dog' \(2,5\), and with a decimal point in column 'cat' \(-1.5\)"
    for labels in (None, ["cat", "dog"]):
        with pytest.raises(InputError, match=rf"x\.csv: .*{reason}.*--decimal"):
            Outputs.load(tmp_path / "x.csv", labels=labels)
    assert Outputs.load(tmp_path / "x.csv", labels="cat", ignore="note").n_labels == 1


def test_the_row_of_bad_json_lines_says_how_it_is_counted(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"cat": 1.5}\n{"cat": "x"}\n')
    with pytest.raises(FileFormatError, match=r"in row 1 \(counted from 0\)"):
        Outputs.load(tmp_path / "x.jsonl")


def test_an_array_of_python_objects_is_named_with_a_remedy(tmp_path):
    ids = np.array(["a", "b"], dtype=object)
    np.savez(tmp_path / "x.npz", logits=np.eye(2), ids=ids)
    with pytest.raises(FileFormatError, match=r"'ids' .* np\.array\(list\(ids\), dtype=str\)"):
        Outputs.load(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", logits=np.eye(2), other=ids)  # it is not needed
    assert len(Outputs.load(tmp_path / "x.npz")) == 2


def test_a_pattern_of_labels_takes_no_column_with_another_role(tmp_path):
    text = "id,customer,site,note,cat,dog\na,c,s,n,1.5,2\nb,c,s,n,2.5,-3\n"
    (tmp_path / "x.csv").write_text(text)
    columns = Columns(labels="*", ignore="customer", keep="n*", group_column="site")
    loaded = read_outputs(tmp_path / "x.csv", from_probs=None, columns=columns)
    assert (loaded.label_names, loaded.ids.tolist()) == (("cat", "dog"), ["a", "b"])


def test_missing_cells_are_nan(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "x.csv").write_text("cat,dog\n1.5,\nNA,null\n-inf,2.0\n")
    expected = [[1.5, np.nan], [np.nan, np.nan], [-np.inf, 2]]
    np.testing.assert_array_equal(Outputs.load(tmp_path / "x.csv").logits, expected)
    columns = {"cat": pa.array([1.5, None, -np.inf]), "dog": pa.array([None, None, 2.0])}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    np.testing.assert_array_equal(Outputs.load(tmp_path / "x.parquet").logits, expected)
    pq.write_table(pa.table({"logits": [[1.5, None], None]}), tmp_path / "y.parquet")
    np.testing.assert_array_equal(
        Outputs.load(tmp_path / "y.parquet").logits, [[1.5, np.nan], [np.nan, np.nan]]
    )


@pytest.mark.parametrize("kind", ["list_", "large_list", "fixed"])
def test_parquet_files_of_list_columns(tmp_path, outputs, kind):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def lists(array, value):
        of = pa.list_(value, array.shape[1]) if kind == "fixed" else getattr(pa, kind)(value)
        return pa.array(array.tolist(), of)

    only = pa.table({"scores": lists(outputs.logits, pa.float32())})
    pq.write_table(only, tmp_path / "only.parquet")
    same(Outputs.load(tmp_path / "only.parquet"), Outputs(outputs.logits))
    everything = pa.table(
        {
            "logits": lists(outputs.logits, pa.float32()),
            "features": lists(outputs.features, pa.float64()),
            "labels": lists(outputs.labels, pa.int64()),
            "id": outputs.ids.tolist(),
        }
    )
    pq.write_table(everything, tmp_path / "all.parquet")
    loaded = Outputs.load(tmp_path / "all.parquet")
    same(loaded, Outputs(outputs.logits, outputs.features, outputs.labels, outputs.ids))


def test_kept_columns_survive_saving(tmp_path):
    outputs = Outputs(
        np.zeros((3, 2)),
        kept={
            "text": np.array(["a", None, "日本"], dtype=object),
            "count": np.array([3, 1, 2]),
            "time": np.array(["2026-01-01", "2026-01-02", "NaT"], "datetime64[s]"),
        },
    )
    outputs.save(tmp_path / "x.safetensors")
    kept = Outputs.load(tmp_path / "x.safetensors").kept
    assert kept["text"].tolist() == ["a", "", "日本"]
    assert kept["count"].tolist() == [3, 1, 2]
    assert kept["time"].tolist() == ["2026-01-01T00:00:00", "2026-01-02T00:00:00", ""]
    tensors, metadata = read_tensors(tmp_path / "x.safetensors")
    del tensors["kept.1"]
    write_valid(tmp_path / "y.safetensors", tensors, metadata)
    with pytest.raises(FileFormatError, match="the kept column 'count' is missing"):
        Outputs.load(tmp_path / "y.safetensors")


def test_options_of_tables_do_not_go_with_arrays(tmp_path, outputs):
    np.save(tmp_path / "x.npy", outputs.logits)
    with pytest.raises(InputError, match=r"x.npy: .*--ignore.* are for tables: .parquet"):
        Outputs.load(tmp_path / "x.npy", ignore="text")
    with pytest.raises(InputError, match="The columns have no names"):
        Outputs.load(tmp_path / "x.npy", labels=["cat"])
    outputs.save(tmp_path / "x.safetensors")
    loaded = Outputs.load(tmp_path / "x.safetensors", labels=["bird", "c*"])
    assert loaded.label_names == ("bird", "cat")
    np.testing.assert_array_equal(loaded.logits, outputs.logits[:, [2, 0]])


def test_other_text_files(tmp_path):
    expected = [[1.5, -2.5], [3.0, np.nan]]
    for name, text, said in (
        ("x.csv", "id;cat;dog\n07;1,5;-2,5\n08;3,0;\n", {"sep": ";", "decimal": ","}),
        ("x.csv", "id;cat;dog\n07;1,5;-2,5\n08;3,0;\n", {}),
        ("x.csv", "\ufeffid;cat;dog\r\n07;1,5;-2,5\r\n08;3;\r\n", {}),  # of Excel
        ("x.csv", "sep=;\r\nid;cat;dog\r\n07;1,5;-2,5\r\n08;3;\r\n", {}),
        ("x.csv", 'id,cat,dog\n07,"1,5","-2,5"\n08,"3,0",\n', {}),
        ("x.csv", "id;cat;dog\n07;1.5;-2.5\n08;3.0;\n", {}),
        ("x.csv", "id|cat|dog\n07|1.5|-2.5\n08|3.0|\n", {}),
        ("x.csv", "id\tcat\tdog\n07\t1,5\t-2,5\n08\t3,0\t\n", {}),
        ("x.tsv.gz", "id\tcat\tdog\n07\t1,5\t-2,5\n08\t3,0\t\n", {}),
        ("x.tsv", "id\tcat\tdog\n07\t1.5\t-2.5\n08\t3.0\t\n", {}),
        ("x.csv.gz", '\ufeffid, cat ,"dog"\n07,1.5,-2.5\n08,3.0,NA\n', {}),
        ("x.jsonl", '{"id":"07","cat":1.5,"dog":-2.5}\n{"id":"08","cat":3,"dog":null}\n', {}),
        ("x.jsonl.gz", '{"id":"07","logits":[1.5,-2.5]}\n{"id":"08","logits":[3,null]}\n', {}),
    ):
        data = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        loaded = Outputs.load(tmp_path / name, **said)
        np.testing.assert_array_equal(loaded.logits, expected)
        assert loaded.ids.tolist() == ["07", "08"]
        assert loaded.label_names in (("cat", "dog"), None)
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(b"cat,dog\n1.5,2.5\n")[:-9])
    with pytest.raises(FileFormatError, match=r"z.csv.gz as gzip"):
        Outputs.load(tmp_path / "z.csv.gz")
    (tmp_path / "y.csv").write_text("cat,zip,when\n1.5,00123,2026-01-01 10:00:00\n")
    kept = Outputs.load(tmp_path / "y.csv", labels="cat", keep=["zip", "when"]).kept
    assert [column.tolist() for column in kept.values()] == [["00123"], ["2026-01-01 10:00:00"]]
    with pytest.raises(FileFormatError, match=r"In column 'zip': .*invalid value|'when'"):
        Outputs.load(tmp_path / "y.csv", labels=["cat", "when"])


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "x.parquet").touch()
    with pytest.raises(MissingDependencyError, match=r"pip install '.\[files\]'"):
        Outputs.load(tmp_path / "x.parquet")


def test_probabilities_are_converted_on_request(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[0.5, 0.0], [0.9, 0.1]]))
    loaded = Outputs.load(tmp_path / "x.npy", from_probs=True)
    np.testing.assert_allclose(loaded.logits[1], [np.log(9), -np.log(9)])
    assert loaded.logits[0].tolist() == [0.0, -np.inf]
    np.save(tmp_path / "y.npy", np.array([[0.5, 2.0]]))
    with pytest.raises(InputError, match=r"y.npy: probabilities"):
        Outputs.load(tmp_path / "y.npy", from_probs=True)


class _Bomb:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".csv", ".parquet"])
def test_a_hostile_pickle_is_refused_and_never_run(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    if suffix == ".npy":
        np.save(path, np.array([_Bomb()], dtype=object), allow_pickle=True)
    elif suffix == ".npz":
        np.savez(path, logits=np.array([_Bomb()], dtype=object))
    else:
        path.write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(FileFormatError):
        Outputs.load(path)
    path.write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(FileFormatError):
        Outputs.load(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_truncated_numpy_files_are_refused(tmp_path, suffix, rng):
    path = tmp_path / f"x{suffix}"
    save = np.save if suffix == ".npy" else np.savez
    save(path, rng.normal(size=(50, 4)))
    whole = path.read_bytes()
    for length in (0, 4, 60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError, match=r"is truncated or damaged|is not a NumPy file"):
            Outputs.load(path)


def test_other_files_are_refused(tmp_path, outputs):
    (tmp_path / "x.pt").touch()
    with pytest.raises(FileError, match=r"must end in .safetensors, .npy"):
        Outputs.load(tmp_path / "x.pt")
    import safetensors.numpy

    safetensors.numpy.save_file({"weights": np.zeros(3)}, tmp_path / "w.safetensors")
    with pytest.raises(FileFormatError, match=r"no array named logits; it has \['weights'\]"):
        Outputs.load(tmp_path / "w.safetensors")
    np.save(tmp_path / "flat.npy", np.zeros(5))
    with pytest.raises(ShapeError, match=r"flat.npy: logits must have shape .*got \(5,\)"):
        Outputs.load(tmp_path / "flat.npy")


@pytest.mark.parametrize(
    ("tensors", "changes", "reason"),
    [
        (
            {"ids.utf8": np.full(9, 255, np.uint8), "ids.ends": np.array([1, 2, 3, 4, 9])},
            {},
            "text",
        ),
        ({"ids.utf8": np.full(99, 65, np.uint8)}, {}, "do not match their lengths"),
        ({"ids.ends": np.array([5, 4, 3, 2, 1])}, {}, "do not match their lengths"),
        ({"ids.ends": np.array([10**9] * 5)}, {}, "do not match their lengths"),
        ({"ids.ends": np.arange(5.0)}, {}, "do not match their lengths"),
        ({}, {"schema": 99}, "another version of nescio"),
        ({}, {"schema": "x"}, "another version of nescio"),
        ({}, {"label_names": 5}, "unreadable metadata"),
        ({}, {"label_names": "abc"}, "unreadable metadata"),
        ({}, {"manifest": [1]}, "unreadable metadata"),
    ],
)
def test_damaged_files_are_refused(tmp_path, outputs, tensors, changes, reason):
    outputs.save(tmp_path / "x.safetensors")
    stored, metadata = read_tensors(tmp_path / "x.safetensors")
    write_valid(tmp_path / "y.safetensors", stored | tensors, metadata | changes)
    with pytest.raises(FileFormatError, match=reason):
        Outputs.load(tmp_path / "y.safetensors")


def test_what_cannot_be_written_is_explained(tmp_path, outputs):
    with pytest.raises(ParameterError, match=r"must end in .safetensors"):
        outputs.save(tmp_path / "x.npy")
    odd = Outputs(outputs.logits, manifest={"when": object()})
    with pytest.raises(InputError, match="manifest must hold what JSON can hold"):
        odd.save(tmp_path / "x.safetensors")
    with pytest.raises(ShapeError, match="ids must have one dimension"):
        Outputs(outputs.logits, ids=[["a"]] * 5)
    assert list(tmp_path.iterdir()) == []


def test_an_archive_of_another_name_is_recognised(tmp_path, outputs):
    np.savez(tmp_path / "x.npz", logits=outputs.logits)
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(FileFormatError, match=r"is an .npz archive"):
        Outputs.load(tmp_path / "x.npy")


def test_parts_give_the_bytes_of_the_whole(rng, tmp_path):
    whole = Outputs(
        rng.normal(size=(9, 3)).astype(np.float32),
        features=rng.normal(size=(9, 4)).astype(np.float32),
        labels=rng.integers(0, 2, (9, 3)),
        ids=[f"image {i}" for i in range(9)],
        label_names=["a", "b", "c"],
        manifest={"dataset": "x"},
        arrays={"odin_max": rng.normal(size=(9, 3)).astype(np.float32)},
    )
    whole.save(tmp_path / "whole.safetensors")
    parts = [whole[:4], whole[4:5], whole[5:]]
    save_in_parts(tmp_path / "parts.safetensors", parts, whole.manifest)
    assert (tmp_path / "parts.safetensors").read_bytes() == (
        tmp_path / "whole.safetensors"
    ).read_bytes()


def same(a, b):
    for name in ("logits", "features", "labels", "ids"):
        left, right = getattr(a, name), getattr(b, name)
        assert (left is None) == (right is None), name
        if left is not None:
            np.testing.assert_array_equal(left, right)
    assert a.label_names == b.label_names


@pytest.mark.parametrize("ids", [["a", "b", "c"], None])
def test_an_index_that_pandas_stored_is_never_a_label(tmp_path, ids):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"cat": [1.0, -2.0, 0.5], "dog": [0.0, 3.0, -1.0]}, index=[7, 3, 5])
    if ids is not None:
        frame.insert(0, "id", ids)
    frame.to_parquet(tmp_path / "x.parquet")
    loaded = Outputs.load(tmp_path / "x.parquet")
    assert loaded.label_names == ("cat", "dog")
    assert loaded.ids.tolist() == (ids or ["7", "3", "5"])


def test_no_flipped_bit_changes_what_is_read(tmp_path, outputs, rng):
    """Each bit of the header, and some of the arrays: refused, or without effect."""
    outputs.save(tmp_path / "x.safetensors")
    whole = (tmp_path / "x.safetensors").read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    body = rng.integers(8 * start, 8 * len(whole), 200).tolist()
    n_refused = 0
    for bit in (*rng.permutation(8 * start)[:600].tolist(), *body):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "y.safetensors").write_bytes(flipped)
        try:
            loaded = Outputs.load(tmp_path / "y.safetensors")
        except NescioError:
            n_refused += 1
        else:
            same(loaded, outputs)
            assert loaded.manifest == outputs.manifest
    assert n_refused > 700


def test_the_checksum_can_be_left_out(tmp_path, outputs):
    outputs.save(tmp_path / "x.safetensors")
    whole = bytearray((tmp_path / "x.safetensors").read_bytes())
    whole[-1] ^= 1
    (tmp_path / "x.safetensors").write_bytes(whole)
    with pytest.raises(FileFormatError, match="do not match their checksum"):
        Outputs.load(tmp_path / "x.safetensors")
    assert len(Outputs.load(tmp_path / "x.safetensors", verify=False)) == len(outputs)


def test_an_entry_of_an_archive_that_is_no_array(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, logits=np.zeros((3, 2)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("ids", b"abc")
    with pytest.raises(FileFormatError, match="truncated or damaged"):
        Outputs.load(path)
