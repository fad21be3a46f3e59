"""Finished parts of a table that is being written, in a folder next to it.

They survive the end of the process, however it ends: the same command goes on after the last part.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from nescio._io.addresses import Files
from nescio._io.files import replacing
from nescio._io.locks import exclusive
from nescio._io.tables import require
from nescio.errors import FileError, InputError

_SAMPLE_BYTES = 1 << 16
_KEY = b"nescio.key"


class PartFolder:
    """The finished parts of a table, each a file of Arrow.

    Parameters
    ----------
    path : Path
        The table that is being written.
    key : mapping
        What the parts are made from. Parts of something else are removed.

    Attributes
    ----------
    n_done : int
        The number of parts that an earlier process has finished.
    """

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        self.folder = path.with_name(path.name + ".parts")
        self._key = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest().encode()
        self.n_done = 0

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep other processes out; remove the folder if the block succeeds.

        It is removed as well if the input cannot be used: it would have to be changed, so that no
        part is of use.
        """
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write to {self.folder}: {error.strerror}.") from error
        with ExitStack() as unlocked:
            with exclusive(self.folder / "parts", "output"):
                self.n_done = self._count()
                try:
                    yield
                except InputError:
                    unlocked.callback(shutil.rmtree, self.folder, ignore_errors=True)
                    raise
            unlocked.callback(shutil.rmtree, self.folder, ignore_errors=True)

    def write(self, number: int, table: Any) -> None:
        """Write a part completely or not at all."""
        ipc = require("pyarrow.ipc", "parquet")
        schema = table.schema.with_metadata({_KEY: self._key})
        with (
            replacing(self._file(number), force=True) as temporary,
            ipc.new_file(str(temporary), schema) as writer,
        ):
            # An Arrow file has one dictionary per column, but the rows may be from several files.
            writer.write_table(table.cast(schema).unify_dictionaries())

    def read(self, number: int) -> Any:
        """Return a part."""
        with self._opened(number) as reader:
            if reader is None:
                raise FileError(
                    f"{self._file(number)} was changed or removed. Run the command again."
                )
            return reader.read_all().replace_schema_metadata(None)

    def _count(self) -> int:
        """Return the number of parts without a gap; remove all others."""
        number = 0
        while self._has(number):
            number += 1
        for file in self.folder.glob("part-*.arrow"):
            if int(file.stem.removeprefix("part-")) >= number:
                file.unlink(missing_ok=True)
        return number

    def _has(self, number: int) -> bool:
        with self._opened(number) as reader:
            return reader is not None

    @contextmanager
    def _opened(self, number: int) -> Iterator[Any]:
        """Open a part; give None if there is none, or one of something else."""
        pyarrow, ipc = require("pyarrow", "parquet"), require("pyarrow.ipc", "parquet")
        with ExitStack() as stack:
            reader = None
            with suppress(OSError, pyarrow.ArrowException):
                stream = stack.enter_context(pyarrow.OSFile(str(self._file(number))))
                reader = ipc.open_file(stream)
                if (reader.schema.metadata or {}).get(_KEY) != self._key:
                    reader = None
            yield reader

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.arrow"


def fingerprint(files: Files) -> str:
    """Return a hash of names, sizes, times of change and some bytes of files.

    To read all bytes would take as long as the work itself. The end of a Parquet file has the
    smallest and largest values of its columns.
    """
    found = hashlib.sha256()
    for path in files.paths:
        with files.open(path) as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            found.update(stream.read(_SAMPLE_BYTES))
            stream.seek(max(0, size - _SAMPLE_BYTES))
            found.update(stream.read(_SAMPLE_BYTES))
        changed = Path(path).stat().st_mtime_ns if files.remote is None else _changed(files, path)
        found.update(f"{path}:{size}:{changed};".encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def _changed(files: Files, path: str) -> str:
    """Return what a remote store says about the version of a file."""
    info = files.remote.info(path)
    known = ("ETag", "etag", "LastModified", "mtime", "updated", "created", "generation")
    return ",".join(str(info[name]) for name in known if name in info)
