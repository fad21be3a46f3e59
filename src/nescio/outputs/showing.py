"""Outputs as a notebook shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nescio._charts.cards import card, short_table
from nescio._charts.svg import BarRow, BarRows, Markup
from nescio._charts.text import listed

if TYPE_CHECKING:
    from nescio.outputs.outputs import Outputs

_BARS = BarRows(width=440, row=19, start=150, longest=200, n_characters=20)
_MOST_BARS = 8
_MOST_ROWS = 10_000  # to count how often labels are predicted


def outputs_card(outputs: Outputs) -> str:
    """Return the arrays with their shapes, and how often labels are predicted."""
    names = ("logits", "features", "labels")
    found = {name: getattr(outputs, name) for name in names} | dict(outputs.arrays)
    rows = [
        (name, " x ".join(f"{n:,}" for n in array.shape), str(array.dtype))
        for name, array in found.items()
        if array is not None
    ]
    others = [name for name in ("ids", "label_names", "head") if getattr(outputs, name) is not None]
    notes = ["bars: the labels that are predicted most often"] if outputs.logits.size else []
    notes += [f"also: {', '.join(others)}"] if others else []
    notes += [f"kept columns: {listed(list(outputs.kept), _MOST_BARS)}"] if outputs.kept else []
    return card(
        f"Outputs of {len(outputs):,} samples for {outputs.n_labels:,} labels",
        short_table(("array", "shape", "type"), rows, n_numbers=1),
        _predicted(outputs),
        "; ".join(notes),
    )


def _predicted(outputs: Outputs) -> Markup:
    """Draw how often the most frequent labels are predicted (logit above 0)."""
    some = outputs.logits[:_MOST_ROWS]
    if not some.size:
        return Markup("")
    shares = np.mean(some > 0, axis=0)
    names = outputs.label_names or [f"label {at}" for at in range(outputs.n_labels)]
    bars = [
        BarRow(names[at], float(shares[at]), f"{shares[at]:.1%}", names[at], "accent")
        for at in np.argsort(-shares, kind="stable")[:_MOST_BARS].tolist()
    ]
    of = f"the first {len(some):,}" if len(some) < len(outputs) else f"{len(some):,}"
    return _BARS.draw(bars, name=f"How often labels are predicted in {of} samples", css="bars")
