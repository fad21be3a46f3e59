"""The results of one ID set against one OOD set: a sentence, a table and a test of the lead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nescio.benchmark.evidence import Evidence
from nescio.benchmark.results import MEASURES, Line, Spread
from nescio.errors import ShapeError
from nescio.metrics import Estimate, Evaluation
from nescio.metrics.comparison import Lead, find_lead
from nescio.report.panels import JOINT
from nescio.report.svg import Markup

_LEVEL = 0.05


@dataclass(frozen=True)
class StandingCell:
    """One measure: its value over all seeds, and the interval of the first seed."""

    value: float
    text: str
    interval: str
    best: bool


@dataclass(frozen=True)
class StandingRow:
    """One detector; `curve` is its number in the ROC figure, or -1 if it is not drawn."""

    detector: str
    cells: Sequence[StandingCell]
    strip: Markup
    curve: int
    is_joint: bool


@dataclass(frozen=True)
class Standings:
    """The results of one ID set against one OOD set.

    Attributes
    ----------
    sentence : str
        Which detector has the lowest FPR, and the rank of joint energy.
    columns : sequence of str
        The names of the measures.
    rows : sequence of StandingRow
        The lowest FPR first.
    caption : str
        What the numbers mean.
    lead : str
        Whether the best by AUROC is significantly better than the second; empty without evidence.
    skipped : mapping of detector to reason
    """

    sentence: str
    columns: Sequence[str]
    rows: Sequence[StandingRow]
    caption: str
    lead: str
    skipped: Mapping[str, str]


def standings(
    lines: Sequence[Line],
    spreads: Mapping[str, Mapping[str, Spread]],
    evidence: Sequence[Evidence],
    curves: Mapping[str, int],
) -> Standings:
    """Return the standings from the lines of one pair, their summary, and all its evidence."""
    seeds = sorted({line.seed for line in lines if line.evaluation is not None})
    first = {
        line.detector: line.evaluation
        for line in lines
        if line.evaluation is not None and line.seed == seeds[0]
    }
    fpr_name = next((found.fpr_name for found in first.values()), "FPR95")
    ranked = sorted(spreads, key=lambda name: spreads[name]["fpr"].mean)
    return Standings(
        sentence=_whole(_sentence(lines[0].id, lines[0].ood, ranked, spreads, fpr_name)),
        columns=[fpr_name, "AUROC", "AUPR"],
        rows=[_row(name, spreads, first.get(name), curves.get(name, -1)) for name in ranked],
        caption=_caption(seeds, first),
        lead=_lead_sentence(lines[0].ood, evidence),
        skipped={line.detector: line.skipped for line in lines if line.evaluation is None},
    )


def _sentence(
    id_name: str,
    ood: str,
    ranked: Sequence[str],
    spreads: Mapping[str, Mapping[str, Spread]],
    fpr_name: str,
) -> str:
    pair = f"On {id_name} against {ood}, "
    if not ranked:
        return pair + "no detector could run."
    fpr = {name: spreads[name]["fpr"] for name in ranked}
    best = fpr[ranked[0]]
    over = f" over {best.n_seeds} seeds" if best.n_seeds > 1 else ""
    leaders = [name for name in ranked if fpr[name].printed == best.printed]
    if JOINT in leaders:
        leaders = [JOINT, *(name for name in leaders if name != JOINT)]
    have = "has" if len(leaders) == 1 else "have"
    head = f"{_and(leaders)} {have} the lowest {fpr_name} ({best}{over})"
    if JOINT not in fpr:
        return f"{pair}{head}; {JOINT} is not among the {_count(len(ranked))}."
    if JOINT in leaders:
        rest = [name for name in ranked if name not in leaders]
        after = f"; next is {rest[0]} with {fpr[rest[0]]}" if rest else ""
        return f"{pair}{head}{after}."
    place = 1 + sum(one.printed < fpr[JOINT].printed for one in fpr.values())
    return f"{pair}{head}, {JOINT} is {_ordinal(place)} of {len(ranked)} with {fpr[JOINT]}."


def _whole(sentence: str) -> str:
    """Keep a number and its deviation on one line."""
    return sentence.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _ordinal(place: int) -> str:
    special = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if 10 <= place % 100 <= 20 else special.get(place % 10, "th")
    return f"{place}{ending}"


def _count(n: int) -> str:
    return f"{n} detectors" if n != 1 else "one detector"


def _row(
    name: str,
    spreads: Mapping[str, Mapping[str, Spread]],
    first: Evaluation | None,
    curve: int,
) -> StandingRow:
    """Return a row; it has no interval if the detector could not run in the first seed."""
    cells = []
    for measure in MEASURES:
        spread = spreads[name][measure]
        values = [one[measure].printed for one in spreads.values()]
        best = min(values) if measure == "fpr" else max(values)
        interval = "" if first is None else _interval(spread, getattr(first, measure))
        cells.append(StandingCell(spread.mean, str(spread), interval, spread.printed == best))
    strip = _strip(name, spreads[name]["fpr"], None if first is None else first.fpr)
    return StandingRow(name, cells, strip, curve, name == JOINT)


def _interval(spread: Spread, estimate: Estimate) -> str:
    """Write the interval; for several seeds, with the value of the first seed."""
    if estimate.low is None or estimate.high is None:
        return ""
    if spread.n_seeds > 1:
        return str(estimate)
    return f"[{100 * estimate.low:.2f}, {100 * estimate.high:.2f}]"


def _strip(name: str, spread: Spread, estimate: Estimate | None) -> Markup:
    """Draw the FPR as a point between 0 and 100 %, with its spread or interval as a line."""
    if spread.deviation is not None:
        low, high = spread.mean - spread.deviation, spread.mean + spread.deviation
    elif estimate is not None and estimate.low is not None and estimate.high is not None:
        low, high = estimate.low, estimate.high
    else:
        low = high = spread.mean
    start, end = (4 + 132 * min(max(value, 0.0), 1.0) for value in (low, high))
    css = "joint" if name == JOINT else "plain"
    return Markup(
        f'<svg class="strip" viewBox="0 0 140 16" aria-hidden="true">'
        f'<path class="grid" d="M4 8H136M4 4V12M70 4V12M136 4V12"/>'
        f'<path class="whisker {css}" d="M{start:.1f} 8H{end:.1f}"/>'
        f'<circle class="dot {css}" cx="{4 + 132 * spread.mean:.1f}" cy="8" r="2.8"/></svg>'
    )


def _caption(seeds: Sequence[int], first: Mapping[str, Evaluation]) -> str:
    if not seeds:
        return "No detector could run."
    one = next(iter(first.values()))
    text = (
        f"In percent, with ID as the positive class; {one.n_id:,} ID and {one.n_ood:,} OOD inputs."
    )
    interval = f"{100 * one.confidence:g} % bootstrap interval"
    if len(seeds) == 1:
        return f"{text} Small print: the {interval}."
    return (
        f"{text} Mean ± standard deviation over {len(seeds)} seeds. Small print: "
        f"seed {seeds[0]} with its {interval}."
    )


def _lead_sentence(ood: str, evidence: Sequence[Evidence]) -> str:
    leads = [lead for lead in (_find_lead(ood, one) for one in evidence) if lead is not None]
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


def _find_lead(ood: str, evidence: Evidence) -> Lead | None:
    if ood not in evidence.ood_outputs or not evidence.scores:
        return None
    try:
        return find_lead(ood, evidence.scores)
    except ShapeError:  # a set with a single sample cannot be tested
        return None
