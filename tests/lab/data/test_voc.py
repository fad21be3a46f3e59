import numpy as np
import pytest

from nescio.errors import DatasetError, ParameterError
from nescio.lab.data import load, load_voc, load_voc_trainval
from nescio.lab.data.published import VOC_LABELS

IMAGES = ("2008_000001", "2008_000002", "2009_000003")
VALUES = {"cat": (1, -1, -1), "dog": (0, 1, -1), "tvmonitor": (-1, -1, 0)}


@pytest.fixture
def voc(tmp_path):
    """VOC 2012 in its official layout, with three images."""
    root = tmp_path / "VOCdevkit" / "VOC2012"
    lists = root / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (root / "JPEGImages").mkdir()
    for image in (*IMAGES, "2010_000004"):
        (root / "JPEGImages" / f"{image}.jpg").touch()
    (lists / "test.txt").write_text("2010_000004\n")
    for split in ("train", "val", "trainval"):
        (lists / f"{split}.txt").write_text("".join(f"{image}\n" for image in IMAGES))
        for name in VOC_LABELS:
            values = VALUES.get(name, (-1, -1, -1))
            lines = [f"{image} {value:2}\n" for image, value in zip(IMAGES, values, strict=True)]
            (lists / f"{name}_{split}.txt").write_text("".join(lines))
    return root


def positive(split):
    return [{VOC_LABELS[column] for column in np.flatnonzero(row)} for row in split.labels]


@pytest.mark.parametrize("split", ["train", "val", "trainval"])
def test_an_image_with_only_difficult_objects_has_the_label(voc, split):
    loaded = load_voc(voc, split)
    assert loaded.label_names == VOC_LABELS
    assert len(loaded.label_names) == 20
    assert loaded.title == f"voc-{split}"
    assert loaded.files == tuple(f"JPEGImages/{image}.jpg" for image in IMAGES)
    assert positive(loaded) == [{"cat", "dog"}, {"dog"}, {"tvmonitor"}]


@pytest.mark.parametrize("root", [".", "..", "../.."])
def test_the_root_may_be_any_of_three_folders(voc, root):
    assert len(load_voc((voc / root).resolve(), "val")) == 3


def test_missing_files_and_folders_are_named(voc, tmp_path):
    with pytest.raises(DatasetError, match=r"not found: no folder .*nowhere/ImageSets/Main"):
        load_voc(tmp_path / "nowhere", "train")
    split = load_voc(voc, "test")
    assert split.files == ("JPEGImages/2010_000004.jpg",)
    assert (split.labels, split.label_names) == (None, VOC_LABELS)
    (voc / "ImageSets" / "Main" / "test.txt").unlink()
    with pytest.raises(
        DatasetError, match=r"no file .*Main/test\.txt\. .*nescio bench voc-trainval.*See docs"
    ):
        load_voc(voc, "test")
    (voc / "ImageSets" / "Main" / "sofa_val.txt").unlink()
    with pytest.raises(DatasetError, match=r"no file .*sofa_val\.txt"):
        load_voc(voc, "val")


def test_without_the_test_images_val_is_halved(voc):
    (voc / "ImageSets" / "Main" / "test.txt").unlink()
    whole = load_voc(voc, "val")
    train, val, test = (
        load(f"voc-trainval:{voc}", split=split) for split in ("train", "val", "test")
    )
    assert [split.title for split in (train, val, test)] == [
        "voc-trainval-train", "voc-trainval-val", "voc-trainval-test",
    ]  # fmt: skip
    assert train.files == load_voc(voc, "train").files
    assert (len(val), len(test)) == (1, 2)
    assert sorted(val.files + test.files) == sorted(whole.files)
    assert positive(val) + positive(test) == [
        positive(whole)[whole.files.index(file)] for file in val.files + test.files
    ]
    assert test.notes == {"halves_seed": 2021}
    # An image is in the same half for everyone, whichever images are missing.
    (voc / test.files[0]).unlink()
    fewer = load_voc_trainval(voc, "test", skip_bad=True)
    assert fewer.files == test.files[1:]
    assert [bad.file for bad in fewer.skipped] == [test.files[0]]
    again = load_voc_trainval(voc, "val", skip_bad=True)
    assert (again.files, again.skipped) == (val.files, ())
    with pytest.raises(ParameterError, match="no split 'trainval'"):
        load_voc_trainval(voc, "trainval")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2008_000001 -1\n2008_000002\n", "line 2: expected the image 2008_000002 .*got '2008_"),
        ("2008_000001 -1\n2009_000003 -1\n", "line 2: expected the image 2008_000002"),
        ("2008_000001 -1\n", "line 2: expected the image 2008_000002"),
        ("2008_000001 -1\n2008_000002 7\n2009_000003 -1\n", "line 2: invalid label value '7'"),
        ("2008_000001 -1\n\n2008_000002 -1\n", "line 2: the line is empty"),
        ("", "is empty"),
    ],
)
def test_a_damaged_list_is_named(voc, text, message):
    (voc / "ImageSets" / "Main" / "bus_val.txt").write_text(text)
    with pytest.raises(DatasetError, match=rf"bus_val\.txt.*{message}"):
        load_voc(voc, "val")
