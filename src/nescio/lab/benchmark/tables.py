"""Tables of results, of the paper's numbers, and of both; in Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from nescio._io.files import no_formula, write_text
from nescio.lab.benchmark.paper import (
    PAPER_MAPS,
    PaperCell,
    PaperTable,
    find_paper_table,
    size_remark,
)
from nescio.lab.benchmark.results import MEASURES, Line, file_name, summarise
from nescio.metrics.comparison import Spread

_TITLES = {"fpr": "FPR95 ↓", "auroc": "AUROC ↑", "aupr": "AUPR ↑"}
_PAPER_MAP = "paper's mAP"
_MAP_NOTE = "The paper does not say on which split it measured its mAP."

Key = TypeVar("Key")

# --- a table and its formats ----------------------------------------------------------------------


@dataclass(frozen=True)
class TablePart:
    """A text within a cell."""

    text: str
    best: bool = False  # of the values of its kind in the table: it is bold
    code: bool = False


@dataclass(frozen=True)
class Column:
    """A column: its title, and whether it contains numbers."""

    title: str
    number: bool = True


TableCell = tuple[TablePart, ...]
"""A cell of a table; its parts are shown with " / " between them."""


@dataclass(frozen=True)
class Table:
    """A table, independent of any format."""

    title: str  # plain text; may be empty
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]  # each with one cell per column
    notes: tuple[str, ...] = ()  # plain text, shown below the table

    def to_markdown(self) -> str:
        """Return a Markdown table, with the title above and the notes below."""
        head = [_markdown(column.title) for column in self.columns]
        rule = "|".join("---:" if column.number else "---" for column in self.columns)
        body = [[" / ".join(map(_markdown_part, cell)) for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(cells)} |" for cells in (head, *body)]
        table = "\n".join([lines[0], f"|{rule}|", *lines[1:]])
        title = [f"**{_markdown(self.title)}**"] if self.title else []
        return "\n\n".join([*title, table, *map(_markdown, self.notes)])

    def to_latex(self) -> str:
        """Return a LaTeX tabular, which needs the package booktabs, with the notes below it."""
        layout = "".join("r" if column.number else "l" for column in self.columns)
        head = [_latex(column.title) for column in self.columns]
        body = [[" / ".join(map(_latex_part, cell)) for cell in row] for row in self.rows]
        lines = [" & ".join(cells) + r" \\" for cells in (head, *body)]
        title = [f"% {_one_line(self.title)}"] if self.title else []
        start = [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", lines[0], r"\midrule"]
        end = [r"\bottomrule", r"\end{tabular}"]
        notes = [rf"\par{{\footnotesize {_latex(note)}\par}}" for note in self.notes]
        return "\n".join([*title, *start, *lines[1:], *end, *notes])

    def to_csv(self) -> str:
        """Return CSV, with the cells as they are printed, without title and notes."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([column.title for column in self.columns])
        for row in self.rows:
            texts = (" / ".join(part.text for part in cell) for cell in row)
            writer.writerow([no_formula(text) for text in texts])
        return stream.getvalue()

    def write(self, folder: Path, name: str) -> None:
        """Write the table in every format; existing files are replaced."""
        folder.mkdir(exist_ok=True)
        for suffix, write in zip(("md", "tex", "csv"), FORMATS.values(), strict=True):
            write_text(folder / f"{name}.{suffix}", write(self), force=True)


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": lambda table: table.to_markdown() + "\n",
    "latex": lambda table: table.to_latex() + "\n",
    "csv": Table.to_csv,
}
"""The functions that format a table, by name; the text ends with a newline."""

_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$&])")
_LATEX_SPECIAL = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        # At the start of a row, LaTeX would read these as options of the row before.
        "[": "{[}",
        "*": "{*}",
        "±": r"$\pm$",
        "ε": r"$\varepsilon$",
        "↓": r"$\downarrow$",
        "↑": r"$\uparrow$",
    }
)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _markdown(text: str) -> str:
    return _MARKDOWN_SPECIAL.sub(r"\\\1", _one_line(text))


def _markdown_part(part: TablePart) -> str:
    escaped = _one_line(part.text).replace("|", r"\|").replace("`", "'")
    text = f"`{escaped}`" if part.code else _markdown(part.text)
    return f"**{text}**" if part.best else text


def _latex(text: str) -> str:
    return _one_line(text).translate(_LATEX_SPECIAL)


def _latex_part(part: TablePart) -> str:
    # A hyphen before a number is a minus sign.
    text = re.sub(r"^-(?=\d)", "$-$", _latex(part.text))
    text = rf"\texttt{{{text}}}" if part.code else text
    return rf"\textbf{{{text}}}" if part.best else text


# --- results --------------------------------------------------------------------------------------


