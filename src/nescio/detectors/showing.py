"""Verdicts as a notebook shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nescio._charts.cards import card, short_table, word
from nescio._charts.histogram import Batch
from nescio._charts.svg import Markup
from nescio._charts.text import some_rows
from nescio.calibration.showing import histogram_chart

if TYPE_CHECKING:
    from nescio.detectors.assessment import Assessment


def assessment_card(assessment: Assessment) -> str:
    """Return the first verdicts, and all scores on those of the calibration."""
    rows = [verdict_cells(assessment, at) for at in some_rows(len(assessment))]
    titles = ("sample", "score", "p-value", "verdict")
    return card(
        assessment.summary(),
        short_table(titles, rows, len(assessment), n_numbers=2),
        verdict_chart(assessment),
    )


def verdict_cells(assessment: Assessment, row: int) -> tuple[str, ...]:
    """Return the name, the score, the p-value and the verdict of one sample."""
    verdict, text = assessment[row], str(assessment.verdicts[row])
    return (
        assessment.name_of(row),
        f"{verdict.score:.5g}",
        f"{verdict.p_value:.4f}",
        word(text, "in" if verdict.in_distribution else "out"),
    )


def verdict_chart(assessment: Assessment) -> Markup:
    """Draw the scores on those of the calibration; nothing if it is not known."""
    if assessment.calibration is None or not len(assessment):
        return Markup("")
    batch = Batch(assessment.scores, ~assessment.in_distribution)
    return histogram_chart(assessment.calibration, batch)
