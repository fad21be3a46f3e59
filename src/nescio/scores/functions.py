"""The scores: one table of label-wise terms and aggregations, and a function for each entry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from nescio._io.columns import float_values
from nescio._threads import RowKernel, accumulator, map_rows
from nescio._validation import (
    FloatArray,
    check_matrix,
    checked_choice,
    checked_whole,
    is_torch,
    to_float,
    to_numpy,
)
from nescio.errors import ImplausibleValuesWarning, InputError, warn
from nescio.scores import kernels

ArrayT = TypeVar("ArrayT")

AGGREGATES = ("max", "sum", "top_k")

# So many rows do not all sum to 1 by chance, with this tolerance for rounded probabilities.
_ENOUGH_ROWS = 10
_ROUNDED = 0.005


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
    values = float_values(probs)
    if ((values < 0) | (values > 1)).any():
        low, high = np.nanmin(values), np.nanmax(values)
        raise InputError(
            f"probabilities must lie within [0, 1], got [{low:g}, {high:g}]."
            + (" If they are percentages, divide them by 100." if low >= 0 and high <= 100 else "")
        )
    if _looks_like_softmax(values):
        warn(
            "the probabilities of every sample sum to 1: these look like softmax outputs, for one "
            "label per sample. A multi-label classifier has one sigmoid per label. If yours has, "
            "pass its outputs before the softmax.",
            ImplausibleValuesWarning,
        )
    below_one = np.nextafter(values.dtype.type(1), values.dtype.type(0))
    values = np.minimum(values, below_one).astype(accumulator(values.dtype), copy=False)
    with np.errstate(divide="ignore"):
        logits: FloatArray = np.log(values) - np.log1p(-values)
    return logits


def _looks_like_softmax(probs: FloatArray) -> bool:
    """Return whether every row sums to 1; False for few rows or a single label."""
    if probs.ndim != 2 or len(probs) < _ENOUGH_ROWS or probs.shape[1] < 2:
        return False
    if abs(probs[0].sum(dtype=np.float64) - 1) > _ROUNDED:  # usually one row is enough to decide
        return False
    sums = probs.sum(1, dtype=np.float64)
    return bool((np.abs(sums[~np.isnan(sums)] - 1) <= _ROUNDED).all())


# --- the table: a term of each label under an aggregation over labels -------------------------


def label_score(
    logits: ArrayT, term: str = "energy", aggregate: str = "sum", k: int | None = None
) -> ArrayT:
    """Aggregate one term of each label into one score per sample.

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

    Returns
    -------
    array of shape (n_samples,)
        Higher means more in-distribution.

    Examples
    --------
    >>> label_score(np.array([[0.0, 0.0], [5.0, -5.0]]), "prob", "max").round(2)
    array([0.5 , 0.99])
    """
    checked_choice("term", term, tuple(TERMS))
    if checked_choice("aggregate", aggregate, AGGREGATES) == "max":
        # Every term grows with the logit, so the largest term is that of the largest logit.
        return _labelwise(_aggregate(logits, _MAX), TERMS[term])
    if aggregate == "top_k":
        return _aggregate(logits, TERMS[term].total, k=checked_whole("k", k, minimum=1))
    return _aggregate(logits, TERMS[term].total)


def joint_energy(logits: ArrayT) -> ArrayT:
    """Sum over labels of log(1 + exp(logit)) (Wang et al., 2021).

    Keeps full relative precision for samples far from the data, where every logit is strongly
    negative and the formula as written rounds to zero.

    Parameters
    ----------
    logits : array of shape (n_samples, n_labels)
        Outputs before the sigmoid.

    Returns
    -------
    array of shape (n_samples,)
        Higher means more in-distribution.

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
    return _aggregate(logits, _Total(kernels.msp, _torch_msp))


# --- NumPy kernels and torch formulas ---------------------------------------------------------


class _Total(NamedTuple):
    """One number per row: a NumPy kernel, and the formula for autograd, devices and tracing."""

    kernel: RowKernel
    torch: Callable[[Any], Any]


class Term(NamedTuple):
    """What each label contributes to a score; it grows with the logit."""

    each: Callable[[FloatArray], FloatArray]
    torch: Callable[[Any], Any]
    total: _Total  # the sum over labels


def _torch_softplus(f: Any) -> Any:
    # Above the threshold torch returns f itself; at 40 that is exact in float64 too.
    return sys.modules["torch"].nn.functional.softplus(f, threshold=40.0)


def _torch_msp(f: Any) -> Any:
    empty = f.amax(1) == -np.inf  # every label is masked
    return f.masked_fill(empty[:, None], 0.0).softmax(1).amax(1).masked_fill(empty, 0.0)


TERMS: dict[str, Term] = {
    "energy": Term(
        kernels.softplus,
        _torch_softplus,
        _Total(kernels.joint_energy, lambda f: _torch_softplus(f).sum(1)),
    ),
    "logit": Term(
        lambda f: f,
        lambda f: f,
        _Total(kernels.sum_logit, lambda f: f.masked_fill(f == -np.inf, 0.0).sum(1)),
    ),
    "prob": Term(
        kernels.sigmoid,
        lambda f: f.sigmoid(),
        _Total(kernels.sum_prob, lambda f: f.sigmoid().sum(1)),
    ),
}
_MAX = _Total(kernels.max_logit, lambda f: f.amax(1))


def _labelwise(logits: ArrayT, term: Term) -> ArrayT:
    if is_torch(logits):
        return cast(ArrayT, term.torch(_widened(logits)))
    values = float_values(logits)
    with np.errstate(all="ignore"):
        return cast(ArrayT, term.each(values.astype(accumulator(values.dtype), copy=False)))


def _aggregate(logits: ArrayT, total: _Total, k: int | None = None) -> ArrayT:
    """Return one score per row, of its k largest logits only if k is given."""
    if is_torch(logits):
        return cast(ArrayT, _aggregate_tensor(logits, total, k))
    values = float_values(logits)
    check_matrix(values)
    return cast(ArrayT, map_rows(_kernel(total, k, values.shape[1]), values))


def _kernel(total: _Total, k: int | None, n_labels: int) -> RowKernel:
    return total.kernel if k is None or k >= n_labels else kernels.of_top_k(total.kernel, k)


def _aggregate_tensor(logits: Any, total: _Total, k: int | None) -> Any:
    check_matrix(logits)
    if str(logits.layout) != "torch.strided":
        raise InputError("logits must be a dense tensor: pass logits.to_dense().")
    if logits.is_complex():
        raise InputError(f"logits must be real numbers, got a tensor of {logits.dtype}.")
    if _takes_numpy_kernel(logits):
        values = to_float(to_numpy(logits))
        result = map_rows(_kernel(total, k, values.shape[1]), values)
        return sys.modules["torch"].from_numpy(result)
    wide = _widened(logits)
    if k is not None and k < wide.shape[1]:
        wide = wide.topk(k, dim=1, sorted=False).values
    return total.torch(wide)


def _widened(tensor: Any) -> Any:
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
    )
}
