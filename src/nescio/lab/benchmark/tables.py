"""Tables of results, of the paper's numbers, of both, and of a detector beside others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, TypeVar

from nescio.detectors import Combined
from nescio.detectors.naming import parse_detector
from nescio.lab.benchmark.formats import Column, Table, TableCell, TablePart, listed
from nescio.lab.benchmark.paper import PAPER_MAPS, PaperCell, PaperTable, find_paper_table
from nescio.lab.benchmark.results import MEASURES, Line, Spread, file_name, summarise

_NAMES = {"fpr": "FPR95", "auroc": "AUROC", "aupr": "AUPR"}
_TITLES = {"fpr": "FPR95 ↓", "auroc": "AUROC ↑", "aupr": "AUPR ↑"}
_MAP_NOTE = "The paper does not say on which split it measured its mAP."

Key = TypeVar("Key")


def benchmark_tables(lines: Sequence[Line], paper: Sequence[str]) -> dict[str, Table]:
    """Return all tables of a benchmark, by the names of their files.

    Parameters
    ----------
    lines : sequence of Line
    paper : sequence of str
        Keys of the paper's tables to compare the results with.
    """
    pairs = dict.fromkeys((line.id, line.ood) for line in lines)
    names = [f"{file_name(id_name)}-vs-{file_name(ood)}" for id_name, ood in pairs]
    tables = {"networks": network_table(lines)}
    tables |= zip(names, result_tables(lines), strict=True)
    beside = {key: paper_comparison(find_paper_table(key), lines) for key in paper}
    return tables | {f"paper-{key}": table for key, table in beside.items()}


def network_table(lines: Sequence[Line]) -> Table:
    """Return the table of networks: the results of training and of tuning.

    For the networks and ID sets of the paper, it has the paper's mAP beside the validation mAP.
    """
    manifests = {(line.id, line.seed): line.manifest for line in lines}
    papers = {
        (id_name, seed): PAPER_MAPS.get(manifest.get("model", ""), {}).get(id_name)
        for (id_name, seed), manifest in manifests.items()
    }
    of_paper = any(papers.values())
    methods = sorted({method for manifest in manifests.values() for method in _tuned(manifest)})
    records: list[dict[str, Any]] = []
    for (id_name, seed), manifest in manifests.items():
        best = manifest.get("training", {}).get("best", {})
        tuned = _tuned(manifest)
        records.append(
            {
                "ID set": id_name,
                "seed": seed,
                "network": manifest.get("model", ""),
                "hash": str(manifest.get("model_hash", ""))[:12],
                "best epoch": best.get("epoch"),
                "val loss": best.get("val_loss"),
                "val mAP": best.get("val_map"),
                **({"paper's mAP": papers[id_name, seed]} if of_paper else {}),
                **{method: tuned.get(method) for method in methods},
            }
        )
    return Table(
        title="Networks",
        columns=tuple(
            Column(title, number=title not in ("ID set", "network", "hash")) for title in records[0]
        ),
        rows=tuple(
            tuple(
                (TablePart(_cell_text(value), code=bool(value) and title in ("network", "hash")),)
                for title, value in record.items()
            )
            for record in records
        ),
        records=tuple(records),
        notes=(*_protocol_note(lines), *((_MAP_NOTE,) if of_paper else ())),
    )


def _cell_text(value: Any) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def _tuned(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return epsilon and, if not 1, the temperature of each tuned method and aggregate."""
    settings = {}
    for setting in (manifest.get("tuning") or {}).get("best", []):
        temperature = (
            "" if setting["temperature"] in (None, 1) else f", T = {setting['temperature']:g}"
        )
        settings[f"{setting['method']} {setting['aggregate']} ε"] = (
            f"{setting['epsilon']:g}{temperature}"
        )
    return settings


# --- ours -----------------------------------------------------------------------------------------


