"""A split: which images a data set has, and their labels; and how its images are read.

Threads read ahead of the model. They are threads and not processes: Pillow decodes and resizes
without the interpreter's lock, and nothing is copied between processes. What is random about an
image depends on its index alone, so the result is the same for any number of threads.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._threads import available_cpus, map_ahead
from nescio.errors import DatasetError, LabelMismatchError, ParameterError, label_difference, listed
from nescio.models.images import Preprocessing, read_image

HOW_TO = "See docs/how-to/datasets.md."

_BLOCK = 4096
_THREADS = 8  # at least: on a network drive, most of the time is waiting
_BATCHES_AHEAD = 2
_CROP_ATTEMPTS = 10
_CROP_RATIO = (3 / 4, 4 / 3)

Indices = Sequence[int] | NDArray[Any]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class BadFile:
    """An image that cannot be used, and the reason."""

    file: str
    reason: str


@dataclass(frozen=True, eq=False)
class Split:
    """An index of images, made without opening them."""

    dataset: str  # the name of the data set, such as "coco"
    name: str  # of the split, such as "val"; empty if the data set has no splits
    root: Path  # the folder that `files` are relative to
    files: tuple[str, ...]  # the path of each image, with forward slashes
    labels: NDArray[np.uint8] | None  # multi-hot, (n_images, n_labels); None if not published
    label_names: tuple[str, ...] | None  # for a folder of class folders, the classes
    skipped: tuple[BadFile, ...] = ()  # the files that were left out with skip_bad
    notes: Mapping[str, Any] = field(default_factory=dict)  # further entries for the manifest

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

    def without(self, bad: Sequence[BadFile]) -> Split:
        """Return a split without some of the images, which are added to `skipped`."""
        if not bad:
            return self
        files = {image.file for image in bad}
        good = [index for index, file in enumerate(self.files) if file not in files]
        if not good:
            raise DatasetError(
                f"{self.title}: none of its images in {self.root} can be used: {bad[0].file}: "
                f"{bad[0].reason}"
            )
        return replace(self.subset(good), skipped=(*self.skipped, *bad))

    def sample(self, n_images: int, seed: int) -> Split:
        """Return a split with at most `n_images` random images, in their original order."""
        if n_images >= len(self):
            return self
        chosen = np.random.default_rng(seed).permutation(len(self))[:n_images]
        return self.subset(np.sort(chosen))

    def labels_for(self, label_names: Sequence[str]) -> NDArray[np.uint8] | None:
        """Return the labels in a model's order; None if unknown or if the label set differs."""
        if self.labels is None or set(self.label_names or ()) != set(label_names):
            return None
        column = {name: index for index, name in enumerate(self.label_names or ())}
        return self.labels[:, [column[name] for name in label_names]]

    def require_labels(self, label_names: Sequence[str] | None = None) -> NDArray[np.uint8]:
        """Return the labels, in a model's order if given; raise if there are none."""
        if self.labels is None or self.label_names is None:
            raise DatasetError(f"{self.title} in {self.root} has no labels.")
        labels = self.labels_for(label_names or self.label_names)
        if labels is None:
            difference = label_difference(label_names or (), self.label_names, "the model")
            raise LabelMismatchError(f"{self.title}: {difference}")
        return labels

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the names, sizes and labels of the files, computed at first use."""
        digest = hashlib.sha256()
        for file in self.files:
            try:
                size = os.stat(self.root / file).st_size
            except OSError:
                size = -1  # the error is raised when the file is read
            digest.update(f"{file}\0{size}\n".encode())
        digest.update("\0".join(self.label_names or ()).encode())
        if self.labels is not None:
            digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()

    @cached_property
    def content(self) -> str:
        """A hash of 4 kB at the start, in the middle and at the end of each image."""
        digest = hashlib.sha256()
        for file in self.files:
            try:
                with open(self.root / file, "rb", buffering=0) as stream:
                    digest.update(stream.read(_BLOCK))
                    size = os.fstat(stream.fileno()).st_size
                    for place in ((size - _BLOCK) // 2, size - _BLOCK):
                        stream.seek(max(0, place))
                        digest.update(stream.read(_BLOCK))
            except OSError:
                digest.update(b"missing")  # the error is raised when the file is read
        return digest.hexdigest()

    def manifest(self) -> dict[str, Any]:
        """Return what a file made from this data records about it, also as a key to find it by."""
        return {
            "dataset": self.dataset,
            "split": self.name,
            "n_images": len(self),
            "data_fingerprint": self.fingerprint,
            "data_sample": self.content,
            **({"data_notes": dict(self.notes)} if self.notes else {}),
        }

    def facts(self) -> dict[str, Any]:
        """Return the manifest and the images that were left out."""
        return self.manifest() | {"skipped": [asdict(bad) for bad in self.skipped]}


def check_split(dataset: str, split: str, splits: Sequence[str]) -> None:
    """Raise unless the data set has this split; the empty string stands for the whole data set."""
    if split not in (splits or ("",)):
        allowed = f"Choose from: {', '.join(splits)}." if splits else "It has no splits."
        raise ParameterError(f"{dataset} has no split {split!r}. {allowed}")


def find_folder(what: str, *candidates: Path) -> Path:
    """Return the first folder that exists; the error names all candidates."""
    for folder in candidates:
        if folder.is_dir():
            return folder
    looked_for = " or ".join(str(folder) for folder in candidates)
    raise DatasetError(f"{what} not found: no folder {looked_for}. {HOW_TO}")


def checked_presence(split: Split, *, skip_bad: bool) -> Split:
    """Return the split without the images that are missing; raise unless they may be skipped."""
    # Folders are listed, because 80,000 lookups of single files are slow on a network drive.
    names = {
        folder: names_in(split.root / folder) for folder in set(map(os.path.dirname, split.files))
    }
    missing = [
        file for file in split.files if os.path.basename(file) not in names[os.path.dirname(file)]
    ]
    if missing and not skip_bad:
        named = listed([str(split.root / file) for file in missing], 3, quoted=False)
        raise DatasetError(
            f"{split.title} lists {len(missing):,} images that do not exist: {named}. "
            "Unpack them, or pass skip_bad=True to continue without them."
        )
    return split.without([BadFile(file, "missing") for file in missing])


def names_in(folder: Path) -> set[str]:
    """Return the names of the files and folders in a folder; none if it cannot be read."""
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def find_damaged(
    split: Split, on_images: Callable[[int], object] = lambda count: None
) -> tuple[BadFile, ...]:
    """Return the images of a split that cannot be read; decodes every one.

    `on_images` is called with the number of images just checked.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from nescio.lab.data import load_folder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "1.png").write_bytes(b"not an image")
    ...     [bad] = find_damaged(load_folder(folder))
    >>> bad.file
    '1.png'
    """

    def damage(file: str) -> BadFile | None:
        try:
            read_image(split.root / file)
        except DatasetError as error:
            return BadFile(file, str(error))
        return None

    bad = []
    for result in map_ahead(damage, split.files, max(_THREADS, available_cpus())):
        if result is not None:
            bad.append(result)
        on_images(1)
    return tuple(bad)


def without_damaged(split: Split, on_images: Callable[[int], object] = lambda count: None) -> Split:
    """Return the split without the images that cannot be read; decodes every one.

    They are added to `Split.skipped`. `on_images` is as for `find_damaged`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import PIL.Image
    >>> from nescio.lab.data import load_folder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "1.png").write_bytes(b"not an image")
    ...     PIL.Image.new("L", (4, 3)).save(pathlib.Path(folder, "2.png"))
    ...     split = without_damaged(load_folder(folder))
    >>> split.files
    ('2.png',)
    """
    return split.without(find_damaged(split, on_images))


# --- reading images -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Augmentation:
    """Random crops, stretched to the square, and mirror images half of the time.

    A crop cannot be larger than the image: with a largest share above 1, sizes are drawn again
    until a crop fits, at most 10 times, and then the whole image is taken (or its middle, if it is
    long and narrow).
    """

    crop_scale: tuple[float, float] = (0.5, 1.0)  # the smallest and largest share of the area
    flip: bool = True

    def __post_init__(self) -> None:
        scale = tuple(float(value) for value in self.crop_scale)
        if len(scale) != 2 or not 0 < scale[0] <= min(1, scale[1]) or not math.isfinite(scale[1]):
            raise ParameterError(f"crop_scale must be two shares, such as [0.5, 1.0], got {scale}.")
        object.__setattr__(self, "crop_scale", scale)

    def box(self, width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of a random crop."""
        for _ in range(_CROP_ATTEMPTS):
            area = width * height * rng.uniform(*self.crop_scale)
            ratio = math.exp(rng.uniform(math.log(_CROP_RATIO[0]), math.log(_CROP_RATIO[1])))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left = int(rng.integers(width - w + 1))
                top = int(rng.integers(height - h + 1))
                return left, top, left + w, top + h
        # No crop fits. Take the whole image, or the middle of a long and narrow one.
        w = min(width, round(height * _CROP_RATIO[1]))
        h = min(height, round(width / _CROP_RATIO[0]))
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + w, top + h


