"""Tables of results, of the paper's numbers, and of both side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from nescio.benchmark.formats import Column, Table, TableCell, TablePart
from nescio.benchmark.paper import PAPER_MAPS, PaperCell, PaperTable, find_paper_table
from nescio.benchmark.results import MEASURES, Line, Spread, file_name, summarise

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
    found = {"networks": network_table(lines)}
    found |= zip(names, result_tables(lines), strict=True)
    beside = {key: paper_comparison(find_paper_table(key), lines) for key in paper}
    return found | {f"paper-{key}": table for key, table in beside.items()}


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
                **({"paper's mAP": _share(papers[id_name, seed])} if of_paper else {}),
                **{method: tuned.get(method) for method in methods},
            }
        )
    return Table(
        title="Networks",
        columns=tuple(
            Column(title, number=title not in ("ID set", "network", "hash")) for title in records[0]
        ),
        rows=tuple(
            tuple((_network_part(title, value),) for title, value in record.items())
            for record in records
        ),
        records=tuple(records),
        notes=(*_protocol_note(lines), *((_MAP_NOTE,) if of_paper else ())),
    )


def _share(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 4)


def _network_part(title: str, value: Any) -> TablePart:
    text = "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
    return TablePart(text, code=bool(text) and title in ("network", "hash"))


def _tuned(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return epsilon and, if not 1, the temperature of each tuned method and aggregate."""
    found = {}
    for one in (manifest.get("tuning") or {}).get("best", []):
        temperature = "" if one["temperature"] in (None, 1) else f", T = {one['temperature']:g}"
        found[f"{one['method']} {one['aggregate']} ε"] = f"{one['epsilon']:g}{temperature}"
    return found


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
            measure, {name: 100 * found[measure].mean for name, found in summary.items()}
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
            *_seeds_note(found["fpr"] for found in summary.values()),
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
    found = {}
    for cell in table.cells:
        of_pair = summary.get((cell.id, cell.ood), {})
        if cell.detector in of_pair:
            found[cell] = of_pair[cell.detector][cell.measure]
    return found


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
