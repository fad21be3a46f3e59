"""Reports: pages and figures as files that need nothing else.

`build_report` turns result lines and evidence into one HTML page, and `write_report` writes it.
The charts are SVG drawn in Python; the script of a page only sorts, shows, hides and highlights.
The same input gives the same bytes.
"""

from __future__ import annotations

from nescio.lab.report.page import build_report, write_report

__all__ = ["build_report", "write_report"]
