"""A scikit-learn estimator as a file of skops, which names types and holds no code to run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nescio._io.files import existing_file
from nescio._io.tables import require
from nescio.errors import FileFormatError, ParameterError

# What nescio itself puts beside an estimator. The list is here, not in a file.
_OWN_TYPES = ("nescio.sklearn.table_features.TableFeatures",)


def write_estimator(model: Any, path: Path, trusted: Sequence[str]) -> None:
    """Write a fitted estimator; raise if reading it would need types that are not trusted."""
    io = _skops()
    try:
        io.dump(model, path)
    except Exception as error:  # skops and what it calls raise many kinds
        raise ParameterError(
            f"skops cannot write this {type(model).__name__}: {error}. Functions and classes of "
            "your own cannot be loaded without your code. Use what scikit-learn has."
        ) from error
    _check_types(io, path, trusted)


def read_estimator(path: Path, trusted: Sequence[str]) -> Any:
    """Return the estimator of a file; only types that skops or the caller trusts are made."""
    io = _skops()
    existing_file(path)
    try:
        _check_types(io, path, trusted)
        return io.load(path, trusted=[*_OWN_TYPES, *trusted])
    except ParameterError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in skops
        raise FileFormatError(f"cannot read the estimator of {path}: {error}") from error


def _check_types(io: Any, path: Path, trusted: Sequence[str]) -> None:
    if isinstance(trusted, str):
        raise ParameterError(f"trusted must be a sequence of names, got the text {trusted!r}.")
    unknown = sorted(set(io.get_untrusted_types(file=path)) - {*_OWN_TYPES, *trusted})
    nameless = [name for name in unknown if "<" in name]  # <lambda>, or within <locals>
    if nameless:
        raise ParameterError(
            f"the estimator contains {', '.join(nameless)}, which cannot be found by this name "
            "when the model is loaded. Define it at the top level of a module."
        )
    if unknown:
        raise ParameterError(
            f"the estimator contains types that skops does not trust: {', '.join(unknown)}. A "
            "hostile file could use them to crash the process or to run code. If you know where "
            f"the model comes from, pass trusted={[*trusted, *unknown]!r}. Classes of your own can "
            "be loaded only where your code is installed."
        )


def _skops() -> Any:
    require("skops", "skops")
    return require("skops.io", "skops")
