"""`Outputs`: the named arrays that a model gave for some samples, and the model's last layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._charts.results import Result, View, joined, label_columns
from nescio._charts.svg import cut
from nescio._io.frames import check_same_rows, read_features, read_frame, read_logits, read_truth
from nescio._io.tables import MATRICES, Columns, warn_of_ignored
from nescio._validation import (
    Array,
    FloatArray,
    check_matrix,
    checked_list,
    checked_rows,
    is_frame,
    multi_hot,
    to_float,
    to_numpy,
)
from nescio.errors import (
    InputError,
    LabelMismatchError,
    ShapeError,
    error_context,
    label_difference,
    listed,
)
from nescio.scores import logits_from_probs

TEXT = "text"
"""The name of the kept column with the texts that the samples are, if they are texts."""

_RESERVED = frozenset({*MATRICES, "head", "ids", "label_names", "manifest"})
_SHOWN_NAMES = 8  # of kept columns, of arrays, and of labels

PENULTIMATE = "penultimate"
"""The name of the array that is the input of the head."""

INPUT = "input"
"""The name of the array that is the input of the model: of images, the mean and the contrast
(the logarithm of the standard deviation) of each channel."""

_ROOM_FOR_IDS = 16_000_000  # bytes; below this, padding all ids to the longest does not matter


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Head:
    """The last layer of a classifier: logits = penultimate @ weight.T + bias.

    Parameters
    ----------
    weight : array of shape (n_labels, n_units)
    bias : array of shape (n_labels,)

    Examples
    --------
    >>> head = Head(weight=np.eye(2), bias=np.zeros(2))
    >>> head.weight.shape
    (2, 2)
    """

    weight: FloatArray
    bias: FloatArray

    def __init__(self, weight: Any, bias: Any) -> None:
        parts = {"weight": weight, "bias": bias}
        vars(self).update({name: to_float(to_numpy(part), name) for name, part in parts.items()})
        if self.weight.ndim != 2:
            raise ShapeError(
                "the weight of the head must have shape (n_labels, n_units), got "
                f"{self.weight.shape}."
            )
        if self.bias.shape != self.weight.shape[:1]:
            turned = ["Pass weight.T?"] if self.bias.shape == self.weight.shape[1:] else []
            raise ShapeError(
                "the head must have one bias per label: its weight has shape (n_labels, n_units) = "
                f"{self.weight.shape}, its bias {self.bias.shape}.",
                *turned,
            )

    def __repr__(self) -> str:
        return f"Head({self.weight.shape[1]:,} units to {self.weight.shape[0]:,} labels)"

    def same_as(self, other: Head | None) -> bool:
        """Return whether two heads have equal weights."""
        return self is other or (
            other is not None
            and np.array_equal(self.weight, other.weight)
            and np.array_equal(self.bias, other.bias)
        )


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Outputs(Result):
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
    arrays: dict[str, FloatArray]
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
        mappings: dict[str, Any] = {"manifest": manifest, "arrays": arrays, "kept": kept}
        for name, value in mappings.items():
            if not isinstance(value, Mapping | None):
                kind = type(value).__name__
                raise InputError(f"{name} must be a mapping, such as a dict, got a {kind}.")
        row_ids = None  # of a data frame: other data frames must have the same
        if type(logits) is not np.ndarray and is_frame(logits):  # an array is the usual case
            read = read_logits(logits, label_names)
            logits = read["logits"]
            features = read.get("features") if features is None else features
            labels = read.get("labels") if labels is None else labels
            row_ids = read.get("ids")
            index = read.get("index") if ids is None else index
            ids = row_ids if ids is None else ids
            label_names = read.get("label_names") if label_names is None else label_names
            manifest = {**read.get("manifest", {}), **(manifest or {})}
            arrays = {**read.get("arrays", {}), **(arrays or {})}
        logits = as_matrix(logits, "logits")
        n_labels = logits.shape[1]
        names = None if label_names is None else check_label_names(label_names, n_labels)
        vars(self).update(
            logits=logits,
            features=None if features is None else as_matrix(features, "features", row_ids),
            labels=None if labels is None else as_multi_hot(labels, n_labels, names, row_ids),
            ids=None if ids is None else id_array(ids),
            label_names=names,
            manifest=deepcopy(dict(manifest or {})),  # it may hold lists and dicts
            head=head,
            arrays={n: as_matrix(array, n, row_ids) for n, array in (arrays or {}).items()},
            kept={n: as_column(f"kept column {n!r}", column) for n, column in (kept or {}).items()},
            index=index,
        )
        self._check_rows_and_names()

    def _check_rows_and_names(self) -> None:
        taken = _RESERVED & set(self.arrays)
        if taken:
            raise InputError(
                f"an array of your own cannot be named {min(taken)!r}.",
                f"Pass it as {min(taken)}=...",
            )
        index = {} if self.index is None else {"index": self.index}
        for name, rows in (*self._rows().items(), *self.kept.items(), *index.items()):
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
        rows = {name: getattr(self, name) for name in (*MATRICES, "ids")}
        return {name: array for name, array in rows.items() if array is not None} | self.arrays

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
        own = (name for name in self.arrays if name != PENULTIMATE)
        names = (*MATRICES, "head", PENULTIMATE, *own)
        return tuple(name for name in names if self.get(name) is not None)

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of those `arrays` that are known to be layers, whose columns are no labels."""
        named = self.manifest.get("layers")  # as a runner writes it
        layers = (PENULTIMATE, *(named if isinstance(named, list | tuple) else ()))
        return tuple(name for name in self.arrays if name in layers)

    # --- selection and concatenation ---

    def __getitem__(self, rows: slice | Sequence[int] | Array) -> Outputs:
        """Return some of the samples: a slice, indices or a boolean mask."""
        rows = checked_rows(rows, len(self))
        some: dict[str, Any] = {name: array[rows] for name, array in self._rows().items()}
        arrays = {name: some.pop(name) for name in self.arrays}
        kept = {name: column[rows] for name, column in self.kept.items()}
        index = None if self.index is None else self.index[rows]
        return replace(self, **some, arrays=arrays, kept=kept, index=index)

    def __iter__(self) -> Iterator[Outputs]:
        """Give each sample."""
        return (self[[row]] for row in range(len(self)))

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
        chosen = [self._position(label) for label in checked_list("labels", labels)]
        head = self.head
        return replace(
            self,
            logits=self.logits[:, chosen],
            labels=None if self.labels is None else self.labels[:, chosen],
            label_names=self.label_names and tuple(self.label_names[i] for i in chosen),
            head=None if head is None else Head(head.weight[chosen], head.bias[chosen]),
            arrays={name: self.arrays[name] for name in self.layers},
        )

    def _position(self, label: str | int) -> int:
        if isinstance(label, str):
            if label not in (self.label_names or ()):
                raise LabelMismatchError(f"the outputs have no label named {label!r}.")
            return (self.label_names or ()).index(label)
        is_whole = isinstance(label, int | np.integer) and not isinstance(label, bool)
        if not is_whole or not -self.n_labels <= label < self.n_labels:
            raise LabelMismatchError(f"the outputs have {self.n_labels} labels, got {label!r}.")
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
        optional = ("labels", "ids", "label_names", "head")
        parts += [name for name in optional if getattr(self, name) is not None]
        for what, names in (("kept ", self.kept), ("", self.arrays)):
            shown = [cut(name, 24) for name in names]
            parts += [what + listed(shown, _SHOWN_NAMES, quoted=False)] if names else []
        return f"Outputs({', '.join(parts)})"

    def _view(self) -> View:
        named = {name: self.get(name) for name in ("logits", "features", "labels", *self.arrays)}
        arrays = {name: array for name, array in named.items() if array is not None}
        return View(
            repr(self),
            table={
                "array": list(arrays),
                "shape": [" x ".join(f"{n:,}" for n in array.shape) for array in arrays.values()],
                "type": [str(array.dtype) for array in arrays.values()],
            },
        )

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
        sep: str | None = None,
        decimal: str | None = None,
        from_probs: bool = False,
        verify: bool = True,
    ) -> Outputs:
        """Read a .safetensors, .npy or .npz file, or a table: .parquet, .arrow, .csv and others.

        Tables are .parquet, .arrow, .feather, .csv, .tsv and .jsonl files; text files may be
        compressed (.csv.gz). `sep` and `decimal` are the separator and the decimal sign of CSV
        files, by default what the file shows.

        Several Parquet or Arrow files are one input: a pattern such as "data/*.parquet", or a
        folder. Remote addresses such as "s3://bucket/x.parquet" need the extra `files`.

        A table has either one column of logits per label, named after the label, or a column of
        lists named logits (and optionally features, labels and arrays of your own). The other
        parameters are those of `from_frame`. `labels` can also select labels by name from a
        .safetensors or .npz file; the other options are for tables only.

        A .safetensors file of nescio has a checksum, which is verified. This reads the whole file
        once. `verify=False` leaves it out, for files of many gigabytes.
        """
        from nescio.outputs.files import OutputsStream

        columns = Columns(id_column, labels, ignore, keep, sep=sep, decimal=decimal)
        stream = OutputsStream(path, columns, from_probs=from_probs, verify=verify)
        with error_context(path):
            return stream.whole()

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

        Without `labels`, every floating-point column is a label except ids, kept and ignored
        columns. Any other column (text, times, whole numbers such as a user id) is an error: say
        what it is. Nulls are NaN. `manifest["ignored_columns"]` lists what was ignored.

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
        content = read_frame(frame, Columns(id_column, labels, ignore, keep))
        return from_content(content, from_probs=from_probs)


