"""Any folder of class folders, or of images without classes."""

import re

import numpy as np
import pytest

from nescio.data import load_folder
from nescio.errors import DatasetError, ParameterError


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


def test_a_folder_of_images_alone_has_no_labels(tmp_path):
    split = load_folder(touch(tmp_path / "photos", "b.png", "a.jpg"))
    assert split.files == ("a.jpg", "b.png")
    assert split.labels is None
    assert split.label_names is None
    assert split.title == "photos"


def test_the_name_is_the_folder_s_own_however_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(touch(tmp_path / "photos", "a.jpg"))
    assert load_folder(".").title == "photos"


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


def test_a_folder_has_no_splits(tmp_path):
    with pytest.raises(ParameterError, match="folder has no splits, got 'train'"):
        load_folder(tmp_path, "train")
