from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.errors import DatasetError, ParameterError
from nescio.lab.data import load_coco, load_folder
from nescio.lab.data.split import Augmentation, Reader, in_batches
from nescio.models.images import Preprocessing


def test_pixels_are_squashed_to_a_square_and_normalised(coco_tree):
    split = load_coco(coco_tree(pixels=20), "val")
    preprocessing = Preprocessing(12, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    (pixels,) = Reader(split, preprocessing).batches([[0, 3]])
    assert (pixels.shape, pixels.dtype) == ((2, 3, 12, 12), np.uint8)
    inputs = preprocessing.inputs(torch.from_numpy(pixels), torch.device("cpu"))
    expected = (pixels.astype(np.float64) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(inputs.numpy(), expected, rtol=1e-5, atol=1e-6)
    # Image 0 is red only: bright there, dark elsewhere.
    bright = pixels[0].mean((1, 2))
    assert bright[0] > 180 > 80 > bright[1:].max()


def test_batches_come_in_order_for_any_number_of_threads(coco_tree, monkeypatch):
    split = load_coco(coco_tree(sizes=(("train", 30),)), "train")
    reader = Reader(split, Preprocessing(16), Augmentation(), (1, 2))
    alone = [reader.pixels(index) for index in range(30)]
    for n_threads in (1, 5):
        monkeypatch.setattr("nescio.lab.data.split.available_cpus", lambda: n_threads)  # noqa: B023
        assert np.array_equal(np.concatenate([*reader.batches(in_batches(30, 4))]), alone)


def test_a_crop_depends_on_seed_and_index_alone(coco_tree):
    reader = Reader(load_coco(coco_tree(), "train"), Preprocessing(16), Augmentation(), (0, 1))
    (alone,), (among,) = reader.batches([[5]]), reader.batches([[2, 5, 7]])
    assert np.array_equal(alone[0], among[1])
    others = [replace(reader, seed=(0, epoch)).pixels(5) for epoch in range(2, 6)]
    assert any(not np.array_equal(other, alone[0]) for other in others)


def test_crops_keep_within_the_image_and_the_share(rng):
    augmentation = Augmentation((0.4, 0.6))
    shares, flat = [], Augmentation((0.9, 1.0))
    for _ in range(300):
        left, top, right, bottom = augmentation.box(60, 40, rng)
        assert 0 <= left < right <= 60
        assert 0 <= top < bottom <= 40
        shares.append((right - left) * (bottom - top) / 2400)
        # No crop of nearly all of it has a ratio within bounds: its middle is taken.
        left, top, right, bottom = flat.box(200, 10, rng)
        assert (bottom - top, right - left) == (10, 13)
    assert 0.37 < min(shares) < max(shares) < 0.63
    assert np.std(shares) > 0.03


def test_a_share_above_1_often_keeps_the_whole_image(rng):
    """As the authors' code asks for crops of up to twice the area, and torchvision answers."""
    boxes = [Augmentation((0.5, 2.0)).box(60, 50, rng) for _ in range(200)]
    whole = boxes.count((0, 0, 60, 50))
    assert 0 < whole < 200
    assert all(0 <= left < right <= 60 for left, _, right, _ in boxes)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Preprocessing(4), "image size"),
        (lambda: Preprocessing(32, mean=(0.5, 0.5)), "mean must be three"),
        (lambda: Preprocessing(32, std=(1.0, 0.0, 1.0)), "std must be greater than 0"),
        (lambda: Augmentation((1.5, 2.0)), "crop_scale"),
        (lambda: Augmentation((0.5, float("inf"))), "crop_scale"),
    ],
)
def test_bad_settings_are_refused(make, words):
    with pytest.raises(ParameterError, match=words):
        make()


def test_a_damaged_image_is_named(class_tree):
    root = class_tree(n_images=3)
    bad = root / "anchor" / "0001.jpg"
    bad.write_bytes(bad.read_bytes()[:100])
    split = load_folder(root, "")
    with pytest.raises(DatasetError, match=r"anchor/0001\.jpg.*without_damaged"):
        list(Reader(split, Preprocessing(8)).batches(in_batches(6, 2)))
