"""Reports: pages and figures as files that need nothing else.

`build_report` turns result lines and evidence into one HTML page, and `write_report` writes it.
`draw_monitor` and `draw_choice` draw the results of a monitor and of `nescio.choose`. The charts
are SVG drawn in Python; the script of a page only sorts, shows, hides and highlights. The same
input gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from nescio._charts.style import chart_style
from nescio._charts.svg import Markup
from nescio._io.files import check_target, replacing
from nescio._version import __version__
from nescio.errors import InputError, require
from nescio.lab.benchmark.results import Evidence, Line
from nescio.lab.report.page import Introduction, chapters, introduced, joint_rocs, manifests
from nescio.lab.report.plain import draw_choice, draw_monitor

__all__ = ["build_report", "draw_choice", "draw_monitor", "write_report"]


def resource(name: str) -> str:
    """Return the text of a file of this package: a style sheet, a template or the script."""
    return files(__package__).joinpath(name).read_text("utf-8")


def build_report(
    lines: Sequence[Line],
    evidence: Sequence[Evidence],
    *,
    title: str,
    introduction: Introduction | None = None,
) -> str:
    """Return the report as HTML.

    Parameters
    ----------
    lines : sequence of Line
        Results of all ID sets, OOD sets, detectors and seeds.
    evidence : sequence of Evidence
        At most one for each ID set and seed. The figures show the first seed of each ID set; the
        significance of a lead is tested in all seeds. Without evidence there are only tables.
    title : str
        Title of the page.
    introduction : Introduction, optional
        What comes before the summary; it shows inputs of the first evidence, which must be there.
    """
    if not lines:
        raise InputError("a report needs at least one result line, got none.")
    jinja2 = require("jinja2", "report")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = resource("script.js")
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    page: str = environment.get_template("page.html.j2").render(
        title=title,
        introduction=introduction and introduced(introduction, evidence[0]),
        joint_rocs=joint_rocs(lines, evidence),
        chapters=chapters(lines, evidence),
        manifests=manifests(lines),
        version=__version__,
        style=Markup(chart_style() + resource("style.css")),
        script=Markup(script),
        # The content security policy allows the one script with this hash.
        script_hash="sha256-" + base64.b64encode(digest).decode("ascii"),
    )
    return page


def write_report(
    path: str | Path,
    lines: Sequence[Line],
    evidence: Sequence[Evidence],
    *,
    title: str,
    introduction: Introduction | None = None,
    force: bool = False,
) -> None:
    """Write the report to one file, atomically; replace an existing file only with `force`."""
    check_target(path, force=force)
    page = build_report(lines, evidence, title=title, introduction=introduction)
    with replacing(path, force=force) as temporary:
        temporary.write_text(page, "utf-8")
