"""Auxiliary outliers, which a network of a benchmark may be trained with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nescio.data.split import Split
from nescio.errors import DatasetError

if TYPE_CHECKING:
    from nescio.benchmark.pipeline import LoadedSet


def refuse_test_images(outliers: Split, sets: Sequence[LoadedSet]) -> None:
    """Raise if an outlier is one of the images that a network is tested on.

    Only files are compared: a copy in another folder is not found.
    """
    trained_on = _paths(outliers)
    for one in sets:
        for name, split in {one.name: one.test, **one.ood}.items():
            common = trained_on & _paths(split)
            if common:
                raise DatasetError(
                    f"{len(common):,} of the outliers in {outliers.root} are also in the test data "
                    f"of {name}, such as {min(common)}. A network must not be trained on what it "
                    "is tested on: choose other outliers."
                )


def _paths(split: Split) -> set[Path]:
    root = split.root.resolve()
    return {root / file for file in split.files}
