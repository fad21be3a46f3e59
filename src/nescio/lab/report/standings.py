"""The results of one ID set against one OOD set: a sentence, a table and a test of the lead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nescio._charts.results import strip
from nescio._charts.style import JOINT
from nescio._charts.svg import Markup
from nescio.lab.benchmark.results import MEASURES, Evidence, Line
from nescio.metrics import Estimate, Evaluation
from nescio.metrics.comparison import Spread, chance_note, find_lead

_LEVEL = 0.05


Spreads = Mapping[str, Mapping[str, Spread]]  # by detector and measure


def standings(
    lines: Sequence[Line], spreads: Spreads, evidence: Sequence[Evidence], curves: Sequence[str]
) -> dict[str, Any]:
    """Return the standings from the lines of one pair, their summary, and all its evidence.

    `curves` are the detectors of the ROC figure. The rows have the lowest FPR first.
    """
    seeds = sorted({line.seed for line in lines if line.evaluation is not None})
    first = {
        line.detector: line.evaluation
        for line in lines
        if line.evaluation is not None and line.seed == seeds[0]
    }
    fpr_name = next((evaluation.fpr_name for evaluation in first.values()), "FPR95")
    ranked = sorted(spreads, key=lambda name: spreads[name]["fpr"].mean)
    sentence = _sentence(lines[0].id, lines[0].ood, ranked, spreads, fpr_name)
    evaluations = {
        name: [line.evaluation for line in lines if line.detector == name and line.evaluation]
        for name in ranked
    }
    chance, is_alarming = chance_note(evaluations)
    return {
        # No line break between a number and its deviation.
        "sentence": sentence.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"),
        "columns": [fpr_name, "AUROC", "AUPR"],
        "rows": [
            {
                "detector": name,
                "cells": _cells(name, spreads, first.get(name)),
                "strip": _strip(name, spreads[name]["fpr"], first.get(name)),
                "curve": curves.index(name) if name in curves else None,
                "is_joint": name == JOINT,
            }
            for name in ranked
        ],
        "caption": _caption(seeds, first),
        "lead": _lead_sentence(lines[0].ood, evidence),
        "chance": chance,
        "is_alarming": is_alarming,
        "skipped": {line.detector: line.skipped for line in lines if line.evaluation is None},
    }


def _sentence(
    id_name: str,
    ood: str,
    ranked: Sequence[str],
    spreads: Spreads,
    fpr_name: str,
) -> str:
    pair = f"On {id_name} against {ood}, "
    if not ranked:
        return pair + "no detector could run."
    fpr = {name: spreads[name]["fpr"] for name in ranked}
    best = fpr[ranked[0]]
    over = f" over {best.n} seeds" if best.n > 1 else ""
    leaders = [name for name in ranked if fpr[name].printed == best.printed]
    if JOINT in leaders:
        leaders = [JOINT, *(name for name in leaders if name != JOINT)]
    have = "has" if len(leaders) == 1 else "have"
    head = f"{', '.join(leaders)} {have} the lowest {fpr_name} ({best}{over})"
    if JOINT not in fpr:
        detectors = "one detector" if len(ranked) == 1 else f"{len(ranked)} detectors"
        return f"{pair}{head}; {JOINT} is not among the {detectors}."
    if JOINT in leaders:
        rest = [name for name in ranked if name not in leaders]
        after = f"; next is {rest[0]} with {fpr[rest[0]]}" if rest else ""
        return f"{pair}{head}{after}."
    place = 1 + sum(spread.printed < fpr[JOINT].printed for spread in fpr.values())
    return f"{pair}{head}, {JOINT} is {_ordinal(place)} of {len(ranked)} with {fpr[JOINT]}."


def _ordinal(place: int) -> str:
    special = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if 10 <= place % 100 <= 20 else special.get(place % 10, "th")
    return f"{place}{ending}"


def _cells(name: str, spreads: Spreads, first: Evaluation | None) -> list[dict[str, Any]]:
    """Return the measures; without intervals if the detector could not run in the first seed."""
    cells = []
    for measure in MEASURES:
        spread = spreads[name][measure]
        printed = [measures[measure].printed for measures in spreads.values()]
        best = min(printed) if measure == "fpr" else max(printed)
        cells.append(
            {
                "value": spread.mean,
                "text": str(spread),
                "interval": "" if first is None else _interval(spread, getattr(first, measure)),
                "best": spread.printed == best,
            }
        )
    return cells


def _interval(spread: Spread, estimate: Estimate) -> str:
    """Write the interval; for several seeds, with the value of the first seed."""
    if estimate.low is None or estimate.high is None:
        return ""
    if spread.n > 1:
        return str(estimate)
    return f"[{100 * estimate.low:.2f}, {100 * estimate.high:.2f}]"


def _strip(name: str, spread: Spread, first: Evaluation | None) -> Markup:
    """Draw the FPR as a point between 0 and 100 %, with its spread or interval as a line."""
    low = high = None
    if spread.deviation is not None:
        low, high = spread.mean - spread.deviation, spread.mean + spread.deviation
    elif first is not None:
        low, high = first.fpr.low, first.fpr.high
    return strip(spread.mean, low, high, "joint" if name == JOINT else "plain").html


def _caption(seeds: Sequence[int], first: Mapping[str, Evaluation]) -> str:
    if not seeds:
        return "No detector could run."
    evaluation = next(iter(first.values()))
    text = (
        f"In percent, with ID as the positive class; {evaluation.n_id:,} ID and "
        f"{evaluation.n_ood:,} OOD inputs."
    )
    interval = f"{100 * evaluation.confidence:g} % bootstrap interval"
    if len(seeds) == 1:
        return f"{text} Small print: the {interval}."
    return (
        f"{text} Mean ± standard deviation over {len(seeds)} seeds. Small print: "
        f"seed {seeds[0]} with its {interval}."
    )


def _lead_sentence(ood: str, evidence: Sequence[Evidence]) -> str:
    all_leads = (find_lead(ood, run.scores) for run in evidence if ood in run.ood_outputs)
    leads = [lead for lead in all_leads if lead is not None]
    if not leads:
        return ""
    picked = (
        "The two were selected by their results, so the difference tends to look more significant "
        "than it is."
    )
    if len(leads) == 1:
        lead = leads[0]
        p = lead.test.p_value
        p_text = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
        return (
            f"By AUROC, {lead.best} ({100 * lead.test.auroc_a:.2f}) is ahead of {lead.second} "
            f"({100 * lead.test.auroc_b:.2f}); DeLong's test gives {p_text}. {picked}"
        )
    significant = sum(lead.test.p_value < _LEVEL for lead in leads)
    pairs = Counter((lead.best, lead.second) for lead in leads)
    who = "; ".join(
        f"{best} ahead of {second} in {times}" for (best, second), times in pairs.most_common()
    )
    return (
        f"By AUROC, the best detector differs from the second at p < {_LEVEL} (DeLong's test) in "
        f"{significant} of {len(leads)} seeds: {who}. {picked}"
    )
