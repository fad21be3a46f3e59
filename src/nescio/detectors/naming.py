"""A detector by name, with parameters: "joint_energy", "top_k_joint_energy(k=5)"."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from nescio.detectors import DETECTORS, Detector
from nescio.errors import ParameterError

_WRITTEN = re.compile(r"\s*(?P<name>\w+)\s*(?:\((?P<settings>[^()]*)\))?\s*")
_OF_EVERY_DETECTOR = {"tpr", "nonfinite"}


def parse_detector(text: str) -> tuple[str, dict[str, str]]:
    """The name and the settings of what is written as "name(parameter=value, ...)".

    Examples
    --------
    >>> parse_detector("odin(aggregate=sum)")
    ('odin', {'aggregate': 'sum'})
    """
    match = _WRITTEN.fullmatch(text)
    settings = {}
    for part in (match["settings"] or "").split(",") if match else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if part.strip() and not (key and equals and value):
            match = None
            break
        if part.strip():
            settings[key] = value
    if match is None:
        raise ParameterError(
            f"cannot read the detector {text!r}: expected a name, such as joint_energy, or a name "
            "and its parameters, such as top_k_joint_energy(k=5)."
        )
    return match["name"], settings


def build_detector(name: str, settings: Mapping[str, str] | None = None, **given: Any) -> Detector:
    """A detector by its name, with settings as text.

    Parameters
    ----------
    name : str
        One of `DETECTORS`.
    settings : mapping of str to str
        Its own parameters, such as {"k": "5"}.
    **given
        Parameters that every detector has, as they are.

    Examples
    --------
    >>> build_detector("top_k_joint_energy", {"k": "10"})
    TopKJointEnergy(k=10)
    """
    if name not in DETECTORS:
        raise ParameterError(f"there is no detector {name!r}. Choose from: {', '.join(DETECTORS)}.")
    detector_class = DETECTORS[name]
    defaults = detector_class().get_params()
    known = set(defaults) - _OF_EVERY_DETECTOR
    values = {}
    for key, text in (settings or {}).items():
        if key not in known:
            allowed = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise ParameterError(f"{name} has no parameter {key!r} to set; {allowed}.")
        values[key] = _value(text, type(defaults[key]), f"{key}={text}")
    detector = detector_class(**values, **given)
    detector._check_params()
    return detector


def _value(text: str, kind: type, setting: str) -> Any:
    """The text as a value of the same kind as the parameter's default."""
    if kind is str:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if type(value) is not kind:
        raise ParameterError(f"{setting}: expected a value of type {kind.__name__}.")
    return value
