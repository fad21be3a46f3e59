"""Charts as inline SVG text: scales, axes, lines, areas and bars; their style sheets and colours.

Colours are CSS classes, which palette.css and charts.css define. Coordinates have one decimal and
are never NaN or infinite. Charts escape all text.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]
Tick = tuple[float, str]

JOINT = "joint_energy"  # the detector that has a style of its own
HUES, _DASHES, _SETS = 8, 4, 6  # the number of each in charts.css
_COLOUR = re.compile(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)")
_ALIAS = re.compile(r"--([\w-]+): var\(--([\w-]+)\)")
_CHARACTER = 6.4  # pixels, about, of the font of charts.css


# --- style and texts ---


@functools.cache
def sheet(name: str) -> str:
    """Return the text of a style sheet of this package."""
    return files(__package__).joinpath(name).read_text("utf-8")


def chart_style() -> str:
    """Return the style sheet of all charts: the palette, and the rules that use it."""
    return sheet("palette.css") + sheet("charts.css")


def palette(*, dark: bool = False) -> dict[str, str]:
    """Return the colours by name, for a light or a dark background."""
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
    """Return the text on one line, cut to so many characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def end_of(name: str, longest: int) -> str:
    """Return the end of a long name: ids often begin alike."""
    return name if len(name) <= longest else "…" + name[1 - longest :]


# --- charts ---


