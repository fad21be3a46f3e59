import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.errors import DatasetError, ParameterError
from nescio.lab.data import load_coco, load_folder
from nescio.lab.extraction.image_batches import Augmentation, Reader, in_batches
from nescio.models.images import Preprocessing


def test_pixels_are_squashed_to_a_square_and_normalised(coco_tree):
    split = load_coco(coco_tree(pixels=20), "val")
    preprocessing = Preprocessing(12, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    (batch,) = Reader(split, preprocessing).batches([[0, 3]])
    assert batch.pixels.shape == (2, 3, 12, 12)
    assert batch.pixels.dtype == np.uint8
    inputs = preprocessing.inputs(torch.from_numpy(batch.pixels), torch.device("cpu"))
    expected = (batch.pixels.astype(np.float64) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(inputs.numpy(), expected, rtol=1e-5, atol=1e-6)
    # Image 0 is red only: bright there, dark elsewhere.
    bright = batch.pixels[0].mean((1, 2))
    assert bright[0] > 180 > 80 > bright[1:].max()


def test_batches_come_in_order_for_any_number_of_threads(coco_tree):
    split = load_coco(coco_tree(sizes=(("train", 30),)), "train")
    augmentation = Augmentation()
    found = [
        list(
            Reader(split, Preprocessing(16), augmentation, (1, 2), n_threads=n_threads).batches(
                in_batches(30, 4)
            )
        )
        for n_threads in (1, 5)
    ]
    for one, five in zip(*found, strict=True):
        assert one.indices.tolist() == five.indices.tolist()
        assert np.array_equal(one.pixels, five.pixels)
    assert [i for batch in found[0] for i in batch.indices] == list(range(30))


def test_a_crop_depends_on_seed_and_index_alone(coco_tree):
    reader = Reader(load_coco(coco_tree(), "train"), Preprocessing(16), Augmentation(), (0, 1))
    (alone,) = reader.batches([[5]])
    (among,) = reader.batches([[2, 5, 7]])
    assert np.array_equal(alone.pixels[0], among.pixels[1])
    assert any(
        not np.array_equal(reader.reseeded(0, epoch).pixels(5), alone.pixels[0])
        for epoch in range(2, 6)
    )


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
    with pytest.raises(DatasetError, match=r"anchor/0001\.jpg.*skip_bad=True"):
        list(Reader(split, Preprocessing(8)).batches(in_batches(6, 2)))
