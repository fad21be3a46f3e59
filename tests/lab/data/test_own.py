"""Data of your own: folders of class folders, and tables of paths and labels."""

import re

import numpy as np
import pytest

from nescio.errors import DatasetError, FileError, FileFormatError, ParameterError
from nescio.lab.data import (
    imagenet22k_classes,
    load_folder,
    load_imagenet22k,
    load_table,
    load_textures,
)


def touch(root, *files):
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def test_classes_and_files_are_sorted_and_other_files_left_out(tmp_path):
    root = touch(
        tmp_path / "objects",
        "wrench/2.JPG", "wrench/1.jpeg", "ant/deep/er/x.png", "ant/a.jpg",
        "ant/notes.txt", "ant/.hidden.jpg", "ant/.cache/y.jpg", ".git/z.jpg", "docs/readme.md",
        "README.md",
    )  # fmt: skip
    split = load_folder(root)
    assert split.title == "objects"
    assert split.files == ("ant/a.jpg", "ant/deep/er/x.png", "wrench/1.jpeg", "wrench/2.JPG")
    assert split.label_names == ("ant", "wrench")
    np.testing.assert_array_equal(split.labels, [[1, 0], [1, 0], [0, 1], [0, 1]])


def test_a_folder_of_images_alone_has_no_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(touch(tmp_path / "photos", "b.png", "a.jpg"))
    split = load_folder(".")
    assert split.files == ("a.jpg", "b.png")
    assert split.labels is None
    assert split.label_names is None
    assert split.title == "photos"


def test_images_beside_class_folders_are_of_no_class(tmp_path):
    touch(tmp_path, "ant/a.jpg", "loose.jpg")
    with pytest.raises(DatasetError, match=r"loose\.jpg is beside the class folders"):
        load_folder(tmp_path)
    split = load_folder(tmp_path, skip_bad=True)
    assert split.files == ("ant/a.jpg",)
    assert [bad.file for bad in split.skipped] == ["loose.jpg"]


def test_a_folder_that_is_missing_or_empty(tmp_path):
    with pytest.raises(DatasetError, match=r"no folder .*nowhere. See docs"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match=f"{re.escape(str(tmp_path))} contains neither images"):
        load_folder(tmp_path)


# --- ImageNet-22K ---------------------------------------------------------------------------------


def imagenet_tree(root, classes, *, without=(), named=()):
    for name, wordnet_id in classes.items():
        if name not in without:
            folder = name.replace(" ", "_") if name in named else wordnet_id
            touch(root, f"{folder}/{wordnet_id}_1.JPEG")
    return root


@pytest.mark.parametrize(
    ("split", "note"), [("coco-voc", "red alder"), ("nus-wide", "not published")]
)
def test_the_two_lists(tmp_path, split, note):
    classes = imagenet22k_classes()[split]
    assert len(set(classes.values())) == 20
    assert all(re.fullmatch(r"n\d{8}", wordnet_id) for wordnet_id in classes.values())
    loaded = load_imagenet22k(imagenet_tree(tmp_path, classes), split)
    assert loaded.title == f"imagenet22k-{split}"
    assert loaded.label_names == tuple(classes)
    assert loaded.files == tuple(
        f"{wordnet_id}/{wordnet_id}_1.JPEG" for wordnet_id in classes.values()
    )
    np.testing.assert_array_equal(loaded.labels, np.eye(20))
    assert note in loaded.notes["class_ids"]
    assert loaded.manifest()["data_notes"] == dict(loaded.notes)


def test_folders_may_be_called_by_the_class(tmp_path):
    touch(tmp_path, "giant clam/x.jpg")
    named = ["dolphin", "venus flytrap"]
    root = imagenet_tree(
        tmp_path, imagenet22k_classes()["coco-voc"], without=["giant clam"], named=named
    )
    split = load_imagenet22k(root, "coco-voc")
    assert split.files[0] == "dolphin/n02069412_1.JPEG"
    assert "venus_flytrap/n12782915_1.JPEG" in split.files
    assert split.files[split.label_names.index("giant clam")] == "giant clam/x.jpg"


