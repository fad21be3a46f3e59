"""Work on many images, done in parts that survive a crash.

Each part is a separate file, written completely or not at all. Interrupted work continues with the
next part, and the result is the same to the last byte. Each part carries the key of what it was
made from: parts of something else are rejected.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from nescio._io.kinds import FileKind
from nescio._io.tensors import Stacked
from nescio._validation import Array
from nescio.data.split import DATA_SAMPLE, DATA_SHA256, BadFile, content_changed
from nescio.errors import DatasetError, FileError, FileFormatError
from nescio.runners.images import ImageBatch, Indices, in_batches
from nescio.runners.runtimes import AUTO

_RUNTIME = "runtime"
_BATCHES_PER_PART = 16
_KIND = FileKind("nescio.part", "part of an extraction")


ReadBatches = Callable[[Iterable[Indices]], Iterator[ImageBatch]]
"""Gives the inputs of batches of indices, in order."""


class Part(NamedTuple):
    """The arrays of one part, its images among them as "indices"."""

    number: int
    tensors: Mapping[str, Array | Stacked]
    bad: tuple[BadFile, ...]


Wanted = Mapping[int, Sequence[Indices]]
"""The batches of each part that is wanted, by its number."""

OnImages = Callable[[int], object]
ComputeParts = Callable[[Wanted, OnImages], Iterator[Part]]
"""Computes parts, in any order; calls the second argument with the number of images just done."""


def compute_parts(
    read: ReadBatches,
    compute: Callable[[Array], Mapping[str, Array]],
    wanted: Wanted,
    on_images: OnImages = lambda count: None,
) -> Iterator[Part]:
    """Compute parts in this process, in order."""
    # One stream of batches for all parts: reading continues while a part is written.
    stream = read(batch for batches in wanted.values() for batch in batches)
    for number, batches in wanted.items():
        arrays: dict[str, list[Array]] = {}
        indices: list[Array] = []
        bad: list[BadFile] = []
        for asked in batches:
            batch = next(stream)
            if len(batch.indices):
                for name, array in compute(batch.pixels).items():
                    arrays.setdefault(name, []).append(array)
            indices.append(batch.indices)
            bad += batch.bad
            on_images(len(asked))
        tensors = {name: Stacked(blocks) for name, blocks in arrays.items()}
        yield Part(number, tensors | {"indices": Stacked(indices)}, tuple(bad))


class PartialWork:
    """Arrays computed from images part by part, each part a file in a folder next to the result.

    `key` says what the parts are made from; parts with another key are rejected. So are parts by
    another runtime than `runtime`, unless that is "auto": the parts of a result are by one.
    """

    def __init__(
        self,
        path: Path,
        key: Mapping[str, Any],
        n_images: int,
        batch_size: int,
        *,
        skip_bad: bool = False,
        runtime: str = AUTO,
    ) -> None:
        self.path = path
        self.key = dict(key)
        self.n_images = n_images
        self.batch_size = batch_size
        self.skip_bad = skip_bad
        self.runtime = runtime
        self.folder = path.with_name(path.name + ".parts")
        batches = in_batches(n_images, batch_size)
        self.parts = [
            batches[start : start + _BATCHES_PER_PART]
            for start in range(0, len(batches), _BATCHES_PER_PART)
        ]

    def missing(self) -> list[int]:
        """Return the numbers of the parts that are not there yet."""
        return [number for number in range(len(self.parts)) if not self._has(number)]

    def earlier_runtime(self, of_older: str) -> str | None:
        """Return the runtime of the parts that are there; None if there are none.

        `of_older` is that of parts of an older version, which do not say.
        """
        number = next(filter(self._has, range(len(self.parts))), None)
        if number is None:
            return None
        metadata = _KIND.read(self._file(number), verify=False)[1]
        return str(metadata.get(_RUNTIME, of_older))

    def run(
        self, compute: ComputeParts, on_images: Callable[[int], object] = lambda count: None
    ) -> int:
        """Compute the parts that are missing; return the number of images computed."""
        self.folder.mkdir(exist_ok=True)
        missing = {number: self.parts[number] for number in self.missing()}
        n_missing = sum(len(batch) for batches in missing.values() for batch in batches)
        n_computed = 0
        on_images(self.n_images - n_missing)
        for part in compute(missing, on_images):
            skipped = [asdict(item) for item in part.bad]
            metadata = {"key": self.key, "skipped": skipped, _RUNTIME: self.runtime}
            _KIND.write(self._file(part.number), part.tensors, metadata, force=True)
            n_computed += part.tensors["indices"].shape[0]
        return n_computed

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.safetensors"

    def _has(self, number: int) -> bool:
        """Return whether a part exists; raise if it was made from something else."""
        file = self._file(number)
        if not file.exists():
            return False
        try:
            metadata = _KIND.read(file)[1]
        except FileFormatError:  # damaged, or of an older version
            return False
        if metadata.get("key") != self.key:
            raise FileError(
                f"{self.folder} holds unfinished work on something else: "
                f"{difference(self.key, metadata.get('key', {}))} Pass force=True to "
                "start again."
            )
        theirs = metadata.get(_RUNTIME, AUTO)  # older parts do not say
        if AUTO not in (self.runtime, theirs) and theirs != self.runtime:
            raise FileError(
                f"{self.folder} holds unfinished work by the runtime {theirs}, not {self.runtime}. "
                "Leave out runtime (--runtime) to continue it, or pass force=True to start again."
            )
        # Without skip_bad, a part that lacks images is computed again, so that the error is raised.
        return self.skip_bad or not metadata["skipped"]

    def read(self) -> tuple[list[dict[str, Array]], tuple[BadFile, ...]]:
        """Return the arrays of every part, memory-mapped, and the images that were left out."""
        parts, bad = [], []
        for number in range(len(self.parts)):
            tensors, metadata = _KIND.read(self._file(number), verify=False)  # `run` has
            bad += [BadFile(**item) for item in metadata["skipped"]]
            if len(tensors["indices"]):
                parts.append(tensors)
        if not parts:
            raise DatasetError(f"none of the {len(bad):,} images could be read.")
        return parts, tuple(bad)

    def remove_others(self) -> None:
        """Remove unfinished work on something else."""
        try:
            for number in range(len(self.parts)):
                self._has(number)
        except FileError:
            self.remove()

    def remove(self) -> None:
        """Remove the parts, once the result is written."""
        shutil.rmtree(self.folder, ignore_errors=True)


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Return a sentence on how the key of other work differs from ours."""
    if not theirs:
        return "it has no manifest."
    for name, value in ours.items():
        if theirs.get(name) == value:
            continue
        if name in (DATA_SAMPLE, DATA_SHA256):
            return content_changed(theirs, ours)
        if name == "tuning":
            return "it was made with other settings of ODIN and Mahalanobis (--tuned), or none."
        if name == "model_hash":
            return (
                f"it was made by another network ({str(theirs.get(name))[:12]}, not {value[:12]})."
            )
        return f"its {name} is {theirs.get(name)!r}, not {value!r}."
    return ""
