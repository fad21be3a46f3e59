"""Which layers of a model a detector reads, and whether the model has them."""

from __future__ import annotations

from nescio.detectors import Detector
from nescio.errors import LabelMismatchError, MissingInputError, ShapeError, label_difference
from nescio.outputs.crops import CROPS, is_crops
from nescio.runners.base import Runner
from nescio.runners.features import AUTO, FEATURES, PENULTIMATE, POOLED


def _all_read_by(detector: Detector) -> set[str]:
    """Return the names of all arrays that a detector reads."""
    return {*detector.scores_from, *detector.learns_from, *detector.learns_from_held_out}


def _read_by(detector: Detector) -> set[str]:
    """Return the names of the arrays that a detector reads, of images and of their crops."""
    return {name.removeprefix(CROPS) for name in _all_read_by(detector)}


def with_layers(runner: Runner, detector: Detector) -> Runner:
    """Return a runner that also gives what the detector reads: layers that it has, and crops."""
    if any(map(is_crops, _all_read_by(detector))) and not runner.crops:
        runner = runner.changed(crops=True)
    reads = _read_by(detector) - {"logits", "labels"}
    if not reads:
        return runner
    named = sorted(reads - {FEATURES, "head", *runner.array_names})
    missing = tuple(name for name in named if runner.has_layer(name))
    layers = runner.layers
    if FEATURES in reads and (not layers or runner.layers_are_default):
        layers = (*(_features_of(runner, detector) or layers[:1]), *layers[1:])
    elif not layers:
        layers = missing[:1] or (AUTO,)
    layers += missing
    return runner if layers == runner.layers else runner.changed(features=layers)


def _features_of(runner: Runner, detector: Detector) -> tuple[str, ...]:
    """Return the layer that the features are if the caller chose none; nothing if not known."""
    made_with: tuple[str, ...] = getattr(detector, "layers_", ())[:1]
    outputs: tuple[str, ...] = tuple(getattr(runner, "output_names", ()))
    if FEATURES in outputs:  # an ONNX file that names them
        return (FEATURES,)
    # "pooled" of a graph may be another layer than that of the module it was exported from.
    in_a_graph = bool(outputs) and made_with == (POOLED,)
    if made_with and not in_a_graph and runner.has_layer(made_with[0]):
        return made_with
    reads_head = "head" in detector.scores_from and PENULTIMATE not in detector.scores_from
    if reads_head and runner.has_layer(PENULTIMATE):  # it takes the features as the head's input
        return (PENULTIMATE,)
    unknown = hasattr(detector, "n_columns_")  # made with features, but not known which
    return () if unknown or runner.layers else (AUTO,)


def with_only_layer(runner: Runner, detector: Detector) -> Runner:
    """Return a runner whose features are the only layer that the detector scores, if it is one."""
    scored = [name for name in detector.scores_from if name in runner.array_names[1:]]
    if FEATURES in detector.scores_from or len(scored) != 1 or scored[0] == runner.features:
        return runner
    return runner.changed(features=scored * 2)  # under its own name too


def check_detector(runner: Runner, detector: Detector) -> None:
    """Raise if the model cannot give what the detector reads."""
    reads = _read_by(detector)
    if reads & {FEATURES, "head", PENULTIMATE} and not runner.layers:
        why = "the model has no layer that is known to be suitable. Choose one"
        outputs = ", ".join(getattr(runner, "output_names", ()))
        listed = f" The file has the outputs {outputs}." if outputs else ""
        if hasattr(detector, "n_columns_"):
            why = "of which layer is not known. Choose the one that it was made with"
        raise MissingInputError(
            f"{detector.name} reads {' and '.join(sorted(reads))}, and {why} (features=..., "
            f"--features).{listed}"
        )
    # The features may be the input of the head, under another name.
    known = {"logits", FEATURES, "head", "labels", PENULTIMATE, *runner.array_names}
    others = sorted(reads - known)
    if others:
        raise MissingInputError(
            f"{detector.name} reads {', '.join(others)}, which a wrapped model does not give. "
            "Use Outputs with this array; for perturbed inputs, see nescio extract --tuned."
        )
    ours, theirs = runner.label_names, getattr(detector, "label_names_", None)
    if ours is not None and theirs is not None and ours != theirs:
        raise LabelMismatchError(label_difference(theirs, ours).replace("the data", "the model"))
    n_labels = getattr(detector, "n_columns_", {}).get("logits")
    if ours is not None and n_labels is not None and n_labels != len(ours):
        raise ShapeError(
            f"the detector was made for {n_labels} labels, but the model has {len(ours)}. "
            "Calibrate a detector on outputs of this model."
        )
