"""Detectors side by side, as a notebook shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nescio._charts.cards import card, keyed, short_table
from nescio._charts.curves import roc
from nescio._charts.style import curve_style
from nescio._charts.svg import Chart, Markup, Scale, percent, percent_ticks
from nescio._charts.text import cut

if TYPE_CHECKING:
    from nescio.metrics.comparison import Comparison

_TEXT_ROWS, _TEXT_SETS = 7, 3
_CARD_SETS, _CURVES, _ROCS = 4, 6, 2
_NAME, _SET = 24, 13  # characters of a detector and of an OOD set


def best_first(comparison: Comparison) -> list[str]:
    """Return the detectors by their mean AUROC over the OOD sets, the highest first."""
    sets = comparison.results.values()
    areas = {
        name: sum(results[name].auroc.value for results in sets) / len(sets)
        for name in next(iter(sets))
    }
    return sorted(areas, key=lambda name: -areas[name])


def _title(comparison: Comparison, n_detectors: int) -> str:
    one = next(iter(next(iter(comparison.results.values())).values()))
    detectors = "1 detector" if n_detectors == 1 else f"{n_detectors:,} detectors"
    order = ", highest AUROC first" if n_detectors > 1 else ""
    return f"{detectors} on {one.n_id:,} ID samples, in per cent{order}"


def comparison_text(comparison: Comparison) -> str:
    """Return a table of FPR and AUROC, with one row per detector and two columns per OOD set."""
    if not any(comparison.results.values()):
        return f"no detector could run; left out: {cut(', '.join(comparison.skipped), 200)}"
    names, sets = best_first(comparison), list(comparison.results)[:_TEXT_SETS]
    first = comparison.results[sets[0]][names[0]]
    columns = "  ".join(f"{first.fpr_name:>6} {'AUROC':>7}" for _ in sets)
    lines = [
        _title(comparison, len(names)),
        f"{'':<{_NAME}} {'  '.join(f' {_set_title(comparison, ood):<13}' for ood in sets)}",
        f"{'detector':<{_NAME}} {columns}",
    ]
    for name in names[:_TEXT_ROWS]:
        cells = "  ".join(
            f"{100 * one.fpr.value:>6.2f} {100 * one.auroc.value:>7.2f}"
            for one in (comparison.results[ood][name] for ood in sets)
        )
        lines.append(f"{cut(name, _NAME):<{_NAME}} {cells}")
    more = {
        "more detectors": len(names) - _TEXT_ROWS,
        "more OOD sets": len(comparison.results) - _TEXT_SETS,
        "detectors left out (skipped)": len(comparison.skipped),
    }
    rest = ", ".join(f"{n:,} {what}" for what, n in more.items() if n > 0)
    return "\n".join(line.rstrip() for line in (*lines, f"and {rest}" if rest else "")).rstrip()


def _set_title(comparison: Comparison, ood: str) -> str:
    n_ood = next(iter(comparison.results[ood].values())).n_ood
    size = f" ({n_ood:,})"
    return cut(ood, max(4, _SET - len(size))) + size


def comparison_card(comparison: Comparison) -> str:
    """Return the results as a table, and ROC curves of the best detectors."""
    if not any(comparison.results.values()):
        return card(comparison_text(comparison))
    names, sets = best_first(comparison), list(comparison.results)[:_CARD_SETS]
    fpr_name = comparison.results[sets[0]][names[0]].fpr_name
    titles = ["detector"]
    for ood in sets:
        prefix = "" if len(sets) == 1 else f"{cut(ood, _SET)}: "
        titles += [f"{prefix}{fpr_name} ↓", f"{prefix}AUROC ↑"]
    drawn = [name for name in names if name in comparison.scores][:_CURVES]
    rows = []
    for name in names:
        cells = [
            f"{100 * one.value:.2f}"
            for ood in sets
            for one in (comparison.results[ood][name].fpr, comparison.results[ood][name].auroc)
        ]
        named = keyed(name, curve_style(drawn.index(name), name)) if name in drawn else name
        rows.append((named, *cells))
    hidden = len(comparison.results) - len(sets)
    notes = [f"{hidden} more OOD sets"] if hidden > 0 else []
    notes += [f"left out: {cut(', '.join(comparison.skipped), 300)}"] if comparison.skipped else []
    return card(
        _title(comparison, len(names)),
        short_table(titles, rows),
        *(_roc_chart(comparison, ood, drawn) for ood in sets[: _ROCS if drawn else 0]),
        *(f"{cut(ood, 40)}: {cut(note, 400)}" for ood, note in comparison.notes.items()),
        "\n".join(notes),
    )


def _roc_chart(comparison: Comparison, ood: str, names: list[str]) -> Markup:
    whole = Scale(0.0, 1.0)
    chart = Chart(
        whole,
        whole,
        name=f"ROC curves on {ood}",
        width=440,
        height=330,
        x_label=f"{cut(ood, 30)} let through, %",
        y_label="ID kept, %",
        x_ticks=percent_ticks(whole),
        y_ticks=percent_ticks(whole),
    )
    tpr = comparison.results[ood][names[0]].tpr
    chart.rule(y=tpr, text=f"TPR {percent(tpr)} %")
    for at, name in reversed(list(enumerate(names))):  # the best on top
        scores = comparison.scores[name]
        fpr, kept = roc(scores.id_scores, scores.ood_scores[ood], n_points=80)
        area = 100 * comparison.results[ood][name].auroc.value
        chart.line(fpr, kept, curve_style(at, name), tip=f"{name}: AUROC {area:.2f}")
    return chart.draw()