def from_content(content: dict[str, Any], *, from_probs: bool) -> Outputs:
    """Make outputs from their arguments, with logits that may be probabilities."""
    if from_probs:
        content["logits"] = logits_from_probs(content["logits"])
    return Outputs(**content)


# --- checks of the parts ---------------------------------------------------------------------


def check_label_names(names: Sequence[str], n_labels: int | None = None) -> tuple[str, ...]:
    """Return the names as a tuple; raise unless there is one distinct name per label."""
    names = tuple(map(str, checked_list("label_names", names)))
    if n_labels is not None and len(names) != n_labels:
        raise ShapeError(f"label_names must name {n_labels} labels, got {len(names)} names.")
    if not names:
        raise InputError("label_names must name at least one label.")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InputError(f"label_names must be distinct; {name!r} appears {count} times.")
    return names


def as_matrix(values: Any, name: str, ids: Sequence[str] | None = None) -> FloatArray:
    """Return a matrix of floats, from an array, a tensor, a list or a data frame with these ids."""
    if type(values) is not np.ndarray and is_frame(values):
        read = read_features(values)
        check_same_rows(name, read.get("ids"), ids)
        values = read["logits"]
    array = to_float(to_numpy(values), name)
    check_matrix(array, name)
    return array


def as_column(name: str, values: Any, dtype: Any = None) -> Array:
    """Return a column as an array; raise unless it has one dimension."""
    array = to_numpy(values, dtype)
    if array.ndim != 1:
        raise ShapeError(f"{name} must have one dimension, got shape {array.shape}.")
    return array


