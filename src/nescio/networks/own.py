"""Modules of the user, loaded by name: "package.module:factory"."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any

from torch import nn

from nescio.errors import ParameterError


def load_own(target: str) -> nn.Module:
    """Return the torch module that "package.module:factory" builds.

    The factory is called without arguments.
    """
    factory = _import_factory(target)
    try:
        made = factory()
    except Exception as error:  # the factory is not ours and may raise anything
        raise ParameterError(
            f"{target}() failed: {type(error).__name__}: {error}. The factory must take no "
            "arguments and return a torch module."
        ) from error
    if not isinstance(made, nn.Module):
        raise ParameterError(f"{target}() must return a torch module, got {type(made).__name__}.")
    return made


def _import_factory(target: str) -> Any:
    module_name, _, factory_name = target.partition(":")
    if not module_name or not factory_name:
        raise ParameterError(
            f"your own network is named module:package.module:factory, got 'module:{target}'."
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the user's module itself imports something that is missing
        raise ParameterError(
            f"there is no module {module_name!r} to import. Is its folder on PYTHONPATH?"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        hint = nearest(factory_name, vars(module))
        raise ParameterError(f"{module_name} has no function {factory_name!r}.{hint}")
    return factory


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at similar names, for an error message; empty if there are none."""
    matches = difflib.get_close_matches(name, list(known), cutoff=0.4)
    return f" Nearest: {', '.join(matches)}." if matches else ""
