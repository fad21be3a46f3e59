"""The registry of detectors, nescio's own and those you register; and a detector by its name.

A detector is written with its parameters: "joint_energy", "top_k_joint_energy(k=5)". A detector of
your own is named by its class, as package.module:Class. Lists are written in square brackets:
"combined(detectors=[joint_energy, mahalanobis(aggregate=sum)], weights=[2, 1])".
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

from nescio.detectors.base import PARAMS_OF_ALL, Detector
from nescio.errors import ParameterError, nearest

DETECTORS: dict[str, type[Detector]] = {}

# What is not a name, such as "Max Logit", is let through: detector_class says what was meant.
_WRITTEN = re.compile(r"\s*(?P<name>[\w./ -]+?(?::\w+)?)\s*(?:\((?P<settings>.*)\))?\s*", re.DOTALL)
_CLOSING = {"(": ")", "[": "]"}


def register(kind: type[Detector]) -> type[Detector]:
    """Make a detector of your own known by its name, for `nescio.load` and the command line.

    Can be used as a decorator.
    """
    if not (inspect.isclass(kind) and issubclass(kind, Detector)) or inspect.isabstract(kind):
        raise ParameterError(f"expected a class that derives from nescio.Detector, got {kind!r}.")
    if not kind.name:
        raise ParameterError(f"{kind.__name__} needs a class attribute `name`.")
    owner = DETECTORS.get(kind.name, kind)
    if (owner.__module__, owner.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ParameterError(f"the name {kind.name!r} is taken by {owner.__name__}.")
    DETECTORS[kind.name] = kind
    return kind


def find_own() -> None:
    """Register every detector defined in a module of this package; those that learn come last."""
    kinds: list[type[Detector]] = []
    for module_info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"nescio.detectors.{module_info.name}")
        kinds += [
            kind
            for kind in vars(module).values()
            if inspect.isclass(kind)
            and issubclass(kind, Detector)
            and kind.__module__ == module.__name__
            and kind.name
        ]
    no_terms = Detector.label_terms
    for kind in sorted(kinds, key=lambda kind: (bool(kind.learned), kind.label_terms is no_terms)):
        register(kind)


def parse_detector(text: str) -> tuple[str, dict[str, str]]:
    """Split "name(parameter=value, ...)" into the name and the settings.

    Examples
    --------
    >>> parse_detector("odin(aggregate=sum)")
    ('odin', {'aggregate': 'sum'})
    """
    match = _WRITTEN.fullmatch(text)
    parts = None if match is None else _split(match["settings"] or "")
    pairs = [[piece.strip() for piece in part.split("=", 1)] for part in parts or ()]
    if match is None or parts is None or not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise ParameterError(
            f"cannot read the detector {text!r}: expected a name, such as joint_energy, or a name "
            "with parameters, such as top_k_joint_energy(k=5)."
        )
    return match["name"], dict(pairs)


def _split(text: str) -> list[str] | None:
    """Split at the commas outside of brackets; None if the brackets do not match."""
    pieces = [""]
    expected: list[str] = []  # the brackets to close, the innermost last
    for character in text:
        if character in _CLOSING:
            expected.append(_CLOSING[character])
        elif character in _CLOSING.values() and (not expected or expected.pop() != character):
            return None
        if character == "," and not expected:
            pieces.append("")
        else:
            pieces[-1] += character
    return None if expected else [piece.strip() for piece in pieces if piece.strip()]


def detector_class(name: str, *, may_import: bool = True) -> type[Detector]:
    """Return a detector's class by its registered name or, if allowed, as package.module:Class."""
    if ":" in name:
        if not may_import:
            raise ParameterError(
                f"the part {name!r} names a class. Pass a detector, such as Class(), or register "
                "the class (nescio.register, nescio --use) and pass its name."
            )
        return register(imported(name))
    if name.endswith(".nescio"):
        raise ParameterError(
            f"{name} is the file of a detector, but the name of one is needed here, such as "
            f"joint_energy. 'nescio info {name}' shows the name and the parameters."
        )
    if name not in DETECTORS:
        # Names and classes, for JointEnergy, joint-energy and so on; or a module without its class.
        names = {kind.__name__.lower(): known for known, kind in DETECTORS.items()}
        near = difflib.get_close_matches(name.lower(), [*DETECTORS, *names], n=1)
        hint = f"{name}:Class" if "." in name else "".join(names.get(text, text) for text in near)
        raise ParameterError(
            f"there is no detector {name!r}. {f'Did you mean {hint}? ' if hint else ''}"
            "'nescio detectors' lists all, in Python list(nescio.DETECTORS). One of your own is "
            "named as package.module:Class."
        )
    return DETECTORS[name]