def result_tables(lines: Sequence[Line]) -> list[Table]:
    """Return one table per pair of an ID and an OOD set, sorted by FPR.

    Values are in per cent: the mean over seeds and, for two or more, the standard deviation.
    """
    pairs = dict.fromkeys((line.id, line.ood) for line in lines)
    return [_result_table([line for line in lines if (line.id, line.ood) == p]) for p in pairs]


def _result_table(lines: Sequence[Line]) -> Table:
    """Return the table of lines that all belong to one pair."""
    pair = (lines[0].id, lines[0].ood)
    summary = summarise(lines).get(pair, {})
    best = {
        measure: _best(
            measure, {name: 100 * measures[measure].mean for name, measures in summary.items()}
        )
        for measure in MEASURES
    }
    rows, records = [], []
    for name in sorted(summary, key=lambda name: summary[name]["fpr"].mean):
        spreads = summary[name]
        parts = [TablePart(str(spreads[m]), name in best[m]) for m in MEASURES]
        rows.append(((TablePart(name, code=True),), *((part,) for part in parts)))
        record: dict[str, Any] = {"detector": name, "n_seeds": spreads["fpr"].n_seeds}
        for measure in MEASURES:
            record |= _values(_NAMES[measure], spreads[measure])
        records.append(record)
    return Table(
        title=f"{pair[0]} against {pair[1]}",
        columns=(
            Column("detector", number=False),
            *(Column(_TITLES[measure]) for measure in MEASURES),
        ),
        rows=tuple(rows),
        records=tuple(records),
        notes=(
            *_seeds_note(measures["fpr"] for measures in summary.values()),
            *_protocol_note(lines),
            *_skipped_notes(lines),
        ),
    )


def _values(title: str, spread: Spread | None) -> dict[str, Any]:
    """Return mean and deviation in per cent, for CSV."""
    mean = None if spread is None else 100 * spread.mean
    deviation = None if spread is None or spread.deviation is None else 100 * spread.deviation
    return {title: mean, f"{title} sd": deviation}


def _best(measure: str, values: Mapping[Key, float]) -> set[Key]:
    """Return the keys of the best values, rounded as printed; none if there is only one value."""
    if len(values) < 2:
        return set()
    printed = {key: round(value, 2) for key, value in values.items()}
    best = (min if measure == "fpr" else max)(printed.values())
    return {key for key, value in printed.items() if value == best}


def _seeds_note(spreads: Iterable[Spread]) -> list[str]:
    """Return a note with the unit and the number of seeds."""
    counts = sorted({spread.n_seeds for spread in spreads})
    if not counts:
        return []
    if counts == [1]:
        return ["Per cent, of one seed."]
    over = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return [f"Per cent, mean ± standard deviation over {over} seeds."]


def _protocol_note(lines: Iterable[Line], *, always: bool = False) -> tuple[str, ...]:
    """Return a note that names the protocol; the paper's, which is the default, only if asked."""
    names = sorted({line.manifest["protocol"] for line in lines if "protocol" in line.manifest})
    return (
        (f"Protocol: {' and '.join(names)}.",) if names and (always or names != ["paper"]) else ()
    )


def _skipped_notes(lines: Iterable[Line]) -> list[str]:
    """Return a note for each detector that did not run."""
    seeds: dict[tuple[str, str, str], list[int]] = {}
    for line in lines:
        if line.evaluation is None:
            seeds.setdefault((line.detector, line.id, line.skipped), []).append(line.seed)
    return [
        f"{detector} did not run on {id_name} (seed {', '.join(map(str, of))}): {why}"
        for (detector, id_name, why), of in seeds.items()
    ]


# --- the paper's ----------------------------------------------------------------------------------

_Head = tuple[tuple[str, str], ...]  # title and text of each column that names the row
_Grid = dict[_Head, dict[str, list[PaperCell]]]  # row, column, measures


