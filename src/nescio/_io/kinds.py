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


@dataclass(frozen=True)
class FileKind:
    """One kind of file, such as a saved detector."""

    name: str  # as the header states it, such as "nescio.detector"
    what: str  # in an error message, such as "saved detector"
    schema: int = 1  # the schema that is written, and the newest one that can be read

    def header(self) -> dict[str, Any]:
        """Return the entries that identify a file of this kind."""
        return {"kind": self.name, "schema": self.schema, "nescio_version": __version__}

    def check(self, metadata: Mapping[str, Any], path: object) -> int:
        """Return the schema of a file, or raise if this version of nescio cannot read it."""
        found = metadata.get("kind")
        if found != self.name:
            reason = f"it holds {found!r}" if found else "nescio did not write it"
            raise FileFormatError(f"{path} is not a {self.what}: {reason}.")
        schema = metadata.get("schema")
        if not isinstance(schema, int) or isinstance(schema, bool) or schema > self.schema:
            raise FileFormatError(
                f"{path} was written by a newer nescio ({metadata.get('nescio_version')!r}, "
                f"schema {schema}; this one reads up to {self.schema}). Upgrade nescio to read it."
            )
        return schema

    def read(
        self, path: str | Path, *, checksum: bool = False, copy: bool = False
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the arrays and the metadata of a file; verify its checksum if asked to.

        With `copy`, the arrays are in memory: what was verified is what is used, even if the file
        is overwritten later.
        """
        tensors, metadata = read_tensors(path, copy=copy)
        self.check(metadata, path)
        if checksum and metadata.pop("sha256", None) != digest(tensors, metadata):
            raise FileFormatError(f"{path} is damaged: its contents do not match their checksum.")
        return tensors, metadata

    def write(
        self,
        path: str | Path,
        tensors: Mapping[str, Array | Stacked],
        metadata: Mapping[str, Any],
        *,
        force: bool = False,
    ) -> None:
        """Write a file atomically; replace an existing one only with `force`."""
        write_tensors(path, tensors, {**self.header(), **metadata}, force=force)

    def write_with_checksum(
        self,
        path: str | Path,
        tensors: Mapping[str, Array],
        metadata: Mapping[str, Any],
        *,
        force: bool = False,
    ) -> None:
        """Write a file together with a hash of its contents."""
        hashed = digest(tensors, {**self.header(), **metadata})
        self.write(path, tensors, {**metadata, "sha256": hashed}, force=force)


def digest(tensors: Mapping[str, Array], metadata: Mapping[str, Any]) -> str:
    """Return a hash of everything in a file but the hash itself."""
    found = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        array = np.asarray(tensors[name], order="C")
        found.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        found.update(array.data)
    return found.hexdigest()
