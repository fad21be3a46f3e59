"""Files: checks of paths, atomic writing, tables to write, the files of an input, and locks.

A file is written completely or not at all, and replaces an existing file only with `force`. An
input is a file, a pattern, a folder, or a remote address (through fsspec).
"""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array
from nescio.errors import FileError, MissingDependencyError, ParameterError, require

MANY = (".parquet", ".arrow", ".feather")
"""The endings of files of which several can be one input."""

_WRITABLE = (".parquet", ".csv", ".jsonl")
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+:[/:]", re.IGNORECASE)  # a Path has one slash of two
_PATTERN = re.compile(r"[*?[]")
_FLOAT = re.compile(r"^(-?\d+)\.0$")  # a whole number as a float
_TEMPORARY = re.compile(r"\.nescio-[0-9a-f]{16}")
_POLL_SECONDS = 0.2
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a formula begins in a spreadsheet
_HELD = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}  # by another process


def existing_file(path: str | Path) -> Path:
    """Return the path of a file that can be read, or raise an error that says why it cannot."""
    path = Path(path)
    with explained("read", path):
        if "\0" in str(path):
            raise ValueError("a path cannot contain a NUL character")
        if path.is_dir():
            raise FileError(f"{path} is a directory, but a file is needed.")
        if not path.exists():
            raise FileError(f"there is no file {path}.")
        if not path.is_file():
            raise FileError(f"{path} is not a regular file.")
        if not os.access(path, os.R_OK):
            raise FileError(f"no permission to read {path}.")
    return path


def check_target(path: str | Path, *, force: bool) -> Path:
    """Return the path to write to, with symbolic links resolved; raise if it cannot be written.

    Call this before a long computation, so that it does not fail at the end.
    """
    with explained("write", path):
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise FileError(f"cannot write {path}: it is a directory.")
        if target.is_symlink():
            raise FileError(f"cannot write {path}: it is a symbolic link that points to itself.")
        if target.exists():
            if not target.is_file():
                raise FileError(f"cannot write {path}: it is not a regular file.")
            if not force:
                raise FileError(f"{path} exists already. Pass force=True to replace it.")
        if not target.parent.is_dir():
            raise FileError(f"cannot write {path}: there is no directory {target.parent}.")
    return target


def check_page_target(path: str | Path, *, force: bool) -> None:
    """Raise unless a page can be written to this path."""
    if Path(path).suffix.lower() != ".html":
        raise ParameterError(f"cannot write {path}: the name must end in .html.")
    check_target(path, force=force)


