"""Results as tables of pandas and polars, and as plain Python values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from nescio._io.tables import require, to_values
from nescio.errors import InputError


class Tabular:
    """A result that is a table: a subclass writes `columns`, and the rest follows."""

    index_column: ClassVar[str | None] = None
    """The column that names the rows, which becomes the index of a pandas frame."""

    def columns(self) -> dict[str, Any]:
        """Return the table: columns of equal length, arrays or lists, by name."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns of the table by name, as lists of plain Python values."""
        return {
            name: column if isinstance(column, list) else to_values(column)
            for name, column in self.columns().items()
        }

    def to_pandas(self) -> Any:
        """Return the table as a pandas frame; the names of the rows, if any, are its index.

        If the rows came from a pandas frame or column, it is their index, so that
        `frame.join(result.to_pandas())` puts each row where it belongs.
        """
        columns, own = self.columns(), getattr(self, "index", None)
        # Without ids, a column of this name is something else, such as a label.
        is_named = self.index_column in columns and getattr(self, "ids", ()) is not None
        frame = require("pandas", None).DataFrame(columns)
        if is_named:
            frame = frame.set_index(self.index_column)
        return frame if own is None else frame.set_axis(own)

    def to_polars(self) -> Any:
        """Return the table as a polars frame."""
        polars = require("polars", None)
        return polars.DataFrame({name: _plain(column) for name, column in self.columns().items()})


def _plain(column: Any) -> Any:
    """Return a column as polars takes it: objects and tuples as lists."""
    if isinstance(column, list):
        return [list(one) if isinstance(one, tuple) else one for one in column]
    array = np.asarray(column)
    return array.tolist() if array.dtype.kind == "O" else array


def by_name(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of records that all have the same names."""
    return {name: [record[name] for record in records] for name in records[0]} if records else {}


def label_columns(names: Sequence[str] | None, values: Any) -> dict[str, Any]:
    """Return the columns of an array of shape (n_samples, n_labels), by the names of the labels."""
    found = names or [f"label {at}" for at in range(values.shape[1])]
    return dict(zip(found, values.T, strict=True))


def joined(*groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of several groups; raise if two have the same name."""
    columns: dict[str, Any] = {}
    for group in groups:
        both = next((name for name in group if name in columns), None)
        if both is not None:
            raise InputError(
                f"the table would have two columns named {both!r}. Rename the label or the kept "
                "column of this name."
            )
        columns |= group
    return columns
