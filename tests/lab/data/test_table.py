import numpy as np
import pytest

from nescio.errors import DatasetError, FileError, ParameterError
from nescio.lab.data import load_table


@pytest.fixture
def table(tmp_path):
    """Write a CSV file beside three images."""
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "in" / f"{name}.jpg").touch()

    def make(*lines):
        path = tmp_path / "photos.csv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return make


def test_a_column_of_names(table):
    split = load_table(table("path,labels,width", "in/b.jpg,dog; cat,3", "in/a.jpg,,4"))
    assert split.title == "photos"
    assert split.files == ("in/b.jpg", "in/a.jpg")
    assert split.label_names == ("cat", "dog")
    np.testing.assert_array_equal(split.labels, [[1, 1], [0, 0]])


def test_one_column_a_label(table):
    split = load_table(table("id,dog,path,cat", "7,1,in/b.jpg,0", "8,1,in/a.jpg,1"))
    assert split.label_names == ("dog", "cat")
    np.testing.assert_array_equal(split.labels, [[1, 0], [1, 1]])
    paths = load_table(table("path", "in/b.jpg"))
    assert (paths.labels, paths.label_names) == (None, None)


def test_the_parts_of_a_table_have_the_same_labels(table):
    path = table("path,labels,split", "in/a.jpg,dog,train", "in/b.jpg,cat,val", "in/c.jpg,,val")
    train, val = (load_table(path, split) for split in ("train", "val"))
    assert train.files == ("in/a.jpg",)
    assert val.files == ("in/b.jpg", "in/c.jpg")
    assert val.title == "photos-val"
    assert train.label_names == val.label_names == ("cat", "dog")
    np.testing.assert_array_equal(train.labels, [[0, 1]])
    np.testing.assert_array_equal(val.labels, [[1, 0], [0, 0]])


def test_parts_that_are_not_there(table):
    path = table("path,labels,split", "in/a.jpg,dog,train", "in/b.jpg,cat,val")
    with pytest.raises(ParameterError, match=r"photos\.csv has no split ''.* train, val. Name"):
        load_table(path)
    with pytest.raises(ParameterError, match=r"no split 'test'.* names train, val"):
        load_table(path, "test")
    with pytest.raises(ParameterError, match="no split 'train'"):
        load_table(table("path", "in/a.jpg"), "train")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["file,labels", "in/a.jpg,cat"], "no rows with a column 'path'; its columns are file"),
        (["path,labels"], "has no rows"),
        (["path,labels", "in/a.jpg"], "line 2: 1 cells for 2 columns"),
        (["path,labels", ",cat"], "line 2: the path of the image is missing"),
        (["path,cat,cat", "in/a.jpg,1,1"], "line 1: every column needs a name"),
        (["path,cat", "in/a.jpg,1", "in/b.jpg,"], "line 3, column 'cat': expected 0 or 1, got ''"),
        (["path,cat", "in/a.jpg,640"], "line 2, column 'cat': expected 0 or 1, got '640'"),
        (["path,labels", "in/a.jpg,x", "in/a.jpg,y"], "line 2 and in .*, line 3"),
        (["path,labels", 'in/a.jpg,"x'], "is not CSV in UTF-8"),
        ([""], "no rows"),
    ],
)
def test_a_damaged_table_is_named(table, lines, message):
    with pytest.raises(DatasetError, match=rf"photos\.csv.*{message}"):
        load_table(table(*lines))


def test_files_that_are_no_tables(tmp_path, table):
    with pytest.raises(FileError, match=r"no file .*nowhere"):
        load_table(tmp_path / "nowhere.csv")
    (tmp_path / "photos.txt").write_text("path\n")
    with pytest.raises(DatasetError, match=r"photos\.txt: expected a \.csv or \.parquet"):
        load_table(tmp_path / "photos.txt")
    table("").write_bytes(b"path\n\xff\xfe.jpg\n")
    with pytest.raises(DatasetError, match=r"photos\.csv is not CSV in UTF-8"):
        load_table(tmp_path / "photos.csv")


def test_a_missing_image(table):
    path = table("path,labels", "in/a.jpg,cat", "in/z.jpg,dog")
    with pytest.raises(DatasetError, match=r"do not exist: .*in/z\.jpg"):
        load_table(path)
    split = load_table(path, skip_bad=True)
    assert split.files == ("in/a.jpg",)
    assert [(bad.file, bad.reason) for bad in split.skipped] == [("in/z.jpg", "missing")]
    assert split.label_names == ("cat", "dog")


def write_parquet(target, **columns):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), target)
    return target


def test_parquet_with_lists_and_with_columns(table, tmp_path):
    files = ["in/a.jpg", "in/b.jpg", "in/c.jpg"]
    labels = [["dog", "cat"], [], None]
    lists = load_table(write_parquet(tmp_path / "lists.parquet", path=files, labels=labels))
    assert lists.title == "lists"
    assert lists.label_names == ("cat", "dog")
    np.testing.assert_array_equal(lists.labels, [[1, 1], [0, 0], [0, 0]])
    columns = {"dog": [1, 0, 0], "cat": [True, False, False], "cow": [1.0, 0.0, 1.0]}
    hot = load_table(write_parquet(tmp_path / "hot.parquet", path=files, **columns))
    assert hot.label_names == ("dog", "cat", "cow")
    np.testing.assert_array_equal(hot.labels, [[1, 1, 1], [0, 0, 0], [0, 0, 1]])


def test_parquet_that_is_damaged(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(DatasetError, match=r"cannot read .*x\.parquet as Parquet"):
        load_table(tmp_path / "x.parquet")
    path = write_parquet(tmp_path / "y.parquet", path=["a.jpg"], labels=[3])
    with pytest.raises(DatasetError, match=r"y\.parquet, row 0: labels must be names"):
        load_table(path)
