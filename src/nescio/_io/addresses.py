"""The files of an input: one file, a pattern, a folder, or a remote address (through fsspec)."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from nescio._io.files import existing_file
from nescio._optional import require
from nescio.errors import FileError, MissingDependencyError, NescioError

MANY = (".parquet", ".arrow", ".feather")
"""The kinds of files of which several can be one input, in the order in which they are tried."""

_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://|[a-z][a-z0-9+.-]+::", re.IGNORECASE)
_PATTERN = re.compile(r"[*?[]")


@dataclass(frozen=True)
class Files:
    """The files of one input, in the order in which their rows are read.

    Attributes
    ----------
    address : str
        As the user gave it.
    paths : tuple of str
        As the file system knows them, sorted by name; numbers in names count as numbers, so that
        part-10 comes after part-9.
    root : str
        The folder below which names of folders may be columns, such as year=2026; empty for a
        single file.
    remote : fsspec file system, optional
        None for local files.
    """

    address: str
    paths: tuple[str, ...]
    root: str = ""
    remote: Any = None

    @property
    def suffix(self) -> str:
        """The ending of all names, in lower case."""
        return suffix_of(self.paths[0])

    def open(self, path: str) -> IO[bytes]:
        """Open one of the files to read its bytes."""
        with _explained(path):
            if self.remote is None:
                return existing_file(path).open("rb")
            # The readers ask for the bytes that they need: reading ahead would only waste them.
            stream: IO[bytes] = self.remote.open(path, "rb", cache_type="none")
            return stream

    def folders(self, path: str) -> tuple[str, ...]:
        """Return the names of the folders between the root and a file."""
        if not self.root:
            return ()
        return PurePosixPath(Path(path).as_posix()).relative_to(self.root).parts[:-1]


def suffix_of(address: str | Path) -> str:
    """Return the ending of a name, in lower case; of a compressed file, both endings."""
    suffixes = PurePosixPath(str(address)).suffixes
    n_last = 2 if suffixes[-1:] == [".gz"] else 1
    return "".join(suffixes[-n_last:]).lower()


def is_remote(address: str | Path) -> bool:
    """Return whether an address is for fsspec: s3://bucket/x.parquet, but not a local path."""
    return _REMOTE.match(str(address)) is not None


def find_files(address: str | Path) -> Files:
    """Return the files of an address; raise if there are none, or of several kinds."""
    text = os.fspath(address)
    if is_remote(text):
        return _remote(text)
    path = Path(text)
    if "\0" not in text and path.is_dir():
        found = (str(file) for file in path.rglob("*") if file.is_file())
        return Files(text, _of_folder(text, found, path.as_posix()), path.as_posix())
    if not os.path.lexists(path.parent / path.name) and _PATTERN.search(text):
        return _of_pattern(text, text, glob.glob(text, recursive=True))
    return Files(text, (str(existing_file(path)),))


def _remote(address: str) -> Files:
    system, path = remote_system(address)
    with _explained(address):
        if system.isdir(path):
            paths = _of_folder(address, system.find(path), path)
            return Files(address, paths, path, system)
        if not system.exists(path) and _PATTERN.search(path):
            return _of_pattern(address, path, system.glob(path), system)
        if not system.isfile(path):
            raise FileError(f"there is no file {address}.")
        return Files(address, (path,), "", system)


def remote_system(address: str) -> tuple[Any, str]:
    """Return the fsspec file system of an address, and the path in it."""
    core = require("fsspec.core", "files")
    try:
        with _explained(address):
            system, path = core.url_to_fs(address)
    except ImportError as error:  # fsspec names the package
        raise MissingDependencyError(f"cannot open {address}: {error}.") from error
    except ValueError as error:  # an unknown protocol
        raise FileError(f"cannot open {address}: {error}.") from error
    return system, str(path)


def _of_folder(address: str, found: Iterator[str] | Sequence[str], root: str) -> tuple[str, ...]:
    """Return the files of a folder that hold data: no name that starts with . or _."""
    names = [
        path
        for path in found
        if not any(part.startswith((".", "_")) for part in _below(path, root))
    ]
    paths = [path for path in names if suffix_of(path) in MANY]
    kinds = sorted({suffix_of(path) for path in paths})
    if len(kinds) > 1:
        raise FileError(
            f"{address} is a folder with {' and '.join(kinds)} files, and only one kind can be an "
            f"input. Name a pattern, such as {address}/*{kinds[0]}."
        )
    if paths:
        return tuple(sorted(paths, key=natural))
    raise FileError(
        f"{address} is a folder without {', '.join(MANY[:-1])} or {MANY[-1]} files. Name a file, "
        "or a folder that has such files."
    )


def _below(path: str, root: str) -> tuple[str, ...]:
    return PurePosixPath(Path(path).as_posix()).relative_to(root).parts


def _of_pattern(address: str, pattern: str, found: Sequence[str], system: Any = None) -> Files:
    """Return the files that match a pattern."""
    is_file = os.path.isfile if system is None else system.isfile
    paths = tuple(sorted((path for path in found if is_file(path)), key=natural))
    if not paths:
        raise FileError(f"no file matches {address}.")
    suffixes = sorted({suffix_of(path) for path in paths})
    if len(suffixes) > 1 or suffixes[0] not in MANY:
        raise FileError(
            f"{address} matches files that end in {', '.join(suffixes)}. A pattern must match "
            f"files of one kind: {' or '.join(MANY)}."
        )
    before = _PATTERN.split(pattern, maxsplit=1)[0]
    root = PurePosixPath(Path(f"{before}x").as_posix()).parent
    return Files(address, paths, str(root), system)


def natural(path: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts names with their numbers as numbers.

    Examples
    --------
    >>> sorted(["part-10", "part-9", "part-09a"], key=natural)
    ['part-09a', 'part-9', 'part-10']
    """
    pieces = re.split(r"(\d+)", path)
    return [(0, int(text), text) if text.isdecimal() else (1, 0, text) for text in pieces if text]


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn the errors of a file system into ours."""
    try:
        yield
    except (NescioError, ImportError):
        raise
    except OSError as error:
        raise FileError(f"cannot read {what}: {error.strerror or error}.") from error


def same_file(a: str | Path, b: str | Path) -> bool:
    """Return whether two paths refer to one file, or are the same address of files."""
    try:
        return os.path.samefile(a, b)
    except OSError:  # one of them does not exist or cannot be accessed
        return str(a) == str(b) and (is_remote(a) or glob.has_magic(str(a)))
