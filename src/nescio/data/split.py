"""One split of a data set: which images it has, and their labels."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from nescio.errors import DatasetError, FileError, LabelMismatchError, ParameterError


@dataclass(frozen=True)
class BadFile:
    """An image that cannot be used, and the reason."""

    file: str
    reason: str


@dataclass(frozen=True, eq=False)
class Split:
    """An index of images, made without opening them.

    Attributes
    ----------
    dataset : str
        The name of the data set, such as "coco".
    name : str
        The name of the split, such as "val"; empty if the data set has no splits.
    root : Path
        The folder that `files` are relative to.
    files : tuple of str
        The path of each image, with forward slashes.
    labels : array of shape (n_images, n_labels), or None
        The multi-hot truth; None if it is not published.
    label_names : tuple of str, or None
        One name per label. For a folder of class folders, the classes.
    skipped : tuple of BadFile
        The files that were left out with skip_bad.
    notes : mapping
        Further entries for the manifest, such as choices that were made.
    hash_images : bool
        Whether the manifest has a hash of all bytes of the images, and not only of samples.
    """

    dataset: str
    name: str
    root: Path
    files: tuple[str, ...]
    labels: NDArray[np.uint8] | None
    label_names: tuple[str, ...] | None
    skipped: tuple[BadFile, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    hash_images: bool = False

    def __post_init__(self) -> None:
        if not self.files:
            raise DatasetError(f"{self.title} has no images in {self.root}.")
        if self.labels is not None:
            n_labels = len(self.label_names or ())
            if self.labels.shape != (len(self.files), n_labels):
                raise DatasetError(
                    f"{self.title}: labels have shape {self.labels.shape}, but there are "
                    f"{len(self.files):,} images and {n_labels} label names."
                )

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        labels = "no labels" if self.labels is None else f"{self.labels.shape[1]} labels"
        return f"Split({self.title}: {len(self):,} images, {labels})"

    @property
    def title(self) -> str:
        """The names of data set and split, such as "coco-val", for file names."""
        return f"{self.dataset}-{self.name}" if self.name else self.dataset

    def path(self, index: int) -> Path:
        """Return the path of an image."""
        return self.root / self.files[index]

    def subset(self, indices: Sequence[int] | NDArray[np.intp]) -> Split:
        """Return a split with some of the images, in the given order."""
        labels = None if self.labels is None else self.labels[np.asarray(indices)]
        return replace(self, files=tuple(self.files[i] for i in indices), labels=labels)

    def sample(self, n_images: int, seed: int) -> Split:
        """Return a split with at most `n_images` random images, in their original order."""
        if n_images < 1:
            raise ParameterError(f"n_images must be at least 1, got {n_images}.")
        if n_images >= len(self):
            return self
        chosen = np.random.default_rng(seed).permutation(len(self))[:n_images]
        return self.subset(np.sort(chosen))

    def labels_for(self, label_names: Sequence[str]) -> NDArray[np.uint8] | None:
        """Return the labels in a model's order; None if unknown or if the label set differs."""
        if self.labels is None or self.label_names is None:
            return None
        if set(self.label_names) != set(label_names):
            return None
        column = {name: at for at, name in enumerate(self.label_names)}
        return self.labels[:, [column[name] for name in label_names]]

    def require_labels(self, label_names: Sequence[str] | None = None) -> NDArray[np.uint8]:
        """Return the labels, in a model's order if given; raise if there are none."""
        if self.labels is None or self.label_names is None:
            raise DatasetError(f"{self.title} in {self.root} has no labels.")
        labels = self.labels_for(label_names or self.label_names)
        if labels is None:
            difference = sorted(set(label_names or ()) ^ set(self.label_names))
            raise LabelMismatchError(
                f"{self.title} does not have the labels of the model; the first difference is "
                f"{difference[0]!r}."
            )
        return labels

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the names, sizes and labels of the files, computed at first use."""
        return _fingerprint(self)

    @cached_property
    def content(self) -> dict[str, str]:
        """Hashes of the contents of the images, computed at first use.

        `data_sample` is made from 4 kB at the start, in the middle and at the end of each file.
        With `hash_images`, `data_sha256` is made from all bytes.
        """
        whole = {DATA_SHA256: _content(self, _all_bytes)} if self.hash_images else {}
        return {DATA_SAMPLE: _content(self, _some_bytes), **whole}

    def identity(self) -> dict[str, Any]:
        """Return the names, sizes and labels of the data, as a key to find what was made from it.

        Whether the contents are the same too is for `check_content` to say.
        """
        return {
            "dataset": self.dataset,
            "split": self.name,
            "n_images": len(self),
            "data_fingerprint": self.fingerprint,
            **({"data_notes": dict(self.notes)} if self.notes else {}),
        }

    def manifest(self) -> dict[str, Any]:
        """Return what a file made from this data records about it."""
        return {**self.identity(), **self.content}


DATA_SAMPLE, DATA_SHA256 = "data_sample", "data_sha256"
_BLOCK = 4096


def check_content(recorded: Mapping[str, Any], split: Split, made: object) -> None:
    """Raise if something was made from images of the same names and sizes but other contents.

    `recorded` is the manifest of the data that it was made from. Files of older versions have no
    hash of the contents, so they are accepted unless the split asks for `hash_images`.
    """
    changed = content_changed(recorded, split.content)
    if changed:
        raise FileError(f"{made} cannot be used for {split.title}: {changed} Remove it.")


def content_changed(recorded: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Return how the contents of images differ from what was recorded; empty if they do not."""
    for name in (DATA_SAMPLE, DATA_SHA256):
        if name in content and name in recorded and recorded[name] != content[name]:
            return "the images have changed since then; their names and sizes are the same."
    if DATA_SHA256 in content and DATA_SHA256 not in recorded:
        return "it was made without --verify, so whole images cannot be compared."
    return ""


def _content(split: Split, read: Callable[[IO[bytes]], Iterable[bytes]]) -> str:
    digest = hashlib.sha256()
    for file in split.files:
        one = hashlib.sha256()
        try:
            with open(split.root / file, "rb", buffering=0) as stream:
                for block in read(stream):
                    one.update(block)
        except OSError:
            one.update(b"missing")  # the error is raised when the file is read
        digest.update(one.digest())
    return digest.hexdigest()


def _some_bytes(stream: IO[bytes]) -> Iterator[bytes]:
    yield stream.read(_BLOCK)
    size = os.fstat(stream.fileno()).st_size
    for place in ((size - _BLOCK) // 2, size - _BLOCK):
        stream.seek(max(0, place))
        yield stream.read(_BLOCK)


def _all_bytes(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(1 << 20):
        yield block


def _fingerprint(split: Split) -> str:
    digest = hashlib.sha256()
    for file in split.files:
        try:
            size = os.stat(split.root / file).st_size
        except OSError:
            size = -1  # the error is raised when the file is read
        digest.update(f"{file}\0{size}\n".encode())
    digest.update("\0".join(split.label_names or ()).encode())
    if split.labels is not None:
        digest.update(np.ascontiguousarray(split.labels).tobytes())
    return digest.hexdigest()
