"""The files that pages are made of: style sheets, templates and the script."""

from __future__ import annotations

from importlib.resources import files


def resource(name: str) -> str:
    """Return the text of a file of this package."""
    return files(__package__).joinpath(name).read_text("utf-8")


def chart_style() -> str:
    """Return the style sheet of all charts: the palette, and the rules that use it."""
    return resource("palette.css") + resource("charts.css")
