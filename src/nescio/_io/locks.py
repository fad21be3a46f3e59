"""A lock between processes: only one at a time makes a file.

The operating system holds the lock (flock, or msvcrt.locking on Windows), so it is released when a
process ends, also if it is killed. An empty file `.NAME.lock` remains next to the file: removing it
could let two processes lock different files of that name.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from nescio.errors import FileError

_POLL_SECONDS = 0.2
_HELD = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}


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
