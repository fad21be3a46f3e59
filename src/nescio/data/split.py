"""One part of a data set: which images there are and what they show. No pixels yet."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.errors import DatasetError, LabelMismatchError, ParameterError


@dataclass(frozen=True)
class BadFile:
    """An image that cannot be used, and why."""

    file: str
    reason: str


@dataclass(frozen=True, eq=False)
class Split:
    """An index of images, made without opening any of them.

    Attributes
    ----------
    dataset : str
        The data set's name, such as "coco".
    name : str
        The part of it, such as "val"; empty where a set has only one.
    root : Path
        The folder that `files` are relative to.
    files : tuple of str
        One image each, with forward slashes.
    labels : array of shape (n_images, n_labels), or None
        Multi-hot truth; None where it is not published.
    label_names : tuple of str, or None
        One name a label. For a folder of class folders, the classes.
    skipped : tuple of BadFile
        What was left out with skip_bad.
    notes : mapping
        What else the manifest should say, such as choices that were made.
    """

    dataset: str
    name: str
    root: Path
    files: tuple[str, ...]
    labels: NDArray[np.uint8] | None
    label_names: tuple[str, ...] | None
    skipped: tuple[BadFile, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.files:
            raise DatasetError(f"{self.title} has no images in {self.root}.")
        if self.labels is not None:
            n_labels = len(self.label_names or ())
            if self.labels.shape != (len(self.files), n_labels):
                raise DatasetError(
                    f"{self.title}: labels of shape {self.labels.shape} for {len(self.files):,} "
                    f"images and {n_labels} label names."
                )

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        labels = "no labels" if self.labels is None else f"{self.labels.shape[1]} labels"
        return f"Split({self.title}: {len(self):,} images, {labels})"

    @property
    def title(self) -> str:
        """The data set and its part, such as "coco-val": fit for a file name."""
        return f"{self.dataset}-{self.name}" if self.name else self.dataset

    def path(self, index: int) -> Path:
        """Where an image is."""
        return self.root / self.files[index]

    def subset(self, indices: Sequence[int] | NDArray[np.intp]) -> Split:
        """Some of the images, in the order given."""
        labels = None if self.labels is None else self.labels[np.asarray(indices)]
        return replace(self, files=tuple(self.files[i] for i in indices), labels=labels)

    def sample(self, n_images: int, seed: int) -> Split:
        """At most so many images, chosen at random and kept in order."""
        if n_images < 1:
            raise ParameterError(f"n_images must be at least 1, got {n_images}.")
        if n_images >= len(self):
            return self
        chosen = np.random.default_rng(seed).permutation(len(self))[:n_images]
        return self.subset(np.sort(chosen))

    def labels_for(self, label_names: Sequence[str]) -> NDArray[np.uint8] | None:
        """The labels in a model's order; None if they are unknown or of another set."""
        if self.labels is None or self.label_names is None:
            return None
        if set(self.label_names) != set(label_names):
            return None
        column = {name: at for at, name in enumerate(self.label_names)}
        return self.labels[:, [column[name] for name in label_names]]

    def require_labels(self, label_names: Sequence[str] | None = None) -> NDArray[np.uint8]:
        """The labels, for those who cannot do without; in a model's order, if one is given."""
        if self.labels is None or self.label_names is None:
            raise DatasetError(f"{self.title} in {self.root} has no labels.")
        labels = self.labels_for(label_names or self.label_names)
        if labels is None:
            difference = sorted(set(label_names or ()) ^ set(self.label_names))
            raise LabelMismatchError(
                f"{self.title} has other labels than the model; the first that differs is "
                f"{difference[0]!r}."
            )
        return labels

    def fingerprint(self) -> str:
        """Return a hash of the names, sizes and labels of the files, not of their pixels."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for file in self.files:
            try:
                size = os.stat(self.root / file).st_size
            except OSError:
                size = -1  # reading it will say what is wrong
            digest.update(f"{file}\0{size}\n".encode())
        digest.update("\0".join(self.label_names or ()).encode())
        if self.labels is not None:
            digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()

    def manifest(self) -> dict[str, Any]:
        """What a file made from this data says about it."""
        return {
            "dataset": self.dataset,
            "split": self.name,
            "n_images": len(self),
            "data_fingerprint": self.fingerprint(),
            **({"data_notes": dict(self.notes)} if self.notes else {}),
        }