@contextmanager
def explained(verb: str, path: object) -> Iterator[None]:
    """Turn the errors of a file system, and those about impossible paths, into ours."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot {verb} {path}: {error.strerror or error}.") from error
    except ValueError as error:
        raise FileError(f"cannot {verb} {str(path)!r}: {error}.") from error


# --- atomic writing -----------------------------------------------------------------------------


@contextmanager
def replacing(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """Give a temporary path in the same directory; rename it to `path` if the block succeeds."""
    target = check_target(path, force=force)
    try:
        with temporary_in(target.parent) as temporary:
            yield temporary
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            check_target(target, force=force)
            if target.exists():
                shutil.copymode(target, temporary)
            os.replace(temporary, target)
            _sync_directory(target.parent)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}.") from error


def write_text(path: str | Path, text: str, *, force: bool = False) -> None:
    """Write a text file in UTF-8, atomically; replace an existing one only with `force`."""
    with replacing(path, force=force) as temporary:
        temporary.write_text(text, "utf-8")


@contextmanager
def temporary_in(folder: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Give a new temporary file or folder, which is removed at the end unless it was renamed.

    It is locked until then: one that is not locked is left over from a process that was killed, and
    the next call for the same folder removes it.
    """
    _remove_leftovers(folder)
    path = folder / f".nescio-{secrets.token_hex(8)}"
    path.mkdir(parents=True) if is_folder else path.touch(exist_ok=False)
    try:
        with _try_lock(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True) if is_folder else path.unlink(missing_ok=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files that no process has locked; without locks, those older than a day.

    Only names that `temporary_in` gives: a user may have a folder .nescio-cache.
    """
    names: list[str] = []
    with suppress(OSError), os.scandir(folder) as entries:  # one may write but not list
        names = [entry.name for entry in entries if _TEMPORARY.fullmatch(entry.name)]
    for name in names:
        path = folder / name
        with suppress(OSError), _try_lock(path) as is_free:  # another process may be removing it
            idle_seconds = time.time() - path.stat().st_mtime
            # One that is just being made is not locked yet.
            limit = {True: 10, False: math.inf, None: 24 * 3600}[is_free]
            if idle_seconds > limit:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _sync_directory(folder: Path) -> None:
    """Let a rename survive a loss of power; not every file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --- the files of an input ----------------------------------------------------------------------


@dataclass(frozen=True)
class Files:
    """The files of one input, in the order in which their rows are read."""

    address: str  # as the user gave it
    paths: tuple[str, ...]  # as the file system knows them, sorted by name
    remote: Any = None  # their file system of fsspec; None for local files

    @property
    def suffix(self) -> str:
        """The ending of all names, in lower case."""
        return _suffix(self.paths[0])

    def open(self, path: str) -> IO[bytes]:
        """Open one of the files to read its bytes."""
        with explained("read", path):
            if self.remote is None:
                return existing_file(path).open("rb")
            # The readers ask for the bytes that they need: reading ahead would only waste them.
            stream: IO[bytes] = self.remote.open(path, "rb", cache_type="none")
            return stream


def find_files(address: str | Path) -> Files:
    """Return the files of an address; raise if there are none, or of several kinds."""
    text = os.fspath(address)
    remote = _REMOTE.match(text) is not None
    is_folder = not remote and "\0" not in text and os.path.isdir(text)
    if not remote and not is_folder and (os.path.lexists(text) or not _PATTERN.search(text)):
        return Files(text, (str(existing_file(text)),))
    core = require("fsspec.core", "files")
    with explained("read", text):
        try:
            system, path = core.url_to_fs(text)
        except ImportError as error:  # fsspec names the package
            raise MissingDependencyError(f"cannot read {text}: {error}.") from error
        if system.isdir(path):
            paths = [
                file
                for file in system.find(path)
                if _suffix(file) in MANY
                and not any(
                    part.startswith((".", "_"))
                    for part in PurePosixPath(file).relative_to(path).parts
                )
            ]
        elif system.isfile(path):
            return Files(text, (path,), system)
        elif _PATTERN.search(path):
            paths = [file for file in system.glob(path) if not system.isdir(file)]
        else:
            raise FileError(f"there is no file {text}.")
    suffixes = sorted(set(map(_suffix, paths)))
    if not paths:
        raise FileError(f"{text} matches no {' or '.join(MANY)} files.")
    if len(suffixes) > 1 or suffixes[0] not in MANY:
        raise FileError(
            f"{text} matches {' and '.join(suffixes)} files. The files of an input must be of one "
            f"kind: {' or '.join(MANY)}. Name a pattern that matches only these, such as "
            "'data/*.parquet'."
        )
    return Files(text, tuple(sorted(paths, key=_natural)), system if remote else None)


def _suffix(path: str) -> str:
    """Return the ending of a name, in lower case; of a compressed file, both endings."""
    suffixes = PurePosixPath(path).suffixes
    n_last = 2 if suffixes[-1:] == [".gz"] else 1
    return "".join(suffixes[-n_last:]).lower()


def _natural(path: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts names with their numbers as numbers: part-10 after part-9."""
    pieces = re.split(r"(\d+)", path)
    return [(0, int(text), text) if text.isdecimal() else (1, 0, text) for text in pieces if text]


# --- tables to write ------------------------------------------------------------------------------


def check_table_target(path: str | Path, *, force: bool) -> Path:
    """Return the path of a table to write; raise, as `check_target` does, if it cannot be."""
    if _REMOTE.match(str(path)):
        raise ParameterError(
            f"cannot write {path}: the output must be a local file. Copy it when it is complete."
        )
    suffix = Path(path).suffix.lower()
    if suffix not in _WRITABLE:
        raise ParameterError(f"cannot write {path}: the name must end in .parquet, .csv or .jsonl.")
    if suffix == ".parquet":
        require("pyarrow", "files")
    return check_target(path, force=force)


def write_table(path: str | Path, columns: Mapping[str, Any], *, force: bool = False) -> None:
    """Write columns of equal length as .parquet, .csv or .jsonl, depending on the file's suffix."""
    with TableWriter(path, force=force) as writer:
        writer.write(columns)


class TableWriter:
    """Writes a table in blocks of rows, atomically: the file is there once all are written.

    Columns are arrays of NumPy or of pyarrow. All blocks must have the same columns and types.
    """

    def __init__(self, path: str | Path, *, force: bool = False) -> None:
        check_table_target(path, force=force)
        self._suffix = Path(path).suffix.lower()
        self._replacing = replacing(path, force=force)
        self._parquet: Any = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._temporary = self._open.enter_context(self._replacing)
        if self._suffix != ".parquet":
            stream = self._temporary.open("w", newline="", encoding="utf-8")
            self._stream = self._open.enter_context(stream)
            self._csv = csv.writer(self._stream)
        self._n_blocks = 0
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows."""
        if self._suffix == ".parquet":
            table = require("pyarrow", "files").table(dict(columns))
            if not self._n_blocks:
                self._parquet = self._open.enter_context(
                    require("pyarrow.parquet", "files").ParquetWriter(
                        self._temporary, table.schema, use_dictionary=_repeated(table.schema)
                    )
                )
            self._parquet.write_table(table)
        else:
            rows = zip(*map(to_values, columns.values()), strict=True)
            if self._suffix == ".csv":
                if not self._n_blocks:
                    self._csv.writerow(map(no_formula, columns))
                self._csv.writerows(map(_cell, row) for row in rows)
            else:
                for row in rows:
                    self._stream.write(to_json(dict(zip(columns, row, strict=True))) + "\n")
        self._n_blocks += 1


def _repeated(schema: Any) -> list[str]:
    """Return the columns to write with a dictionary: p-values, and all but numbers like scores.

    A dictionary of numbers that hardly repeat takes more time and room than the numbers.
    """
    is_floating = require("pyarrow.types", "files").is_floating
    return [f.name for f in schema if f.name == "p_value" or not is_floating(f.type)]


def _cell(value: Any) -> Any:
    """Return a cell of a CSV file; lists become JSON."""
    return to_json(value) if isinstance(value, list | dict) else no_formula(value)


def no_formula(cell: Any) -> Any:
    """Return a cell of a CSV file; text that a spreadsheet would run as a formula gets a quote."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def without_quote(cell: str) -> str:
    """Return the text that `no_formula` was given."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


def to_json(value: Any) -> str:
    """Return strict JSON; infinity and NaN, which JSON does not support, become null."""
    return json.dumps(finite(value), ensure_ascii=False)


def finite(value: Any) -> Any:
    """Return values of JSON with None in place of infinity and NaN."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- columns as plain values ----------------------------------------------------------------------


def to_values(column: Any) -> list[Any]:
    """Return a column as values that CSV and JSON can hold; times become text."""
    array = to_array(column) if hasattr(column, "to_pylist") else np.asarray(column)
    if array.dtype.kind in "mM":
        return [None if np.isnat(value) else str(value) for value in array]
    return list(array.tolist())


def as_ids(column: Any) -> list[str]:
    """Return the values of a column of pyarrow or NumPy as text; missing ones are empty."""
    return list(map(as_text, to_values(column)))


def as_text(value: Any) -> str:
    """Return a value as text: empty if it is missing, and 1 for 1.0.

    A missing value turns a column of whole numbers into floats.
    """
    is_float = isinstance(value, float | np.floating)
    if is_float and value.is_integer():
        return str(int(value))
    missing = type(value).__name__ in ("NoneType", "NAType", "NaTType")
    return "" if missing or (is_float and np.isnan(value)) else str(value)


def as_groups(column: Any) -> NDArray[np.str_]:
    """Return the names of groups: 1, 1.0 and the text 1.0 are the same group, 1."""
    is_text = isinstance(column, np.ndarray) and column.dtype.kind == "U"
    names = column if is_text else np.array(as_ids(column), dtype=np.str_)
    if np.char.endswith(names, ".0").any():  # as pandas writes whole numbers with some missing
        names = np.array([_FLOAT.sub(r"\1", name) for name in names.tolist()])
    return names


def to_array(column: Any) -> Array:
    """Return a column as an array, without rounding; what NumPy has no type for becomes objects.

    Decimal numbers, times of day, times with a zone and bytes become text, and lists and structs
    become lists and dicts.
    """
    types = require("pyarrow.types", "files")
    kind = column.type
    if types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if types.is_timestamp(kind) and kind.tz is not None:  # NumPy has no time zones
        column = column.cast("string")
    exact = (types.is_decimal, types.is_time, types.is_binary, types.is_large_binary)
    if types.is_integer(kind) and column.null_count:
        return np.array(column.to_pylist(), dtype=object)
    if not types.is_nested(kind) and not any(is_kind(kind) for is_kind in exact):
        return np.asarray(column)
    values = np.empty(len(column), dtype=object)  # np.array would make a matrix of lists
    values[:] = [_plain(value) for value in column.to_pylist()]
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


# --- locks ------------------------------------------------------------------------------------
#
# The operating system holds a lock (flock, or msvcrt.locking on Windows), so it is released when a
# process ends, also if it is killed. A file `.NAME.lock` next to the file is there meanwhile.


@contextmanager
def locked(
    path: Path, waiting: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Iterator[None]:
    """Lock a file that is about to be made; wait while another process has the lock.

    Look again whether the file exists once you have the lock. `waiting()` is entered while this
    process has to wait. On a file system that has no locks, nothing is locked.
    """
    lock = path.with_name(f".{path.name}.lock")
    with explained("write to", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _lock_file(lock)
    if descriptor is None:
        with waiting():
            while (descriptor := _lock_file(lock)) is None:
                time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows does not remove an open file
            lock.unlink()
        os.close(descriptor)  # releases the lock


def _lock_file(path: Path) -> int | None:
    """Make a file and lock it; return its descriptor, or None if another process has the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    if _acquired(descriptor) is not False:
        # The process that had the lock has removed the file, perhaps after this one opened it.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
    os.close(descriptor)
    return None


@contextmanager
def _try_lock(path: Path) -> Iterator[bool | None]:
    """Lock a file or folder; give False if another process has the lock, None without locks."""
    if sys.platform == "win32":  # an open file cannot be renamed
        yield None
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield _acquired(descriptor)
    finally:
        os.close(descriptor)


def exclusive(path: Path, what: str = "file") -> AbstractContextManager[None]:
    """Lock a file; raise if another process has the lock."""

    def refuse() -> AbstractContextManager[object]:
        raise FileError(
            f"another process is using {path}. Wait until it has ended, or use another {what}."
        )

    return locked(Path(os.path.realpath(path)), refuse)


def _acquired(descriptor: int) -> bool | None:
    """Take the lock; return False if another process has it, None if there are no locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _HELD else None
    return True
