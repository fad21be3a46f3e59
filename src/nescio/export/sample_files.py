"""A model's inputs from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.files import existing_file
from nescio._io.tables import read_parquet
from nescio._io.tensors import read_tensors
from nescio._validation import Array
from nescio.errors import FileFormatError

__all__ = ["read_samples"]


def read_samples(path: str | Path) -> Any:
    """Read inputs from .npy, .npz, .safetensors or .parquet: an array, or several by name.

    A Parquet file holds lists, with one column per input, or numbers, which are the columns of one
    input.
    """
    path = existing_file(path)
    readers = {
        ".npy": _read_numpy,
        ".npz": _read_numpy,
        ".safetensors": lambda path: read_tensors(path)[0],
        ".parquet": _read_parquet,
    }
    if path.suffix.lower() not in readers:
        raise FileFormatError(
            f"cannot read samples from {path}: expected one of {', '.join(readers)}."
        )
    found = readers[path.suffix.lower()](path)
    if isinstance(found, dict) and not found:
        raise FileFormatError(f"{path} holds no arrays.")
    return next(iter(found.values())) if isinstance(found, dict) and len(found) == 1 else found


def _read_numpy(path: Path) -> Any:
    try:
        with path.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except Exception as error:  # NumPy raises many kinds for damaged files
        raise FileFormatError(
            f"{path} is not a NumPy file, is damaged, or holds Python objects."
        ) from error


def _read_parquet(path: Path) -> dict[str, Array]:
    columns = {name: array for name, array in read_parquet(path).items() if name.lower() != "id"}
    if any(array.ndim > 1 for array in columns.values()):
        return columns
    if any(array.dtype.kind not in "fiub" for array in columns.values()):
        raise FileFormatError(f"{path} has columns that do not hold numbers. Drop them.")
    return {"": np.column_stack(list(columns.values()))} if columns else {}
