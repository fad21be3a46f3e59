"""Scenes of digits: what they show, and that they are made once and whole."""

import numpy as np
import pytest

pytest.importorskip("PIL")

from nescio.errors import DatasetError
from nescio.lab.data import digits, load
from nescio.models.images import read_image


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Few scenes of each kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "N_SCENES", dict.fromkeys(digits.SPLITS, 40))
        folder = tmp_path_factory.mktemp("made") / "digits"
        load(f"digits@train:{folder}")
    return folder


def test_the_labels_are_the_known_digits(root):
    train = load(f"digits@train:{root}")
    assert train.label_names == tuple(f"digit {digit}" for digit in range(7))
    assert train.labels.shape == (40, 7)
    counts = train.labels.sum(1)
    assert counts.min() >= 1
    assert 2 <= counts.max() <= 4
    for split in ("unseen", "photos", "noise"):
        assert load(f"digits@{split}:{root}").labels is None


def test_a_scene_is_brighter_where_there_are_more_digits(root):
    """The pixels go with the labels: each digit adds ink."""
    train = load(f"digits@train:{root}")
    ink = np.array([np.asarray(read_image(train.path(i)), float).mean() for i in range(40)])
    counts = train.labels.sum(1)
    assert np.corrcoef(ink, counts)[0, 1] > 0.7


def test_no_image_of_a_digit_is_in_two_parts(monkeypatch):
    from PIL import Image

    # Other tests make fewer, for as long as they run.
    monkeypatch.setattr(digits, "N_SCENES", dict.fromkeys(digits.SPLITS, 200))
    parts = dict(digits._all_scenes(Image))
    assert list(parts) == list(digits.SPLITS)
    cells = {}
    for split in digits.LABELLED:
        scenes = [pixels for pixels, _ in (next(parts[split]) for _ in range(200))]
        corners = np.concatenate(
            [scene.reshape(2, 16, 2, 16).swapaxes(1, 2).reshape(4, 256) for scene in scenes]
        )
        cells[split] = corners[corners.mean(1) > 0.1]
    # One image on two backgrounds is apart by their noise alone; two images by more.
    apart = 1.3 * 2 * 0.05**2
    assert _nearest(cells["train"][::2], cells["train"][1::2]) < apart
    for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
        assert _nearest(cells[first], cells[second]) > apart


def _nearest(some, cells):
    """The smallest mean squared difference of a cell to one of other cells."""
    squares = (some**2).sum(1)[:, None] + (cells**2).sum(1) - 2 * some @ cells.T
    return squares.min() / some.shape[1]


def test_the_same_scenes_every_time(root, tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "N_SCENES", dict.fromkeys(digits.SPLITS, 40))
    again = load(f"digits@photos:{tmp_path / 'again'}")
    first = load(f"digits@photos:{root}")
    assert again.fingerprint == first.fingerprint
    for index in (0, 39):
        assert again.path(index).read_bytes() == first.path(index).read_bytes()


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(DatasetError, match="contains something other than digit scenes"):
        load(f"digits@train:{tmp_path}")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_crash_leaves_nothing(tmp_path, monkeypatch):
    def crash(n_scenes, rng):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(digits, "N_SCENES", dict.fromkeys(digits.SPLITS, 2))
    monkeypatch.setattr(digits, "_smooth_noise", crash)
    with pytest.raises(DatasetError, match="No space left on device"):
        load(f"digits@train:{tmp_path / 'digits'}")
    assert list(tmp_path.iterdir()) == []