def paper_table(table: PaperTable) -> Table:
    """Return a table of the paper as printed; the best numbers are bold, including ties."""
    grid, best = _grid(table), _best_cells((cell, cell.value) for cell in table.cells)
    rows, records = [], []
    for head, by_column in grid.items():
        rows.append((*_head_cells(head), *(_printed(cells, best) for cells in by_column.values())))
        numbers = {
            f"{title} {_NAMES[cell.measure]}": cell.text
            for title, cells in by_column.items()
            for cell in cells
        }
        records.append(dict(head) | numbers)
    measures = dict.fromkeys(_TITLES[cell.measure] for cell in table.cells)
    return Table(
        title=f"{table.number} of the paper: {table.caption}",
        columns=_columns(grid),
        rows=tuple(rows),
        records=tuple(records),
        notes=(f"Each cell: {' / '.join(measures)}, per cent.", *_remark(table)),
    )


def _printed(cells: Sequence[PaperCell], best: set[PaperCell]) -> TableCell:
    """Return the measures of a set; one N/A stands for all, but each has its own dash."""
    if all(cell.text == "N/A" for cell in cells):
        return (TablePart("N/A"),)
    return tuple(TablePart(cell.text, cell in best) for cell in cells)


def paper_comparison(table: PaperTable, lines: Sequence[Line]) -> Table:
    """Return a table of the paper with results beside its numbers, one row per measure.

    Each cell has the result, the paper's number, and the difference in percentage points. The best
    results and the best of the paper's numbers are bold.

    Parameters
    ----------
    table : PaperTable
    lines : sequence of Line
        Results of the network that the table is about, which is not checked. They are matched by
        the names of ID set, OOD set and detector; other lines are ignored.
    """
    wanted = {(cell.id, cell.ood, cell.detector) for cell in table.cells if cell.detector}
    lines = [line for line in lines if (line.id, line.ood, line.detector) in wanted]
    ours = _our_cells(table, lines)
    best = _best_cells((cell, 100 * spread.mean) for cell, spread in ours.items())
    papers_best = _best_cells((cell, cell.value) for cell in table.cells)
    grid = _grid(table)
    rows, records = [], []
    for head, by_column in grid.items():
        for cells in zip(*by_column.values(), strict=True):
            row_head = (*head, ("Measure", _TITLES[cells[0].measure]))
            compared = (
                _compared(cell, ours.get(cell), cell in best, cell in papers_best) for cell in cells
            )
            rows.append((*_head_cells(row_head), *compared))
            record: dict[str, Any] = {**dict(head), "Measure": cells[0].measure}
            for title, cell in zip(by_column, cells, strict=True):
                record |= _values(title, ours.get(cell))
                record[f"{title} paper"] = cell.text
                record[f"{title} difference"] = _difference(cell, ours.get(cell))
            records.append(record)
    return Table(
        title=f"nescio beside {table.number} of the paper: {table.caption}",
        columns=_columns(grid, "Measure"),
        rows=tuple(rows),
        records=tuple(records),
        notes=(
            "Each cell: nescio's / the paper's / the difference, nescio's minus the paper's."
            if ours
            else "None of the results is of a set, an OOD set and a detector of this table.",
            *_seeds_note(ours.values()),
            *_protocol_note(lines, always=True),
            *_remark(table),
            *_skipped_notes(lines),
        ),
    )


def _our_cells(table: PaperTable, lines: Sequence[Line]) -> dict[PaperCell, Spread]:
    """Return the result for each cell of the paper."""
    summary = summarise(lines)
    results = {}
    for cell in table.cells:
        of_pair = summary.get((cell.id, cell.ood), {})
        if cell.detector in of_pair:
            results[cell] = of_pair[cell.detector][cell.measure]
    return results


def _compared(cell: PaperCell, ours: Spread | None, best: bool, papers_best: bool) -> TableCell:
    """Return a cell with a result beside the paper's number."""
    parts = [TablePart(cell.text, papers_best)]
    if ours is not None:
        parts.insert(0, TablePart(str(ours), best))
    elif cell.value is not None:
        parts.insert(0, TablePart("not run"))
    if (difference := _difference(cell, ours)) is not None:
        parts.append(TablePart(f"{difference:+z.2f}"))
    return tuple(parts)


