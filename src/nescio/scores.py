"""Scores of how in-distribution a sample is, from the logits of a multi-label classifier.

Every score is a pure function from logits of shape (n_samples, n_labels) to one number per sample,
and a higher number means more in-distribution. Each is one of three label-wise terms

    logit    f
    prob     1 / (1 + exp(-f))
    energy   log(1 + exp(f))

under one of three aggregations over the labels (max, sum, top-k); or `msp`, `exp_joint_energy` and
`conditional_joint_energy`. `label_score` computes any entry of that table.

NumPy in, NumPy out. torch in, torch out: on the same device, and differentiable. 16-bit input is
computed and returned in float32. A logit of -inf marks a masked label, which does not count.

A tensor on the CPU outside of autograd takes the NumPy kernel, which is faster; see `benchmarks/`.
A sample's score does not depend on the other samples in the batch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from nescio._io.frames import read_logits
from nescio._threads import available_cpus
from nescio._validation import (
    NO_SOFTMAX,
    Array,
    FloatArray,
    check_matrix,
    checked_choice,
    checked_whole,
    is_frame,
    is_torch,
    sum_to_one,
    to_float,
    to_numpy,
)
from nescio.errors import ImplausibleValuesWarning, InputError, warn

__all__ = [
    "SCORES",
    "conditional_joint_energy",
    "exp_joint_energy",
    "joint_energy",
    "label_energy",
    "label_prob",
    "label_score",
    "logits_from_probs",
    "max_energy",
    "max_logit",
    "max_prob",
    "msp",
    "sum_logit",
    "sum_prob",
    "top_k_joint_energy",
    "top_k_logit",
    "top_k_prob",
]

ArrayT = TypeVar("ArrayT")

# (rows of the input, work space of the same shape, one result per row)
RowKernel = Callable[[Array, FloatArray, FloatArray], None]

# 1 MiB of float32: small enough for a second-level cache, and large enough that Python's overhead
# per block is below one per cent.
_BLOCK_ELEMENTS = 1 << 18

# Labels multiplied into one factor by the portable energy kernel. Their product stays below
# float32's largest number as long as the positive logits among them sum to less than 88.
_LABELS_PER_PRODUCT = 64

# Above this many labels, row sums of float32 are accumulated in float64.
_LABELS_PER_FLOAT32_SUM = 256


# --- label-wise terms -------------------------------------------------------------------------


def label_energy(logits: ArrayT) -> ArrayT:
    """Compute log(1 + exp(logit)) of each label, the paper's negative label-wise free energy.

    Parameters
    ----------
    logits : array of any shape
        Outputs before the sigmoid.

    Examples
    --------
    >>> label_energy(np.array([[0.0, 5.0, -np.inf]])).round(2)
    array([[0.69, 5.01, 0.  ]])
    """
    return _labelwise(logits, TERMS["energy"])


def label_prob(logits: ArrayT) -> ArrayT:
    """Compute 1 / (1 + exp(-logit)) of each label, its predicted probability.

    Parameters
    ----------
    logits : array of any shape
        Outputs before the sigmoid.

    Examples
    --------
    >>> label_prob(np.array([[0.0, 5.0, -np.inf]])).round(2)
    array([[0.5 , 0.99, 0.  ]])
    """
    return _labelwise(logits, TERMS["prob"])


def logits_from_probs(probs: Any) -> FloatArray:
    """Compute the logits whose sigmoid is `probs`: log(p) - log(1 - p).

    A probability of exactly 0 becomes -inf (a masked label). A probability of exactly 1 becomes the
    logit of the largest representable number below 1, because nothing more is known. NaN stays NaN.

    Examples
    --------
    >>> logits_from_probs(np.array([[0.5, 0.0, 0.9]])).round(4)
    array([[0.    ,   -inf, 2.1972]])
    """
    values = _float_values(probs)
    if ((values < 0) | (values > 1)).any():
        low, high = np.nanmin(values), np.nanmax(values)
        raise InputError(
            f"probabilities must lie within [0, 1], got [{low:g}, {high:g}]."
            + (" If they are percentages, divide them by 100." if low >= 0 and high <= 100 else "")
        )
    if sum_to_one(values):
        warn(
            "the probabilities of every sample sum to 1: these look like softmax outputs. "
            + NO_SOFTMAX,
            ImplausibleValuesWarning,
        )
    below_one = np.nextafter(values.dtype.type(1), values.dtype.type(0))
    values = np.minimum(values, below_one).astype(accumulator(values.dtype), copy=False)
    with np.errstate(divide="ignore"):
        logits: FloatArray = np.log(values) - np.log1p(-values)
    return logits


# --- the table: a term of each label under an aggregation over labels -------------------------


def label_score(
    logits: ArrayT, term: str = "energy", aggregate: str = "sum", k: int | None = None
) -> ArrayT:
    """Aggregate one term of each label into one score per sample, (n_samples,).

    Higher means more in-distribution.

    Parameters
    ----------
    logits : array of shape (n_samples, n_labels)
        Outputs before the sigmoid. A logit of -inf marks a masked label, which does not count.
    term : {"energy", "logit", "prob"}
        What each label contributes.
    aggregate : {"sum", "max", "top_k"}
        The sum of all terms, the largest term, or the sum of the `k` largest terms.
    k : int, optional
        The number of labels that count under "top_k"; all labels if there are fewer.

    Examples
    --------
    >>> label_score(np.array([[0.0, 0.0], [5.0, -5.0]]), "prob", "max").round(2)
    array([0.5 , 0.99])
    """
    checked_choice("term", term, tuple(TERMS))
    if checked_choice("aggregate", aggregate, ("max", "sum", "top_k")) == "max":
        # Every term grows with the logit, so the largest term is that of the largest logit.
        top = _aggregate(logits, _max_kernel, lambda f: f.amax(1))
        return _labelwise(top, TERMS[term])
    n_largest = checked_whole("k", k, minimum=1) if aggregate == "top_k" else None
    return _aggregate(logits, TERMS[term].sum_kernel, TERMS[term].torch_sum, n_largest)


def joint_energy(logits: ArrayT) -> ArrayT:
    """Sum over labels of log(1 + exp(logit)) (Wang et al., 2021).

    Higher means more in-distribution. Keeps full relative precision for samples far from the data,
    where every logit is strongly negative and the formula as written rounds to zero.

    Parameters
    ----------
    logits : array of shape (n_samples, n_labels)
        Outputs before the sigmoid.

    Examples
    --------
    >>> joint_energy(np.array([[0.0, 0.0], [5.0, -5.0]])).round(2)
    array([1.39, 5.01])
    """
    return label_score(logits, "energy", "sum")


def max_energy(logits: ArrayT) -> ArrayT:
    """Return the largest label-wise energy, log(1 + exp(max logit)); ranks as `max_logit` does.

    Examples
    --------
    >>> max_energy(np.array([[0.0, 0.0], [5.0, -5.0]])).round(2)
    array([0.69, 5.01])
    """
    return label_score(logits, "energy", "max")


def top_k_joint_energy(logits: ArrayT, k: int) -> ArrayT:
    """Sum the energies of the k largest logits, for very many labels.

    Examples
    --------
    >>> top_k_joint_energy(np.array([[0.0, 0.0, 0.0], [5.0, -5.0, 1.0]]), k=2).round(2)
    array([1.39, 6.32])
    """
    return label_score(logits, "energy", "top_k", k)


def max_logit(logits: ArrayT) -> ArrayT:
    """Return the largest logit (Hendrycks et al., 2019); -inf if every label is masked.

    Examples
    --------
    >>> max_logit(np.array([[0.0, 0.0], [5.0, -5.0]]))
    array([0., 5.])
    """
    return label_score(logits, "logit", "max")


def sum_logit(logits: ArrayT) -> ArrayT:
    """Sum the logits that are not masked (an ablation of the paper; a poor score).

    Examples
    --------
    >>> sum_logit(np.array([[1.0, 2.0], [5.0, -np.inf]]))
    array([3., 5.])
    """
    return label_score(logits, "logit", "sum")


def top_k_logit(logits: ArrayT, k: int) -> ArrayT:
    """Sum the k largest logits.

    Examples
    --------
    >>> top_k_logit(np.array([[1.0, 2.0, -7.0]]), k=2)
    array([3.])
    """
    return label_score(logits, "logit", "top_k", k)


def max_prob(logits: ArrayT) -> ArrayT:
    """Return the largest label probability; ranks as `max_logit` does until it saturates at 1.

    Examples
    --------
    >>> max_prob(np.array([[0.0, 0.0], [5.0, -5.0]])).round(2)
    array([0.5 , 0.99])
    """
    return label_score(logits, "prob", "max")


def sum_prob(logits: ArrayT) -> ArrayT:
    """Sum the label probabilities: the expected number of labels (an ablation of the paper).

    Examples
    --------
    >>> sum_prob(np.array([[0.0, 0.0], [5.0, -5.0]])).round(2)
    array([1., 1.])
    """
    return label_score(logits, "prob", "sum")


def top_k_prob(logits: ArrayT, k: int) -> ArrayT:
    """Sum the k largest label probabilities.

    Examples
    --------
    >>> top_k_prob(np.array([[0.0, 0.0, -9.0]]), k=2)
    array([1.])
    """
    return label_score(logits, "prob", "top_k", k)


def msp(logits: ArrayT) -> ArrayT:
    """Return the maximum softmax probability over labels (Hendrycks & Gimpel, 2017).

    It was made for one label per sample: two labels that are both certain score 0.5. It is here
    because the paper compares with it. If every label is masked, the score is 0.

    Examples
    --------
    >>> msp(np.array([[0.0, 0.0], [5.0, -5.0]])).round(2)
    array([0.5, 1. ])
    """
    return _aggregate(logits, _softmax_kernel, _torch_msp)


def exp_joint_energy(logits: ArrayT) -> ArrayT:
    """Return the log of the sum of exp(logit): it ranks as the unpublished ExpJointEnergy.

    That score, the sum over labels of exp(energy) = 1 + exp(logit), is in text that the source of
    Wang et al. (2021) comments out. It overflows, and rounds to the number of labels far from the
    data. The log without the ones does neither, and has the same order: the same FPR, AUROC, AUPR.

    Examples
    --------
    >>> exp_joint_energy(np.array([[0.0, 0.0], [5.0, -5.0]])).round(2)
    array([0.69, 5.  ])
    """
    top: Any = max_logit(logits)
    share = where(top == -np.inf, 1.0, msp(logits))  # of the largest term; any if all are masked
    return top - log(share)  # type: ignore[no-any-return]


def conditional_joint_energy(logits: ArrayT) -> ArrayT:
    """Sum the energies of the logits that are at least 0: the unpublished "Cond. Sum".

    It is in text that the source of Wang et al. (2021) comments out. Samples without such a logit
    all score 0: if many in-distribution samples are among them, no threshold flags any.

    Examples
    --------
    >>> conditional_joint_energy(np.array([[0.0, 0.0], [5.0, -5.0]])).round(2)
    array([1.39, 5.01])
    """
    values: Any = logits if is_torch(logits) else _float_values(logits)
    return joint_energy(where(values < 0, -np.inf, values))  # type: ignore[no-any-return]


# --- kernels: the arithmetic in NumPy ---------------------------------------------------------
#
# A kernel takes a block of rows, work space of the same shape in the precision of the computation,
# and the result to fill. It handles each row separately and in the same order of operations, so
# that a score does not depend on the batch or the block that the row is in.


def _softplus(f: FloatArray) -> FloatArray:
    """Compute log(1 + exp(f)) as max(f, 0) + log1p(exp(-|f|)), without overflow or cancellation."""
    result: FloatArray = np.asarray(np.abs(f))
    np.exp(np.negative(result, out=result), out=result)
    np.log1p(result, out=result)
    result += np.maximum(f, 0)
    return result


def _sigmoid(f: FloatArray, out: FloatArray | None = None) -> FloatArray:
    """Compute 1 / (1 + exp(-f)); where exp(-f) overflows, 1 / infinity = 0 is correct."""
    result: FloatArray = np.asarray(np.negative(f, out=out))
    np.exp(result, out=result)
    result += 1
    return np.reciprocal(result, out=result)


def joint_energy_kernel(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Sum log(1 + exp(f)) with the faster of the two kernels on this machine."""
    kernel = joint_energy_direct if _has_vectorised_log1p() else joint_energy_by_products
    kernel(rows, work, result)


