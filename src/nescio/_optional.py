"""Packages that belong to an extra: imported at first need."""

from __future__ import annotations

import importlib
from typing import Any

from nescio.errors import MissingDependencyError


def require(module: str, extra: str | None) -> Any:
    """Import an optional module, or raise an error that says what to install.

    `extra` is the extra that it belongs to; None if it is a package of the user's choice.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        advice = f"Run pip install {package}."
        if extra is not None:
            advice = (
                f"It belongs to the extra {extra!r}: run pip install '.[{extra}]' in your copy of "
                "nescio's repository."
            )
        raise MissingDependencyError(
            f"this needs {package}, which is not installed. {advice}"
        ) from error
