"""Files are written whole or not at all, and never over another without being told to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nescio.errors import FileError


def check_target(path: str | Path, *, force: bool) -> Path:
    """The path to write to; raises before any work is done if it cannot be."""
    path = Path(path)
    if path.is_dir():
        raise FileError(f"cannot write {path}: it is a directory.")
    if path.exists() and not force:
        raise FileError(f"{path} exists already. Pass force=True (--force) to replace it.")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no directory {path.parent}.")
    return path


@contextmanager
def replacing(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary name beside `path`, renamed to it at the end of the block if all went well."""
    path = check_target(path, force=force)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise FileError(f"cannot write in {path.parent}: {error.strerror}.") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    # The process's umask can only be read by setting it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def existing_file(path: str | Path) -> Path:
    """The path, or an error that says there is no such file."""
    path = Path(path)
    if path.is_dir():
        raise FileError(f"{path} is a directory; expected a file.")
    if not path.is_file():
        raise FileError(f"there is no file {path}.")
    if not os.access(path, os.R_OK):
        raise FileError(f"no permission to read {path}.")
    return path
