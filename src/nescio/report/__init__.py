"""The report: result lines and evidence in, one HTML file out that needs nothing else.

The charts are SVG drawn here; the page's script only sorts, shows, hides and highlights. The same
input gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from nescio._io.files import check_target, replacing
from nescio._io.tables import require
from nescio._version import __version__
from nescio.benchmark.evidence import Evidence
from nescio.benchmark.results import Line
from nescio.errors import InputError
from nescio.report.facts import all_facts
from nescio.report.page import chapters
from nescio.report.svg import Markup

__all__ = ["build_report", "write_report"]


def build_report(lines: Sequence[Line], evidence: Sequence[Evidence], *, title: str) -> str:
    """The report as HTML.

    Parameters
    ----------
    lines : sequence of Line
        Of all ID sets, OOD sets, detectors and seeds.
    evidence : sequence of Evidence
        At most one for each ID set and seed. The figures show the first seed of each ID set; the
        significance of a lead is tested in all of them. Without any there are only tables.
    title : str
    """
    if not lines:
        raise InputError("a report needs result lines, and there are none.")
    jinja2 = require("jinja2", "report")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _text("script.js")
    page: str = environment.get_template("page.html.j2").render(
        title=title,
        chapters=chapters(lines, evidence),
        facts=all_facts(lines),
        version=__version__,
        style=Markup(_text("style.css")),
        script=Markup(script),
        script_hash=_policy_hash(script),
    )
    return page


def write_report(
    path: str | Path,
    lines: Sequence[Line],
    evidence: Sequence[Evidence],
    *,
    title: str,
    force: bool = False,
) -> None:
    """Write the report to one file, whole or not at all; an existing file only with `force`."""
    check_target(path, force=force)
    page = build_report(lines, evidence, title=title)
    with replacing(path, force=force) as temporary:
        temporary.write_text(page, "utf-8")


def _policy_hash(script: str) -> str:
    """How a content security policy names the one script that may run."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")


def _text(name: str) -> str:
    return files(__name__).joinpath(name).read_text("utf-8")
