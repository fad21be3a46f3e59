"""The page of the measured speed, made from benchmarks/results.json."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from nescio._charts.svg import Chart, Scale, chart_style
from speed.harness import AXES, written

PAGE = Path("explanation") / "speed.md"
PICTURES = Path("images")

_HEAD = """# Speed, measured

`make bench` wrote this page. It runs each comparison side by side with a peer, on one machine and
in one run, and takes the median of several rounds. Times depend on the machine, so read the ratios.
A ratio of 2 means: twice as fast as the peer. A part was measured on the machine that was named
last. `benchmarks/results.json` has all figures. "The kernel alone" computes scores, and no p-values
and verdicts. "Memory kept" means that freed memory is kept for the next request
(`MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_`).
"""


def write_page(results: Mapping[str, Any], docs: Path) -> None:
    """Write the page and its pictures."""
    lines, machine = [_HEAD, *_goals(results)], ""
    for part, result in results.items():
        lines.append(f"\n## {part.capitalize()}\n")
        if machine != (machine := _machine(result["machine"])):  # else as in the part before
            lines.append(f"On {machine}.\n")
        lines += _comparisons(_of_kind(result, "comparison"))
        lines += _facts(_of_kind(result, "fact"))
        for index, growth in enumerate(_of_kind(result, "growth"), 1):
            picture = PICTURES / f"growth-{part}-{index}.svg"
            (docs / picture).write_text(_picture(growth))
            lines += _growth(growth, picture)
    (docs / PAGE).write_text(re.sub("\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n")


def _of_kind(part: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    return [record for record in part["records"] if record["kind"] == kind]


def _machine(machine: Mapping[str, Any]) -> str:
    vectors = "with" if machine["avx512"] else "without"
    return (
        f"{machine['cores']} cores of an {machine['processor']} {vectors} AVX-512, "
        f"{machine['memory_gb']} GB, Python {machine['python']}, NumPy {machine['numpy']}"
    )


def _goals(results: Mapping[str, Any]) -> Iterator[str]:
    """Give a table of all goals, met and missed."""
    yield "\n## Goals\n\n| part | what | goal | measured | |\n|---|---|---:|---:|---|"
    for part, result in results.items():
        for record in result["records"]:
            for what, goal, value, met in _goals_of(record):
                yield f"| {part} | {what} | {goal} | {value} | {'met' if met else '**missed**'} |"


def _goals_of(record: Mapping[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    if record["kind"] == "comparison":
        for name, goal in record["goal"].items():
            ratio = record["ratios"][name]
            what = f"{record['title']}: {name} against {record['baseline']}"
            yield what, f"{goal:g}x", f"{ratio:.2f}x", ratio >= goal
    elif record["kind"] == "fact":
        value, unit = record["value"], record["unit"]
        shown = f"{written(value)} {unit}".strip()
        if record["at_most"] is not None:
            most = record["at_most"]
            yield record["title"], f"at most {written(most)} {unit}".strip(), shown, value <= most
        if record["at_least"] is not None:
            least = record["at_least"]
            yield (
                record["title"],
                f"at least {written(least)} {unit}".strip(),
                shown,
                value >= least,
            )


def _comparisons(records: list[dict[str, Any]]) -> Iterator[str]:
    for record in records:
        yield f"{record['title']}:\n\n| | time | ratio |\n|---|---:|---:|"
        for name, seconds in record["seconds"].items():
            peer = " (peer)" if name == record["baseline"] else ""
            yield f"| {name}{peer} | {_time(seconds)} | {record['ratios'][name]:.2f}x |"
        yield ""


def _facts(records: list[dict[str, Any]]) -> Iterator[str]:
    """Give the facts that have no goal; the others are in the table of goals."""
    for record in records:
        if record["at_most"] is None and record["at_least"] is None:
            yield f"- {record['title']}: {written(record['value'])} {record['unit']}".rstrip()
    yield ""


def _growth(record: Mapping[str, Any], picture: Path) -> Iterator[str]:
    yield f"{record['title']}, growth with the number of {AXES[record['axis']]}:\n"
    yield f"![{record['title']}: time against {record['axis']}](../{picture.as_posix()})\n"
    for name, slope in record["slopes"].items():
        first, last = record["seconds"][name][0], record["seconds"][name][-1]
        yield (
            f"- {name}: slope {slope:.2f}, from {_time(first)} at {record['sizes'][0]:,} to "
            f"{_time(last)} at {record['sizes'][-1]:,}"
        )
    yield ""


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _picture(record: Mapping[str, Any]) -> str:
    """Return the times against the sizes as a log-log plot, with the name at the end of a line."""
    sizes = record["sizes"]
    times = [value for values in record["seconds"].values() for value in values]
    chart = Chart(
        Scale(sizes[0] / 1.2, sizes[-1] * 1.2, log=True),
        Scale(min(times) / 1.5, max(times) * 1.5, log=True),
        name=record["title"],
        x_label=f"{record['axis']} ({AXES[record['axis']]})",
        y_label="seconds",
    )
    legend = []
    for index, (name, seconds) in enumerate(record["seconds"].items()):
        chart.line(sizes, seconds, f"c{index}", tip=name)
        for size, value in zip(sizes, seconds, strict=True):
            chart.dot(size, value, f"c{index}", tip=f"{name}: {_time(value)}")
        text = escape(f"{name}: slope {record['slopes'][name]:.2f}")
        legend.append(
            f'<g class="c{index}" transform="translate(70 {322 + 18 * index})">'
            f'<circle class="dot" r="4" cy="-4"/><text x="10">{text}</text></g>'
        )
    width, height = chart.size
    total = height + 12 + 18 * len(legend)
    style = escape(chart_style() + "svg { background: var(--panel); }")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{total}" '
        f'viewBox="0 0 {width} {total}"><style>{style}</style>'
        f'<svg width="{width}" height="{height}">{chart.draw()}</svg>'
        f'<g class="chart">{"".join(legend)}</g></svg>\n'
    )
