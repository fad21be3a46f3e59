"""The result of `nescio choose` as one HTML page without external files."""

from __future__ import annotations

from pathlib import Path

from nescio._charts.cards import table
from nescio._charts.svg import Chart, Markup, Scale, percent_ticks
from nescio._io.files import check_target, replacing
from nescio.choosing import Choice
from nescio.choosing.choice import COLUMNS
from nescio.choosing.standings import mean
from nescio.report.plain import plain_page

_SIZE = {"width": 760, "height": 340}
_MOST_LABELS = 12


def draw_choice(choice: Choice, path: str | Path, *, force: bool = False) -> None:
    """Write a choice as an HTML page, atomically.

    Parameters
    ----------
    choice : Choice
        Result of `nescio.choose`.
    path : str or Path
        The file to write.
    force : bool
        Whether to replace an existing file.
    """
    check_target(path, force=force)
    sections = [
        (
            "Ranking",
            f"Per cent, mean ± standard deviation over folds. The criterion is the mean of near "
            f"and far {choice.fpr_name}, each divided by joint energy's. p is of a paired t-test "
            "against the pick over folds, which share samples: it is an approximation.",
            _ranking(choice),
        )
    ]
    if choice.baseline.far:
        text = f"{choice.fpr_name} of each detector: the lower left is the best. {_sets(choice)}"
        sections.append(("Near and far", text, _near_and_far(choice)))
    text = (
        "In each fold these labels were unknown. The samples that carry only these labels stand "
        "for unknown inputs."
    )
    sections.append(("Folds", text, _folds(choice)))
    page = plain_page("nescio choose", "Which detector?", choice.summary(), sections)
    with replacing(path, force=force) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _ranking(choice: Choice) -> Markup:
    at = [one.name for one in choice.ranking].index(choice.pick)
    return table(COLUMNS, choice.rows(), chosen=at)


def _sets(choice: Choice) -> str:
    return f"The far {choice.fpr_name} is the mean over: {', '.join(choice.baseline.far)}."


def _near_and_far(choice: Choice) -> Markup:
    scale, ticks = Scale(-0.03, 1.03), percent_ticks(Scale(0.0, 1.0))  # room for whole dots
    chart = Chart(
        scale,
        scale,
        name="Near and far FPR of each detector",
        x_label=f"near {choice.fpr_name}, %",
        y_label=f"far {choice.fpr_name}, %",
        x_ticks=ticks,
        y_ticks=ticks,
        **_SIZE,
    )
    baseline = choice.baseline
    chart.rule(x=mean(baseline.near), y=mean(baseline.mean_far), text=baseline.name)
    for one in reversed(choice.ranking):  # the best on top
        css = "accent" if one.name == choice.pick else "others"
        chart.dot(mean(one.near), mean(one.mean_far), css, tip=one.name, radius=5)
    return chart.draw()


def _folds(choice: Choice) -> Markup:
    rows = []
    for fold in choice.folds:
        labels = ", ".join(fold.left_out[:_MOST_LABELS])
        more = len(fold.left_out) - _MOST_LABELS
        unused = "" if fold.used else " (too few samples: not used)"
        text = f"{labels}{f' and {more} more' if more > 0 else ''}{unused}"
        rows.append((text, f"{fold.n_id:,}", f"{fold.n_near:,}"))
    return table(("left-out labels", "in-distribution samples", "unknown samples"), rows)
