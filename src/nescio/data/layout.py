"""Functions that the loaders share: find folders, read lists, check that images exist."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nescio.data.images import IMAGE_SUFFIXES
from nescio.data.split import BadFile, Split
from nescio.errors import DatasetError, ParameterError

HOW_TO = "See docs/how-to/datasets.md."
_OR_SKIP = "or pass skip_bad=True to continue without them."
_NAMED_FILES = 3


def check_split(dataset: str, split: str, splits: Sequence[str]) -> None:
    """Raise unless the data set has this split; the empty string stands for the whole data set."""
    if split in (splits or ("",)):
        return
    if not splits:
        raise ParameterError(f"{dataset} has no splits, got {split!r}. Leave it out.")
    if not split:
        raise ParameterError(
            f"{dataset} needs a split: {dataset}@SPLIT:PATH with one of {', '.join(splits)}."
        )
    raise ParameterError(f"{dataset} has no split {split!r}. Choose from: {', '.join(splits)}.")


def find_folder(what: str, *candidates: Path) -> Path:
    """Return the first folder that exists; the error names all candidates."""
    for folder in candidates:
        if folder.is_dir():
            return folder
    looked_for = " or ".join(str(folder) for folder in candidates)
    raise DatasetError(f"{what} not found: no folder {looked_for}. {HOW_TO}")


def in_any_case(root: Path, *names: str) -> Path:
    """Return `root/NAMES`, each name as it is on the disk if only upper and lower case differ."""
    path = root
    for name in names:
        if not (path / name).exists():
            alike = [found for found in names_in(path) if found.casefold() == name.casefold()]
            name = min(alike, default=name)
        path = path / name
    return path


def half(rows: NDArray[np.intp], seed: int, *, first: bool) -> NDArray[np.intp]:
    """Return a random half of some rows, in their original order; the second is the larger."""
    shuffled = np.random.default_rng(seed).permutation(rows)
    middle = len(rows) // 2
    return np.sort(shuffled[:middle] if first else shuffled[middle:])


def read_text(what: str, path: Path) -> str:
    """Return the content of one of a data set's text files."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DatasetError(f"{what} not found: no file {path}. {HOW_TO}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is damaged: it is not a text file in UTF-8.") from error
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}.") from error


def read_lines(what: str, path: Path) -> list[str]:
    """Return the lines of a list; only the end of the file may have empty lines."""
    lines = [line.strip() for line in read_text(what, path).rstrip().splitlines()]
    if not lines:
        raise DatasetError(f"{path} is damaged: it is empty.")
    if "" in lines:
        raise DatasetError(f"{path}, line {lines.index('') + 1}: the line is empty.")
    return lines


def images_under(folder: Path) -> list[str]:
    """Return all images below a folder, sorted and relative to it; hidden files are ignored."""
    found = []
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = Path(where).relative_to(folder)
        found += [(inside / name).as_posix() for name in files if is_image(name)]
    return sorted(found)


def is_image(name: str) -> bool:
    """Whether a file name has the suffix of an image; hidden files do not count."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def labels_from_lists(
    lists: Iterable[tuple[Path, Sequence[str]]],
    shape: tuple[int, int],
    *,
    positive: Sequence[str],
    negative: Sequence[str],
    skip_bad: bool,
) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """Return multi-hot labels from one list per label, and the reason for each row to skip.

    `lists` has the file of each label and its values, one per image; `shape` is the number of
    images and of labels. A value that is neither `positive` nor `negative` raises an error, or
    its row is to be skipped.
    """
    labels = np.zeros(shape, dtype=np.uint8)
    wrong: dict[int, str] = {}
    allowed = {*positive, *negative}
    for column, (path, values) in enumerate(lists):
        labels[:, column] = [value in positive for value in values]
        for row in [row for row, value in enumerate(values) if value not in allowed]:
            reason = f"{path}, line {row + 1}: invalid label value {values[row]!r}"
            if not skip_bad:
                raise DatasetError(f"{reason}. Unpack the files again, {_OR_SKIP}")
            wrong.setdefault(row, reason)
    return labels, wrong


def checked_presence(split: Split, *, skip_bad: bool) -> Split:
    """Return the split without the images that are missing; raise unless they may be skipped."""
    # Folders are listed, because 80,000 lookups of single files are slow on a network drive.
    names = {
        folder: names_in(split.root / folder) for folder in set(map(os.path.dirname, split.files))
    }
    present = [os.path.basename(file) in names[os.path.dirname(file)] for file in split.files]
    missing = [file for file, found in zip(split.files, present, strict=True) if not found]
    if not missing:
        return split
    if not skip_bad:
        named = ", ".join(str(split.root / file) for file in missing[:_NAMED_FILES])
        more = ", ..." if len(missing) > _NAMED_FILES else ""
        raise DatasetError(
            f"{split.title} lists {len(missing):,} images that do not exist: {named}{more}. "
            f"Unpack them, {_OR_SKIP}"
        )
    if not any(present):
        raise DatasetError(f"{split.title}: none of its images is in {split.root}. {HOW_TO}")
    bad = (BadFile(file, "missing") for file in missing)
    return replace(split.subset(np.flatnonzero(present)), skipped=(*split.skipped, *bad))


def names_in(folder: Path) -> set[str]:
    """Return the names of the files and folders in a folder; none if it cannot be read."""
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def split_of_classes(
    dataset: str,
    name: str,
    root: Path,
    files_of_class: Mapping[str, Sequence[str]],
    *,
    skipped: tuple[BadFile, ...] = (),
    notes: Mapping[str, str] | None = None,
) -> Split:
    """Return a split in which each image has one label: its class."""
    counts = [len(files) for files in files_of_class.values()]
    of_image = np.repeat(np.arange(len(counts)), counts)
    return Split(
        dataset=dataset,
        name=name,
        root=root,
        files=tuple(file for files in files_of_class.values() for file in files),
        labels=np.eye(len(counts), dtype=np.uint8)[of_image],
        label_names=tuple(files_of_class),
        skipped=skipped,
        notes=notes or {},
    )
