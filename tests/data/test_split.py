from dataclasses import replace

import numpy as np
import pytest

from nescio.data import Split, content_hash, read_image
from nescio.data.layout import checked_presence
from nescio.data.split import check_content, content_changed
from nescio.errors import DatasetError, FileError, LabelMismatchError, ParameterError

LABELS = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], dtype=np.uint8)


@pytest.fixture
def split(tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.jpg").write_text(name)
    files = tuple(f"{name}.jpg" for name in "abcd")
    return Split("set", "val", tmp_path, files, LABELS, ("cat", "dog"))


def test_parts_of_a_split(split, tmp_path):
    some = split.subset([2, 0])
    assert some.files == ("c.jpg", "a.jpg")
    np.testing.assert_array_equal(some.labels, [[1, 1], [1, 0]])
    assert split.path(1) == tmp_path / "b.jpg"
    assert repr(split) == "Split(set-val: 4 images, 2 labels)"
    assert split.sample(4, seed=0) is split
    chosen = split.sample(2, seed=0)
    assert chosen.files == split.sample(2, seed=0).files
    assert list(chosen.files) == sorted(chosen.files)
    assert len(chosen) == 2
    with pytest.raises(ParameterError, match="n_images"):
        split.sample(0, seed=0)


def test_labels_in_another_order(split):
    np.testing.assert_array_equal(split.require_labels(["dog", "cat"]), LABELS[:, ::-1])
    assert split.labels_for(["dog", "cow"]) is None
    with pytest.raises(LabelMismatchError, match="the first difference is 'cat'"):
        split.require_labels(["dog", "cow"])
    unlabelled = Split("set", "", split.root, split.files, None, ("cat", "dog"))
    assert unlabelled.labels_for(["cat", "dog"]) is None
    with pytest.raises(DatasetError, match=r"set in .* has no labels"):
        unlabelled.require_labels()


def test_a_split_that_makes_no_sense(split, tmp_path):
    with pytest.raises(DatasetError, match="set-val has no images"):
        Split("set", "val", tmp_path, (), None, None)
    with pytest.raises(
        DatasetError, match=r"labels have shape \(4, 2\), but there are 4 images and 3"
    ):
        Split("set", "val", tmp_path, split.files, LABELS, ("a", "b", "c"))


def test_the_fingerprint_tells_files_and_labels_apart(split, tmp_path):
    before = split.fingerprint
    assert split.manifest()["data_fingerprint"] == before
    assert split.subset([0, 1, 3, 2]).fingerprint != before
    changed = Split("set", "val", tmp_path, split.files, 1 - LABELS, ("cat", "dog"))
    assert changed.fingerprint != before
    (tmp_path / "a.jpg").write_text("longer")
    assert split.fingerprint == before, "it is computed once"
    assert replace(split).fingerprint != before


def test_only_the_first_missing_files_are_named(tmp_path):
    split = Split("set", "", tmp_path, tuple(f"{at}.jpg" for at in range(5)), None, None)
    with pytest.raises(DatasetError, match=r"5 images .*/0.jpg, .*/1.jpg, .*/2.jpg, \.\.\.\."):
        checked_presence(split, skip_bad=False)


def test_images_that_cannot_be_read(tmp_path, coco_tree):
    image = next((coco_tree() / "val2014").iterdir())
    assert read_image(image).mode == "RGB"
    half = tmp_path / "half.jpg"
    half.write_bytes(image.read_bytes()[: image.stat().st_size // 2])
    for path, message in (
        (half, r"cannot read the image .*half\.jpg"),
        (tmp_path / "none.jpg", r"the image .*none\.jpg does not exist"),
    ):
        with pytest.raises(DatasetError, match=message):
            read_image(path)


def test_equal_contents_have_equal_hashes(tmp_path, split):
    (tmp_path / "copy.jpg").write_text("a")
    assert content_hash(tmp_path / "copy.jpg") == content_hash(split.path(0))
    assert content_hash(split.path(0)) != content_hash(split.path(1))
    with pytest.raises(DatasetError, match=r"cannot read .*none\.jpg"):
        content_hash(tmp_path / "none.jpg")


def test_the_content_tells_images_of_equal_size_apart(tmp_path):
    """In the first, middle or last bytes of a file by samples, anywhere else by all bytes."""
    size = 40_000
    file = tmp_path / "a.jpg"
    file.write_bytes(bytes(size))
    split = Split("set", "", tmp_path, ("a.jpg", "gone.jpg"), None, None)
    manifest = split.manifest()
    whole = replace(split, hash_images=True).manifest()
    for place, noticed in ((0, True), (size // 2, True), (size - 1, True), (9_000, False)):
        content = bytearray(size)
        content[place] = 1
        file.write_bytes(content)
        again = replace(split)
        assert again.identity() == split.identity()
        assert bool(content_changed(manifest, again.content)) == noticed
        verified = replace(split, hash_images=True)
        assert "have changed" in content_changed(whole, verified.content)
        with pytest.raises(FileError, match=r"net cannot be used for set: the images have changed"):
            check_content(whole, verified, "net")


def test_what_older_versions_made_is_used_unless_all_bytes_are_asked_for(split):
    check_content(split.identity(), split, "net")
    with pytest.raises(FileError, match="made without --verify"):
        check_content(split.manifest(), replace(split, hash_images=True), "net")
