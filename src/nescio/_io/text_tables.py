"""Text files of tables: CSV, TSV and JSON lines, also compressed with gzip, read as a whole."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from typing import TYPE_CHECKING, Any

from nescio._io.files import Files
from nescio.errors import FileFormatError, InputError, require

if TYPE_CHECKING:
    from nescio._io.tables import Columns

UNNAMED_COLUMN = "Unnamed: 0"
"""How pandas calls the first column of a CSV file without a name."""

_MISSING = ["", "nan", "NaN", "NA", "N/A", "n/a", "null", "NULL", "None", "<NA>", "NaT", "#N/A"]
# A sign or a fraction: such a cell in a first line is data, and not the name of a column.
_DATA = re.compile(r"[-+]\d+|[-+]?\d*\.\d+(e[-+]?\d+)?", re.IGNORECASE)
_FRACTION = re.compile(r"[-+]?\d+([.,])\d+")
_JSON_BLOCK = 1 << 26  # bytes; a line must fit


def read_text(files: Files, columns: Columns) -> Any:
    """Read a CSV, TSV or JSON lines file as a table of pyarrow."""
    pyarrow = require("pyarrow", "files")
    suffix, what = files.suffix.removesuffix(".gz"), files.address
    with files.open(files.paths[0]) as stream:
        data = stream.read()
    if files.suffix.endswith(".gz"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise FileFormatError(f"cannot read {what} as gzip: {error}.") from error
    if not data.strip():
        raise FileFormatError(f"{what} is empty.")
    if suffix == ".jsonl":
        json = require("pyarrow.json", "files")
        options = json.ReadOptions(block_size=min(_JSON_BLOCK, len(data) + 1))
        try:
            return json.read_json(pyarrow.BufferReader(data), options)
        except (pyarrow.ArrowException, ValueError) as error:
            reason = re.sub(r"(in row \d+)", r"\1 (counted from 0)", str(error).partition("\n")[0])
            if data.lstrip().startswith(b"["):
                reason = "it holds one array. Write one object per line."
            raise FileFormatError(f"cannot read {what} as JSON lines: {reason}") from error
    first_line = data.partition(b"\n")[0]
    if declared := re.fullmatch(rb"(?:\xef\xbb\xbf)?sep=(.)\r?", first_line):  # as Excel writes it
        first_line, data = declared[1], data.partition(b"\n")[2]
    usual = "\t" if suffix == ".tsv" else ","
    separator = columns.sep or max(
        usual, *";\t,|", key=lambda sign: first_line.count(sign.encode())
    )
    names = _csv_names(data, separator, what)
    decimal = columns.decimal or _decimal_sign(data, names, separator, columns)
    try:
        try:
            table = _read_csv(data, names, separator, decimal, columns)
        except pyarrow.ArrowException:  # a single thread can tell the row
            table = _read_csv(data, names, separator, decimal, columns, use_threads=False)
    except pyarrow.ArrowException as error:
        raise FileFormatError(f"cannot read {what} as CSV: {_reason(error, names)}") from error
    if not len(table):  # its columns have no types either
        raise InputError("the table has no rows.")
    return table


def _reason(error: Exception, names: list[str]) -> str:
    """Return what pyarrow says about a CSV file, with the row and the name of the column."""
    # pyarrow counts from 1, with the header.
    text = re.sub(
        r"Row #(\d+)",
        lambda match: f"row {int(match[1]) - 2} (the first below the header is row 0)",
        str(error),
    )
    if cell := re.search(r"CSV column #(\d+): (.*): CSV conversion error .* value ('.*')", text):
        where = f"{cell[2]}, column {names[int(cell[1])]!r}"
        return f"{where}: {cell[3]} is not a number. Correct it; a missing value is an empty cell."
    return text.removeprefix("CSV parse error: ") + ". Every row must have a cell for each column."


def _decimal_sign(data: bytes, names: list[str], separator: str, columns: Columns) -> str:
    """Return the sign in the first numbers that are not kept as text; raise if there are two."""
    text, is_text = data[: 1 << 16].decode("utf-8", "replace"), columns.text_columns(names)
    found: dict[str, str] = {}
    for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
        for name, cell in zip(names, row, strict=False):
            if not is_text.get(name) and (number := _FRACTION.fullmatch(cell)):
                found.setdefault(number[1], f"{name!r} ({cell})")
    if len(found) > 1:
        raise InputError(
            f"numbers with a decimal comma in column {found[',']}, and with a decimal point in "
            f"column {found['.']}: write one kind, --ignore one, or pass decimal=... (--decimal)."
        )
    return next(iter(found), ".")


def _read_csv(
    data: bytes, names: list[str], separator: str, decimal: str, columns: Columns, **options: Any
) -> Any:
    """Return a table with the columns of a CSV file, in the types that are known or inferred."""
    pyarrow, csv_files = require("pyarrow", "files"), require("pyarrow.csv", "files")
    is_text = columns.text_columns(names)
    if names[0] == UNNAMED_COLUMN:
        is_text[UNNAMED_COLUMN] = True
    # The types are given by name: the first line is replaced by names without spaces around them.
    header = csv_files.ReadOptions(column_names=names, skip_rows_after_names=1, **options)
    convert = csv_files.ConvertOptions(
        column_types={
            name: pyarrow.string() if text else pyarrow.float64() for name, text in is_text.items()
        },
        null_values=_MISSING,
        decimal_point=decimal,
        # Times stay text, as they were written.
        timestamp_parsers=["never"],
    )
    parse = csv_files.ParseOptions(delimiter=separator, newlines_in_values=True)
    # A thread of pyarrow may release the memory after `read_csv` has returned. For memory of Python
    # it would need the interpreter, and abort the process if this is about to exit: a copy.
    copy = pyarrow.BufferOutputStream()
    copy.write(data)
    return csv_files.read_csv(pyarrow.BufferReader(copy.getvalue()), header, parse, convert)


def _csv_names(data: bytes, separator: str, what: object) -> list[str]:
    """Return the names of the columns of a CSV file; raise unless they can be names."""
    try:
        text = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline="")
        cells = next(row for row in csv.reader(text, delimiter=separator) if row)
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{what} is not UTF-8 text. Save it as CSV in UTF-8.") from error
    except (csv.Error, StopIteration) as error:
        raise FileFormatError(f"cannot read {what} as CSV: {error}.") from error
    names = [cell.strip() for cell in cells]
    names[0] = names[0] or UNNAMED_COLUMN
    if "" in names:
        raise FileFormatError(
            f"column {names.index('') + 1} of {what} has no name. Give it a name, or remove the "
            "separator at the end of each line."
        )
    number = next((name for name in names if _DATA.fullmatch(name)), None)
    if number is not None:
        raise FileFormatError(
            f"the first line of {what} must be a header, but holds the number {number}. Add a line "
            "with the names of the columns."
        )
    return names
