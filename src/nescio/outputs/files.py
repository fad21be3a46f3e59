"""Outputs to and from files: safetensors, which has everything, NumPy files, and tables.

There is one reader, for any address: as a whole, as a random sample of rows, or in blocks of rows.
What the columns of a table are is decided once, from their names and types. A whole file is one
block; only `nescio score` and `nescio monitor` read several.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from nescio._io.files import MANY, Files, as_groups, as_ids, find_files
from nescio._io.frames import read_frame
from nescio._io.tables import (
    GROUP,
    MATRICES,
    Columns,
    TableFiles,
    content,
    label_content,
    matching_names,
)
from nescio._io.tensors import FileKind, Stacked, decode_tensors, read_tensors, verify_checksum
from nescio._validation import Array, check_logits, is_frame
from nescio.errors import (
    FileError,
    FileFormatError,
    InputError,
    ParameterError,
    ShapeError,
    error_context,
)
from nescio.outputs.outputs import (
    Head,
    Outputs,
    as_column,
    check_same_arrays,
    from_content,
    join_columns,
    match_labels,
)

TEXTS = (".csv", ".tsv", ".jsonl")
TABLES = (*MANY, *TEXTS, *(f"{suffix}.gz" for suffix in TEXTS))
"""The endings of tables."""

READABLE = (".safetensors", ".npy", ".npz", *TABLES)
"""The endings of files that can be read as outputs."""

ANY_COLUMNS = Columns()

MAX_ROWS = 2**22
"""The most rows that calibration and metrics read; of larger inputs, a random sample is read."""

_MAX_BYTES = 2**31  # of the arrays of a sample

# Few enough bytes that several blocks fit in memory, and enough rows that Python's overhead per
# block does not matter. The borders of blocks depend only on the data.
_BLOCK_BYTES = 1 << 25
_MOST_ROWS = 1 << 16
_FEWEST_ROWS = 1 << 6

_KIND = FileKind("nescio.outputs", "file of a model's outputs")
_OUR_HEADER = {*_KIND.header(), "sha256"}
_ARRAYS = "arrays."
_KEPT = "kept."
_HEAD = ("head.weight", "head.bias")

_DAMAGED = (
    "is not a NumPy file, is truncated or damaged, or holds Python objects; nescio never unpickles."
)


@dataclass
class Block:
    """Consecutive rows of an input."""

    stream: OutputsStream
    start: int  # the number of rows before this block
    rows: Any  # as they were read: a table of pyarrow, or outputs

    @property
    def place(self) -> str:
        """What an error is about: the input, or some of its rows."""
        return rows_place(
            self.stream.address, self.start, self.stream.block_rows, self.stream.n_rows
        )

    @cached_property
    def outputs(self) -> Outputs:
        """The rows as outputs; of Parquet and Arrow files without ids and kept columns."""
        if isinstance(self.rows, Outputs):
            return self.rows
        with error_context(self.place):
            outputs = self.stream.outputs(label_content(self.stream.roles, self.rows))
            if self.stream.n_labels not in (None, outputs.n_labels):
                raise ShapeError(
                    f"the first rows have {self.stream.n_labels} labels, but these have "
                    f"{outputs.n_labels}."
                )
        return outputs

    @property
    def ids(self) -> Any:
        """The ids, as an array or as a column of text of pyarrow; None if there are none."""
        if isinstance(self.rows, Outputs):
            return self.rows.ids
        name = self.stream.roles.ids
        if name is None:
            return None
        column = self.rows.column(name)
        is_text = str(column.type) in ("string", "large_string")
        return column.fill_null("") if is_text else np.array(as_ids(column))

    @property
    def kept(self) -> dict[str, Any]:
        """The kept columns, as arrays or, with their types, as columns of pyarrow."""
        if isinstance(self.rows, Outputs):
            return {name: self.rows.kept[name] for name in self.stream.kept_names}
        return {name: self.rows.column(name) for name in self.stream.roles.kept}

    @property
    def groups(self) -> Array | None:
        """The groups, if the column that holds them was named."""
        if self.stream.group_column is None:
            return None
        if isinstance(self.rows, Outputs):
            return self.rows.kept[GROUP]
        return as_groups(self.rows.column(self.stream.roles.group))

    def take(self, rows: Array) -> Outputs:
        """Return some of the rows as outputs, with ids and kept columns."""
        if isinstance(self.rows, Outputs):
            return self.rows[rows]
        with error_context(self.place):
            return self.stream.outputs(content(self.stream.roles, self.rows.take(rows)))


class OutputsStream:
    """A model's outputs in files, which may be larger than memory, to read as a whole or in blocks.

    Parquet and Arrow files are read block by block, and safetensors and .npy files are mapped into
    memory. Others are read as a whole. If `from_probs` is None, what looks like probabilities is
    rejected.
    """

    def __init__(
        self,
        address: str | Path | Files,
        columns: Columns = ANY_COLUMNS,
        *,
        from_probs: bool | None = False,
        verify: bool = True,
    ) -> None:
        files = address if isinstance(address, Files) else find_files(address)
        self.address = files.address
        self.from_probs = from_probs
        self.group_column = columns.group_column
        self.n_labels: int | None = None  # of the first block, once it has been read
        self.label_names: tuple[str, ...] | None = None
        self.ignored: list[str] = []
        self._table: TableFiles | None = None
        if files.suffix not in READABLE:
            raise FileError(
                f"cannot read {files.address}: the name must end in {', '.join(READABLE)}."
            )
        with error_context(files.address):
            if files.suffix in TABLES:
                self._table = TableFiles(files, columns)
                self.roles = columns.roles(self._table.schema)
                self.ignored = list(self.roles.ignored)
                self.n_rows, self.kept_names = self._table.n_rows, self.roles.kept
                self._row_bytes = self._table.row_bytes
            else:
                self._whole = self._read_arrays(files, columns, verify)
                self.n_rows = len(self._whole)
                own = () if self.group_column is None else (GROUP,)
                self.kept_names = tuple(name for name in self._whole.kept if name not in own)
                self._row_bytes = _row_bytes(self._whole)
        self.block_rows = _rows_per_block(self._row_bytes)  # of each block but the last
        self.n_blocks = math.ceil(self.n_rows / self.block_rows)

    def _read_arrays(self, files: Files, columns: Columns, verify: bool) -> Outputs:
        if columns.id_column or len(columns.ignore) or len(columns.keep) or columns.sep:
            raise InputError(
                "id_column, ignore, keep and sep (--id-column, --ignore, --keep or --text-column, "
                f"--sep) are for tables: {', '.join(TABLES)} files."
            )
        whole = self.outputs(read_arrays(files, verify=verify))
        if columns.group_column is not None:
            kept = dict(whole.kept)
            (name,) = matching_names([columns.group_column], list(kept))
            kept[GROUP] = as_groups(kept[name])
            whole = replace(whole, kept=kept)
        if columns.labels is None:
            return whole
        return whole.select_labels(columns.chosen(whole.label_names or ()))

    def outputs(self, arguments: dict[str, Any]) -> Outputs:
        """Make outputs from their arguments, with logits that may be probabilities."""
        return from_content(arguments, from_probs=bool(self.from_probs))

    def blocks(self, first: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Give the blocks in order, from block `first` on, up to block `stop`."""
        if not self.n_rows:
            raise InputError(f"{self.address} has no rows.")
        numbers = range(first, self.n_blocks if stop is None else stop)
        for number, rows in zip(numbers, self._read(first), strict=False):
            block = Block(self, number * self.block_rows, rows)
            if not number:
                self.n_labels, self.label_names = block.outputs.n_labels, block.outputs.label_names
                self._check_logits(block.outputs)
            yield block

    def whole(self, max_rows: int | None = None) -> Outputs:
        """Return all rows, or a random sample of at most `max_rows` rows; see `read_outputs`."""
        if max_rows is not None and self.n_rows * self._row_bytes > _MAX_BYTES:
            row_bytes = _row_bytes(next(self.blocks()).outputs)
            max_rows = min(max_rows, max(1, _MAX_BYTES // max(1, row_bytes)))
        if max_rows is not None and self.n_rows > max_rows:
            return self._sample(max_rows)
        if self._table is None:
            whole = self._whole
        else:
            whole = self.outputs(content(self.roles, self._table.whole(self.roles.read)))
        self._check_logits(whole)
        return whole

    def _read(self, first: int) -> Iterator[Any]:
        if self._table is not None:
            start = first * self.block_rows
            yield from self._table.blocks(self.block_rows, start, self.roles.read)
            return
        for start in range(first * self.block_rows, self.n_rows, self.block_rows):
            yield self._whole[start : start + self.block_rows]

    def _sample(self, n_rows: int) -> Outputs:
        """Return random rows, in their order."""
        rng = np.random.default_rng(0)
        rows = np.sort(rng.choice(self.n_rows, n_rows, replace=False, shuffle=False))
        parts = []
        for block in self.blocks():
            stop = block.start + self.block_rows
            first, last = np.searchsorted(rows, [block.start, stop])
            if last > first:
                parts.append(block.take(rows[first:last] - block.start))
        sample = Outputs.concat(parts)
        manifest = {**sample.manifest, "sampled_from": self.n_rows}
        return replace(sample, manifest=manifest)

    def _check_logits(self, outputs: Outputs) -> None:
        """Raise if these look like probabilities, unless the user said what they are."""
        if self.from_probs is None:
            with error_context(self.address):
                check_logits(outputs.logits)


def read_outputs(
    data: Any,
    *,
    from_probs: bool | None,
    columns: Columns = ANY_COLUMNS,
    max_rows: int | None = None,
    first: Outputs | None = None,
) -> Outputs:
    """Return outputs from an address, a data frame, an array of logits, or as they are.

    With `max_rows`, a larger input (or one of more than 2 GiB) is a random sample of its rows: the
    guarantees of a threshold hold for rows that were chosen without looking at them. With `first`,
    other outputs of the same model, the result has the labels of these.
    """
    wanted = columns
    if first is not None:
        wanted = replace(columns, id_required=False, expected_by="the first data")
        if first.label_names is not None:
            wanted = replace(wanted, labels=None, ignore=(), expected=first.label_names)
    if is_path(data):
        files = find_files(data)
        if first is not None and files.suffix not in TABLES:  # the options are for the others
            wanted = ANY_COLUMNS
        stream = OutputsStream(files, wanted, from_probs=from_probs)
        if not stream.n_rows:
            raise InputError(f"{stream.address} has no rows.")
        with error_context(stream.address):
            return _labels_like(stream.whole(max_rows), first, columns)
    if isinstance(data, Outputs):
        outputs, unsure = data, from_probs is not False  # they hold logits
    else:
        arguments = read_frame(data, wanted) if is_frame(data) else {"logits": data}
        outputs, unsure = from_content(arguments, from_probs=bool(from_probs)), from_probs is None
    if unsure:
        check_logits(outputs.logits)
    return _labels_like(outputs, first, columns)


def is_path(data: Any) -> bool:
    """Return whether data is given as the address of files."""
    return isinstance(data, str | Path)


def _labels_like(outputs: Outputs, first: Outputs | None, columns: Columns) -> Outputs:
    """Return outputs with the labels of the first data, if both know the names of theirs."""
    names = None if first is None else first.label_names
    if first is None or names is None or outputs.label_names in (None, names):
        return outputs
    if columns.labels is not None:
        return outputs.select_labels(names)
    if set(outputs.label_names or ()) != set(names):  # of another model, which the caller reports
        return outputs
    return match_labels(outputs, names, tuple(first.arrays))


def rows_place(address: str, start: int, size: int, n_rows: int) -> str:
    """Return what an error is about: a file, or some of its rows."""
    if not start:  # row numbers are those of the file
        return address
    last = min(start + size, n_rows) - 1
    return f"{address}, rows {start:,} to {last:,} (counted from 0 in what follows)"


def _row_bytes(outputs: Outputs) -> int:
    arrays = (outputs.logits, outputs.features, outputs.labels, *outputs.arrays.values())
    return sum(array[:1].nbytes for array in arrays if array is not None)


def _rows_per_block(row_bytes: float) -> int:
    """Return how many rows a block has: a power of two."""
    fit = max(_FEWEST_ROWS, _BLOCK_BYTES / max(row_bytes, 1))
    return min(_MOST_ROWS, 1 << math.floor(math.log2(fit)))


def check_outputs_target(path: str | Path) -> None:
    """Raise unless outputs can be written under this name."""
    if Path(path).suffix.lower() != ".safetensors":
        raise ParameterError(f"cannot write {path}: the name must end in .safetensors.")


def save_in_parts(
    path: str | Path, parts: Sequence[Outputs], manifest: Mapping[str, Any], *, force: bool = False
) -> None:
    """Write the outputs of consecutive samples as one file.

    Parts that are memory-mapped stay on disk: together they may be larger than memory.
    """
    check_outputs_target(path)
    check_same_arrays(parts)
    first = parts[0]
    tensors: dict[str, Array | Stacked] = {}
    for name in (*(name for name in MATRICES if first.get(name) is not None), *first.arrays):
        key = name if name in MATRICES else _ARRAYS + name
        tensors[key] = Stacked([part.get(name) for part in parts])
    if first.head is not None:
        tensors |= dict(zip(_HEAD, (first.head.weight, first.head.bias), strict=True))
    if first.ids is not None:
        ids = [str(name) for part in parts if part.ids is not None for name in part.ids]
        tensors |= _pack_strings("ids", ids)
    metadata: dict[str, Any] = {"label_names": first.label_names, "manifest": dict(manifest)}
    kept = join_columns([part.kept for part in parts])
    if kept:
        metadata["kept"] = list(kept)
        for number, column in enumerate(kept.values()):
            key = f"{_KEPT}{number}"
            numbers = column.dtype.kind in "fiub"
            tensors |= {key: column} if numbers else _pack_strings(key, as_ids(column))
    try:
        _KIND.write(path, tensors, metadata, force=force)
    except TypeError as error:
        raise InputError(f"the manifest must hold what JSON can hold: {error}.") from error


# --- files of arrays -----------------------------------------------------------------------------


def read_arrays(files: Files, *, verify: bool = True) -> dict[str, Any]:
    """Return the arguments of `Outputs` from a .safetensors, .npy or .npz file."""
    path = files.paths[0]
    if files.remote is not None and files.suffix in (".npy", ".npz"):
        raise FileError(
            f"cannot read {files.address}: NumPy files cannot be remote. Copy it to a local file "
            "first."
        )
    if files.suffix == ".npy":
        return _read_npy(Path(path))
    if files.suffix == ".npz":
        return _read_npz(Path(path))
    if files.remote is None:
        return parse_tensors(files.address, *read_tensors(path), verify=verify)
    with files.open(path) as stream:
        tensors = decode_tensors(stream.read(), files.address)
    return parse_tensors(files.address, *tensors, verify=verify)


def parse_tensors(
    path: object,
    tensors: Mapping[str, Array],
    metadata: Mapping[str, Any],
    *,
    verify: bool = True,
    kept: bool = True,
) -> dict[str, Any]:
    """Return the arguments of `Outputs` from the content of a .safetensors file."""
    if not _OUR_HEADER.isdisjoint(metadata):  # other programs may write our metadata without it
        _KIND.check(metadata, path)
        if verify:
            verify_checksum(tensors, metadata, path)
    if "logits" not in tensors:
        raise FileFormatError(f"{path} has no array named logits; it has {sorted(tensors)}.")
    content: dict[str, Any] = {name: tensors[name] for name in MATRICES if name in tensors}
    if all(name in tensors for name in _HEAD):
        content["head"] = Head(*(tensors[name] for name in _HEAD))
    if "ids.utf8" in tensors and "ids.ends" in tensors:
        content["ids"] = _unpack_strings(path, "ids", tensors)
    if kept:
        content["kept"] = _unpack_kept(path, tensors, metadata.get("kept", []))
    label_names, manifest = metadata.get("label_names"), metadata.get("manifest", {})
    try:
        "".join(label_names or ()).encode()  # all of them are text that UTF-8 can encode
        readable = isinstance(label_names, list | None) and isinstance(manifest, dict)
    except (TypeError, UnicodeEncodeError):
        readable = False
    if not readable:
        raise FileFormatError(f"{path} is damaged: unreadable metadata.")
    arrays = {
        name.removeprefix(_ARRAYS): array
        for name, array in tensors.items()
        if name.startswith(_ARRAYS)
    }
    return content | {"label_names": label_names, "manifest": manifest, "arrays": arrays}


def _pack_strings(key: str, strings: Sequence[str]) -> dict[str, Array | Stacked]:
    encoded = [text.encode() for text in strings]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return {f"{key}.utf8": np.frombuffer(b"".join(encoded), np.uint8), f"{key}.ends": ends}


def _unpack_strings(path: object, key: str, tensors: Mapping[str, Array]) -> list[str]:
    data, ends = tensors[f"{key}.utf8"].tobytes(), tensors[f"{key}.ends"].reshape(-1)
    bounds = [0, *ends.tolist()]
    in_order = all(start <= end for start, end in itertools.pairwise(bounds))
    if ends.dtype.kind not in "iu" or not in_order or bounds[-1] != len(data):
        raise FileFormatError(f"{path} is damaged: its {key} do not match their lengths.")
    try:
        return [data[start:end].decode() for start, end in itertools.pairwise(bounds)]
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is damaged: its {key} are not text.") from error


def _unpack_kept(path: object, tensors: Mapping[str, Array], names: Any) -> dict[str, Array]:
    """Return the kept columns of a .safetensors file; text has two arrays, numbers have one."""
    columns: dict[str, Array] = {}
    for number, name in enumerate(names if isinstance(names, list) else ()):
        key = f"{_KEPT}{number}"
        if f"{key}.utf8" in tensors and f"{key}.ends" in tensors:
            strings = _unpack_strings(path, key, tensors)
            columns[str(name)] = np.array(strings, dtype=object)
        elif key in tensors:
            columns[str(name)] = np.asarray(tensors[key])
        else:
            raise FileFormatError(f"{path} is damaged: the kept column {name!r} is missing.")
    return columns


def _read_npy(path: Path) -> dict[str, Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy raises many kinds for damaged files and archives
        raise FileFormatError(f"{path} {_DAMAGED}") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise FileFormatError(f"{path} is an .npz archive: rename it to end in .npz.")
    return {"logits": array}


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            names = list(archive.files)
            logits = names[0] if len(names) == 1 else "logits"
            if logits not in names:
                raise FileFormatError(f"{path} has no array named logits; it has {sorted(names)}.")
            optional = (*MATRICES[1:], "ids", "label_names")
            headers = {name: _array_header(archive, name) for name in names}
            for name in ("ids", "label_names"):
                if name in names and headers[name][1].hasobject:
                    raise FileFormatError(
                        f"array {name!r} of {path} holds Python objects: save "
                        f"np.array(list({name}), dtype=str) instead."
                    )
            content: dict[str, Any] = {"logits": archive[logits]}
            content |= {name: archive[name] for name in optional if name in names}
            head = [archive[name] for name in _HEAD if name in names]
            own_names = [name for name in names if name not in (logits, *optional, *_HEAD)]
            n_samples = len(content["logits"])
            arrays = {
                name: archive[name]
                for name in own_names
                for shape, dtype in [headers[name]]
                if len(shape) == 2 and shape[0] == n_samples and dtype.kind in "fiu"
            }
    except FileFormatError:
        raise
    except Exception as error:  # as above
        raise FileFormatError(f"{path} {_DAMAGED}") from error
    if "label_names" in content:
        as_column("label_names", content["label_names"])
    if len(head) == len(_HEAD):
        content["head"] = Head(*head)
    return content | {"arrays": arrays}


def _array_header(archive: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and type of an array: it may have gigabytes that are not needed."""
    members = archive.zip.namelist()
    with archive.zip.open(name if name in members else f"{name}.npy") as stream:
        read = (read_array_header_1_0, read_array_header_2_0)[read_magic(stream) != (1, 0)]
        shape, _, dtype = read(stream)
    return shape, dtype
