"""Tables of results, of the paper's numbers, and of both side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from nescio.benchmark.formats import Column, Table, TableCell, TablePart
from nescio.benchmark.paper import PaperCell, PaperTable, find_paper_table
from nescio.benchmark.results import MEASURES, Line, Spread, file_name, summarise
from nescio.errors import InputError

_PAPER_FPR = "FPR95"
_ARROWS = {"fpr": "↓", "auroc": "↑", "aupr": "↑"}

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
    names = [table_name(id_name, ood) for id_name, ood in pairs]
    found = {"networks": network_table(lines)}
    found |= zip(names, result_tables(lines), strict=True)
    beside = {key: paper_comparison(find_paper_table(key), lines) for key in paper}
    return found | {f"paper-{key}": table for key, table in beside.items()}


def table_name(id_name: str, ood: str) -> str:
    """Return the name of the file of a pair's table."""
    return f"{file_name(id_name)}-vs-{file_name(ood)}"


def network_table(lines: Sequence[Line]) -> Table:
    """Return the table of networks: the results of training and of tuning."""
    manifests = {(line.id, line.seed): line.manifest for line in lines}
    settings = {run: _tuned(manifest) for run, manifest in manifests.items()}
    methods = sorted({method for tuned in settings.values() for method in tuned})
    rows = []
    for (id_name, seed), manifest in manifests.items():
        best = manifest.get("training", {}).get("best", {})
        shown = [
            _plain_cell(manifest.get("model", ""), code=True),
            _plain_cell(str(manifest.get("model_hash", ""))[:12], code=True),
            _plain_cell(best.get("epoch")),
            _plain_cell(best.get("val_loss"), ".4f"),
            _plain_cell(best.get("val_map"), ".4f"),
            *(_plain_cell(settings[id_name, seed].get(method)) for method in methods),
        ]
        rows.append((_plain_cell(id_name), _plain_cell(seed), *shown))
    texts = ("ID set", "network", "hash")
    numbers = ("best epoch", "val loss", "val mAP", *methods)
    titles = (texts[0], "seed", *texts[1:], *numbers)
    return Table(
        title="Networks",
        columns=tuple(Column(title, (title,), number=title not in texts) for title in titles),
        rows=tuple(rows),
    )