def benchmark_tables(lines: Sequence[Line], paper: Sequence[str]) -> dict[str, Table]:
    """Return all tables of a benchmark, by the names of their files.

    `paper` has the keys of the paper's tables to compare the results with.
    """
    pairs = dict.fromkeys((line.id, line.ood) for line in lines)
    names = [f"{file_name(id_name)}-vs-{file_name(ood)}" for id_name, ood in pairs]
    tables = {"networks": network_table(lines)}
    tables |= zip(names, result_tables(lines), strict=True)
    return tables | {
        f"paper-{key}": paper_comparison(find_paper_table(key), lines) for key in paper
    }


def network_table(lines: Sequence[Line]) -> Table:
    """Return the results of training and of tuning, with the paper's mAP for its networks."""
    manifests = {(line.id, line.seed): line.manifest for line in lines}
    methods = sorted({method for manifest in manifests.values() for method in _tuned(manifest)})
    records: list[dict[str, Any]] = []
    for (id_name, seed), manifest in manifests.items():
        best = manifest.get("training", {}).get("best", {})
        records.append(
            {
                "ID set": id_name,
                "seed": seed,
                "network": manifest.get("model", ""),
                "hash": str(manifest.get("model_hash", ""))[:12],
                "best epoch": best.get("epoch"),
                "val loss": best.get("val_loss"),
                "val mAP": best.get("val_map"),
                _PAPER_MAP: PAPER_MAPS.get(manifest.get("model", ""), {}).get(id_name),
                **dict.fromkeys(methods),
                **_tuned(manifest),
            }
        )
    of_paper = any(record[_PAPER_MAP] for record in records)
    titles = [title for title in records[0] if of_paper or title != _PAPER_MAP]
    heads = (Column(title, title not in ("ID set", "network", "hash")) for title in titles)
    rows = (tuple(_network_cell(title, record[title]) for title in titles) for record in records)
    notes = (*_protocol_note(lines), *((_MAP_NOTE,) if of_paper else ()))
    return Table("Networks", tuple(heads), tuple(rows), notes)


def _network_cell(title: str, value: Any) -> TableCell:
    text = "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
    return (TablePart(text, code=bool(text) and title in ("network", "hash")),)