def _difference(cell: PaperCell, ours: Spread | None) -> float | None:
    return None if ours is None or cell.value is None else 100 * ours.mean - cell.value


def _best_cells(values: Iterable[tuple[PaperCell, float | None]]) -> set[PaperCell]:
    """Return the best cells of each ID set and measure."""
    groups: dict[tuple[str, str], dict[PaperCell, float]] = {}
    for cell, value in values:
        if value is not None:
            groups.setdefault((cell.id, cell.measure), {})[cell] = value
    return {cell for (_, measure), group in groups.items() for cell in _best(measure, group)}


def _grid(table: PaperTable) -> _Grid:
    """Return the cells by row and column of the paper's layout."""
    grid: _Grid = {}
    for cell in table.cells:
        head: _Head = (("ID set", cell.id),) if table.turned else (("OOD score", cell.row),)
        if cell.aggregation:
            head = (*head, ("Aggregation", cell.aggregation.capitalize()))
        column = cell.row if table.turned else cell.id
        grid.setdefault(head, {}).setdefault(column, []).append(cell)
    return grid


def _columns(grid: _Grid, *further: str) -> tuple[Column, ...]:
    head, by_column = next(iter(grid.items()))
    texts = (*(title for title, _ in head), *further)
    return (*(Column(title, number=False) for title in texts), *map(Column, by_column))


def _head_cells(head: _Head) -> list[TableCell]:
    return [(TablePart(text),) for _, text in head]


def _remark(table: PaperTable) -> list[str]:
    return [table.remark] if table.remark else []


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
    by_ood = {ood: by_detector for (_, ood), by_detector in summarise(lines).items()}
    reasons = {**_BESIDE, default: "the default"}
    groups: dict[tuple[float, ...], list[str]] = {}
    for name in sorted(by_ood[near], key=lambda name: name not in reasons):
        values = (
            detectors[name][measure].printed
            for detectors in by_ood.values()
            for measure in ("fpr", "auroc")
        )
        groups.setdefault(tuple(values), []).append(name)
    rows = [
        Row(
            tuple(names),
            ", ".join(reasons[name] for name in names if name in reasons),
            {ood: detectors[names[0]]["fpr"] for ood, detectors in by_ood.items()},
            {ood: detectors[names[0]]["auroc"] for ood, detectors in by_ood.items()},
        )
        for names in groups.values()
    ]
    return sorted(_with_the_best(rows, near), key=Row.order)


def _best_row(rows: Sequence[Row], *oods: str) -> Row | None:
    """Return the best row of a single detector, on some or all OOD sets."""
    single = [row for row in rows if row.is_single]
    return min(single, key=lambda row: row.order(*oods), default=None)


def _with_the_best(rows: Sequence[Row], near: str) -> list[Row]:
    """Mark the single detectors that are the best near the ID set and on average."""
    on_near, on_average = _best_row(rows, near), _best_row(rows)
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
    own = [row for row in rows if default in row.detectors]
    others = [row for row in rows if JOINT in row.detectors]
    others += [row for row in [_best_row(rows)] if row is not None and row not in others]
    return [_compared_rows(row, other) for row in own for other in others if other is not row]


def _compared_rows(row: Row, other: Row) -> str:
    """Say of which OOD sets one row lets through less than the other, and of which more."""
    sets_of: dict[str, list[str]] = {"less than": [], "more than": [], "as much as": []}
    for ood, mine in row.fpr.items():
        theirs = other.fpr[ood]
        less, more = mine.printed < theirs.printed, mine.printed > theirs.printed
        word = "less than" if less else "more than" if more else "as much as"
        sets_of[word].append(f"{ood} ({mine} % against {theirs} %)")
    parts = [
        f"{word} {other.detectors[0]} of {listed(sets)}" for word, sets in sets_of.items() if sets
    ]
    return f"{row.detectors[0]} lets through {', '.join(parts)}."
