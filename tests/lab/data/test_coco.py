import json

import numpy as np
import pytest

from nescio.errors import DatasetError
from nescio.lab.data import load, load_coco

CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}]
IMAGES = [{"id": 9, "file_name": "b.jpg"}, {"id": 4, "file_name": "a.jpg"}]


@pytest.fixture
def tree(tmp_path):
    """Write an annotation file and its images; gives the root."""

    def make(split="train", *, kind="instances", files=("a.jpg", "b.jpg"), **content):
        content = {"images": IMAGES, "categories": CATEGORIES} | content
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / "annotations" / f"{kind}_{split}2014.json").write_text(json.dumps(content))
        (tmp_path / f"{split}2014").mkdir(exist_ok=True)
        for file in files:
            (tmp_path / f"{split}2014" / file).touch()
        return tmp_path

    return make


def annotation(image, category, iscrowd=0):
    return {"image_id": image, "category_id": category, "iscrowd": iscrowd}


def test_labels_are_the_categories_by_id_and_images_in_the_order_of_the_file(tree):
    """Crowds and several objects are one label; an image may have none."""
    annotations = [annotation(9, 1), annotation(9, 1), annotation(9, 18, iscrowd=1)]
    split = load_coco(tree(annotations=annotations), "train")
    assert split.title == "coco-train"
    assert split.files == ("train2014/b.jpg", "train2014/a.jpg")
    assert split.label_names == ("person", "dog")
    np.testing.assert_array_equal(split.labels, [[1, 1], [0, 0]])
    assert split.labels.dtype == np.uint8


def test_coco_2017_is_the_same_format_with_another_year(tree):
    root = tree(annotations=[annotation(9, 1)])
    for path in [*root.rglob("*2014*")]:
        path.rename(path.with_name(path.name.replace("2014", "2017")))
    split = load(f"coco2017@train:{root}")
    assert (split.title, split.files[0]) == ("coco2017-train", "train2017/b.jpg")
    np.testing.assert_array_equal(split.labels, [[1, 0], [0, 0]])
    with pytest.raises(DatasetError, match=r"no file .*instances_train2014\.json"):
        load(f"coco@train:{root}")


def test_the_test_split_has_names_and_no_labels(tree):
    split = load_coco(tree("test", kind="image_info"), "test")
    assert split.labels is None
    assert split.label_names == ("person", "dog")
    assert len(split) == 2


@pytest.mark.parametrize(
    ("wrong", "what"), [(annotation(9, 5), "category 5"), (annotation(77, 1), "image 77")]
)
def test_an_annotation_of_something_unknown(tree, wrong, what):
    root = tree(annotations=[wrong, annotation(4, 1)])
    with pytest.raises(DatasetError, match=rf"instances_train2014\.json: .* {what}, which is not"):
        load_coco(root, "train")


def test_a_missing_image(tree):
    root = tree(files=["b.jpg"], annotations=[annotation(9, 1)])
    with pytest.raises(DatasetError, match=r"1 images that do not exist: .*train2014/a\.jpg"):
        load_coco(root, "train")
    split = load_coco(root, "train", skip_bad=True)
    assert split.files == ("train2014/b.jpg",)
    assert [(bad.file, bad.reason) for bad in split.skipped] == [("train2014/a.jpg", "missing")]
    np.testing.assert_array_equal(split.labels, [[1, 0]])
    (root / "train2014" / "b.jpg").unlink()
    with pytest.raises(DatasetError, match=r"none of its images .* missing"):
        load_coco(root, "train", skip_bad=True)


def test_two_images_or_categories_of_one_id_or_name(tree):
    for content in (
        {"images": [*IMAGES, IMAGES[0]]},
        {"categories": [*CATEGORIES, {"id": 2, "name": "dog"}]},
    ):
        with pytest.raises(DatasetError, match="the same id or name"):
            load_coco(tree(**content), "train")


def test_missing_folders_are_named(tmp_path, tree):
    with pytest.raises(DatasetError, match=r"no folder .*nowhere/annotations\. See docs/how-to"):
        load_coco(tmp_path / "nowhere", "train")
    root = tree(annotations=[])
    with pytest.raises(DatasetError, match=r"no file .*instances_val2014\.json"):
        load_coco(root, "val")
    (root / "annotations" / "instances_train2014.json").rename(
        root / "annotations" / "instances_val2014.json"
    )
    with pytest.raises(DatasetError, match=r"no folder .*val2014"):
        load_coco(root, "val")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"images": [', "is not JSON"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"[]", "is not an MS-COCO annotation file"),
        (b'{"images": 3, "categories": []}', "has no list 'images'"),
        (b'{"images": [{"id": 1}], "categories": []}', "entry 0 of 'images'"),
        (b'{"images": [{"id": 1.5, "file_name": "a"}], "categories": []}', "entry 0 of 'images'"),
        (b'{"images": [7], "categories": []}', "entry 0 of 'images'"),
        (b'{"images": [], "categories": [{"id": 1, "name": null}]}', "entry 0 of 'categories'"),
    ],
)
def test_a_damaged_file_is_named(tree, content, message):
    root = tree()
    (root / "annotations" / "instances_train2014.json").write_bytes(content)
    with pytest.raises(DatasetError, match=rf"instances_train2014\.json.*{message}"):
        load_coco(root, "train")