class Markup(str):
    """Finished markup, which a template must not escape again."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def number(value: float) -> str:
    """Write a number for an axis, with a true minus sign."""
    return f"{value:.6g}".replace("-", "\N{MINUS SIGN}")


def short(value: float) -> str:
    """Write a score with four digits."""
    if math.isinf(value):
        return "∞" if value > 0 else "\N{MINUS SIGN}∞"
    return number(float(f"{value:.4g}"))


def percent(value: float) -> str:
    """Write a share in percent, for an axis."""
    return f"{100 * value:.3g}"


def power_of_ten(power: int) -> str:
    """Write a power of ten for an axis, given its exponent."""
    if -3 <= power <= 3:
        return f"{10.0**power:g}"
    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "10" + str(power).translate(raised)


@dataclass(frozen=True)
class Scale:
    """A mapping from data to a length in pixels, and how its ticks are written.

    The ends of a logarithmic scale are positive, and its ticks are powers of ten.
    """

    low: float
    high: float
    log: bool = False
    write: Callable[[float], str] = number

    def place(self, values: ArrayLike, length: float) -> Values:
        """Return the positions of values between 0 and `length`; outliers stay near the edge."""
        data = np.asarray(values, dtype=np.float64)
        low, high = self.low, self.high
        if self.log:
            data = np.log10(np.maximum(data, np.finfo(np.float64).tiny))
            low, high = math.log10(low), math.log10(high)
        span = (high - low) or 1.0
        # Scores of -inf get a position beyond the left edge, where they are cut off.
        data = np.nan_to_num(data, nan=low, posinf=high + span, neginf=low - span)
        share: Values = np.clip((data - low) / span, -1.0, 2.0)
        return share * length

    def within(self, values: ArrayLike) -> Values:
        """Return the values, or the ends of the scale for those beyond; NaN is the lower end."""
        data = np.asarray(values, dtype=np.float64)
        return np.clip(np.where(np.isnan(data), self.low, data), self.low, self.high)

    def ticks(self, about: int = 5) -> list[Tick]:
        """Return round numbers within the scale and their text."""
        if self.log:
            first = math.ceil(math.log10(self.low) - 1e-9)
            last = math.floor(math.log10(self.high) + 1e-9)
            powers = range(first, last + 1, max(1, math.ceil((last - first) / about)))
            return [(10.0**power, power_of_ten(power)) for power in powers]
        span = self.high - self.low
        if not span > 0:
            return [(self.low, self.write(self.low))]
        rough = span / about
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [number * step for number in range(first, last + 1)]
        return [(value, self.write(value)) for value in values]


def _path(x: Values, y: Values) -> str:
    """Return path data; consecutive points that round to the same point are merged."""
    points = np.round(np.column_stack([x, y]), 1) + 0.0  # + 0.0: no "-0"
    fresh = np.ones(len(points), dtype=bool)
    fresh[1:] = (points[1:] != points[:-1]).any(axis=1)
    return "M" + " ".join(f"{a:g} {b:g}" for a, b in points[fresh].tolist())


def _px(value: Any) -> str:
    return f"{round(float(value), 1) + 0.0:g}"


def _title(tip: str) -> str:
    return f"<title>{escape(tip)}</title>" if tip else ""


class Chart:
    """A chart with two axes. Marks are drawn in the order of the calls.

    `name` is the text for screen readers. `x_ticks` and `y_ticks` replace the ticks of the scales;
    an empty sequence draws none.
    """

    def __init__(
        self,
        x: Scale,
        y: Scale,
        *,
        name: str,
        width: int = 440,
        height: int = 300,
        x_label: str = "",
        y_label: str = "",
        x_ticks: Sequence[Tick] | None = None,
        y_ticks: Sequence[Tick] | None = None,
    ) -> None:
        self.x, self.y, self.name = x, y, name
        self.size = (width, height)
        self.x_ticks = x.ticks() if x_ticks is None else list(x_ticks)
        self.y_ticks = y.ticks() if y_ticks is None else list(y_ticks)
        self.labels = (x_label, y_label)
        self.left = (34 if self.y_ticks else 14) + (18 if y_label else 0)
        # The text of a tick may have a second line.
        self.tick_lines = max((1 + text.count("\n") for _, text in self.x_ticks), default=1)
        self.bottom = 8 + 14 * self.tick_lines + (18 if x_label else 0)
        self.width = width - self.left - 14
        self.height = height - self.bottom - 16
        self.marks: list[str] = []
        self.notes: list[str] = []

    def _points(self, x: ArrayLike, y: ArrayLike) -> tuple[Values, Values]:
        return self.x.place(x, self.width), self.height - self.y.place(y, self.height)

    def line(self, x: ArrayLike, y: ArrayLike, css: str, *, curve: int = -1, tip: str = "") -> None:
        """Draw a line; `curve` is the number by which the script of the page highlights it."""
        key = f' data-curve="{curve}"' if curve >= 0 else ""
        path = _path(*self._points(x, y))
        self.marks.append(f'<path class="line {css}"{key} d="{path}">{_title(tip)}</path>')

    def area(self, x: ArrayLike, y: ArrayLike, css: str) -> None:
        """Fill the area below a line; with the class "line" it has an outline."""
        across, down = self._points(x, y)
        if len(across) < 2:
            return
        across = np.concatenate([across[:1], across, across[-1:]])
        # The ends lie below the frame, so no outline shows along the bottom.
        down = np.concatenate([[self.height + 3], down, [self.height + 3]])
        self.marks.append(f'<path class="area {css}" d="{_path(across, down)}"/>')

    def band(self, x: ArrayLike, low: ArrayLike, high: ArrayLike, css: str) -> None:
        """Fill the area between two lines."""
        across, down = self._points(x, high)
        back, up = self._points(x, low)
        outline = np.concatenate([across, back[::-1]]), np.concatenate([down, up[::-1]])
        self.marks.append(f'<path class="area {css}" d="{_path(*outline)}Z"/>')

    def dot(self, x: float, y: float, css: str, *, tip: str = "", radius: float = 3.5) -> None:
        """Draw a point."""
        across, down = self._points(x, y)
        self.marks.append(
            f'<circle class="dot {css}" cx="{_px(across)}" cy="{_px(down)}" r="{radius}">'
            f"{_title(tip)}</circle>"
        )

    def scatter(self, x: ArrayLike, y: ArrayLike, css: str, shape: str) -> None:
        """Draw many points as one path; `shape` is the path of one."""
        points = list(zip(*self._points(x, y), strict=True))
        path = "".join(f"M{across:.1f} {down:.1f}{shape}" for across, down in points)
        self.marks.append(f'<path class="{css}" data-n="{len(points)}" d="{path}"/>')

    def bar(self, x: float, width: float, y: float, css: str, *, tip: str = "") -> None:
        """Draw a bar from the bottom up to `y`; `x` (left edge) and `width` are in pixels."""
        down = self.height - float(self.y.place(y, self.height))
        self.marks.append(
            f'<rect class="bar {css}" x="{_px(x)}" y="{_px(down)}" width="{_px(width)}" '
            f'height="{_px(self.height - down)}">{_title(tip)}</rect>'
        )

    def rule(self, *, x: float | None = None, y: float | None = None, text: str = "") -> None:
        """Draw a dashed line at one x or one y, with a text beside it."""
        if x is not None:
            across = float(self.x.place(x, self.width))
            self.marks.append(f'<path class="rule" d="M{_px(across)} 0V{self.height}"/>')
            needed = _CHARACTER * len(text) + 5
            is_right = across > 0.66 * self.width or (across > needed > self.width - across)
            side, shift = ("end", -5) if is_right else ("start", 5)
            self.note(across + shift, 11, text, side)
        if y is not None:
            down = self.height - float(self.y.place(y, self.height))
            self.marks.append(f'<path class="rule" d="M0 {_px(down)}H{self.width}"/>')
            below = down + 13 < self.height
            self.note(self.width - 4, down + 13 if below else down - 5, text, "end")

    def note(self, x: float, y: float, text: str, anchor: str) -> None:
        """Write a text at a place in pixels; nothing if it is empty."""
        if text:
            self.notes.append(
                f'<text class="note" x="{_px(x)}" y="{_px(y)}" text-anchor="{anchor}">'
                f"{escape(text)}</text>"
            )

    def draw(self) -> Markup:
        """Return the finished chart."""
        width, height = self.size
        # The inner svg clips marks at the frame, without the id that a clip path would need.
        return Markup(
            f'<svg class="chart" role="img" viewBox="0 0 {width} {height}" '
            f'aria-label="{escape(self.name)}">'
            f'<g transform="translate({self.left} 16)">{self._axes()}'
            f'<svg width="{self.width}" height="{self.height}">{"".join(self.marks)}</svg>'
            f"{''.join(self.notes)}</g></svg>"
        )

    def _axes(self) -> str:
        grid, parts = [], []
        for value, text in self.y_ticks:
            y = _px(self.height - float(self.y.place(value, self.height)))
            grid.append(f"M0 {y}H{self.width}")
            parts.append(f'<text x="-6" y="{y}" dy=".32em" text-anchor="end">{escape(text)}</text>')
        for value, text in self.x_ticks:
            x = _px(self.x.place(value, self.width))
            grid.append(f"M{x} 0V{self.height}")
            for line, words in enumerate(text.split("\n")):
                down = self.height + 15 + 14 * line
                parts.append(f'<text class="mid" x="{x}" y="{down}">{escape(words)}</text>')
        parts.insert(0, f'<path class="grid" d="{"".join(grid)}"/>')
        parts.append(f'<path class="axis" d="M0 {self.height}H{self.width}"/>')
        x_label, y_label = self.labels
        if x_label:
            below = self.height + 20 + 14 * self.tick_lines
            parts.append(
                f'<text class="mid" x="{_px(self.width / 2)}" y="{below}">{escape(x_label)}</text>'
            )
        if y_label:
            parts.append(
                f'<text class="mid" transform="translate({_px(8 - self.left)} '
                f'{_px(self.height / 2)}) rotate(-90)" dy=".5em">'
                f"{escape(y_label)}</text>"
            )
        return "".join(parts)


@dataclass(frozen=True)
class BarRow:
    """One horizontal bar with its name, a text beside it and, optionally, a mark on it."""

    name: str
    value: float
    text: str
    tip: str
    css: str = "accent"
    mark: float | None = None


@dataclass(frozen=True)
class BarRows:
    """The layout of a picture of horizontal bars, with their names and texts."""

    width: int  # of the picture
    row: int  # height of one row
    start: int  # where the bars begin
    longest: int  # length of the longest bar
    n_characters: int  # longer names are cut

    def draw(self, rows: Sequence[BarRow], *, name: str) -> Markup:
        """Return the picture; `name` is the text for screen readers."""
        most = max(max(row.value, row.mark or 0.0) for row in rows)
        scale = self.longest / most if most > 1e-30 else 0.0
        drawn = "".join(self._draw_row(row, self.row * n, scale) for n, row in enumerate(rows))
        return Markup(
            f'<svg class="bars" role="img" viewBox="0 0 {self.width} {self.row * len(rows)}" '
            f'aria-label="{escape(name)}">{drawn}</svg>'
        )

    def _draw_row(self, row: BarRow, y: int, scale: float) -> str:
        length, middle = scale * row.value, y + self.row - 5
        mark = -1.0 if row.mark is None else scale * row.mark
        # The text is beside its bar, or beyond the mark if that would cross the text.
        room = self.width - self.start - self.longest
        beside = mark if 0 < mark - length <= room else length
        name = cut(row.name, self.n_characters)
        drawn = (
            f'<text x="{self.start - 6}" y="{middle}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="bar {row.css}" x="{self.start}" y="{y + 2}" width="{length:.1f}" '
            f'height="{self.row - 5}">{_title(row.tip)}</rect>'
            f'<text x="{self.start + 4 + beside:.1f}" y="{middle}">{escape(row.text)}</text>'
        )
        if row.mark is None:
            return drawn
        return drawn + f'<path class="mark" d="M{self.start + mark:.1f} {y}V{y + self.row - 1}"/>'


CARD_BARS = BarRows(width=440, row=20, start=150, longest=200, n_characters=20)
"""The bars on the card of a result."""
