"""The measured table of docs/explanation/sizing.md, made from benchmarks/results.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path("explanation") / "sizing.md"
N_IMAGES = 1e9
CORE_HOUR = 0.04  # the prices are assumptions, which the page states

_TABLE = re.compile(r"(<!-- measured by make bench -->\n).*?(<!-- end -->)", re.DOTALL)


def write_sizing(results: Mapping[str, Any], docs: Path) -> None:
    """Put what was measured into the page."""
    page = docs / PAGE
    page.write_text(_TABLE.sub(rf"\1{sizing_table(results)}\2", page.read_text()))


def sizing_table(results: Mapping[str, Any]) -> str:
    """Return a table of rates, core hours and costs; a note if nothing was measured."""
    found = results.get("clusters")
    if found is None:
        return "Not measured yet: run `make bench`.\n"
    machine = found["machine"]
    lines = [
        f"On {machine['cores']} cores of an {machine['processor']}.\n",
        "| step | per second and core | core hours for a billion | cost |",
        "|---|---:|---:|---:|",
    ]
    for record in found["records"]:
        what, _, unit = record["title"].rpartition(", ")
        if record["kind"] == "fact" and unit.endswith("per second and core"):
            hours = N_IMAGES / record["value"] / 3600
            cost = hours * CORE_HOUR
            lines.append(
                f"| {what} | {_rounded(record['value'])} | {_rounded(hours)} | {_rounded(cost)} |"
            )
    return "\n".join(lines) + "\n"


def _rounded(value: float) -> str:
    """Return a number with two digits, in full."""
    digits = f"{value:.2g}"
    return f"{float(digits):,.0f}" if float(digits) >= 10 else digits