def _tuned(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return epsilon and, if not 1, the temperature of each tuned method and aggregate."""
    found = {}
    for one in (manifest.get("tuning") or {}).get("best", []):
        temperature = "" if one["temperature"] in (None, 1) else f", T = {one['temperature']:g}"
        found[f"{one['method']} {one['aggregate']} ε"] = f"{one['epsilon']:g}{temperature}"
    return found


def _plain_cell(value: Any, digits: str = "", *, code: bool = False) -> TableCell:
    text = "" if value is None else f"{value:{digits}}"
    return TableCell((TablePart(text),), (value,), code=code and bool(text))


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
    rows = []
    for name in sorted(summary, key=lambda name: summary[name]["fpr"].mean):
        spreads = summary[name]
        detector = TableCell((TablePart(name),), (name, spreads["fpr"].n_seeds), code=True)
        rows.append((detector, *(_ours(spreads[m], name in best[m]) for m in MEASURES)))
    names = {measure: measure.upper() for measure in MEASURES} | {"fpr": _fpr_name(lines)}
    return Table(
        title=f"{pair[0]} against {pair[1]}",
        columns=(
            Column("detector", ("detector", "n_seeds"), number=False),
            *(Column(f"{names[m]} {_ARROWS[m]}", (names[m], f"{names[m]} sd")) for m in MEASURES),
        ),
        rows=tuple(rows),
        notes=(
            *_seeds_note(found["fpr"] for found in summary.values()),
            *_skipped_notes(lines),
        ),
    )


def _ours(spread: Spread, best: bool) -> TableCell:
    deviation = None if spread.deviation is None else 100 * spread.deviation
    return TableCell((TablePart(str(spread), best),), (100 * spread.mean, deviation))


def _fpr_name(lines: Sequence[Line]) -> str:
    """Return the name of the FPR of these lines, such as FPR95."""
    names = sorted({line.evaluation.fpr_name for line in lines if line.evaluation is not None})
    if len(names) > 1:
        raise InputError(
            f"the results of {lines[0].id} against {lines[0].ood} have {' and '.join(names)}, "
            "which cannot be in one table. Make separate tables."
        )
    return names[0] if names else _PAPER_FPR


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

_Grid = dict[tuple[str, ...], dict[str, list[PaperCell]]]  # row, column, measures


def paper_table(table: PaperTable) -> Table:
    """Return a table of the paper as printed; the best numbers are bold, including ties."""
    grid, best = _grid(table), _best_cells((cell, cell.value) for cell in table.cells)
    first = next(iter(grid.values()))
    rows = []
    for head, by_column in grid.items():
        numbers = [
            TableCell(
                # One N/A stands for all measures, but each measure has its own dash.
                (TablePart("N/A"),)
                if all(cell.text == "N/A" for cell in cells)
                else tuple(TablePart(cell.text, cell in best) for cell in cells),
                tuple(cell.text for cell in cells),
            )
            for cells in by_column.values()
        ]
        rows.append((*_head_cells(head), *numbers))
    measures = [_paper_measure(cell.measure) for cell in next(iter(first.values()))]
    return Table(
        title=f"{table.number} of the paper: {table.caption}",
        columns=(
            *_head_columns(table, len(next(iter(grid)))),
            *(
                Column(title, tuple(f"{title} {measure.split()[0]}" for measure in measures))
                for title in first
            ),
        ),
        rows=tuple(rows),
        notes=(f"Each cell: {' / '.join(measures)}, per cent.", *_remark(table)),
    )


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
    rows = []
    for head, by_column in grid.items():
        for cells in zip(*by_column.values(), strict=True):
            measure = _paper_measure(cells[0].measure)
            compared = [
                _compared(cell, ours.get(cell), cell in best, cell in papers_best) for cell in cells
            ]
            rows.append(
                (
                    *_head_cells(head),
                    TableCell((TablePart(measure),), (cells[0].measure,)),
                    *compared,
                )
            )
    return Table(
        title=f"nescio beside {table.number} of the paper: {table.caption}",
        columns=(
            *_head_columns(table, len(next(iter(grid)))),
            Column("Measure", ("Measure",), number=False),
            *(
                Column(title, (title, f"{title} sd", f"{title} paper", f"{title} difference"))
                for title in next(iter(grid.values()))
            ),
        ),
        rows=tuple(rows),
        notes=(
            "Each cell: nescio's / the paper's / the difference, nescio's minus the paper's."
            if ours
            else "None of the results is of a set, an OOD set and a detector of this table.",
            *_seeds_note(ours.values()),
            *_other_fpr_note(lines),
            *_remark(table),
            *_skipped_notes(lines),
        ),
    )


def _our_cells(table: PaperTable, lines: Sequence[Line]) -> dict[PaperCell, Spread]:
    """Return the result for each cell of the paper; an FPR counts only at the paper's TPR."""
    summary = summarise(lines)
    at_95 = summarise([line for line in lines if not _has_other_fpr(line)])
    found = {}
    for cell in table.cells:
        of_pair = (at_95 if cell.measure == "fpr" else summary).get((cell.id, cell.ood), {})
        if cell.detector in of_pair:
            found[cell] = of_pair[cell.detector][cell.measure]
    return found


def _has_other_fpr(line: Line) -> bool:
    return line.evaluation is not None and line.evaluation.fpr_name != _PAPER_FPR


def _other_fpr_note(lines: Sequence[Line]) -> list[str]:
    if not any(map(_has_other_fpr, lines)):
        return []
    return [f"Results at another TPR than the paper's 95 % do not count for {_PAPER_FPR}."]


def _compared(cell: PaperCell, ours: Spread | None, best: bool, papers_best: bool) -> TableCell:
    """Return a cell with a result beside the paper's number."""
    if ours is None:
        missing = () if cell.value is None else (TablePart("not run"),)
        return TableCell(
            (*missing, TablePart(cell.text, papers_best)), (None, None, cell.text, None)
        )
    shown = _ours(ours, best)
    parts, difference = (*shown.parts, TablePart(cell.text, papers_best)), None
    if cell.value is not None:
        difference = 100 * ours.mean - cell.value
        parts = (*parts, TablePart(f"{difference:+z.2f}"))
    return TableCell(parts, (*shown.plain, cell.text, difference))


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
        method = (cell.row, cell.aggregation.capitalize()) if cell.aggregation else (cell.row,)
        row, column = ((cell.id,), cell.row) if table.turned else (method, cell.id)
        grid.setdefault(row, {}).setdefault(column, []).append(cell)
    return grid


def _head_cells(head: tuple[str, ...]) -> list[TableCell]:
    return [TableCell((TablePart(text),), (text,)) for text in head]


def _head_columns(table: PaperTable, n_heads: int) -> list[Column]:
    titles = ["ID set"] if table.turned else ["OOD score", "Aggregation"]
    return [Column(title, (title,), number=False) for title in titles[:n_heads]]


def _remark(table: PaperTable) -> list[str]:
    return [table.remark] if table.remark else []


def _paper_measure(measure: str) -> str:
    name = _PAPER_FPR if measure == "fpr" else measure.upper()
    return f"{name} {_ARROWS[measure]}"
