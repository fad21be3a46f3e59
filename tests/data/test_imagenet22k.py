"""The two lists of classes of ImageNet-22K."""

import re

import numpy as np
import pytest

from nescio.data import COCO_VOC_CLASSES, NUS_WIDE_CLASSES, load_imagenet22k
from nescio.errors import DatasetError, ParameterError


def touch(root, *files):
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


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


def test_no_imagenet(tmp_path):
    with pytest.raises(DatasetError, match=r"ImageNet-22K not found: no folder .*nowhere"):
        load_imagenet22k(tmp_path / "nowhere", "coco-voc")
    with pytest.raises(ParameterError, match=r"no split 'coco'. Choose from: coco-voc, nus-wide"):
        load_imagenet22k(tmp_path, "coco")