def test_a_missing_class_is_named(tmp_path):
    root = imagenet_tree(tmp_path, imagenet22k_classes()["coco-voc"], without=["deer", "bat"])
    (root / "n02139199").mkdir()
    with pytest.raises(DatasetError, match=r"class deer \(n02431122\).*See docs"):
        load_imagenet22k(root, "coco-voc")
    split = load_imagenet22k(root, "coco-voc", skip_bad=True)
    assert len(split) == len(split.label_names) == 18
    assert [bad.file for bad in split.skipped] == ["n02431122", "n02139199"]
    with pytest.raises(DatasetError, match=r"ImageNet-22K not found: no folder .*nowhere"):
        load_imagenet22k(tmp_path / "nowhere", "coco-voc")


# --- textures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("unpacked", [".", "dtd"])
def test_textures_are_all_images(tmp_path, unpacked):
    touch(
        tmp_path / unpacked,
        "images/banded/banded_0002.jpg", "images/zigzagged/zigzagged_0001.jpg",
        "images/banded/.directory", "labels/train1.txt",
    )  # fmt: skip
    split = load_textures(tmp_path)
    assert split.title == "textures"
    assert split.root == tmp_path / unpacked / "images"
    assert split.files == ("banded/banded_0002.jpg", "zigzagged/zigzagged_0001.jpg")
    assert split.label_names == ("banded", "zigzagged")
    np.testing.assert_array_equal(split.labels, np.eye(2))


def test_textures_that_are_not_there(tmp_path):
    with pytest.raises(DatasetError, match=r"no folder .*images or .*dtd/images. See docs"):
        load_textures(tmp_path)
    (tmp_path / "images").mkdir()
    with pytest.raises(DatasetError, match="images contains no folders of images"):
        load_textures(tmp_path)


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


@pytest.mark.parametrize(
    ("lines", "label_names", "labels"),
    [
        (["path,labels,n", "in/b.jpg,dog; cat,3", "in/a.jpg,,4"], ("cat", "dog"), [[1, 1], [0, 0]]),
        (["id,dog,path,cat", "7,1,in/b.jpg,0", "8,1,in/a.jpg,1"], ("dog", "cat"), [[1, 0], [1, 1]]),
        (["path", "in/b.jpg", "in/a.jpg"], None, None),
    ],
)
def test_labels_are_a_column_of_names_or_one_column_each(table, lines, label_names, labels):
    split = load_table(table(*lines))
    assert split.title == "photos"
    assert split.files == ("in/b.jpg", "in/a.jpg")
    assert split.label_names == label_names
    assert (labels if labels is None else split.labels.tolist()) == labels


def test_the_parts_of_a_table_have_the_same_labels(table):
    path = table("path,labels,split", "in/a.jpg,dog,train", "in/b.jpg,cat,val", "in/c.jpg,,val")
    train, val = (load_table(path, split) for split in ("train", "val"))
    assert train.files == ("in/a.jpg",)
    assert val.files == ("in/b.jpg", "in/c.jpg")
    assert val.title == "photos-val"
    assert train.label_names == val.label_names == ("cat", "dog")
    np.testing.assert_array_equal(train.labels, [[0, 1]])
    np.testing.assert_array_equal(val.labels, [[1, 0], [0, 0]])
    with pytest.raises(ParameterError, match=r"photos\.csv has no split ''.* has train, val. Name"):
        load_table(path)
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
    with pytest.raises(FileFormatError, match=r"cannot read .*x\.parquet as Parquet"):
        load_table(tmp_path / "x.parquet")
    path = write_parquet(tmp_path / "y.parquet", path=["a.jpg"], labels=[3])
    with pytest.raises(DatasetError, match=r"y\.parquet, row 0: labels must be names"):
        load_table(path)