@dataclass(frozen=True)
class Reader:
    """Reads the images of a split."""

    split: Split
    preprocessing: Preprocessing
    augmentation: Augmentation | None = None  # its crops are drawn from seed and index
    seed: tuple[int, ...] = ()

    def pixels(self, index: int) -> Pixels:
        """Read one image, of shape (3, size, size)."""
        try:
            image = read_image(self.split.path(index))
        except DatasetError as error:
            raise DatasetError(
                f"{error} Fix the file, or leave it out: --skip-bad, or "
                "nescio.lab.data.without_damaged(split)."
            ) from error
        if self.augmentation is None:
            return self.preprocessing.pixels(image)
        rng = np.random.default_rng((*self.seed, index))
        pixels = self.preprocessing.pixels(image, self.augmentation.box(*image.size, rng))
        flipped = self.augmentation.flip and rng.random() < 0.5
        return pixels[:, :, ::-1] if flipped else pixels

    def batches(self, batches: Iterable[Indices]) -> Iterator[Pixels]:
        """Give each batch, of shape (n_images, 3, size, size), in order; reading runs ahead."""
        with ThreadPoolExecutor(available_cpus()) as pool:

            def read(indices: Indices) -> Pixels:
                return np.stack([*pool.map(self.pixels, map(int, indices))])

            yield from map_ahead(read, batches, _BATCHES_AHEAD)


def in_batches(n_items: int, batch_size: int) -> list[range]:
    """Return consecutive indices in batches of `batch_size`."""
    return [range(n_items)[start : start + batch_size] for start in range(0, n_items, batch_size)]
