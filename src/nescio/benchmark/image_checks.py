"""Check every image of a benchmark before any work, and only once.

    CACHE/checked/TITLE-KEY.json    the damaged images of a split

KEY is a hash of the path, size and time of each file, so a file that has changed is checked again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nescio._io.files import replacing
from nescio.benchmark.progress import Watch
from nescio.data.damage import Thoroughness, find_damaged
from nescio.data.split import BadFile, Split
from nescio.errors import DatasetError

if TYPE_CHECKING:
    from nescio.benchmark.pipeline import LoadedSet

_VERSION = 2  # of the check: raise it if the check finds more than before
_NAMED = 5


def checked_sets(
    sets: Sequence[LoadedSet], cache: Path, check: Thoroughness, watch: Watch
) -> list[LoadedSet]:
    """Return the sets without damaged images, where these may be left out; raise elsewhere.

    What is left out must be known before training, so the images of such a set are all decoded.
    """
    wanted: list[tuple[Split, Thoroughness]] = [
        (split, "full" if one.source.skip_bad else check) for one in sets for split in one.splits()
    ]
    found = iter(damaged_images(wanted, cache, watch))
    bad = [[next(found) for _ in one.splits()] for one in sets]
    of_strict = [bad for one, bad in zip(sets, bad, strict=True) if not one.source.skip_bad]
    refuse_damaged([one for splits in of_strict for split in splits for one in split])
    return [one.without(bad) for one, bad in zip(sets, bad, strict=True)]


def damaged_images(
    splits: Sequence[tuple[Split, Thoroughness]], cache: Path, watch: Watch
) -> list[tuple[BadFile, ...]]:
    """Return the damaged images of each split, which is checked as thoroughly as asked for."""
    folder = cache / "checked"
    records = [_Record(folder, split, how) for split, how in splits]
    # Two sets often have an OOD set in common.
    missing = {record.path: record for record in records if record.read() is None}
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        total = sum(len(record.split) for record in missing.values())
        with watch("checking images", total) as advance:
            for record in missing.values():
                record.write(find_damaged(record.split, record.how, on_images=advance))
    return [record.read() or () for record in records]


def refuse_damaged(bad: Sequence[BadFile]) -> None:
    """Raise an error that names the first damaged images, if there are any."""
    if not bad:
        return
    reasons = list(dict.fromkeys(one.reason for one in bad))
    named = "\n".join(f"  {reason}" for reason in reasons[:_NAMED])
    more = f"\n  and {len(reasons) - _NAMED:,} more" if len(reasons) > _NAMED else ""
    n_images = f"{len(reasons):,} image{'s' if len(reasons) > 1 else ''}"
    raise DatasetError(
        f"the benchmark cannot use {n_images}:\n{named}{more}\n"
        "Replace or remove these files, or leave them out: --skip-bad for all sets, or "
        "skip_bad = true for a set in the benchmark's file."
    )


class _Record:
    """The damaged images of a split, in a file."""

    def __init__(self, folder: Path, split: Split, how: Thoroughness) -> None:
        self.split, self.how = split, how
        self._key = _key(split)
        self._folder = folder
        self.path = self._path(how)

    def _path(self, how: Thoroughness) -> Path:
        return self._folder / f"{self.split.title}-{self._key}-{how}.json"

    def read(self) -> tuple[BadFile, ...] | None:
        """Return the damaged images; None if the split has not been checked."""
        for path in (self._path("full"), self.path):
            if path.exists():
                try:
                    return tuple(BadFile(**bad) for bad in json.loads(path.read_text("utf-8")))
                except (TypeError, ValueError):  # damaged: check the images again
                    continue
        return None

    def write(self, bad: Sequence[BadFile]) -> None:
        with replacing(self.path, force=True) as temporary:
            temporary.write_text(json.dumps([asdict(one) for one in bad]), "utf-8")


def _key(split: Split) -> str:
    digest = hashlib.sha256(f"{_VERSION}\0{split.root.resolve()}\n".encode())
    for file in split.files:
        try:
            found = os.stat(split.root / file)
            digest.update(f"{file}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{file}\0missing\n".encode())
    return digest.hexdigest()[:16]
