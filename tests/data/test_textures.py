"""The Describable Textures Dataset."""

import numpy as np
import pytest

from nescio.data import load_textures
from nescio.errors import DatasetError, ParameterError


def touch(root, *files):
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


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
    with pytest.raises(ParameterError, match="no splits"):
        load_textures(tmp_path, "train")
