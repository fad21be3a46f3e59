"""The outputs that detectors are compared on: ID, OOD, and those that detectors learn from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nescio._io.tables import Columns
from nescio._validation import n_equal, row_hashes
from nescio.errors import NescioWarning, ParameterError, error_context, warn
from nescio.outputs.files import MAX_ROWS, is_path, read_outputs
from nescio.outputs.outputs import Outputs


class Sets(NamedTuple):
    """The outputs to compare detectors on: ID, OOD by a short name, and what they learn from."""

    id: Outputs
    ood: Mapping[str, Outputs]
    train: Outputs | None
    held_out: Outputs | None

    def sampled(self) -> dict[str, int]:
        """Return the number of rows of the inputs of which a random sample was read."""
        named = {"ID": self.id, **self.ood, "training": self.train, "held-out": self.held_out}
        return {
            name: outputs.manifest["sampled_from"]
            for name, outputs in named.items()
            if outputs is not None and "sampled_from" in outputs.manifest
        }


def read_sets(
    id_data: Any,
    ood_data: Any,
    train: Any = None,
    held_out: Any = None,
    *,
    from_probs: bool | None,
    columns: Columns,
    max_rows: int | None = MAX_ROWS,
) -> Sets:
    """Return outputs from data of any kind, with the labels of the ID data; see `read_outputs`."""
    named = {} if ood_data is None else _named_sets(ood_data)

    def read(data: Any, name: str, columns: Columns, first: Outputs | None = None) -> Outputs:
        with nullcontext() if is_path(data) else error_context(name):
            return read_outputs(
                data, from_probs=from_probs, columns=columns, max_rows=max_rows, first=first
            )

    id_outputs = read(id_data, "the ID data", columns)
    ood = {name: read(data, name, columns, id_outputs) for name, data in named.items()}
    unkept = replace(columns, keep=())  # what is learned from is not shown
    learned = (
        None if data is None else read(data, f"the {name} data", unkept, id_outputs)
        for name, data in (("training", train), ("held-out", held_out))
    )
    sets = Sets(id_outputs, ood, *learned)
    known = {"ID data": sets.id, "training data": sets.train, "held-out data": sets.held_out}
    every = known | {f"OOD data {name!r}": outputs for name, outputs in ood.items()}
    hashes = {role: row_hashes(outputs.logits) for role, outputs in every.items() if outputs}
    for (role, a), (other, b) in combinations(hashes.items(), 2):
        if role not in known:  # two OOD sets may be equal
            continue
        if np.array_equal(a, b):
            raise ParameterError(
                f"the {role} and the {other} have the same rows. Detectors would be tested on "
                "data that they know: pass other samples."
            )
        if n_shared := n_equal(b, a):
            warn(
                f"{n_shared:,} of the {len(b):,} rows of the {other} are in the {role} too. If "
                "they are the same samples, leave them out of one of the two.",
                NescioWarning,
            )
    return sets


def _named_sets(ood_data: Any) -> dict[str, Any]:
    """Return OOD sets by name: of files theirs, an array is "ood", of several "ood 1" and so on."""
    paths = [ood_data] if is_path(ood_data) else ood_data
    if isinstance(ood_data, Mapping):
        named = {str(name): data for name, data in ood_data.items()}
    elif isinstance(paths, list | tuple) and paths and all(map(is_path, paths)):
        stems = [Path(path).stem for path in paths]
        if len(set(map(str, paths))) != len(paths):
            raise ParameterError("the same OOD file (--ood) was given twice.")
        named = {
            stem if stems.count(stem) == 1 and "*" not in stem else str(path): path
            for stem, path in zip(stems, paths, strict=True)
        }
    elif isinstance(ood_data, list | tuple) and any(
        isinstance(data, Outputs) or len(getattr(data, "shape", ())) == 2 for data in ood_data
    ):
        named = {f"ood {number}": data for number, data in enumerate(ood_data, start=1)}
    else:
        named = {"ood": ood_data}
    if not named:
        raise ParameterError("there is no OOD data to compare with: pass at least one set.")
    return named
