"""Batches in halves when the memory does not suffice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nescio._validation import Array
from nescio.errors import InputError

# What torch's allocator for the CPU, onnxruntime and C++ say.
_SIGNS = ("can't allocate memory", "out of memory", "failed to allocate memory", "bad_alloc")


class InHalves:
    """Computes a batch; if there is not enough memory, in halves, from then on for all batches.

    Nothing that has been computed is computed again. Rows are samples, and a batch of another size
    rounds differently, by about 1e-6.

    Parameters
    ----------
    compute : callable
        From a batch to arrays with one row per sample.

    Attributes
    ----------
    most : int or None
        The number of samples that are computed at once; None as long as every batch was.
    """

    def __init__(self, compute: Callable[[Any], Mapping[Any, Array]]) -> None:
        self.compute = compute
        self.most: int | None = None
        self._failure: BaseException | None = None

    def __call__(self, batch: Any) -> Mapping[Any, Array]:
        """Return the arrays of a batch."""
        parts: list[Mapping[Any, Array]] = []
        start = 0
        while start < len(batch):
            end = min(start + (self.most or len(batch)), len(batch))
            found = self._tried(batch[start:end] if end - start < len(batch) else batch)
            if found is not None:
                parts.append(found)
                start = end
            elif end - start > 1:
                self.most = (end - start + 1) // 2
            else:
                raise InputError(
                    "there is not enough memory to run the model on a single sample."
                ) from self._failure
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _tried(self, batch: Any) -> Mapping[Any, Array] | None:
        """Return the arrays of a batch; None if there is not enough memory."""
        try:
            return self.compute(batch)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            self._failure = _without_tracebacks(error)
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None


def _without_tracebacks(error: BaseException) -> BaseException:
    """Remove what keeps the tensors of the failed pass, from the error and from its causes."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory was missing, or the cause of the error was that."""
    while error is not None:
        # CUDA's error is a RuntimeError that says "out of memory".
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, Exception) and any(sign in str(error).lower() for sign in _SIGNS):
            return True
        error = error.__cause__
    return False
