"""The style sheets of charts, the colours of the palette, and texts that are cut to a length."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from importlib.resources import files

JOINT = "joint_energy"  # the detector that has a style of its own
HUES, _DASHES, _SETS = 8, 4, 6  # the number of each in charts.css
_COLOUR = re.compile(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)")
_ALIAS = re.compile(r"--([\w-]+): var\(--([\w-]+)\)")


@functools.cache
def sheet(name: str) -> str:
    """Return the text of a style sheet of this package."""
    return files(__package__).joinpath(name).read_text("utf-8")


def chart_style() -> str:
    """Return the style sheet of all charts: the palette, and the rules that use it."""
    return sheet("palette.css") + sheet("charts.css")


def palette(*, dark: bool = False) -> dict[str, str]:
    """Return the colours by name, for a light or a dark background.

    Examples
    --------
    >>> palette()["id"], palette(dark=True)["id"]
    ('#1f6fb5', '#6db6f7')
    """
    text = sheet("palette.css")
    colours = {name: night if dark else day for name, day, night in _COLOUR.findall(text)}
    return colours | {alias: colours[name] for alias, name in _ALIAS.findall(text)}


def curve_style(number: int, name: str) -> str:
    """Return the CSS classes of the curve of a detector: a hue, and a dash once all are used."""
    return "joint" if name == JOINT else f"c{number % HUES} d{number // HUES % _DASHES}"


def set_style(number: int) -> str:
    """Return the CSS class of an OOD set, which is the same in every figure."""
    return f"ood{number % _SETS}"


def cut(text: object, longest: int) -> str:
    """Return the text on one line, cut to so many characters.

    Examples
    --------
    >>> cut("a long name", 6), cut("short", 6)
    ('a lon…', 'short')
    """
    line = " ".join(str(text).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def end_of(name: str, longest: int) -> str:
    """Return the end of a long name: ids often begin alike.

    Examples
    --------
    >>> end_of("customer-2026-001", 8), end_of("short", 8)
    ('…026-001', 'short')
    """
    return name if len(name) <= longest else "…" + name[1 - longest :]


def listed(names: Sequence[object], most: int, longest: int = 24) -> str:
    """Return the first names in a list, and how many more there are.

    Examples
    --------
    >>> listed(["cat", "dog", "cow"], 2)
    'cat, dog and 1 more'
    """
    shown = ", ".join(cut(name, longest) for name in names[:most])
    more = len(names) - most
    return f"{shown} and {more:,} more" if more > 0 else shown
