import numpy as np
import pytest

from nescio.errors import ShapeError
from nescio.lab.data.corruptions import (
    CORRUPTIONS,
    arithmetic_mean,
    corrupt,
    geometric_mean,
    jigsaw,
)
from nescio.models.images import Preprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE = Preprocessing(mean=MEAN, std=STD)


@pytest.fixture
def images(rng):
    return rng.random((3, 3, 16, 24), dtype=np.float32)


@pytest.fixture
def partners(rng, images):
    return rng.random(images.shape, dtype=np.float32)


def patches(image, height, width):
    """The 16 patches of an image, as bytes to compare by."""
    return [
        image[:, y * height : (y + 1) * height, x * width : (x + 1) * width].tobytes()
        for y in range(4)
        for x in range(4)
    ]


def test_the_means_are_exact():
    a = np.full((1, 3, 2, 2), 0.25, dtype=np.float32)
    b = np.ones_like(a)
    np.testing.assert_array_equal(arithmetic_mean(a, b, None), np.full_like(a, 0.625))
    np.testing.assert_array_equal(geometric_mean(a, b, None), np.full_like(a, 0.5))
    np.testing.assert_array_equal(geometric_mean(a, np.zeros_like(a), None), np.zeros_like(a))


def test_jigsaw_moves_whole_patches(images, rng):
    shuffled = jigsaw(images, images, rng)
    orders = set()
    for before, after in zip(images, shuffled, strict=True):
        was, now = patches(before, 4, 6), patches(after, 4, 6)
        assert sorted(was) == sorted(now)
        assert was != now
        orders.add(tuple(was.index(patch) for patch in now))
    assert len(orders) == len(images)


def test_jigsaw_keeps_what_does_not_divide(rng):
    images = rng.random((1, 3, 11, 9), dtype=np.float32)
    images.setflags(write=False)
    shuffled = jigsaw(images, images, rng)
    np.testing.assert_array_equal(shuffled[:, :, 8:], images[:, :, 8:])
    np.testing.assert_array_equal(shuffled[..., 8:], images[..., 8:])
    assert sorted(patches(shuffled[0], 2, 2)) == sorted(patches(images[0], 2, 2))
    assert patches(shuffled[0], 2, 2) != patches(images[0], 2, 2)


def test_jigsaw_draws_again_when_nothing_would_move(images):
    class Stubborn:
        orders = iter([np.arange(16), np.arange(16)[::-1]])

        def permutation(self, n):
            return next(self.orders)

    shuffled = jigsaw(images[:1], images[:1], Stubborn())
    assert patches(shuffled[0], 4, 6) == patches(images[0], 4, 6)[::-1]


def test_noise_is_standard_after_the_normalisation(rng):
    images = np.zeros((4, 3, 64, 64), dtype=np.float32)
    mean, std = (np.array(values)[:, None, None] for values in (MEAN, STD))
    for name, spread in (("gaussian_noise", 1), ("uniform_noise", 1 / np.sqrt(3))):
        pixels = corrupt(name, images, images, rng, SCALE)
        inputs = (pixels - mean) / std
        np.testing.assert_allclose(inputs.mean(axis=(0, 2, 3)), 0, atol=0.03)
        np.testing.assert_allclose(inputs.std(axis=(0, 2, 3)), spread, atol=0.03)
        assert (np.abs(inputs).max() <= 1 + 1e-5) == (name == "uniform_noise")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_shape_and_type_are_kept(name, dtype, images, partners, rng):
    images, partners = images.astype(dtype), partners.astype(dtype)
    made = corrupt(name, images, partners, rng, SCALE)
    assert made.shape == images.shape
    assert made.dtype == dtype
    assert np.isfinite(made).all()
    assert not np.array_equal(made, images)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_one_at_a_time_equals_a_batch(name, images, partners):
    def made(rng, part):
        return corrupt(name, images[part], partners[part], rng, SCALE)

    batch = made(np.random.default_rng(7), slice(None))
    rng = np.random.default_rng(7)
    singles = [made(rng, slice(row, row + 1)) for row in range(len(images))]
    np.testing.assert_array_equal(batch, np.concatenate(singles))


def test_the_authors_noise_is_narrower_and_clipped(rng):
    images = np.zeros((4, 3, 64, 64), dtype=np.float32)
    pixels = corrupt("clipped_gaussian_noise", images, images, rng, SCALE)
    inputs = (pixels - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    assert np.abs(inputs).max() == pytest.approx(1)
    # N(0, 0.25) is beyond 1 in 4.55 % of the values; there it is clipped.
    assert (np.abs(inputs) > 1 - 1e-5).mean() == pytest.approx(0.0455, abs=0.005)


def test_the_authors_jigsaw_is_neither_permuted_nor_normalised(images, rng):
    pixels = corrupt("unnormalised", images, images, rng, SCALE)
    inputs = (pixels - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    np.testing.assert_allclose(inputs, images, atol=1e-6)


def test_what_cannot_be_permuted(images, rng):
    small = images[..., :3]
    with pytest.raises(ShapeError, match="at least 4 by 4"):
        corrupt("jigsaw", small, small, rng, SCALE)
