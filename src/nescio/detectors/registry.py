"""The registry of detectors: nescio's own, found in this package, and those you register."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path

from nescio.detectors.base import Detector
from nescio.errors import ParameterError

DETECTORS: dict[str, type[Detector]] = {}


def register(kind: type[Detector]) -> type[Detector]:
    """Make a detector of your own known by its name, for `nescio.load` and the command line.

    Can be used as a decorator.

    Examples
    --------
    >>> from nescio.detectors import Detector
    >>> @register
    ... class LowestLogit(Detector):
    ...     name = "lowest_logit"
    ...     scores_from = ("logits",)
    ...
    ...     def _score(self, arrays):
    ...         return arrays.logits.min(axis=1)
    >>> del DETECTORS["lowest_logit"]  # only here: other examples read the registry too
    """
    if not (inspect.isclass(kind) and issubclass(kind, Detector)) or inspect.isabstract(kind):
        raise ParameterError(f"expected a class that derives from nescio.Detector, got {kind!r}.")
    if not kind.name:
        raise ParameterError(f"{kind.__name__} needs a class attribute `name`.")
    known = DETECTORS.get(kind.name, kind)
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ParameterError(f"the name {kind.name!r} is taken by {known.__name__}.")
    DETECTORS[kind.name] = kind
    return kind


def find_own() -> None:
    """Register every detector defined in a module of this package.

    Those that can be explained by label come first, joint energy above all; those that learn last.
    """
    package = __name__.rpartition(".")[0]
    found: list[type[Detector]] = []
    for module_info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"{package}.{module_info.name}")
        found += [
            kind
            for kind in vars(module).values()
            if inspect.isclass(kind)
            and issubclass(kind, Detector)
            and kind.__module__ == module.__name__
            and kind.name
        ]
    for kind in sorted(found, key=lambda kind: (bool(kind.learned), not _explains(kind))):
        register(kind)


def _explains(kind: type[Detector]) -> bool:
    return kind.label_terms is not Detector.label_terms
