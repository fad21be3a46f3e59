"""The data to compare detectors on: arrays, outputs, data frames and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from nescio._io.addresses import find_files, same_file
from nescio._io.columns import Columns
from nescio._io.frames import FrameTable, is_frame
from nescio._validation import to_numpy
from nescio.errors import InputError, ParameterError, about
from nescio.outputs import Outputs
from nescio.outputs.files import TABLES, from_content
from nescio.outputs.large import LargeInput, check_fits, may_be_large, open_blocks
from nescio.outputs.outputs import TEXT
from nescio.outputs.reading import columns_of_others, matched, of_others, read_others, read_outputs


class Given(NamedTuple):
    """What the user gave: ID data, OOD data by name, and what detectors learn from, if any."""

    id: Any
    ood: Mapping[str, Any]
    train: Any = None
    held_out: Any = None


class Sets(NamedTuple):
    """The outputs to compare detectors on: ID, OOD by a short name, and what they learn from."""

    id: Outputs
    ood: dict[str, Outputs]
    train: Outputs | None
    held_out: Outputs | None

    def with_texts(self, column: str) -> Sets:
        """Return the sets with a kept column of ID and OOD as the texts."""

        def texts(one: Outputs, name: str) -> Outputs:
            if column not in one.kept:  # only of a table is it checked before
                raise InputError(
                    f"{name} has no column {column!r} (--text-column). Pass a table that has it "
                    "(.csv, .parquet or .arrow), or leave out --text-column."
                )
            return replace(one, kept={TEXT: one.kept[column]})

        ood = {name: texts(one, f"the OOD data {name!r}") for name, one in self.ood.items()}
        return self._replace(id=texts(self.id, "the ID data"), ood=ood)


class LargeSets(NamedTuple):
    """As `Sets`, but ID and OOD outputs are read in blocks."""

    id: LargeInput
    ood: dict[str, LargeInput]
    train: Outputs | None
    held_out: Outputs | None


def checked_sets(id_data: Any, ood_data: Any, train: Any = None, held_out: Any = None) -> Given:
    """Return the data with a name for each OOD set; raise if a file or an object is given twice."""
    given = Given(id_data, named_sets(ood_data), train, held_out)
    for one in given.ood.values():
        _check_other(id_data, one, "ID data (--id)", "OOD data (--ood)")
    _check_other(id_data, train, "ID data (--id)", "training data (--train)")
    _check_other(id_data, held_out, "ID data (--id)", "held-out data (--held-out)")
    _check_other(train, held_out, "training data (--train)", "held-out data (--held-out)")
    return given


def _check_other(a: Any, b: Any, name_a: str, name_b: str) -> None:
    if is_path(a) and is_path(b) and same_file(a, b):
        raise ParameterError(f"{b} is given as {name_a} and as {name_b}.")
    if a is b and a is not None:
        raise ParameterError(
            f"the same {type(a).__name__} is given as {name_a} and as {name_b}. Detectors would be "
            "tested on data that they know: pass other samples."
        )


def is_path(data: Any) -> bool:
    """Return whether data is the path or the address of files."""
    return isinstance(data, str | Path)


def named_sets(ood_data: Any) -> dict[str, Any]:
    """Return the OOD sets by name; files are named after themselves, a single array "ood"."""
    if isinstance(ood_data, Mapping):
        named = {str(name): one for name, one in ood_data.items()}
    elif is_path(ood_data):
        named = _by_stem([ood_data])
    elif isinstance(ood_data, list | tuple) and ood_data and all(map(is_path, ood_data)):
        named = _by_stem(ood_data)
    elif isinstance(ood_data, list | tuple) and any(map(_is_set, ood_data)):
        raise ParameterError(
            "several OOD sets need names: pass a dict, such as {'textures': a, 'objects': b}."
        )
    else:
        named = {"ood": ood_data}
    if not named:
        raise ParameterError("there is no OOD data to compare with: pass at least one set.")
    return named


def _is_set(data: Any) -> bool:
    return is_path(data) or isinstance(data, Outputs) or is_frame(data) or _n_dimensions(data) == 2


def _n_dimensions(data: Any) -> int:
    return len(getattr(data, "shape", ()))


def _by_stem(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Return a short name for each OOD file; the whole path where two share one."""
    stems = [Path(path).stem for path in paths]
    if len(set(map(str, paths))) != len(paths):
        raise ParameterError("the same OOD file (--ood) was given twice.")
    return {
        stem if stems.count(stem) == 1 and "*" not in stem else str(path): path
        for stem, path in zip(stems, paths, strict=True)
    }


def read_sets(given: Given, *, from_probs: bool | None, columns: Columns) -> Sets:
    """Return the outputs. The labels of the ID data are looked for in the other data."""
    first = _read(given.id, from_probs, columns)

    def read(data: Any, name: str, columns: Columns) -> Outputs:
        if is_path(data):
            return read_others(data, first, from_probs=from_probs, columns=columns)
        known = of_others(columns, first.label_names, "the ID data")
        with about(name):
            return matched(_read(data, from_probs, known), first, columns)

    ood = {name: read(data, name, columns) for name, data in given.ood.items()}
    others = {"the training data": given.train, "the held-out data": given.held_out}
    unkept = replace(columns, keep=())  # what is learned from is not shown
    learned = (None if data is None else read(data, name, unkept) for name, data in others.items())
    return Sets(first, ood, *learned)


def _read(data: Any, from_probs: bool | None, columns: Columns) -> Outputs:
    """Return outputs: as they are, from files, from a data frame, or of an array of logits."""
    if isinstance(data, Outputs):
        return data
    if is_path(data):
        return read_outputs(data, from_probs=from_probs, columns=columns)
    content = columns.read(FrameTable(data)) if is_frame(data) else {"logits": to_numpy(data)}
    return from_content(content, from_probs=bool(from_probs))


def find_large_sets(given: Given, *, from_probs: bool | None, columns: Columns) -> LargeSets | None:
    """Return the outputs to read in blocks; None if none of the ID and OOD files is large."""
    files = (given.id, *given.ood.values())
    if not all(map(is_path, files)) or not any(map(may_be_large, files)):
        return None
    of_id = open_blocks(given.id, from_probs=from_probs, columns=columns)

    def known(path: str | Path) -> Columns:
        return columns_of_others(path, columns, of_id.head.label_names)

    def opened(path: str | Path) -> LargeInput:
        large = open_blocks(path, from_probs=from_probs, columns=known(path))
        if find_files(path).suffix in TABLES:
            return large
        return replace(large, change=lambda outputs: matched(outputs, of_id.head, columns))

    def whole(data: Any) -> Outputs | None:
        if not is_path(data):
            return None if data is None else _read(data, from_probs, columns)
        check_fits(data, from_probs=from_probs, columns=known(data))
        return read_others(data, of_id.head, from_probs=from_probs, columns=columns)

    found = {name: opened(path) for name, path in given.ood.items() if may_be_large(path)}
    if not any(one.is_large for one in (of_id, *found.values())):
        return None
    ood = {name: found.get(name) or opened(path) for name, path in given.ood.items()}
    return LargeSets(of_id, ood, whole(given.train), whole(given.held_out))
