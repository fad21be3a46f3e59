"""Class folders: any folder, the classes of ImageNet-22K, the Describable Textures Dataset."""

import re

import numpy as np
import pytest

from nescio.errors import DatasetError
from nescio.lab.data import (
    COCO_VOC_CLASSES,
    NUS_WIDE_CLASSES,
    load_folder,
    load_imagenet22k,
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
    ("split", "classes", "note"),
    [("coco-voc", COCO_VOC_CLASSES, "red alder"), ("nus-wide", NUS_WIDE_CLASSES, "not published")],
)
def test_the_two_lists(tmp_path, split, classes, note):
    assert len(set(classes.values())) == 20
    assert all(re.fullmatch(r"n\d{8}", wordnet_id) for wordnet_id in classes.values())
    loaded = load_imagenet22k(imagenet_tree(tmp_path, classes), split)
    assert loaded.title == f"imagenet22k-{split}"
    assert loaded.label_names == tuple(classes)
    assert loaded.files == tuple(f"{found}/{found}_1.JPEG" for found in classes.values())
    np.testing.assert_array_equal(loaded.labels, np.eye(20))
    assert note in loaded.notes["class_ids"]
    assert loaded.manifest()["data_notes"] == dict(loaded.notes)


def test_folders_may_be_called_by_the_class(tmp_path):
    touch(tmp_path, "giant clam/x.jpg")
    named = ["dolphin", "venus flytrap"]
    root = imagenet_tree(tmp_path, COCO_VOC_CLASSES, without=["giant clam"], named=named)
    split = load_imagenet22k(root, "coco-voc")
    assert split.files[0] == "dolphin/n02069412_1.JPEG"
    assert "venus_flytrap/n12782915_1.JPEG" in split.files
    assert split.files[list(COCO_VOC_CLASSES).index("giant clam")] == "giant clam/x.jpg"


def test_a_missing_class_is_named(tmp_path):
    root = imagenet_tree(tmp_path, COCO_VOC_CLASSES, without=["deer", "bat"])
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
