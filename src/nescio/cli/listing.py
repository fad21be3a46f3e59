"""nescio detectors and nescio info: the list of detectors, and the content of a file."""

from __future__ import annotations

from typing import Any

from nescio.cli.options import AsJson, DetectorFile, calibration_facts
from nescio.cli.printing import print_json, print_table, say

_SHOWN_NAMES = 5


def detectors(as_json: AsJson = False) -> None:
    """List the detectors: which arrays each one scores and learns from, and its paper."""
    from nescio.detectors import DETECTORS

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "scores_from": list(detector().scores_from),
            "learns_from": list(detector().learns_from),
            "learns_from_held_out": list(detector().learns_from_held_out),
            "summary": (detector.__doc__ or "").partition("\n")[0],
            "paper": detector.paper,
        }
        for name, detector in DETECTORS.items()
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("name", "scores from", "learns from", "what it is", "paper"),
        [
            (
                row["name"],
                *(", ".join(row[key]) or "-" for key in ("scores_from", "learns_from")),
                row["summary"],
                row["paper"],
            )
            for row in rows
        ],
    )


def info(detector: DetectorFile, as_json: AsJson = False) -> None:
    """Show what a saved detector is, its threshold and its guarantee."""
    from nescio.detectors import load
    from nescio.detectors.saving import plain_params

    loaded = load(detector)
    calibration = getattr(loaded, "calibration_", None)
    facts: dict[str, Any] = {
        "detector": loaded.name,
        "parameters": plain_params(loaded),
        "n_columns": loaded.n_columns_,
        "label_names": loaded.label_names_,
    }
    if calibration is None:
        facts["threshold"] = loaded.offset_
    else:
        del facts["parameters"]["tpr"]  # the calibration has its own
        facts |= calibration_facts(calibration)
    if as_json:
        print_json(facts)
        return
    facts.pop("tpr_interval_99", None)  # the statement below says it
    names = facts["label_names"]
    if names is not None and len(names) > _SHOWN_NAMES:
        shown = ", ".join(names[:_SHOWN_NAMES])
        facts["label_names"] = f"{shown}, ... ({len(names):,} in all: --json)"
    say(*(f"{name:<20} {_as_text(value)}" for name, value in facts.items()))
    if calibration is not None:
        say(calibration.statement())


def _as_text(value: Any) -> str:
    """Return a value of JSON as a person writes it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}={_as_text(item)}" for name, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(_as_text, value)) or "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
