"""Labels matched by name: the data's labels in the detector's order, the others ignored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nescio._validation import Array
from nescio.errors import (
    IgnoredLabelsWarning,
    InputError,
    LabelMismatchError,
    label_difference,
    listed,
    warn,
)
from nescio.outputs.outputs import Outputs

# Logits for perturbed inputs have one column per label; features for perturbed inputs have none.
_PERTURBED_LOGITS = ("odin_max", "odin_sum")
_PERTURBED_FEATURES = ("mahalanobis_max", "mahalanobis_sum")


def match_labels(
    outputs: Outputs, names: Sequence[str], reads: Sequence[str] = (), *, quiet: bool = False
) -> Outputs:
    """Return the outputs with the labels `names`, in this order.

    Logits, labels and head are matched together; features and other layers have no labels. Other
    labels of the outputs are ignored with a warning. Of the further arrays only layers and those in
    `reads` are kept.

    Parameters
    ----------
    outputs : Outputs
        Outputs that know their label names.
    names : sequence of str
        The labels that the detector was made for.
    reads : sequence of str
        The arrays that the detector reads. It is an error if one of them cannot be matched.
    quiet : bool
        Whether the warning is left out, because an earlier block has given it.
    """
    theirs = outputs.label_names or ()
    if theirs == tuple(names):
        return outputs
    position = {name: at for at, name in enumerate(theirs)}
    if any(name not in position for name in names):
        raise LabelMismatchError(label_difference(names, theirs))
    at = [position[name] for name in names]
    arrays = {
        name: _matched(name, outputs.arrays[name], at, len(theirs))
        for name in reads
        if name in outputs.arrays and name not in outputs.layers
    }
    known = set(names)
    ignored = [name for name in theirs if name not in known]
    if ignored and not quiet:
        count = "1 label" if len(ignored) == 1 else f"{len(ignored):,} labels"
        warn(
            f"ignored {count} that the detector was not made for: {listed(ignored)}.",
            IgnoredLabelsWarning,
        )
    matched = outputs.select_labels(at)
    return replace(matched, arrays={**matched.arrays, **arrays})


def _matched(name: str, array: Array, at: Sequence[int], n_theirs: int) -> Array:
    """Return an array that the caller named, with its columns in the order of the labels."""
    if name in _PERTURBED_FEATURES:
        return array
    if name not in _PERTURBED_LOGITS or array.shape[1] != n_theirs:
        raise InputError(
            f"the labels of the data and of the detector differ, and nescio does not know which "
            f"columns of {name!r} belong to which label. Pass outputs that have the labels of the "
            "detector, in the same order."
        )
    if len(at) != n_theirs:
        raise InputError(
            f"{name} was computed with all {n_theirs} labels of the data, but the detector was "
            f"made for {len(at)} of them: the other labels cannot be left out afterwards, because "
            "the perturbation depends on them. Calibrate the detector on all labels."
        )
    return array[:, at]
