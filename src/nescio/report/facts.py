"""The manifest: what each result was made from, as the rows of a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nescio.benchmark.results import Line

_LONGEST = 600


@dataclass(frozen=True)
class Facts:
    """What the lines of one ID set and seed were made from."""

    id_name: str
    seed: int
    rows: Sequence[tuple[str, str]]


def all_facts(lines: Sequence[Line]) -> list[Facts]:
    """Return one table for each ID set and seed, in order of appearance."""
    by_run: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        by_run.setdefault((line.id, line.seed), []).append(line)
    return [Facts(id_name, seed, _rows(run)) for (id_name, seed), run in by_run.items()]


def _rows(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Return each fact once; if the lines differ, with all their values."""
    found: dict[str, dict[str, None]] = {"benchmark": {}}
    for line in lines:
        found["benchmark"][line.spec] = None
        for name, text in _flat(line.manifest, ""):
            found.setdefault(name, {})[text] = None
    return [(name, _shortened(" · ".join(texts))) for name, texts in found.items()]


def _flat(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        elif isinstance(value, str):
            yield name, value
        else:
            yield name, json.dumps(value, ensure_ascii=False, default=str)


def _shortened(text: str) -> str:
    """Cut a very long fact, which the result file holds in full."""
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " … (see the result file)"