def id_array(ids: Any) -> NDArray[np.str_]:
    """Return ids as strings; raise unless they have one dimension."""
    strings = list(map(str, as_column("ids", ids, np.object_)))
    # NumPy pads every string to the longest: wasteful if the others are short.
    lengths = [len(name) for name in strings]
    room = 4 * max(lengths, default=0) * len(strings)
    wasteful = room > max(_ROOM_FOR_IDS, 16 * sum(lengths))
    return np.array(strings, dtype=np.object_ if wasteful else np.str_)


def as_multi_hot(
    labels: Any, n_labels: int | None, names: Sequence[str] | None, ids: Sequence[str] | None
) -> NDArray[np.uint8]:
    """Return the multi-hot truth; the columns of a data frame are matched by name."""
    truth = read_truth(labels, names, ids) if is_frame(labels) else labels
    return multi_hot(truth, n_labels).astype(np.uint8, copy=False)


def match_labels(
    outputs: Outputs, names: Sequence[str], reads: Sequence[str] = (), *, quiet: bool = False
) -> Outputs:
    """Return the outputs with the labels `names`, in this order; see `Outputs.select_labels`.

    Other labels of the outputs are ignored with a warning, unless `quiet`, because an earlier block
    has given it. It is an error if the detector reads an array that is left out.
    """
    theirs = outputs.label_names or ()
    if theirs == tuple(names):
        return outputs
    position = {name: number for number, name in enumerate(theirs)}
    if any(name not in position for name in names):
        raise LabelMismatchError(label_difference(names, theirs))
    lost = [name for name in reads if name in outputs.arrays and name not in outputs.layers]
    if lost:
        raise InputError(
            "the labels of the data and of the detector differ, and nescio does not know which "
            f"columns of {lost[0]!r} belong to which label. Pass outputs that have the labels of "
            "the detector, in the same order."
        )
    if not quiet:
        expected = set(names)
        warn_of_ignored([name for name in theirs if name not in expected], "label")
    return outputs.select_labels([position[name] for name in names])


def join_columns(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Join kept columns of several sets of samples; raise if the sets have other columns."""
    if any(part.keys() != parts[0].keys() for part in parts):
        raise InputError("all parts to join must have kept the same columns.")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def join_indexes(parts: Sequence[Any]) -> Any:
    """Join the indexes of several pandas frames; None if one has none, or they are of two kinds."""
    first, *rest = parts
    if any(part is None or part.nlevels != first.nlevels for part in parts):
        return None
    return first.append(rest)


def check_same_arrays(parts: Sequence[Outputs]) -> None:
    """Raise unless all outputs have the same labels, arrays, columns and head."""
    if not parts:
        raise InputError("there are no outputs to join.")
    first = parts[0]
    for number, part in enumerate(parts):
        ours, theirs = first._rows(), part._rows()
        if ours.keys() != theirs.keys():
            raise InputError(
                f"outputs 0 have {', '.join(ours)}, outputs {number} have {', '.join(theirs)}: "
                "they must have the same arrays to be joined."
            )
        for name in ours:
            if ours[name].shape[1:] != theirs[name].shape[1:]:
                raise ShapeError(
                    f"{name} has {ours[name].shape[1]} columns in outputs 0 and "
                    f"{theirs[name].shape[1]} in outputs {number}."
                )
        if part.label_names != first.label_names:
            raise LabelMismatchError(f"outputs {number} have other label names than outputs 0.")
        same_head = first.head.same_as(part.head) if first.head else part.head is None
        if not same_head:
            raise InputError(f"outputs {number} have another head than outputs 0.")
