"""NumPy arrays and torch tensors give the same."""

import numpy as np
import pytest

from nescio.detectors import features as tensors

torch = pytest.importorskip("torch")


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
    x = rng.normal(size=(20, 6))
    found = operation(torch.from_numpy(x))
    expected = operation(x)
    assert found.dtype == torch.float64
    assert expected.dtype == np.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
