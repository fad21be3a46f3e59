"""What a monitor says: a few lines of text, a card for notebooks, figures, and a page of them."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nescio._charts.svg import Chart, Markup, Scale, chart_style, percent, power_of_ten, sheet
from nescio._io.files import check_page_target, write_text
from nescio.calibration import CUSTOM
from nescio.errors import counted, listed
from nescio.monitor.windows import COVERAGE, Window

if TYPE_CHECKING:
    from nescio.monitor.monitor import Monitor

PAGE_WIDTH, CARD_WIDTH = 760, 440  # of the figures, in pixels
CHANGES = {  # Change.kind in words
    "lower": "score lower than the calibration data",
    "some lower": "include more very low scores than the calibration data",
    "higher": "score higher than the calibration data (the model is more confident than usual; the "
    "flagged share does not show this)",
    "some higher": "include more very high scores than the calibration data",
    "more extreme": "score very low or very high more often than the calibration data",
    "less extreme": "have scores that vary less than those of the calibration data",
    "unusable": "have NaN or infinity more often than the calibration data",
    "constant": "have scores that hardly vary",
}
ADVICE = (
    "What to do: look at these inputs. If something is broken (a sensor, the preprocessing, the "
    "model), repair it. If they are what the model should work on, calibrate a new detector on "
    "data like them."
)
FEW = 30  # inputs; with fewer, a change can hardly be seen
_GROUPS_NAMED = 5


def headline(monitor: Monitor) -> str:
    """Return one sentence: whether something has changed, what, and since when."""
    n_samples, inputs = monitor.n_samples, counted(monitor.n_samples, "input")
    if not n_samples:
        since = "since the latest acknowledged change" if monitor.acknowledged else "yet"
        return f"No inputs {since}."
    if monitor.change is not None:
        return (
            f"ALARM: since about {monitor.change.since}, the inputs "
            f"{CHANGES[monitor.change.kind]}. This was noticed at input {monitor.alarm_at:,} of "
            f"{n_samples:,}."
        )
    if monitor.changed:
        return f"CHANGED: of {inputs}, those of some groups differ from the calibration data."
    windows, difference = monitor.windows, monitor.difference
    unusual = [] if difference is None else [f"they {CHANGES[difference.kind]}"]
    outside = [window for window in windows if window.outside]
    # By chance, it is one full window in 370.
    if len(outside) > len(windows) / 100 or any(window.outside for window in windows[-2:]):
        more = [window.flagged > window.high for window in outside]
        which = "more" if all(more) else "more or fewer" if any(more) else "fewer"
        n_windows = f"{len(outside):,} of {counted(len(windows), 'window')}"
        unusual.append(f"{n_windows} flagged {which} than expected")
    if unusual:
        return f"No alarm so far in {inputs}, but {', and '.join(unusual)}: look at them."
    if n_samples < FEW:
        return f"No alarm so far: {inputs}, too few to tell whether the data has changed."
    return f"No alarm: the {n_samples:,} inputs look like the calibration data."


def group_sentence(monitor: Monitor) -> str:
    """Name the groups whose inputs have changed, the worst first; empty if none has."""
    changed = [
        f"{monitor.calibration.described(name)} (its inputs {CHANGES[kind].partition(' than ')[0]})"
        for name, (kind, _) in monitor.changed_groups.items()
    ]
    return f"Changed: {listed(changed, _GROUPS_NAMED, quoted=False)}." if changed else ""


def nonfinite_text(monitor: Monitor) -> str:
    """Say how many inputs have NaN or infinity, and in which groups; empty if none has."""
    counts, calibration = monitor.n_nonfinite, monitor.calibration
    groups = [f"{n:,} of {calibration.described(name)}" for name, n in counts.items()]
    which = "" if calibration.by is None else f": {listed(groups, _GROUPS_NAMED, quoted=False)}"
    return f"{sum(counts.values()):,} with NaN or infinity{which}" if counts else ""


def summary(monitor: Monitor) -> str:
    """Return a few lines: what has changed and since when, what to do, and the evidence."""
    lines, chart = [headline(monitor)], monitor.chart
    earlier = ""
    if monitor.acknowledged:
        latest = monitor.acknowledged[-1]
        note = f" ({latest['note']})" if latest["note"] else ""
        earlier = f"\nAn earlier change was acknowledged at {latest['time']}{note}."
    if not monitor.n_samples:
        return lines[0] + earlier
    lines += filter(None, [group_sentence(monitor)])
    others = monitor.bags[-1]  # of all groups that were not calibrated
    if monitor.calibration.by == CUSTOM and (n := others.total - int(others.calibration.sum())):
        lines.append(f"Not watched by group: {counted(n, 'input')} of groups without calibration.")
    now, most = _odds(monitor.log10_martingale), _odds(monitor.max_log10_martingale)
    if monitor.alarm and monitor.log10_martingale < 0:
        what = "all inputs together still differ, but the stream is also compared with itself"
        if monitor.difference is None:
            what = "all inputs together do not differ, so it may have been chance, or be over"
        lines.append(f"The evidence has faded to {now} to 1 now: {what}.")
    lines += [ADVICE] * monitor.changed
    share = f"{monitor.flagged / monitor.n_samples:.2%}"
    shares = ", ".join(filter(None, (share, nonfinite_text(monitor))))
    lines.append(
        f"Flagged as out-of-distribution: {monitor.flagged:,} of {monitor.n_samples:,} ({shares}); "
        f"about {monitor.expected_share:.2%} is expected."
    )
    if chart.windows:
        lines.append(f"  latest full window, {_window(chart.windows[-1])}")
    if newest := chart.open_window():
        lines.append(f"  newest inputs, window incomplete, {_window(newest)}")
    evidence = f"{now} to 1 now, {most} to 1 at its strongest (alarm at {1 / monitor.alpha:,.4g})"
    return "\n".join(lines) + f"{earlier}\nEvidence for a change of the scores: {evidence}."


def _window(window: Window) -> str:
    first, last = window.start + 1, window.start + window.n
    expected = f"expected {window.low / window.n:.1%} to {window.high / window.n:.1%}"
    verdict = ""
    if window.outside:
        verdict = f", {'MORE' if window.flagged > window.high else 'FEWER'} than expected"
    return f"inputs {first:,} to {last:,}: {window.share:.1%} flagged, {expected}{verdict}"


def _odds(exponent: float) -> str:
    """Write a power of ten as a number, or as a whole power if it is large."""
    if exponent < -2:
        return "less than 0.01"
    if exponent >= 6:
        return f"about 10^{exponent:.0f}"
    return f"{10**exponent:,.2g}" if exponent < 1 else f"{10**exponent:,.0f}"


# --- figures --------------------------------------------------------------------------------------


Figure = tuple[str, str, Markup]  # its title, what it shows, and the drawing


def monitor_figures(monitor: Monitor, width: int = PAGE_WIDTH) -> list[Figure]:
    """Draw the share flagged, if known, and the evidence of a change."""
    flagged = [_flagged(monitor, width)] if monitor.windows else []
    return [*flagged, _evidence(monitor, width)]


def _chart(first: int, last: int, y: Scale, width: int, **options: Any) -> Chart:
    """Return an empty chart over the stream; the axis leaves room for the text at its end."""
    x = Scale(first, last + 0.04 * (last - first), write=lambda value: f"{value:,.0f}")
    options |= {"width": width, "height": 138 + 3 * width // 16}
    ticks = [tick for tick in x.ticks(max(2, width // 150)) if tick[0] == round(tick[0])]
    return Chart(x, y, x_label="inputs", x_ticks=ticks, **options)


def _evidence(monitor: Monitor, width: int) -> Figure:
    """Draw the martingale over time."""
    line = -math.log10(monitor.alpha)
    inputs, values = zip((0, 0.0), *monitor.trace.points(), strict=True)
    low, high = min(values), max(line, monitor.max_log10_martingale)
    ends = math.floor(low), math.ceil(high + 0.2)
    scale = Scale(*ends, write=lambda value: power_of_ten(round(value)))
    chart = _chart(
        0,
        max(1, monitor.n_samples),
        scale,
        width,
        name="Evidence of a change over time",
        y_label="evidence (to 1)",
        y_ticks=[tick for tick in scale.ticks() if tick[0] == round(tick[0])],
    )
    chart.line(inputs, values, "accent")
    chart.rule(y=line, text=f"alarm at {1 / monitor.alpha:,.4g}")
    if monitor.alarm_at is not None:
        chart.rule(x=monitor.alarm_at, text=f"noticed at {monitor.alarm_at:,}")
    text = (
        "How strongly the scores speak for a change. The alarm is raised at the dashed line. If "
        "nothing has changed, it is ever reached with a probability of at most "
        f"{monitor.alpha:g}."
    )
    return ("Evidence of a change", text, chart.draw())


def _flagged(monitor: Monitor, width: int) -> Figure:
    """Draw the control chart."""
    windows = monitor.windows
    columns = {name: np.array(column) for name, column in monitor.columns().items()}
    low, high = (columns[side] / columns["n"] for side in ("low", "high"))
    edges = np.stack([columns["start"], columns["start"] + columns["n"]], axis=1)
    top = float(max(high.max(), columns["share"].max())) * 1.2 or 1.0  # room for the text of a rule
    chart = _chart(
        windows[0].start,
        int(edges[-1, 1]),
        Scale(0.0, top, write=percent),
        width,
        name="Flagged share of each window, with the expected band",
        y_label="flagged, %",
    )
    chart.band(edges.ravel(), np.repeat(low, 2), np.repeat(high, 2), "band in")
    for window in windows:
        last = window.start + window.n
        tip = f"inputs {window.start + 1:,} to {last:,}: {window.flagged:,} flagged"
        tip += " (window incomplete)" if window.n < monitor.window else ""
        css = "out" if window.outside else "in"
        chart.dot(window.start + window.n / 2, window.share, css, tip=tip, radius=2.5)
    since = 0 if monitor.change is None else monitor.change.since.number
    if since > windows[0].start:
        chart.rule(x=since, text=f"change at {since:,}")
    text = (
        "The share of inputs that are flagged as out-of-distribution. One point per window"
        + (f" of {windows[0].n:,} inputs. " if monitor.chart.windows else ". ")
        + f"{monitor.chart.n_outside:,} of {monitor.chart.n_windows:,} full windows lie outside "
        f"the shaded band. If nothing has changed, a window lies within it with a probability of "
        f"{COVERAGE * 100:.4g} %."
    )
    return ("Flagged share", text, chart.draw())


# --- as a page: one column, without a script ------------------------------------------------------


def draw_monitor(monitor: Monitor, path: str | Path, *, force: bool = False) -> None:
    """Write the figures of a monitor as an HTML page; an existing file needs `force`."""
    check_page_target(path, force=force)
    body = "\n".join(
        f"<section><h2>{escape(title)}</h2><p>{escape(text)}</p>{drawing}</section>"
        for title, text, drawing in monitor_figures(monitor)
    )
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>nescio monitor</title><style>{chart_style()}{sheet('monitor.css')}</style></head>"
        "<body><h1>Does the stream still look like the calibration data?</h1>"
        f"<pre>{escape(monitor.summary())}</pre>\n{body}\n</body></html>\n"
    )
    write_text(path, page, force=force)
