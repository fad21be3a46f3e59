"""Scores of how in-distribution an input is, from the logits of a multi-label classifier.

Every score is a pure function from logits of shape (n_samples, n_labels) to one number per sample,
and a higher number means more in-distribution. Each is one of three label-wise scores

    logit    f
    prob     1 / (1 + exp(-f))
    energy   log(1 + exp(f))

under one of three aggregations over the labels (max, sum, top-k), or the softmax score `msp`.

NumPy in, NumPy out. torch in, torch out: on the same device, and differentiable. 16-bit input is
computed and returned in float32. A logit of -inf marks a masked label, which counts nothing.

A tensor on the CPU outside of autograd takes the NumPy kernel, which is the faster one; see
`benchmarks/`. Results do not depend on which other rows are in the batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from nescio._threads import RowKernel, accumulator, map_rows
from nescio._validation import FloatArray, check_matrix, checked_whole, is_torch, to_float, to_numpy
from nescio.errors import InputError
from nescio.scores import kernels

__all__ = [
    "SCORES",
    "joint_energy",
    "label_energy",
    "label_prob",
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

# --- label-wise -------------------------------------------------------------------------------


def label_energy(logits: ArrayT) -> ArrayT:
    """log(1 + exp(logit)) of each label: the negative label-wise free energy of the paper.

    Parameters
    ----------
    logits : array of any shape
        Outputs before the sigmoid.

    Examples
    --------
    >>> label_energy(np.array([[0.0, 5.0, -np.inf]])).round(2)
    array([[0.69, 5.01, 0.  ]])
    """
    return _labelwise(logits, kernels.softplus, _torch_softplus)


def label_prob(logits: ArrayT) -> ArrayT:
    """1 / (1 + exp(-logit)) of each label: its predicted probability.

    Parameters
    ----------
    logits : array of any shape
        Outputs before the sigmoid.

    Examples
    --------
    >>> label_prob(np.array([[0.0, 5.0, -np.inf]])).round(2)
    array([[0.5 , 0.99, 0.  ]])
    """
    return _labelwise(logits, kernels.sigmoid, lambda f: f.sigmoid())


def logits_from_probs(probs: Any) -> FloatArray:
    """The logits whose sigmoid `probs` is: log(p) - log(1 - p).

    A probability of exactly 0 becomes -inf (a label that counts nothing); one of exactly 1 becomes
    the logit of the largest representable number below 1, since nothing is known beyond it. NaN
    stays NaN.

    Examples
    --------
    >>> logits_from_probs(np.array([[0.5, 0.0, 0.9]])).round(4)
    array([[0.    ,   -inf, 2.1972]])
    """
    values = to_float(to_numpy(probs))
    if ((values < 0) | (values > 1)).any():
        low, high = np.nanmin(values), np.nanmax(values)
        raise InputError(f"probabilities must lie within [0, 1], got [{low:g}, {high:g}].")
    below_one = np.nextafter(values.dtype.type(1), values.dtype.type(0))
    values = np.minimum(values, below_one).astype(accumulator(values.dtype), copy=False)
    with np.errstate(divide="ignore"):
        logits: FloatArray = np.log(values) - np.log1p(-values)
    return logits


# --- energy -----------------------------------------------------------------------------------


def joint_energy(logits: ArrayT) -> ArrayT:
    """Sum over labels of log(1 + exp(logit)) (Wang et al., 2021).

    Keeps full relative precision for inputs far from the data, where every logit is strongly
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
    return _aggregate(logits, kernels.joint_energy(), _torch_joint_energy)


def max_energy(logits: ArrayT) -> ArrayT:
    """The largest label-wise energy, log(1 + exp(max logit)); ranks as `max_logit` does.

    Examples
    --------
    >>> max_energy(np.array([[0.0, 0.0], [5.0, -5.0]])).round(2)
    array([0.69, 5.01])
    """
    return label_energy(max_logit(logits))


def top_k_joint_energy(logits: ArrayT, k: int) -> ArrayT:
    """The joint energy of the k largest logits only, for very many labels (all if fewer than k).

    Examples
    --------
    >>> top_k_joint_energy(np.array([[0.0, 0.0, 0.0], [5.0, -5.0, 1.0]]), k=2).round(2)
    array([1.39, 6.32])
    """
    return _aggregate(logits, kernels.joint_energy(), _torch_joint_energy, k=k)


# --- logit ------------------------------------------------------------------------------------


def max_logit(logits: ArrayT) -> ArrayT:
    """The largest logit (Hendrycks et al., 2019); -inf if every label is masked.

    Examples
    --------
    >>> max_logit(np.array([[0.0, 0.0], [5.0, -5.0]]))
    array([0., 5.])
    """
    return _aggregate(logits, kernels.max_logit, lambda f: f.amax(1))


def sum_logit(logits: ArrayT) -> ArrayT:
    """The sum of the logits that are not masked (an ablation of the paper; a poor score).

    Examples
    --------
    >>> sum_logit(np.array([[1.0, 2.0], [5.0, -np.inf]]))
    array([3., 5.])
    """
    return _aggregate(logits, kernels.sum_logit, _torch_sum_logit)