def _tuned(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return epsilon and, if not 1, the temperature of each tuned method and aggregate."""
    settings = {}
    for setting in (manifest.get("tuning") or {}).get("best", []):
        temperature = setting["temperature"] or 1
        shown = "" if temperature == 1 else f", T = {temperature:g}"
        name = f"{setting['method']} {setting['aggregate']} ε"
        settings[name] = f"{setting['epsilon']:g}{shown}"
    return settings


def result_tables(lines: Sequence[Line]) -> list[Table]:
    """Return one table per pair of an ID and an OOD set, sorted by FPR.

    Values are in per cent: the mean over seeds and, for two or more, the standard deviation.
    """
    tables = []
    for pair in dict.fromkeys((line.id, line.ood) for line in lines):
        ours = [line for line in lines if (line.id, line.ood) == pair]
        summary = summarise(ours).get(pair, {})
        columns = [
            (measure, {name: by[measure] for name, by in summary.items()}) for measure in MEASURES
        ]
        fprs = {name: by["fpr"] for name, by in summary.items()}
        heads = (Column("detector", number=False), *(Column(_TITLES[m]) for m in MEASURES))
        rows = _detector_rows(sorted(fprs, key=lambda name: fprs[name].mean), columns)
        notes = (*_seeds_note(fprs.values()), *_protocol_note(ours), *_skipped_notes(ours))
        tables.append(Table(" against ".join(pair), heads, rows, notes))
    return tables


def _detector_rows(
    names: Iterable[str], columns: Sequence[tuple[str, Mapping[str, Spread]]]
) -> tuple[tuple[TableCell, ...], ...]:
    """Return one row per detector; a column is a measure and its values."""
    best = [
        _best(measure, {name: 100 * spread.mean for name, spread in spreads.items()})
        for measure, spreads in columns
    ]
    rows = []
    for name in names:
        cells: list[TableCell] = [
            (TablePart(str(spreads[name]), name in bold),)
            for (_, spreads), bold in zip(columns, best, strict=True)
        ]
        rows.append(((TablePart(name, code=True),), *cells))
    return tuple(rows)


def _best(measure: str, values: Mapping[Key, float]) -> set[Key]:
    """Return the keys of the best values, rounded as printed; none if there is only one value."""
    if len(values) < 2:
        return set()
    printed = {key: round(value, 2) for key, value in values.items()}
    best = (min if measure == "fpr" else max)(printed.values())
    return {key for key, value in printed.items() if value == best}


def _seeds_note(spreads: Iterable[Spread]) -> list[str]:
    """Return a note with the unit and the number of seeds."""
    counts = sorted({spread.n for spread in spreads})
    if not counts:
        return []
    if counts == [1]:
        return ["Per cent, of one seed."]
    over = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return [f"Per cent, mean ± standard deviation over {over} seeds."]


def _protocol_note(lines: Iterable[Line], *, always: bool = False) -> tuple[str, ...]:
    """Return a note that names the protocol; the paper's, which is the default, only if asked."""
    names = sorted({line.manifest["protocol"] for line in lines if "protocol" in line.manifest})
    if not names or (names == ["paper"] and not always):
        return ()
    return (f"Protocol: {' and '.join(names)}.",)


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
    rows = [
        (*_head_cells(head), *(_printed(cells, best) for cells in by_column.values()))
        for head, by_column in grid.items()
    ]
    measures = dict.fromkeys(_TITLES[cell.measure] for cell in table.cells)
    return Table(
        title=f"{table.number} of the paper: {table.caption}",
        columns=_columns(grid),
        rows=tuple(rows),
        notes=(f"Each cell: {' / '.join(measures)}, per cent.", *filter(None, [table.remark])),
    )


def _printed(cells: Sequence[PaperCell], best: set[PaperCell]) -> TableCell:
    """Return the measures of a set; one N/A stands for all, but each has its own dash."""
    shown = cells[:1] if all(cell.text == "N/A" for cell in cells) else cells
    return tuple(TablePart(cell.text, cell in best) for cell in shown)


def paper_comparison(table: PaperTable, lines: Sequence[Line]) -> Table:
    """Return a table of the paper with results beside its numbers, one row per measure.

    The best results and the best of the paper's numbers are bold. The lines must be of the network
    that the table is about, which is not checked. They are matched by the names of ID set, OOD set
    and detector; other lines are ignored.
    """
    wanted = {(cell.id, cell.ood, cell.detector) for cell in table.cells if cell.detector}
    lines = [line for line in lines if (line.id, line.ood, line.detector) in wanted]
    summary = summarise(lines)
    ours = {
        cell: summary[cell.id, cell.ood][cell.detector][cell.measure]
        for cell in table.cells
        if cell.detector in summary.get((cell.id, cell.ood), {})
    }
    sizes = {(line.id, line.ood, line.evaluation.n_ood) for line in lines if line.evaluation}
    best = _best_cells((cell, 100 * spread.mean) for cell, spread in ours.items())
    papers_best = _best_cells((cell, cell.value) for cell in table.cells)
    grid = _grid(table)
    rows = []
    for head, by_column in grid.items():
        for cells in zip(*by_column.values(), strict=True):
            measure = cells[0].measure
            compared = (
                _compared(cell, ours.get(cell), cell in best, cell in papers_best) for cell in cells
            )
            rows.append((*_head_cells(head), (TablePart(_TITLES[measure]),), *compared))
    return Table(
        title=f"nescio beside {table.number} of the paper: {table.caption}",
        columns=_columns(grid, "Measure"),
        rows=tuple(rows),
        notes=(
            "Each cell: nescio's / the paper's / the difference, nescio's minus the paper's."
            if ours
            else "None of the results is of a set, an OOD set and a detector of this table.",
            *_seeds_note(ours.values()),
            *_protocol_note(lines, always=True),
            *filter(None, [table.remark]),
            *filter(None, (size_remark(*size) for size in sorted(sizes))),
            *_skipped_notes(lines),
        ),
    )


def _compared(cell: PaperCell, ours: Spread | None, best: bool, papers_best: bool) -> TableCell:
    """Return a cell with a result beside the paper's number."""
    theirs = TablePart(cell.text, papers_best)
    if ours is None:
        return (theirs,) if cell.value is None else (TablePart("not run"), theirs)
    if cell.value is None:
        return TablePart(str(ours), best), theirs
    difference = TablePart(f"{100 * ours.mean - cell.value:+z.2f}")
    return TablePart(str(ours), best), theirs, difference


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
        head: _Head = (("OOD score", cell.row),)
        if cell.aggregation:
            head = (*head, ("Aggregation", cell.aggregation.capitalize()))
        grid.setdefault(head, {}).setdefault(cell.id, []).append(cell)
    return grid


def _columns(grid: _Grid, *further: str) -> tuple[Column, ...]:
    head, by_column = next(iter(grid.items()))
    texts = (*(title for title, _ in head), *further)
    return (*(Column(title, number=False) for title in texts), *map(Column, by_column))


def _head_cells(head: _Head) -> list[TableCell]:
    return [(TablePart(text),) for _, text in head]


# --- detectors side by side -----------------------------------------------------------------------


def mean_fprs(lines: Sequence[Line]) -> dict[str, float]:
    """Return the mean FPR of each detector over the OOD sets and seeds, the lowest first."""
    by_ood = list(summarise(lines).values())
    means = {name: mean(detectors[name]["fpr"].mean for detectors in by_ood) for name in by_ood[0]}
    return dict(sorted(means.items(), key=lambda entry: entry[1]))


def fpr_table(
    lines: Sequence[Line], names: Sequence[str], title: str, notes: Sequence[str]
) -> Table:
    """Return the FPR of some detectors on every OOD set, in per cent; the best of them are bold."""
    by_ood = {ood: detectors for (_, ood), detectors in summarise(lines).items()}
    columns = {ood: {name: of[name]["fpr"] for name in names} for ood, of in by_ood.items()}
    rows = _detector_rows(names, [("fpr", fprs) for fprs in columns.values()])
    heads = (Column("detector", number=False), *map(Column, columns))
    return Table(title, heads, rows, tuple(notes))
