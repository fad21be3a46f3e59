"""What the loaders share: finding folders, reading lists, keeping the images that are there."""

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
UNPACK_OR_SKIP = "Unpack it again, or pass skip_bad=True (--skip-bad) to go on without."
_NAMED_FILES = 3


def check_split(dataset: str, split: str, splits: Sequence[str]) -> None:
    """Raise unless the data set has such a part."""
    if split not in splits:
        raise ParameterError(f"{dataset} has no split {split!r}. Choose from: {', '.join(splits)}.")


def refuse_split(dataset: str, split: str) -> None:
    """Raise if a part is asked of a data set that has only one."""
    if split:
        raise ParameterError(f"{dataset} has no splits, got {split!r}: all its images are used.")


def find_folder(what: str, *candidates: Path) -> Path:
    """The first of some folders that is there; an error names them all."""
    for folder in candidates:
        if folder.is_dir():
            return folder
    looked_for = " or ".join(str(folder) for folder in candidates)
    raise DatasetError(f"{what} not found: no folder {looked_for}. {HOW_TO}")


def read_text(what: str, path: Path) -> str:
    """A data set's own text file, whole."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DatasetError(f"{what} not found: no file {path}. {HOW_TO}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is damaged: it is not text.") from error
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}.") from error


def read_lines(what: str, path: Path) -> list[str]:
    """The lines of a list, the n-th at n - 1; the last may be followed by blank ones."""
    lines = [line.strip() for line in read_text(what, path).rstrip().splitlines()]
    if not lines:
        raise DatasetError(f"{path} is damaged: it is empty.")
    if "" in lines:
        raise DatasetError(f"{path}, line {lines.index('') + 1}: the line is empty.")
    return lines


def images_under(folder: Path) -> list[str]:
    """Images in a folder and its folders, sorted; relative to it. Hidden ones are left out."""
    found = []
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = Path(where).relative_to(folder)
        found += [(inside / name).as_posix() for name in files if is_image(name)]
    return sorted(found)


def is_image(name: str) -> bool:
    """Whether a file name is one of an image, by its ending; hidden files are not."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def checked_presence(split: Split, *, skip_bad: bool) -> Split:
    """The split, with images that are not there as an error, or moved to `skipped`."""
    present, missing = present_files(split.title, split.root, split.files, skip_bad=skip_bad)
    if not missing:
        return split
    if not present.any():
        raise DatasetError(f"{split.title}: none of its images is in {split.root}. {HOW_TO}")
    return replace(split.subset(np.flatnonzero(present)), skipped=(*split.skipped, *missing))


def present_files(
    title: str, root: Path, files: Iterable[str], *, skip_bad: bool
) -> tuple[NDArray[np.bool_], tuple[BadFile, ...]]:
    """Which of the listed files are there; raises at a missing one unless they may be skipped.

    Folders are listed rather than each file looked up: a network drive has 80,000 of them.
    """
    files = list(files)
    folders = {os.path.dirname(file) for file in files}
    there = {folder: _names_in(root / folder) for folder in folders}
    present = np.array(
        [os.path.basename(file) in there[os.path.dirname(file)] for file in files], dtype=np.bool_
    )
    missing = [file for file, found in zip(files, present, strict=True) if not found]
    if missing and not skip_bad:
        named = ", ".join(str(root / file) for file in missing[:_NAMED_FILES])
        more = ", ..." if len(missing) > _NAMED_FILES else ""
        raise DatasetError(
            f"{title} lists {len(missing):,} images that are not there: {named}{more}. "
            "Unpack them, or pass skip_bad=True (--skip-bad) to go on without."
        )
    return present, tuple(BadFile(file, "missing") for file in missing)


def _names_in(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries}
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
    """A split in which each image has one label, the class it is filed under."""
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
