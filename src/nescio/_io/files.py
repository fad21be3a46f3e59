"""Files are written whole or not at all, and never over another without being told to."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nescio.errors import FileError


def check_target(path: str | Path, *, force: bool) -> Path:
    """The place to write to, links followed; raises before any work is done if it cannot be."""
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise FileError(f"cannot write {path}: it is a directory.")
        if target.is_symlink():
            raise FileError(f"cannot write {path}: it is a link that leads nowhere but to itself.")
        if target.exists():
            if not target.is_file():
                raise FileError(f"cannot write {path}: it is not a regular file.")
            if not force:
                raise FileError(f"{path} exists already. Pass force=True (--force) to replace it.")
        if not target.parent.is_dir():
            raise FileError(f"cannot write {path}: there is no directory {target.parent}.")
    except OSError as error:
        raise _explained(f"cannot write {path}", error) from error
    return target


@contextmanager
def replacing(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary name beside `path`, renamed to it at the end of the block if all went well."""
    target = check_target(path, force=force)
    temporary = target.with_name(f".nescio-{secrets.token_hex(8)}")
    try:
        temporary.touch(exist_ok=False)
        try:
            yield temporary
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            check_target(target, force=force)
            if target.exists():
                shutil.copymode(target, temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _explained(f"cannot write {path}", error) from error


def existing_file(path: str | Path) -> Path:
    """The path of a file that can be read, or an error that says why there is none."""
    path = Path(path)
    try:
        if path.is_dir():
            raise FileError(f"{path} is a directory; expected a file.")
        if not path.exists():
            raise FileError(f"there is no file {path}.")
        if not path.is_file():
            raise FileError(f"{path} is not a regular file.")
        if not os.access(path, os.R_OK):
            raise FileError(f"no permission to read {path}.")
    except OSError as error:
        raise _explained(f"cannot read {path}", error) from error
    return path


def _explained(what: str, error: OSError) -> FileError:
    if isinstance(error, FileError):
        return error
    return FileError(f"{what}: {error.strerror or error}.")
