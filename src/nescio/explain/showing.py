"""Explanations of one input as a notebook shows them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nescio._charts.cards import card, short_table
from nescio._charts.svg import BarRow, BarRows, Markup
from nescio._charts.text import cut
from nescio.explain.explanation import LabelTerm, Reason, cells

if TYPE_CHECKING:
    from nescio.explain.parts import PartsReason

_BARS = BarRows(width=440, row=20, start=150, longest=230, n_characters=20)
_SHOWN = 8


def reason_card(reason: Reason) -> str:
    """Return the most telling labels, as a table and as bars."""
    shown = reason.most_telling(_SHOWN)
    titles = ("label", reason.term, "share", "median", "rank median")
    rows = [(label.label, *cells(label)) for label in shown]
    return card(
        reason.short_headline(),
        cut(reason.summary(), 300),
        label_bars(reason, shown),
        short_table(titles, rows),
        reason.others(shown),
    )


def label_bars(reason: Reason, shown: tuple[LabelTerm, ...]) -> Markup:
    """Draw a bar per label, with a mark at its median; nothing if a term is not positive."""
    if not all(math.isfinite(label.term) and label.term >= 0 for label in shown):
        return Markup("")
    rows = [
        BarRow(
            label.label,
            label.term,
            f"{label.term:.3g}",
            f"{label.label}: {label.term:.3g}, in-distribution median {label.median:.3g}",
            "in" if reason.in_distribution else "out",
            max(label.median, 0.0),
        )
        for label in shown
    ]
    name = f"The {reason.term} of each label; the mark is its in-distribution median"
    return _BARS.draw(rows, name=name, css="bars")


def parts_card(reason: PartsReason) -> str:
    """Return what each part says; then, if a part has labels, its most telling ones."""
    titles, *rows = reason.rows()
    by_label = reason.by_label()
    bars = Markup("") if by_label is None else label_bars(by_label, by_label.most_telling(_SHOWN))
    more = [cut(text, 200) for part in reason.parts for text in part.more()]
    return card(
        reason.short_headline(),
        cut(reason.summary(), 300),
        bars,
        short_table(titles, rows),
        "\n".join(more[:3]),
    )
