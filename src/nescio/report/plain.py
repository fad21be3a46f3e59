"""A page of one column: a heading, a summary and sections, without a script or a template."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nescio._charts.style import chart_style
from nescio._charts.svg import Markup

_PAGE_STYLE = """
body { margin: 0 auto; max-width: 800px; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 var(--sans); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .2rem; }
p { color: var(--muted); margin: .2rem 0 .6rem; }
pre { white-space: pre-wrap; font: inherit; }
svg { max-width: 100%; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; }
th, td { text-align: left; padding: .25rem .5rem; border-bottom: 1px solid var(--grid);
  overflow-wrap: anywhere; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
tr.chosen { background: var(--accent-wash); font-weight: 600; }
"""


def plain_page(
    title: str, heading: str, summary: str, sections: Sequence[tuple[str, str, Markup]]
) -> str:
    """Return an HTML page; a section has a title, a text and finished markup."""
    body = "\n".join(
        f"<section><h2>{escape(name)}</h2><p>{escape(text)}</p>{content}</section>"
        for name, text, content in sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{chart_style()}{_PAGE_STYLE}</style></head><body>"
        f"<h1>{escape(heading)}</h1>"
        f"<pre>{escape(summary)}</pre>\n{body}\n</body></html>\n"
    )
