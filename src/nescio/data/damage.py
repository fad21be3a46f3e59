"""Find images that are missing or damaged, before any work depends on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal

from nescio._threads import available_cpus
from nescio.data.images import check_image, read_image
from nescio.data.split import BadFile, Split
from nescio.errors import DatasetError

Thoroughness = Literal["fast", "full"]
"""How images are checked: header and end of each file, or the whole image."""

_FILES_PER_TASK = 64
_THREADS = 8  # at least: on a network drive, most of the time is waiting


def find_damaged(
    split: Split,
    how: Thoroughness = "fast",
    *,
    on_images: Callable[[int], object] = lambda count: None,
) -> tuple[BadFile, ...]:
    """Return the images of a split that cannot be read.

    Parameters
    ----------
    split : Split
    how : {"fast", "full"}
        "fast" opens every image and looks at the header and the end of the file. It finds files
        that are missing, empty, truncated or no images. "full" decodes every image, as a network
        needs it.
    on_images : callable
        Called with the number of images just checked.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from nescio.data import load_folder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "1.png").write_bytes(b"not an image")
    ...     [bad] = find_damaged(load_folder(folder))
    >>> bad.file
    '1.png'
    """
    check = read_image if how == "full" else check_image

    def damaged(files: Sequence[str]) -> list[BadFile]:
        found = []
        for file in files:
            try:
                check(split.root / file)
            except DatasetError as error:
                found.append(BadFile(file, str(error)))
        return found

    starts = range(0, len(split), _FILES_PER_TASK)
    tasks = [split.files[start : start + _FILES_PER_TASK] for start in starts]
    bad: list[BadFile] = []
    with ThreadPoolExecutor(max(_THREADS, available_cpus())) as pool:
        try:
            for files, found in zip(tasks, pool.map(damaged, tasks), strict=True):
                bad += found
                on_images(len(files))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return tuple(bad)


def without(split: Split, bad: Sequence[BadFile]) -> Split:
    """Return the split without some images, which are added to `skipped`."""
    if not bad:
        return split
    gone = {one.file for one in bad}
    good = [at for at, file in enumerate(split.files) if file not in gone]
    if not good:
        raise DatasetError(f"none of the images of {split.title} can be read: {bad[0].reason}")
    return replace(split.subset(good), skipped=(*split.skipped, *bad))


def without_damaged(split: Split, on_images: Callable[[int], object] = lambda count: None) -> Split:
    """Return the split without the images that cannot be read; decodes every one."""
    return without(split, find_damaged(split, "full", on_images=on_images))
