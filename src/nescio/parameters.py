"""Checks of parameters: an error names the parameter, what is allowed and what came."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from nescio.errors import ParameterError


def checked_share(name: str, value: Any) -> float:
    """A number strictly between 0 and 1."""
    number = float(value) if isinstance(value, Real) else -1.0
    if not 0 < number < 1:
        raise ParameterError(f"{name} must lie between 0 and 1 (exclusive), got {value!r}.")
    return number


def checked_whole(name: str, value: Any, *, minimum: int) -> int:
    """A whole number of at least `minimum`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < minimum:
        raise ParameterError(f"{name} must be a whole number of at least {minimum}, got {value!r}.")
    return int(value)


def checked_choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """One of some names."""
    if value not in allowed:
        raise ParameterError(f"{name} must be {' or '.join(map(repr, allowed))}, got {value!r}.")
    return str(value)
