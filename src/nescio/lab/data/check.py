"""Check the data of a benchmark: damaged images, overlapping labels, duplicates, gaps."""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nescio.errors import DatasetError, ParameterError, counted
from nescio.lab.data.split import Split, find_damaged
from nescio.models.images import content_hash


@dataclass(frozen=True)
class Finding:
    """One result of checking a protocol.

    Attributes
    ----------
    severity : {"error", "warning"}
        An error makes the numbers invalid; a warning is for you to judge.
    check : str
        The name of the check, such as "label overlap".
    message : str
        The result, in one sentence.
    examples : tuple of str
        All labels, pairs of labels or files concerned.
    """

    severity: Literal["error", "warning"]
    check: str
    message: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProtocolReport:
    """The result of `check_protocol`.

    Attributes
    ----------
    splits : tuple of dict
        The `title` of each split, its `role` ("id" or "ood"), `n_images`, and `n_labels`, which is
        None if it has no label names.
    findings : tuple of Finding
        Errors first.
    """

    splits: tuple[dict[str, Any], ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no finding of severity "error"."""
        return all(finding.severity != "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return {
            "ok": self.ok,
            "splits": list(self.splits),
            "findings": [asdict(finding) for finding in self.findings],
        }


def check_protocol(
    id_splits: Sequence[Split],
    ood_splits: Sequence[Split] = (),
    *,
    images: bool = False,
) -> ProtocolReport:
    """Find mistakes in the data that make the numbers of a benchmark wrong.

    - Label overlap: an OOD class that is also an in-distribution label is an error. Upper and
      lower case, hyphens, underscores, spaces and simple plurals are ignored. A class whose name
      contains the words of a label, or ends in the same word, is a warning; for example
      "electric_guitar" and "guitar".
    - Duplicate images: the same file in two splits of the in-distribution set, or in one of these
      and in an OOD set, is an error. Only files of equal size are read.
    - Label sets: splits of the in-distribution set with different labels are an error.
    - Images without any label, labels without any image, and skipped files are warnings.

    Parameters
    ----------
    id_splits : sequence of Split
        The splits of the in-distribution set, such as train, val and test.
    ood_splits : sequence of Split, optional
        The OOD sets.
    images : bool, default False
        Also decode every image: one that cannot be read is an error. Needs pillow.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from nescio.lab.data import load_folder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("id/cat", "id/dog", "ood/cats"):
    ...         pathlib.Path(folder, name).mkdir(parents=True)
    ...         _ = pathlib.Path(folder, name, "1.jpg").write_text(name)
    ...     id_split, ood_split = (load_folder(f"{folder}/{name}") for name in ("id", "ood"))
    ...     report = check_protocol([id_split], [ood_split])
    >>> [finding.severity for finding in report.findings]
    ['error']
    """
    if not id_splits:
        raise ParameterError("id_splits must have at least one in-distribution split.")
    splits = [*id_splits, *ood_splits]
    findings = [
        *_label_sets(id_splits),
        *_label_overlap(id_splits, ood_splits),
        *_duplicates(id_splits, ood_splits),
    ]
    for split in splits:
        findings += _image_findings(split, decode=images)
    summaries = [
        {
            "title": split.title,
            "role": "id" if index < len(id_splits) else "ood",
            "n_images": len(split),
            "n_labels": None if split.label_names is None else len(split.label_names),
        }
        for index, split in enumerate(splits)
    ]
    findings.sort(key=lambda finding: finding.severity)  # errors first
    return ProtocolReport(tuple(summaries), tuple(findings))


# --- labels -------------------------------------------------------------------------------------


def _label_sets(id_splits: Sequence[Split]) -> Iterator[Finding]:
    """Compare the labels of the splits of the in-distribution set."""
    named = [split for split in id_splits if split.label_names]
    for split, other in itertools.pairwise(named):
        names, other_names = split.label_names or (), other.label_names or ()
        if difference := sorted(set(names) ^ set(other_names)):
            message = f"{split.title} and {other.title} differ in "
            message += counted(len(difference), "label")
            yield Finding("error", "label sets", message, tuple(difference))
        elif names != other_names:
            message = f"{split.title} and {other.title} have the same labels in a different order"
            yield Finding("warning", "label sets", message)


def _label_overlap(id_splits: Sequence[Split], ood_splits: Sequence[Split]) -> Iterator[Finding]:
    """Find OOD classes that are, or may be, in-distribution labels."""
    labels = dict.fromkeys(name for split in id_splits for name in split.label_names or ())
    for split in ood_splits:
        same: dict[str, str] = {}  # pair of class and label -> class
        alike: dict[str, str] = {}
        for name, label in itertools.product(split.label_names or (), labels):
            a, b = _words(name), _words(label)
            if "".join(a) == "".join(b):  # VOC writes pottedplant and diningtable
                same[f"{name} ~ {label}"] = name
            elif a and b and (set(a) <= set(b) or set(b) <= set(a) or a[-1] == b[-1]):
                alike[f"{name} ~ {label}"] = name
        has, may = (counted(len(set(of.values())), "class", "classes") for of in (same, alike))
        if same:
            message = f"{split.title} has {has} of the in-distribution label set"
            yield Finding("error", "label overlap", message, tuple(same))
        if alike:
            message = f"{split.title} may have {may} in-distribution, judging by the name"
            yield Finding("warning", "label overlap", message, tuple(alike))


def _words(name: str) -> list[str]:
    """Return the words of a label, in lower case and in the singular."""
    return [_singular(word) for word in re.split(r"[-_\s]+", name.casefold()) if word]


def _singular(word: str) -> str:
    """Return an approximate singular; it only needs to be the same for both names."""
    if len(word) <= 3 or not word.endswith("s") or word.endswith("ss"):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("ses", "xes", "zes", "ches", "shes")):
        return word[:-2]
    return word[:-1]


# --- images -------------------------------------------------------------------------------------


def _duplicates(id_splits: Sequence[Split], ood_splits: Sequence[Split]) -> Iterator[Finding]:
    """Find files that are in two splits; a file in two OOD sets is allowed."""
    splits = [*id_splits, *ood_splits]
    images = (
        (index, split.root / file) for index, split in enumerate(splits) for file in split.files
    )
    shared: dict[tuple[int, int], list[str]] = defaultdict(list)
    for candidates in _groups(images, _size):  # only files of equal size are read
        for group in _groups(candidates, content_hash):
            first_in = dict(reversed(group))  # split -> its first image in the group
            for a, b in itertools.combinations(sorted(first_in), 2):
                if a < len(id_splits):
                    shared[a, b].append(f"{first_in[a]} = {first_in[b]}")
    for (a, b), files in sorted(shared.items()):
        message = f"{splits[a].title} and {splits[b].title} have "
        message += f"{counted(len(files), 'image')} in common"
        yield Finding("error", "duplicate images", message, tuple(files))


def _groups(
    images: Iterable[tuple[int, Path]], key: Callable[[Path], object]
) -> list[list[tuple[int, Path]]]:
    """Return the images with the same key, if they belong to more than one split."""
    groups = defaultdict(list)
    for index, path in images:
        groups[key(path)].append((index, path))
    return [group for group in groups.values() if len({index for index, _ in group}) > 1]


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}.") from error


def _image_findings(split: Split, *, decode: bool) -> Iterator[Finding]:
    """Find damaged images, skipped files, images without labels and labels without images."""
    if decode and (bad := find_damaged(split)):
        reasons = tuple(image.reason.rstrip(".") for image in bad)
        message = f"{split.title} has {counted(len(bad), 'image')} that cannot be read"
        yield Finding("error", "damaged images", message, reasons)
    if split.skipped:
        examples = tuple(f"{bad.file}: {bad.reason}" for bad in split.skipped)
        message = f"{split.title} was read without {counted(len(examples), 'file')}"
        yield Finding("warning", "skipped files", message, examples)
    if split.labels is None or split.label_names is None:
        return
    files = tuple(split.files[index] for index in np.flatnonzero(~split.labels.any(axis=1)))
    if files:
        message = f"{split.title} has {counted(len(files), 'image')} without labels"
        yield Finding("warning", "images without labels", message, files)
    empty = tuple(split.label_names[index] for index in np.flatnonzero(~split.labels.any(axis=0)))
    if empty:
        message = f"{split.title} has {counted(len(empty), 'label')} without images"
        yield Finding("warning", "labels without images", message, empty)
