import numpy as np
import pytest

from nescio.detectors import features as tensors
from nescio.detectors.features import centred, product, row_blocks, unit_rows


@pytest.mark.parametrize("shape", [(3, 2), (64, 5), (50, 1), (4, 0)])
def test_the_product_of_any_number_of_rows(rng, shape):
    rows, matrix = rng.normal(size=(110, shape[0])), rng.normal(size=shape)
    for n_rows in (0, 1, 23, 24, 25, 110):
        found = product(rows[:n_rows], matrix)
        np.testing.assert_allclose(found, rows[:n_rows] @ matrix, rtol=1e-9, atol=1e-12)
    assert product(rows.astype(np.float32), matrix.astype(np.float32)).dtype == np.float32


def test_blocks_are_small_and_whole():
    for width in (1, 10_000, 2**30):
        blocks = list(row_blocks(3000, width))
        assert np.concatenate([np.arange(3000)[block] for block in blocks]).tolist() == list(
            range(3000)
        )
        longest = max(block.stop - block.start for block in blocks)
        assert longest == 1 or 8 * longest * width <= 64 * 2**20


def test_unit_rows_keep_their_precision_and_order(rng):
    rows = rng.normal(size=(30, 5)) * 10.0 ** rng.integers(-30, 30, (30, 1))
    for dtype, tolerance in ((np.float32, 1e-6), (np.float64, 1e-15)):
        found = unit_rows(np.asfortranarray(rows.astype(dtype)))
        assert found.dtype == dtype
        expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=10 * tolerance, atol=tolerance)


def test_centring_far_from_zero_loses_nothing(rng):
    center = 1e4 + rng.random(6)
    rows = (center + rng.normal(size=(20, 6))).astype(np.float32)
    expected = rows.astype(np.float64) - center
    np.testing.assert_allclose(centred(rows, center), expected, atol=1e-6)
    assert np.abs((rows - center.astype(np.float32)) - expected).max() > 1e-5


@pytest.mark.parametrize(
    "operation",
    [
        tensors.exp,
        lambda x: tensors.where(x > 0, x, -1.0),
        lambda x: tensors.like(x > 0, x),
        *(lambda x, k=k: tensors.largest(x, k)[:, :1] for k in (1, 3, 6, 9)),
        lambda x: tensors.largest(x, 4).sum(1),
    ],
)
def test_numpy_and_torch_agree(operation, rng):
    torch = pytest.importorskip("torch")
    x = rng.normal(size=(20, 6))
    found = operation(torch.from_numpy(x))
    expected = operation(x)
    assert found.dtype == torch.float64
    assert expected.dtype == np.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
