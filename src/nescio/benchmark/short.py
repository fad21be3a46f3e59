"""One table for all OOD sets: a detector beside joint energy, the largest logit and the best.

The best are those of the very run that the table shows. Nobody knows them before, so they are named
as the best in hindsight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from nescio.benchmark.formats import Column, Table, TablePart, listed
from nescio.benchmark.results import Line, Spread, summarise
from nescio.detectors import Combined
from nescio.detectors.naming import parse_detector

JOINT = "joint_energy"
_BESIDE = {JOINT: "joint energy", "max_logit": "the largest logit"}


@dataclass(frozen=True)
class Row:
    """Detectors that rank alike.

    Attributes
    ----------
    detectors : tuple of str
        The first one stands for all of them.
    what : str
        Why the row is in the short table; empty if it is not.
    fpr, auroc : mapping of OOD set to Spread
    """

    detectors: tuple[str, ...]
    what: str
    fpr: Mapping[str, Spread]
    auroc: Mapping[str, Spread]

    def order(self, *oods: str) -> tuple[float, float]:
        """Return what rows are sorted by: mean FPR, then mean AUROC, over some or all OOD sets."""
        sets = oods or tuple(self.fpr)
        return mean(self.fpr[ood].mean for ood in sets), -mean(self.auroc[ood].mean for ood in sets)

    @property
    def is_single(self) -> bool:
        """Whether a detector of the row is no combination of others."""
        return any(parse_detector(name)[0] != Combined.name for name in self.detectors)


def comparison_rows(lines: Sequence[Line], *, near: str, default: str = "") -> list[Row]:
    """Return all rows, the lowest mean FPR over the OOD sets first.

    Detectors with the same FPR and AUROC on every set, as printed, are one row, because they rank
    samples alike (such as max_logit and max_energy). Those that could not run are left out.

    Parameters
    ----------
    lines : sequence of Line
        The results of one ID set.
    near : str
        The OOD set that is most like the ID set. The best on it has a row of its own.
    default : str
        The detector that is compared with the others, if any.
    """
    found = {ood: by_detector for (_, ood), by_detector in summarise(lines).items()}
    known = {**_BESIDE, default: "the default"}
    groups: dict[tuple[float, ...], list[str]] = {}
    for name in sorted(found[near], key=lambda name: name not in known):
        values = (
            of[name][measure].printed for of in found.values() for measure in ("fpr", "auroc")
        )
        groups.setdefault(tuple(values), []).append(name)
    rows = [
        Row(
            tuple(names),
            ", ".join(known[name] for name in names if name in known),
            {ood: of[names[0]]["fpr"] for ood, of in found.items()},
            {ood: of[names[0]]["auroc"] for ood, of in found.items()},
        )
        for names in groups.values()
    ]
    return sorted(_with_the_best(rows, near), key=Row.order)


def _best(rows: Sequence[Row], *oods: str) -> Row | None:
    """Return the best row of a single detector, on some or all OOD sets."""
    single = [row for row in rows if row.is_single]
    return min(single, key=lambda row: row.order(*oods), default=None)


def _with_the_best(rows: Sequence[Row], near: str) -> list[Row]:
    """Mark the single detectors that are the best near the ID set and on average."""
    on_near, on_average = _best(rows, near), _best(rows)
    marked = []
    for row in rows:
        places = [f"on {near}"] * (row is on_near) + ["on average"] * (row is on_average)
        best = f"best single method {' and '.join(places)}, in hindsight" if places else ""
        marked.append(replace(row, what="; ".join(filter(None, (row.what, best)))))
    return marked


def comparison_table(rows: Sequence[Row], title: str, notes: Sequence[str] = ()) -> Table:
    """Return the FPR of each row on every OOD set, in per cent; the best of the rows are bold."""
    oods = list(rows[0].fpr)
    lowest = {ood: min(row.fpr[ood].printed for row in rows) for ood in oods}
    return Table(
        title=title,
        columns=(Column("detector", number=False), Column("", number=False), *map(Column, oods)),
        rows=tuple(
            (
                (TablePart(", ".join(row.detectors), code=True),),
                (TablePart(row.what),),
                *(
                    (TablePart(str(fpr), best=fpr.printed == lowest[ood]),)
                    for ood, fpr in row.fpr.items()
                ),
            )
            for row in rows
        ),
        records=tuple(
            {"detector": ", ".join(row.detectors), "what": row.what}
            | {ood: fpr.printed for ood, fpr in row.fpr.items()}
            for row in rows
        ),
        notes=tuple(notes),
    )


def compared_sentences(rows: Sequence[Row], default: str) -> list[str]:
    """Compare the default with joint energy and with the best single detector on average."""
    mine = [row for row in rows if default in row.detectors]
    others = [row for row in rows if JOINT in row.detectors]
    others += [row for row in [_best(rows)] if row is not None and row not in others]
    return [_compared(one, other) for one in mine for other in others if other is not one]


def _compared(one: Row, other: Row) -> str:
    """Say of which OOD sets one row lets through less than the other, and of which more."""
    found: dict[str, list[str]] = {"less than": [], "more than": [], "as much as": []}
    for ood, mine in one.fpr.items():
        theirs = other.fpr[ood]
        less, more = mine.printed < theirs.printed, mine.printed > theirs.printed
        word = "less than" if less else "more than" if more else "as much as"
        found[word].append(f"{ood} ({mine} % against {theirs} %)")
    parts = [
        f"{word} {other.detectors[0]} of {listed(sets)}" for word, sets in found.items() if sets
    ]
    return f"{one.detectors[0]} lets through {', '.join(parts)}."