def joint_energy_direct(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Sum log1p(exp(f)): the fastest way where NumPy has a vectorised log1p."""
    np.exp(rows, out=work, dtype=work.dtype)
    np.log1p(work, out=work)
    _sum_rows(work, result)
    _redo(rows, result, _softplus)


def joint_energy_by_products(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Compute log1p of (product of (1 + exp(f)) minus 1): one scalar log1p per 64 labels.

    With q = (product of (1 + e)) - 1, two groups combine as q = a + b + ab, which keeps the
    relative precision of the smallest terms. Label-major, so that all work is on contiguous memory.
    """
    n_rows, n_labels = rows.shape
    n_groups = n_labels // _LABELS_PER_PRODUCT
    whole = n_groups * _LABELS_PER_PRODUCT
    total = np.zeros(n_rows)
    if n_groups:
        # All groups at once: (64, n_rows, n_groups). With few rows, one group would be too short.
        groups = rows[:, :whole].reshape(n_rows, n_groups, _LABELS_PER_PRODUCT).transpose(2, 0, 1)
        for logarithms in np.log1p(_products(groups, work)).T:
            total += logarithms
    if whole < n_labels:
        total += np.log1p(_products(rows[:, whole:].T, work))
    result[:] = total
    _redo(rows, result, _softplus)


def _products(labels: Array, work: FloatArray) -> FloatArray:
    """Return the product of 1 + exp(f) over the first axis, minus 1."""
    q: FloatArray = work.reshape(-1)[: labels.size].reshape(labels.shape)
    np.exp(labels, out=q, dtype=q.dtype)
    width = len(q)
    while width > 1:
        half = width // 2
        a, b = q[:half], q[width - half : width]
        product = a * b
        product += b
        a += product
        width -= half
    return np.asarray(q[0])


def _max_kernel(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Find the largest logit."""
    np.max(rows, axis=1, out=result)


def _logit_kernel(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Sum the logits that are not -inf."""
    np.copyto(work, rows)
    _sum_rows(work, result)
    _redo(rows, result, lambda f: np.where(np.isneginf(f), 0, f))


def _prob_kernel(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Sum the label probabilities."""
    _sum_rows(_sigmoid(rows, out=work), result)


def _softmax_kernel(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Find the largest softmax probability; 0 if every label is masked."""
    top = np.max(rows, axis=1, keepdims=True)
    np.subtract(rows, top, out=work, dtype=work.dtype)
    np.exp(work, out=work)
    _sum_rows(work, result)
    np.reciprocal(result, out=result)
    result[np.isneginf(top[:, 0])] = 0


def _of_top_k(kernel: RowKernel, k: int) -> RowKernel:
    """Apply `kernel` to the k largest logits of each row: every term grows with the logit."""

    def top_k_kernel(rows: Array, work: FloatArray, result: FloatArray) -> None:
        top = largest(rows, k)
        kernel(top, work.reshape(-1)[: top.size].reshape(top.shape), result)

    return top_k_kernel


def _sum_rows(work: FloatArray, result: FloatArray) -> None:
    if work.shape[1] <= _LABELS_PER_FLOAT32_SUM:
        np.einsum("ij->i", work, out=result)
    else:
        result[:] = work.sum(1, dtype=np.float64)


def _redo(rows: Array, result: FloatArray, terms: Callable[[FloatArray], FloatArray]) -> None:
    """Sum the rows that overflowed or have masked labels again, in a form that is safe for them."""
    unsafe = np.flatnonzero(~np.isfinite(result))
    if unsafe.size:
        again = np.empty(len(unsafe), result.dtype)
        _sum_rows(terms(np.ascontiguousarray(rows[unsafe], dtype=result.dtype)), again)
        result[unsafe] = again


@functools.cache
def _has_vectorised_log1p() -> bool:
    """Return whether NumPy has a vectorised log1p here (a scalar one costs 20 times as much)."""
    from numpy.lib.introspect import opt_func_info

    targets = opt_func_info(func_name="^log1p$", signature="float32")
    current = [entry["current"] for entry in targets.get("log1p", {}).values()]
    return any("AVX512" in target or "X86_V4" in target for target in current)


def map_rows(kernel: RowKernel, matrix: FloatArray) -> FloatArray:
    """Run `kernel` on blocks of rows, on all available processors; return one result per row.

    The kernel must compute each row independently, so that the result does not depend on how the
    rows are divided into blocks.
    """
    n_rows, n_columns = matrix.shape
    result = np.empty(n_rows, accumulator(matrix.dtype))
    block = max(1, _BLOCK_ELEMENTS // n_columns)
    if n_rows <= block:  # the usual case of a service, where every microsecond counts
        if n_rows:
            with np.errstate(all="ignore"):
                kernel(matrix, np.empty(matrix.shape, result.dtype), result)
        return result
    starts = range(0, n_rows, block)
    workers = min(available_cpus(), len(starts))

    def run(worker: int) -> None:
        work = np.empty((block, n_columns), result.dtype)
        with np.errstate(all="ignore"):
            for start in starts[worker::workers]:
                rows = slice(start, min(start + block, n_rows))
                kernel(matrix[rows], work[: rows.stop - start], result[rows])

    if workers == 1:
        run(0)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(run, range(workers)))
    return result


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype to compute in: float32 for 16-bit and 32-bit input, otherwise float64."""
    return np.dtype(np.float64) if dtype.itemsize > 4 else np.dtype(np.float32)


# --- the table: kernels in NumPy, formulas in torch -------------------------------------------


class Term(NamedTuple):
    """What each label contributes to a score; it grows with the logit."""

    each: Callable[[FloatArray], FloatArray]
    torch_each: Callable[[Any], Any]  # in torch: for autograd, devices and tracing
    sum_kernel: RowKernel
    torch_sum: Callable[[Any], Any]


def _torch_softplus(f: Any) -> Any:
    # Above the threshold torch returns f itself; at 40 that is exact in float64 too.
    return sys.modules["torch"].nn.functional.softplus(f, threshold=40.0)


def _torch_msp(f: Any) -> Any:
    empty = f.amax(1) == -np.inf  # every label is masked
    return f.masked_fill(empty[:, None], 0.0).softmax(1).amax(1).masked_fill(empty, 0.0)


TERMS: dict[str, Term] = {
    "energy": Term(
        _softplus, _torch_softplus, joint_energy_kernel, lambda f: _torch_softplus(f).sum(1)
    ),
    "logit": Term(
        lambda f: f, lambda f: f, _logit_kernel, lambda f: f.masked_fill(f == -np.inf, 0.0).sum(1)
    ),
    "prob": Term(_sigmoid, lambda f: f.sigmoid(), _prob_kernel, lambda f: f.sigmoid().sum(1)),
}


def _labelwise(logits: ArrayT, term: Term) -> ArrayT:
    if is_torch(logits):
        return cast(ArrayT, term.torch_each(widened(logits)))
    values = _float_values(logits)
    with np.errstate(all="ignore"):
        return cast(ArrayT, term.each(values.astype(accumulator(values.dtype), copy=False)))


def _float_values(value: Any) -> FloatArray:
    """Return the numbers of an array-like, or the labels of a data frame, as floating point."""
    if type(value) is not np.ndarray and is_frame(value):  # an array is the usual case
        value = read_logits(value)["logits"]
    return to_float(to_numpy(value))


def _aggregate(
    logits: ArrayT, kernel: RowKernel, formula: Callable[[Any], Any], k: int | None = None
) -> ArrayT:
    """Return one score per row, of its k largest logits; in torch by the formula, if needed."""
    if is_torch(logits):
        return cast(ArrayT, _aggregate_tensor(logits, kernel, formula, k))
    values = _float_values(logits)
    check_matrix(values)
    if k is not None and k < values.shape[1]:
        kernel = _of_top_k(kernel, k)
    return cast(ArrayT, map_rows(kernel, values))


def _aggregate_tensor(
    logits: Any, kernel: RowKernel, formula: Callable[[Any], Any], k: int | None
) -> Any:
    check_matrix(logits)
    if str(logits.layout) != "torch.strided":
        raise InputError("logits must be a dense tensor: pass logits.to_dense().")
    if logits.is_complex():
        raise InputError(f"logits must be real numbers, got a tensor of {logits.dtype}.")
    if _takes_numpy_kernel(logits):
        return sys.modules["torch"].from_numpy(_aggregate(to_numpy(logits), kernel, formula, k))
    wide = widened(logits)
    if k is not None and k < wide.shape[1]:
        wide = wide.topk(k, dim=1, sorted=False).values
    return formula(wide)


def widened(tensor: Any) -> Any:
    """Return 16-bit tensors in float32, integers in float64, and others unchanged."""
    if not tensor.is_floating_point():
        return tensor.double()
    return tensor if str(tensor.dtype) in ("torch.float32", "torch.float64") else tensor.float()


def _takes_numpy_kernel(tensor: Any) -> bool:
    """Return whether a tensor is plain CPU memory that is neither differentiated nor traced."""
    torch = sys.modules["torch"]
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and torch.autograd.forward_ad.unpack_dual(tensor).tangent is None
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and _has_memory(tensor)
    )


def _has_memory(tensor: Any) -> bool:
    try:
        tensor.data_ptr()
    except RuntimeError:  # inside the transforms of torch.func
        return False
    return True


# --- what NumPy and torch name differently, for detectors that can be exported ----------------


def exp(x: Any) -> Any:
    """Return e to the power of each value."""
    return x.exp() if is_torch(x) else np.exp(x)


def log(x: Any) -> Any:
    """Return the natural logarithm of each value."""
    return x.log() if is_torch(x) else np.log(x)


def where(condition: Any, x: Any, y: Any) -> Any:
    """Return x where the condition holds, else y."""
    return (sys.modules["torch"] if is_torch(condition) else np).where(condition, x, y)


def like(array: Any, x: Any) -> Any:
    """Return an array in the precision of x: torch multiplies no matrices of two precisions."""
    return array.to(x.dtype) if is_torch(x) else array.astype(x.dtype, copy=False)


def largest(x: Any, k: int) -> Any:
    """Return the k largest values of each row, all if there are fewer; the smallest comes first."""
    k = min(k, x.shape[1])
    if is_torch(x):
        return x.topk(k, dim=1).values.flip(1)
    first = x.shape[1] - k
    return np.partition(x, first, axis=1)[:, first:]


SCORES: dict[str, Callable[..., Any]] = {
    score.__name__: score
    for score in (
        joint_energy,
        max_energy,
        top_k_joint_energy,
        max_logit,
        sum_logit,
        top_k_logit,
        max_prob,
        sum_prob,
        top_k_prob,
        msp,
        exp_joint_energy,
        conditional_joint_energy,
    )
}
