"""Atomic writing of files, checks of the paths to read and write, and locks between processes.

A file is written completely or not at all, and replaces an existing file only with `force`.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from nescio.errors import FileError

_TEMPORARY = re.compile(r"\.nescio-[0-9a-f]{16}")
_LEFT_OVER_SECONDS = 24 * 3600
_POLL_SECONDS = 0.2
_HELD = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}  # by another process


def check_target(path: str | Path, *, force: bool) -> Path:
    """Return the path to write to, with symbolic links resolved; raise if it cannot be written.

    Call this before a long computation, so that it does not fail at the end.
    """
    try:
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
    except ValueError as error:
        raise FileError(f"cannot write {str(path)!r}: {error}.") from error
    except OSError as error:
        raise _explained(f"cannot write {path}", error) from error
    return target


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
    except OSError as error:
        raise _explained(f"cannot write {path}", error) from error


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


def existing_file(path: str | Path) -> Path:
    """Return the path of a file that can be read, or raise an error that says why it cannot."""
    path = Path(path)
    try:
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
    except ValueError as error:
        raise FileError(f"cannot read {str(path)!r}: {error}.") from error
    except OSError as error:
        raise _explained(f"cannot read {path}", error) from error
    return path


def _explained(what: str, error: OSError) -> FileError:
    if isinstance(error, FileError):
        return error
    return FileError(f"{what}: {error.strerror or error}.")


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
    with _opened(path) as descriptor:
        if not _acquired(descriptor):
            with waiting():
                while not _acquired(descriptor):
                    time.sleep(_POLL_SECONDS)
        yield


@contextmanager
def exclusive(path: Path, what: str = "file") -> Iterator[None]:
    """Lock a file; raise if another process has the lock."""
    with _opened(Path(os.path.realpath(path))) as descriptor:
        if not _acquired(descriptor):
            raise FileError(
                f"another process is using {path}. Wait until it has ended, or use another {what}."
            )
        yield


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open the file that stands for the lock of a path; closing it releases the lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise FileError(f"cannot write to {path.parent}: {error.strerror}.") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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