def imported(name: str) -> Any:
    """Import what package.module:name names; modules of the current directory are found too."""
    module_name, _, inner = name.partition(":")
    if module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").replace("/", ".").strip(".")
        raise ParameterError(f"{name!r} names a file. Name the module instead: {dotted}:{inner}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:  # ValueError: an empty name
        raise ParameterError(
            f"cannot import {module_name!r} of {name!r}: {error}. Is its folder on PYTHONPATH?"
        ) from error
    if not hasattr(module, inner):
        hint = nearest(inner, vars(module))
        raise ParameterError(f"the module {module_name!r} has no {inner!r}.{hint}")
    return getattr(module, inner)


def build_detector(text: str, *, may_import: bool = True, **common: Any) -> Detector:
    """Make a detector by its name.

    Parameters
    ----------
    text : str
        One of `DETECTORS`, or package.module:Class for one of your own. Parameters may follow in
        brackets, as in "top_k_joint_energy(k=5)".
    may_import : bool
        Whether package.module:Class is allowed. A text from a file must not choose the code to run.
    **common
        Parameters that every detector has, as values.

    Examples
    --------
    >>> build_detector("top_k_joint_energy(k=10)")
    TopKJointEnergy(k=10)
    """
    name, settings = parse_detector(text)
    kind = detector_class(name, may_import=may_import)
    defaults = kind().get_params(deep=False)
    allowed = set(defaults) - {"tpr", *common}
    values = {}
    for key, value in settings.items():
        if key not in allowed:
            has = f"it has {', '.join(sorted(allowed))}" if allowed else "it has none"
            option = f" Pass it to calibrate ({key}=..., --{key})." if key in PARAMS_OF_ALL else ""
            raise ParameterError(f"{name} has no parameter {key!r} to set; {has}.{option}")
        values[key] = _value(value, type(defaults[key]), f"{key}={value}", may_import=may_import)
    detector = kind(**values, **common)
    detector._check_params()
    return detector


def as_detector(detector: Any, *, may_import: bool = True) -> Detector:
    """Return a detector as it is; make one of a class, with its defaults, or of a name.

    Examples
    --------
    >>> from nescio import JointEnergy
    >>> as_detector(JointEnergy), as_detector("top_k_joint_energy(k=3)")
    (JointEnergy(), TopKJointEnergy(k=3))
    """
    if isinstance(detector, Detector):
        return detector
    if inspect.isclass(detector) and issubclass(detector, Detector):
        return detector()
    if isinstance(detector, str):
        return build_detector(detector, may_import=may_import)
    raise ParameterError(
        f"expected a detector, such as JointEnergy(), or the name of one, got {detector!r}."
    )


def _value(text: str, kind: type, setting: str, *, may_import: bool) -> Any:
    """Return the text as a value of the same type as the parameter's default."""
    if kind is str:
        return text
    if kind in (list, tuple):
        items = _split(text[1:-1]) if text[:1] + text[-1:] == "[]" else None
        if items is None:
            raise ParameterError(f"{setting}: expected a list in square brackets, as in [2, 1].")
        # A number or text; a detector if it is written with its class.
        values = [_plain_value(item) for item in items]
        return kind(
            build_detector(value, may_import=may_import)
            if isinstance(value, str) and ":" in value
            else value
            for value in values
        )
    value = _plain_value(text)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ParameterError(f"{setting}: expected a value of type {kind.__name__}.")
    return value


def _plain_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
