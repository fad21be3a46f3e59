"""The joint energy as machine code, compiled by numba at first use: an optional kernel.

NumPy makes three passes over a block (exp, log1p, sum), because it has no operation for all three.
Here one pass computes exp as a polynomial and multiplies the terms 1 + exp(f) of 16 interleaved
groups of labels, which the compiler puts into one register. As in the portable kernel, a product is
kept minus 1 (q = a + b + ab), so that the smallest terms keep their precision.

The order of operations depends on the number of labels only, so a score does not depend on the
batch.
"""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np

from nescio._validation import Array, FloatArray

_LANES = 16
_LABELS_PER_PRODUCT = 512  # 32 factors in single precision; groups are added in double precision

_f4 = np.float32
# Below the lowest exponent, exp is not a normal number. From the highest on, the result is
# infinite, and the row is computed again in the form that cannot overflow.
_LOWEST, _HIGHEST = _f4(-87.3), _f4(89.0)
# Rows with a smaller sum are to be computed again: what was rounded up to exp(-87.3) may count.
SMALLEST_SUM = 1e-28
_LOG2_E = _f4(1.44269504)
_LN2_HIGH, _LN2_LOW = _f4(0.693359375), _f4(-2.12194440e-4)  # the first has few digits
_ROUND = _f4(12_582_912.0)  # 1.5 * 2 ** 23: adding it rounds to a whole number
# (exp(r) - 1 - r) / r ** 2 for |r| <= log(2) / 2, interpolated at the Chebyshev points. With these
# coefficients, the relative error of exp is 1e-8.
_C0, _C1, _C2 = _f4(0.5), _f4(0.16666576), _f4(0.041666556)
_C3, _C4 = _f4(0.008363179), _f4(0.0013926184)


def joint_energy_compiled(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Sum log(1 + exp(f)) in float32; rows whose sum is less than `SMALLEST_SUM` are not exact."""
    if rows.dtype != np.float32 or not rows.flags.c_contiguous:
        np.copyto(work, rows)
        rows = work
    products = np.empty((len(rows), -(-rows.shape[1] // _LABELS_PER_PRODUCT)))
    _machine_code()(rows, products)
    np.log1p(products, out=products)
    result[:] = products[:, 0] if products.shape[1] == 1 else products.sum(1)


@numba.njit(inline="always")
def _merged(a: Any, b: Any) -> Any:
    return a + (b + a * b)


@numba.njit(inline="always")
def _exp(x: Any) -> Any:
    """Compute 2 ** k * exp(r) with x = k log(2) + r; NaN stays NaN."""
    x = _LOWEST if x < _LOWEST else x
    x = _HIGHEST if x > _HIGHEST else x
    k = (x * _LOG2_E + _ROUND) - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = (((_C4 * r + _C3) * r + _C2) * r + _C1) * r + _C0
    p = p * (r * r) + r + _f4(1)
    power = np.int32((np.int32(k) + np.int32(127)) << np.int32(23))  # the bits of 2 ** k
    return p * power.view(np.float32)


def _fill_products(rows: Any, products: Any) -> None:
    terms = np.empty(_LANES, np.float32)
    rest = np.empty(_LANES, np.float32)
    for i in range(rows.shape[0]):
        for group in range(products.shape[1]):
            labels = rows[i, group * _LABELS_PER_PRODUCT : (group + 1) * _LABELS_PER_PRODUCT]
            whole = np.uint64(len(labels) // _LANES * _LANES)
            for lane in range(np.uint64(_LANES)):
                terms[lane] = 0
            for start in range(np.uint64(0), whole, np.uint64(_LANES)):
                for lane in range(np.uint64(_LANES)):
                    terms[lane] = _merged(terms[lane], _exp(labels[start + lane]))
            if whole < len(labels):
                for lane in range(np.uint64(_LANES)):
                    rest[lane] = _LOWEST
                for lane in range(len(labels) - whole):
                    rest[lane] = labels[whole + lane]
                for lane in range(np.uint64(_LANES)):
                    terms[lane] = _merged(terms[lane], _exp(rest[lane]))
            for lane in range(np.uint64(8)):
                terms[lane] = _merged(terms[lane], terms[lane + np.uint64(8)])
            for lane in range(np.uint64(4)):
                terms[lane] = _merged(terms[lane], terms[lane + np.uint64(4)])
            first = _merged(np.float64(terms[0]), np.float64(terms[1]))
            second = _merged(np.float64(terms[2]), np.float64(terms[3]))
            products[i, group] = _merged(first, second)


@functools.cache
def _machine_code() -> Any:
    """Compile, or read what an earlier process has compiled."""
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"contract"},  # a multiplication and an addition may be one instruction
    }
    signature = "void(float32[:, ::1], float64[:, ::1])"
    try:
        return numba.njit(signature, cache=True, **options)(_fill_products)
    except RuntimeError:  # there is no folder to write the machine code to
        return numba.njit(signature, **options)(_fill_products)
