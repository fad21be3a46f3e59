"""Files: checks of paths, atomic writing, the files of an input, and locks between processes.

A file is written completely or not at all, and replaces an existing file only with `force`. An
input is a file, a pattern, a folder, or a remote address (through fsspec).
"""

from __future__ import annotations

import errno
import glob
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from nescio.errors import FileError, MissingDependencyError, require

MANY = (".parquet", ".arrow", ".feather")
"""The endings of files of which several can be one input."""

_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://|[a-z][a-z0-9+.-]+::", re.IGNORECASE)
_PATTERN = re.compile(r"[*?[]")
_TEMPORARY = re.compile(r"\.nescio-[0-9a-f]{16}")
_LEFT_OVER_SECONDS = 24 * 3600
_POLL_SECONDS = 0.2
_HELD = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}  # by another process


def existing_file(path: str | Path) -> Path:
    """Return the path of a file that can be read, or raise an error that says why it cannot."""
    path = Path(path)
    with _explained("read", path):
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
    with _explained("write", path):
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


@contextmanager
def _explained(verb: str, path: object) -> Iterator[None]:
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
    temporary = target.with_name(temporary_name())
    try:
        _remove_leftovers(target.parent)
        temporary.touch(exist_ok=False)
        try:
            yield temporary
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            check_target(target, force=force)
            if target.exists():
                shutil.copymode(target, temporary)
            os.replace(temporary, target)
            _sync_directory(target.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}.") from error


def temporary_name() -> str:
    """Return a new name for a temporary file or folder, which is removed if it is left over."""
    return f".nescio-{secrets.token_hex(8)}"


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes that were killed: those not written to for a day.

    Only names that `temporary_name` gives: a user may have a folder .nescio-cache.
    """
    names: list[str] = []
    with suppress(PermissionError), os.scandir(folder) as entries:  # one may write but not list
        names = [entry.name for entry in entries if _TEMPORARY.fullmatch(entry.name)]
    for name in names:
        path = folder / name
        with suppress(OSError):  # another process may be removing it
            if time.time() - path.stat().st_mtime > _LEFT_OVER_SECONDS:
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
        return _suffix(self.paths[0])

    def open(self, path: str) -> IO[bytes]:
        """Open one of the files to read its bytes."""
        with _explained("read", path):
            if self.remote is None:
                return existing_file(path).open("rb")
            # The readers ask for the bytes that they need: reading ahead would only waste them.
            stream: IO[bytes] = self.remote.open(path, "rb", cache_type="none")
            return stream

    def folders(self, path: str) -> tuple[str, ...]:
        """Return the names of the folders between the root and a file."""
        return _below(path, self.root)[:-1] if self.root else ()


def find_files(address: str | Path) -> Files:
    """Return the files of an address; raise if there are none, or of several kinds."""
    text = os.fspath(address)
    remote = _REMOTE.match(text) is not None
    is_folder = not remote and "\0" not in text and os.path.isdir(text)
    if not remote and not is_folder and (os.path.lexists(text) or not _PATTERN.search(text)):
        return Files(text, (str(existing_file(text)),))
    system, path = _file_system(text)
    with _explained("read", text):
        if system.isdir(path):
            root = path
            paths = [
                file
                for file in system.find(path)
                if _suffix(file) in MANY
                and not any(part.startswith((".", "_")) for part in _below(file, root))
            ]
        elif system.isfile(path):
            return Files(text, (path,), "", system)
        elif _PATTERN.search(path):
            root = str(PurePosixPath(_PATTERN.split(path, maxsplit=1)[0] + "x").parent)
            paths = [file for file in system.glob(path) if system.isfile(file)]
        else:
            raise FileError(f"there is no file {text}.")
    _check_kinds(text, paths, is_folder=root == path)
    return Files(text, tuple(sorted(paths, key=_natural)), root, system if remote else None)


def _file_system(address: str) -> tuple[Any, str]:
    """Return the fsspec file system of a local or remote address, and the path in it."""
    core = require("fsspec.core", "files")
    try:
        system, path = core.url_to_fs(address)
    except ImportError as error:  # fsspec names the package
        raise MissingDependencyError(f"cannot open {address}: {error}.") from error
    except (OSError, ValueError) as error:  # ValueError: an unknown protocol
        raise FileError(f"cannot open {address}: {error}.") from error
    return system, str(path)


def _check_kinds(address: str, paths: Sequence[str], *, is_folder: bool) -> None:
    """Raise unless there are files, all of one kind of which several can be one input."""
    suffixes = sorted(set(map(_suffix, paths)))
    if not paths:
        raise FileError(
            f"{address} is a folder without {' or '.join(MANY)} files."
            if is_folder
            else f"no file matches {address}."
        )
    if len(suffixes) > 1 or suffixes[0] not in MANY:
        what = "is a folder with" if is_folder else "matches"
        raise FileError(
            f"{address} {what} {' and '.join(suffixes)} files. The files of an input must be of "
            f"one kind: {' or '.join(MANY)}. Name a pattern that matches only these, such as "
            "'data/*.parquet'."
        )


def _suffix(path: str) -> str:
    """Return the ending of a name, in lower case; of a compressed file, both endings."""
    suffixes = PurePosixPath(path).suffixes
    n_last = 2 if suffixes[-1:] == [".gz"] else 1
    return "".join(suffixes[-n_last:]).lower()


def _below(path: str, root: str) -> tuple[str, ...]:
    return PurePosixPath(path).relative_to(root).parts


def _natural(path: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts names with their numbers as numbers.

    Examples
    --------
    >>> sorted(["part-10", "part-9", "part-09a"], key=_natural)
    ['part-09a', 'part-9', 'part-10']
    """
    pieces = re.split(r"(\d+)", path)
    return [(0, int(text), text) if text.isdecimal() else (1, 0, text) for text in pieces if text]


def same_file(a: str | Path, b: str | Path) -> bool:
    """Return whether two paths refer to one file, or are the same address of files."""
    try:
        return os.path.samefile(a, b)
    except OSError:  # one of them does not exist or cannot be accessed
        return str(a) == str(b) and (_REMOTE.match(str(a)) is not None or glob.has_magic(str(a)))


# --- locks ------------------------------------------------------------------------------------
#
# The operating system holds a lock (flock, or msvcrt.locking on Windows), so it is released when a
# process ends, also if it is killed. An empty file `.NAME.lock` remains next to the file: removing
# it could let two processes lock different files of that name.


@contextmanager
def locked(
    path: Path, waiting: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Iterator[None]:
    """Lock a file that is about to be made; wait while another process has the lock.

    Look again whether the file exists once you have the lock. `waiting()` is entered while this
    process has to wait. On a file system that has no locks, nothing is locked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise FileError(f"cannot write to {path.parent}: {error.strerror}.") from error
    try:
        if not _acquired(descriptor):
            with waiting():
                while not _acquired(descriptor):
                    time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)  # releases the lock


def exclusive(path: Path, what: str = "file") -> AbstractContextManager[None]:
    """Lock a file; raise if another process has the lock."""

    def refuse() -> AbstractContextManager[object]:
        raise FileError(
            f"another process is using {path}. Wait until it has ended, or use another {what}."
        )

    return locked(Path(os.path.realpath(path)), refuse)


def _acquired(descriptor: int) -> bool:
    """Take the lock if no other process has it; True also if there are no locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD
    return True
