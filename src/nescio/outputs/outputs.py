"""`Outputs`: the named arrays that a model gave for some samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._charts.text import listed
from nescio._io.columns import MATRICES, Columns
from nescio._io.frames import FrameTable, is_frame, read_frame
from nescio._io.tabular import Tabular, joined, label_columns
from nescio._validation import Array, FloatArray, looks_like_probabilities
from nescio.errors import InputError, LabelMismatchError, ProbabilitiesWarning, ShapeError
from nescio.outputs.checked import as_column, as_ids, as_matrix, as_multi_hot, check_label_names
from nescio.outputs.head import PENULTIMATE, Head
from nescio.outputs.joining import check_same_arrays, join_columns, join_indexes, rows_of_index

TEXT = "text"
"""The name of the kept column with the texts that the samples are, if they are texts."""

_RESERVED = frozenset({*MATRICES, "head", "ids", "label_names", "manifest"})
_SHOWN_NAMES = 8  # of kept columns, and of arrays


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Outputs(Tabular):
    """A model's outputs, one row per sample. Arrays, tensors and lists are accepted.

    Parameters
    ----------
    logits : array of shape (n_samples, n_labels), or data frame
        Outputs before the sigmoid. A data frame is read as by `from_frame`: it also gives the
        label names and the ids. With `label_names`, the columns with these names are taken.
    features : array of shape (n_samples, n_features), or data frame, optional
        Activations of an inner layer.
    labels : array of shape (n_samples, n_labels), or data frame, optional
        The multi-hot truth. The columns of a data frame are matched by name with the labels.
    ids : sequence of str, optional
        One id per sample.
    label_names : sequence of str, optional
        One name per label.
    manifest : mapping, optional
        The origin of the outputs: data set, split, model hash, transform, versions. Anything that
        JSON can hold.
    head : Head, optional
        The model's last layer, if its input is here: logits = penultimate @ weight.T + bias, where
        penultimate is `arrays["penultimate"]` if given, else `features`.
    arrays : mapping of str to array of shape (n_samples, n_columns), optional
        Further arrays under names of your choice, for detectors that read them. For example,
        "penultimate" is the input of the last layer, and `nescio extract --tuned` adds "odin_max",
        the logits for perturbed inputs.
    kept : mapping of str to array of shape (n_samples,), optional
        Columns of the user's table, such as a text or a time, which are passed on to the verdicts.
    index : pandas index, optional
        The index of the pandas frame that the samples came from, for `to_pandas`. It is not saved;
        `ids` are.

    Examples
    --------
    >>> outputs = Outputs([[1.0, -2.0], [0.5, 3.0]], label_names=["cat", "dog"])
    >>> len(outputs), outputs[1:].logits.tolist()
    (2, [[0.5, 3.0]])
    >>> outputs.select_labels(["dog"]).logits.tolist()
    [[-2.0], [3.0]]
    """

    index_column = "id"

    logits: FloatArray
    features: FloatArray | None
    labels: NDArray[np.uint8] | None
    ids: NDArray[np.str_] | None
    label_names: tuple[str, ...] | None
    manifest: Mapping[str, Any]
    head: Head | None
    arrays: Mapping[str, FloatArray]
    kept: Mapping[str, Array]
    index: Any

    def __init__(
        self,
        logits: Any,
        features: Any = None,
        labels: Any = None,
        ids: Sequence[str] | NDArray[np.str_] | None = None,
        label_names: Sequence[str] | None = None,
        manifest: Mapping[str, Any] | None = None,
        head: Head | None = None,
        arrays: Mapping[str, Any] | None = None,
        kept: Mapping[str, Any] | None = None,
        index: Any = None,
    ) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        of_rows = None  # the ids of a data frame, which other data frames must have too
        if type(logits) is not np.ndarray and is_frame(logits):  # an array is the usual case
            found = read_frame(logits, label_names)
            logits = found["logits"]
            features = found.get("features") if features is None else features
            labels = found.get("labels") if labels is None else labels
            of_rows = found.get("ids")
            index = found.get("index") if ids is None else index
            ids = of_rows if ids is None else ids
            label_names = found.get("label_names") if label_names is None else label_names
            manifest = {**found.get("manifest", {}), **(manifest or {})}
            arrays = {**found.get("arrays", {}), **(arrays or {})}
        put("logits", as_matrix(logits, "logits"))
        n_labels = self.logits.shape[1]
        names = None if label_names is None else check_label_names(label_names, n_labels)
        put("features", None if features is None else as_matrix(features, "features", of_rows))
        put("labels", None if labels is None else as_multi_hot(labels, n_labels, names, of_rows))
        put("ids", None if ids is None else as_ids(ids))
        more = {name: as_matrix(array, name, of_rows) for name, array in (arrays or {}).items()}
        put("arrays", more)
        put("kept", {name: as_column(name, column) for name, column in (kept or {}).items()})
        put("index", index)
        put("head", head)
        put("label_names", names)
        put("manifest", deepcopy(dict(manifest or {})))  # it may hold lists and dicts
        self._check_rows_and_names()

    def _check_rows_and_names(self) -> None:
        taken = _RESERVED & set(self.arrays)
        if taken:
            raise InputError(
                f"an array of your own cannot be named {min(taken)!r}: pass it as {min(taken)}=..."
            )
        own = {} if self.index is None else {"index": self.index}
        for name, rows in (*self._rows().items(), *self.kept.items(), *own.items()):
            if len(rows) != len(self):
                raise ShapeError(
                    f"{name} must have one row per sample: logits have {len(self):,}, "
                    f"{name} {len(rows):,}."
                )
        if self.head is not None and len(self.head.bias) != self.n_labels:
            raise ShapeError(
                f"the head must have one output per label: the logits have {self.n_labels} labels, "
                f"the head {len(self.head.bias)}."
            )

    def _rows(self) -> dict[str, Array]:
        """Return everything that has one row per sample."""
        found = {name: getattr(self, name) for name in (*MATRICES, "ids")}
        return {name: rows for name, rows in found.items() if rows is not None} | dict(self.arrays)

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def n_labels(self) -> int:
        """The number of labels of the model."""
        return int(self.logits.shape[1])

    def get(self, name: str) -> Any:
        """Return logits, features, labels, head or one of `arrays` by name; None if absent.

        "penultimate" is the input of the head: the array of that name or, if there is none but a
        head, the features.
        """
        if name in (*MATRICES, "head"):
            return getattr(self, name)
        if name == PENULTIMATE and name not in self.arrays and self.head is not None:
            return self.features
        return self.arrays.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that `get` has something for."""
        known = (*MATRICES, "head", PENULTIMATE)
        found = [name for name in known if self.get(name) is not None]
        return (*found, *(name for name in self.arrays if name != PENULTIMATE))

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of those `arrays` that are known to be layers, whose columns are no labels."""
        listed = self.manifest.get("layers")  # as a runner writes it
        known = (PENULTIMATE, *(listed if isinstance(listed, list | tuple) else ()))
        return tuple(name for name in self.arrays if name in known)

    # --- selection and concatenation ---

    def __getitem__(self, rows: slice | Sequence[int] | Array) -> Outputs:
        """Return some of the samples: a slice, indices or a boolean mask."""
        if isinstance(rows, int | np.integer):
            rows = [int(rows)]
        some: dict[str, Any] = {name: array[rows] for name, array in self._rows().items()}
        arrays = {name: some.pop(name) for name in self.arrays}
        kept = {name: column[rows] for name, column in self.kept.items()}
        index = rows_of_index(self.index, rows)
        return replace(self, **some, arrays=arrays, kept=kept, index=index)

    def select_labels(self, labels: Sequence[str] | Sequence[int]) -> Outputs:
        """Return the outputs of some labels only, in the given order.

        Logits, labels, label names and the head keep these labels; features and other layers stay
        as they are. Other `arrays` are left out, because it is not known which of their columns
        belong to labels.

        Parameters
        ----------
        labels : sequence of str or of int
            Label names, or their positions.
        """
        at = [self._position(label) for label in labels]
        return replace(
            self,
            logits=self.logits[:, at],
            labels=None if self.labels is None else self.labels[:, at],
            label_names=self.label_names and tuple(self.label_names[i] for i in at),
            head=None if self.head is None else Head(self.head.weight[at], self.head.bias[at]),
            arrays={name: self.arrays[name] for name in self.layers},
        )

    def _position(self, label: str | int) -> int:
        if isinstance(label, str):
            if label not in (self.label_names or ()):
                raise LabelMismatchError(f"the outputs have no label named {label!r}.")
            return (self.label_names or ()).index(label)
        if not -self.n_labels <= label < self.n_labels:
            raise LabelMismatchError(f"the outputs have {self.n_labels} labels, got {label}.")
        return int(label)

    @classmethod
    def concat(cls, parts: Sequence[Outputs]) -> Outputs:
        """Join the outputs of one model for several sets of samples."""
        check_same_arrays(parts)
        first = parts[0]
        joined: dict[str, Any] = {
            name: np.concatenate([part._rows()[name] for part in parts]) for name in first._rows()
        }
        arrays = {name: joined.pop(name) for name in first.arrays}
        kept = join_columns([part.kept for part in parts])
        same = all(part.manifest == first.manifest for part in parts)
        manifest = first.manifest if same else {"parts": [dict(part.manifest) for part in parts]}
        index = join_indexes([part.index for part in parts])
        return replace(first, **joined, arrays=arrays, kept=kept, manifest=manifest, index=index)

    def columns(self) -> dict[str, Any]:
        """Return a table: id, the logits by label, and the kept columns.

        `from_frame` reads it if you name the kept columns, such as keep=["text"]. The truth, the
        features and the other arrays are not in it.
        """
        ids = {} if self.ids is None else {"id": self.ids}
        return joined(ids, label_columns(self.label_names, self.logits), self.kept)

    def __repr__(self) -> str:
        parts = [f"{len(self):,} samples x {self.n_labels} labels"]
        if self.features is not None:
            parts.append(f"{self.features.shape[1]} features")
        others = ("labels", "ids", "label_names", "head")
        parts += [name for name in others if getattr(self, name) is not None]
        if self.kept:
            parts.append(f"kept {listed(list(self.kept), _SHOWN_NAMES)}")
        parts += [listed(list(self.arrays), _SHOWN_NAMES)] if self.arrays else []
        return f"Outputs({', '.join(parts)})"

    def _repr_html_(self) -> str:
        from nescio.outputs.showing import outputs_card

        return outputs_card(self)

    # --- files: see nescio.outputs.files ---

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write one safetensors file atomically; replace an existing file only with `force`."""
        from nescio.outputs.files import save_in_parts

        save_in_parts(path, [self], self.manifest, force=force)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        id_column: str | None = None,
        labels: Sequence[str] | str | None = None,
        ignore: Sequence[str] | str = (),
        keep: Sequence[str] | str = (),
        from_probs: bool = False,
        verify: bool = True,
    ) -> Outputs:
        """Read a .safetensors, .npy, .npz, .csv, .parquet, .arrow or .feather file.

        Several Parquet or Arrow files are one input: a pattern such as "data/*.parquet", or a
        folder. Remote addresses such as "s3://bucket/x.parquet" need the extra `remote`.

        A table has either one column of logits per label, named after the label, or a column of
        lists named logits (and optionally features, labels and arrays of your own). The other
        parameters are those of `from_frame`. `labels` can also select labels by name from a
        .safetensors or .npz file; `id_column`, `ignore` and `keep` are for tables only.

        A .safetensors file of nescio has a checksum, which is verified. This reads the whole file
        once. `verify=False` leaves it out, for files of many gigabytes.
        """
        from nescio.outputs.files import load_outputs

        columns = Columns(id_column, labels, ignore, keep)
        return load_outputs(path, columns, from_probs=from_probs, verify=verify)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        id_column: str | None = None,
        labels: Sequence[str] | str | None = None,
        ignore: Sequence[str] | str = (),
        keep: Sequence[str] | str = (),
        from_probs: bool = False,
    ) -> Outputs:
        """Make outputs from a data frame of pandas, polars or pyarrow.

        Without `labels`, every column is a label except ids, kept and ignored columns. A column
        that does not look like logits (text, times, whole numbers such as a user id) is an error.
        Nulls are NaN. `manifest["ignored_columns"]` lists the columns that were ignored.

        Parameters
        ----------
        frame : data frame
            One row per sample.
        id_column : str, optional
            The column with the ids. By default a column named id, or the index of a pandas frame
            unless it only counts the rows.
        labels : sequence of str, or str, optional
            The columns of the labels, by name or pattern ("logit_*"), in this order. All other
            columns are ignored.
        ignore : sequence of str, or str
            Columns to leave out, by name or pattern.
        keep : sequence of str, or str
            Columns to pass on to the verdicts, by name or pattern; see `kept`.
        from_probs : bool
            Whether the values are probabilities, which are converted to logits.
        """
        from nescio.outputs.files import from_content

        content = Columns(id_column, labels, ignore, keep).read(FrameTable(frame))
        return from_content(content, from_probs=from_probs)

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Array],
        metadata: Mapping[str, Any],
        what: object = "the data",
        *,
        kept: bool = True,
    ) -> Outputs:
        """Make outputs from the content of a .safetensors file, which errors call `what`.

        Without `kept`, the kept columns are left out.
        """
        from nescio.outputs.files import parse_tensors

        return cls(**parse_tensors(what, tensors, metadata, kept=kept))


@contextmanager
def quiet_about_probabilities(outputs: Outputs) -> Iterator[None]:
    """Suppress a detector's warning about probabilities, for callers that gave it already.

    Examples
    --------
    >>> import nescio as ns
    >>> probs = np.random.default_rng(0).uniform(size=(100, 5))
    >>> outputs = ns.Outputs(probs)
    >>> with quiet_about_probabilities(outputs):
    ...     _ = ns.JointEnergy().calibrate(outputs)
    """
    if not looks_like_probabilities(outputs.logits):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbabilitiesWarning)
        yield
