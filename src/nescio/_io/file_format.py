"""The kinds of files that nescio writes, and the one check of their headers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.tensors import Stacked, read_tensors, write_tensors
from nescio._validation import Array
from nescio._version import __version__
from nescio.errors import FileFormatError

Stored = Array | Stacked
"""An array to write, or one that was read."""


@dataclass(frozen=True)
class FileKind:
    """One kind of file, such as a saved detector."""

    name: str  # as the header states it, such as "nescio.detector"
    what: str  # in an error message, such as "saved detector"
    schema: int = 1  # the schema that is written, and the only one that can be read

    def header(self) -> dict[str, Any]:
        """Return the entries that identify a file of this kind."""
        return {"kind": self.name, "schema": self.schema, "nescio_version": __version__}

    def check(self, metadata: Mapping[str, Any], path: object) -> None:
        """Raise if this version of nescio cannot read the file."""
        found = metadata.get("kind")
        if found != self.name:
            reason = f"it holds {found!r}" if found else "nescio did not write it"
            raise FileFormatError(f"{path} is not a {self.what}: {reason}.")
        schema = metadata.get("schema")
        if schema is True or schema != self.schema:
            raise FileFormatError(
                f"{path} was written by another version of nescio "
                f"({metadata.get('nescio_version')!r}, schema {schema}; this one reads schema "
                f"{self.schema}). Make the file again."
            )

    def read(
        self, path: str | Path, *, verify: bool = True, copy: bool = False
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the arrays and the metadata of a file, and verify its checksum.

        With `copy`, the arrays are in memory: what was verified is what is used, even if the file
        is overwritten later.
        """
        tensors, metadata = read_tensors(path, copy=copy)
        self.check(metadata, path)
        if verify:
            self.verify(tensors, metadata, path)
        metadata.pop("sha256", None)
        return tensors, metadata

    def verify(
        self, tensors: Mapping[str, Stored], metadata: Mapping[str, Any], path: object
    ) -> None:
        """Raise unless the contents match their checksum."""
        if "sha256" not in metadata:
            raise FileFormatError(f"{path} is damaged: its checksum is missing.")
        verify_checksum(tensors, metadata, path)

    def write(
        self,
        path: str | Path,
        tensors: Mapping[str, Array | Stacked],
        metadata: Mapping[str, Any],
        *,
        force: bool = False,
    ) -> None:
        """Write a file with its checksum, atomically; replace an existing one only with `force`."""
        # As it will be read: numbers that are keys, for example, become text.
        content = json.loads(json.dumps({**self.header(), **metadata}))
        hashed = digest(tensors, content)
        write_tensors(path, tensors, {**content, "sha256": hashed}, force=force)


def verify_checksum(
    tensors: Mapping[str, Stored], metadata: Mapping[str, Any], path: object
) -> None:
    """Raise if a file has a checksum, and it is not that of its contents."""
    content = dict(metadata)
    stored = content.pop("sha256", None)
    if "sha256" in metadata and stored != digest(tensors, content):
        raise FileFormatError(f"{path} is damaged: its contents do not match their checksum.")


def digest(tensors: Mapping[str, Stored], metadata: Mapping[str, Any]) -> str:
    """Return a hash of everything in a file but the hash itself.

    Arrays on disk are read in order and not kept in memory.
    """
    found = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        given = tensors[name]
        array = Stacked([given]) if isinstance(given, np.ndarray) else given
        # A damaged name may hold half of a surrogate pair, which UTF-8 does not have.
        found.update(f"{name}:{array.dtype.str}:{array.shape};".encode("utf-8", "surrogatepass"))
        for block in array.blocks:
            found.update(block.data)
    return found.hexdigest()