def top_k_logit(logits: ArrayT, k: int) -> ArrayT:
    """The sum of the k largest logits (all if there are fewer than k).

    Examples
    --------
    >>> top_k_logit(np.array([[1.0, 2.0, -7.0]]), k=2)
    array([3.])
    """
    return _aggregate(logits, kernels.sum_logit, _torch_sum_logit, k=k)


# --- probability ------------------------------------------------------------------------------


def max_prob(logits: ArrayT) -> ArrayT:
    """The largest label probability; ranks as `max_logit` does until it saturates at 1.

    Examples
    --------
    >>> max_prob(np.array([[0.0, 0.0], [5.0, -5.0]])).round(2)
    array([0.5 , 0.99])
    """
    return label_prob(max_logit(logits))


def sum_prob(logits: ArrayT) -> ArrayT:
    """The sum of the label probabilities: the expected number of labels (ablation of the paper).

    Examples
    --------
    >>> sum_prob(np.array([[0.0, 0.0], [5.0, -5.0]])).round(2)
    array([1., 1.])
    """
    return _aggregate(logits, kernels.sum_prob, _torch_sum_prob)


def top_k_prob(logits: ArrayT, k: int) -> ArrayT:
    """The sum of the k largest label probabilities (all if there are fewer than k).

    Examples
    --------
    >>> top_k_prob(np.array([[0.0, 0.0, -9.0]]), k=2)
    array([1.])
    """
    return _aggregate(logits, kernels.sum_prob, _torch_sum_prob, k=k)


def msp(logits: ArrayT) -> ArrayT:
    """The maximum softmax probability over labels (Hendrycks & Gimpel, 2017).

    Made for one label per input: two labels that are both certain score 0.5. It is here because
    the paper compares with it. With every label masked it is 0.

    Examples
    --------
    >>> msp(np.array([[0.0, 0.0], [5.0, -5.0]])).round(2)
    array([0.5, 1. ])
    """
    return _aggregate(logits, kernels.msp, _torch_msp)


# --- torch formulas: for autograd, accelerators and tracing -----------------------------------


def _torch_softplus(f: Any) -> Any:
    # Above the threshold torch returns f itself; at 40 that is exact in float64 too.
    return sys.modules["torch"].nn.functional.softplus(f, threshold=40.0)


def _torch_joint_energy(f: Any) -> Any:
    return _torch_softplus(f).sum(1)


def _torch_sum_logit(f: Any) -> Any:
    return f.masked_fill(f == -np.inf, 0.0).sum(1)


def _torch_sum_prob(f: Any) -> Any:
    return f.sigmoid().sum(1)


def _torch_msp(f: Any) -> Any:
    empty = f.amax(1) == -np.inf  # every label masked
    return f.masked_fill(empty[:, None], 0.0).softmax(1).amax(1).masked_fill(empty, 0.0)


def _widened(tensor: Any) -> Any:
    """16-bit tensors in float32, integers in float64, the rest as they are."""
    if not tensor.is_floating_point():
        return tensor.double()
    return tensor if str(tensor.dtype) in ("torch.float32", "torch.float64") else tensor.float()


def _takes_numpy_kernel(tensor: Any) -> bool:
    """Whether a tensor is plain memory on the CPU that nobody differentiates or traces."""
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
    except RuntimeError:  # inside of torch.func's transforms
        return False
    return True


# --- dispatch ---------------------------------------------------------------------------------


def _labelwise(
    logits: ArrayT,
    formula: Callable[[FloatArray], FloatArray],
    torch_formula: Callable[[Any], Any],
) -> ArrayT:
    if is_torch(logits):
        return cast(ArrayT, torch_formula(_widened(logits)))
    values = to_float(to_numpy(logits))
    with np.errstate(all="ignore"):
        return cast(ArrayT, formula(values.astype(accumulator(values.dtype), copy=False)))


def _aggregate(
    logits: ArrayT, kernel: RowKernel, torch_formula: Callable[[Any], Any], k: int | None = None
) -> ArrayT:
    """One score per row; of its k largest logits only where k is given."""
    given: Any = logits if is_torch(logits) else to_float(to_numpy(logits))
    check_matrix(given)
    if is_torch(given) and str(given.layout) != "torch.strided":
        raise InputError("logits must be a dense tensor: pass logits.to_dense().")
    if is_torch(given) and given.is_complex():
        raise InputError(f"logits must be real numbers, got a tensor of {given.dtype}.")
    if k is not None and checked_whole("k", k, minimum=1) >= given.shape[1]:
        k = None  # all labels: nothing to select
    if is_torch(given) and not _takes_numpy_kernel(given):
        given = _widened(given)
        top = given if k is None else given.topk(k, dim=1, sorted=False).values
        return cast(ArrayT, torch_formula(top))
    result: Any = map_rows(
        kernel if k is None else kernels.of_top_k(kernel, k), to_float(to_numpy(given))
    )
    return cast(ArrayT, sys.modules["torch"].from_numpy(result) if is_torch(given) else result)


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
