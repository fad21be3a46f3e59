from dataclasses import replace

import numpy as np
import pytest

from nescio.errors import DatasetError, LabelMismatchError
from nescio.lab.data import Split
from nescio.lab.data.split import checked_presence

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


def test_the_content_tells_images_of_equal_size_apart(tmp_path):
    """In the first, middle or last bytes of a file."""
    size = 40_000
    file = tmp_path / "a.jpg"
    file.write_bytes(bytes(size))
    split = Split("set", "", tmp_path, ("a.jpg", "gone.jpg"), None, None)
    before = split.manifest()
    for place in (0, size // 2, size - 1):
        content = bytearray(size)
        content[place] = 1
        file.write_bytes(content)
        after = replace(split).manifest()
        assert after["data_fingerprint"] == before["data_fingerprint"]
        assert after["data_sample"] != before["data_sample"]
