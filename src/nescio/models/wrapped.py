"""A model with a detector: outputs, verdicts and explanations of its inputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from nescio._charts.results import View, result_card
from nescio._charts.svg import cut
from nescio._io.frames import index_ids
from nescio._validation import (
    Array,
    BoolArray,
    check_logits,
    check_no_labels,
    check_same_order,
    checked_whole,
    index_of,
    to_numpy,
)
from nescio.calibration.calibration import guarantee_text
from nescio.detectors import Assessment, Detector, NotCalibratedError, as_detector, load
from nescio.detectors.base import groups_at
from nescio.detectors.combined import (
    AUTO_DETECTOR,
    GUARDED_INPUT,
    MIN_HELD_OUT,
    MIN_WITH_TRAINING,
    MOST_FEATURES,
    Combined,
    Default,
    default_detector,
)
from nescio.errors import (
    DefaultDetectorWarning,
    InputError,
    LabelMismatchError,
    MissingInputError,
    NescioError,
    NescioWarning,
    ShapeError,
    TruncatedTextWarning,
    counted,
    label_difference,
    listed,
    warn,
)
from nescio.explain import ExplainedVerdicts
from nescio.models.base import AUTO_LAYER, FEATURES, PREPARED, Layers, Runner, make_runner
from nescio.models.images import Preprocessing
from nescio.models.inputs import changeable, check_order, length_of, rows_of
from nescio.models.prediction import Prediction
from nescio.outputs import Outputs
from nescio.outputs.outputs import INPUT, PENULTIMATE, TEXT, as_multi_hot
from nescio.self_check import (
    MOST_ROWS,
    TABLES,
    SelfCheck,
    check_faults,
    spread_rows,
    warn_of_blind_spots,
    with_cells,
)

_FEW = 50  # inputs of the self-check in `calibrate`
_PROBED = 8  # inputs that show whether the model has a layer


def wrap(
    model: Any,
    *,
    detector: Detector | str | Path | None = None,
    features: Layers | Any = None,
    label_names: Sequence[str] | None = None,
    from_probs: bool | None = None,
    device: Any = None,
    output: str | int | None = None,
    preprocessing: Preprocessing | None = None,
    tokenizer: Any = None,
) -> Wrapped:
    """Wrap a trained multi-label model, so that it gives `Outputs` and verdicts.

    The model stays unchanged: its predictions, parameters, buffers, hooks, device and the train or
    eval mode of each part.

    Parameters
    ----------
    model : torch Module, transformers model, scikit-learn classifier, Checkpoint or path
        A path is that of an .onnx file. Any other model with a method `make_runner(**settings)`,
        such as a checkpoint, makes its runner itself. A wrapped model, or a `nescio.WithVerdict`,
        is wrapped again, with the parameters that are given here.
    detector : Detector, str or path, optional
        A detector, calibrated or not; the name of one, such as "mahalanobis" or
        "top_k_joint_energy(k=5)"; or the path of a saved one. If not given, or "auto", it is the
        default: `fit` with labels takes a combination of logits and features, `calibrate` alone
        joint energy and the ranges of the features.
    features : str, sequence of str or transformer, optional
        Which activations are the features. "pooled" is the representation before the task head,
        "penultimate" the input of the last linear layer, "input" the model's own input, and "auto"
        the first of these that the model has. torch and transformers: also the dotted name of a
        layer for its output, or followed by ":input", such as "fc:input", for its input. ONNX: also
        the name of a tensor. scikit-learn: also a fitted transformer of the model's input. If none
        is chosen, `fit` makes one of a table: `nescio.TableFeatures` of the columns that the model
        reads. Of several layers, "pooled,penultimate" or a list, the first are the features, and
        the others are arrays under their own names. The default is none; for checkpoints,
        "pooled,penultimate"; if the detector reads features, "auto", and what else it reads.
    label_names : sequence of str, optional
        One name per label, in the model's order. Checkpoints, transformers models and files of
        `nescio export` have their own.
    from_probs : bool
        The model returns probabilities, not logits.
    device : optional
        torch and transformers: where the model is and where inputs go; by default where its
        parameters are. A checkpoint is moved there. ONNX: "cpu" or "cuda".
    output : str or int, optional
        Which output holds the logits, if there are several. torch: a key, an attribute or a
        position. ONNX: a name. scikit-learn: "decision_function" or "predict_proba".
    preprocessing : Preprocessing, optional
        How an image becomes the model's input. With it, uint8 images are preprocessed; images of
        floating point are taken as already preprocessed.
    tokenizer : transformers tokenizer, tokenizers.Tokenizer or path, optional
        torch, transformers and ONNX models that take `input_ids`: makes texts their inputs. A path
        is that of a tokenizer.json, or of a folder with one. A text with too many tokens is cut
        off, with a warning. Files of `nescio.export_onnx` have their own.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.multiclass import OneVsRestClassifier
    >>> x = np.random.default_rng(0).normal(size=(300, 3))
    >>> model = OneVsRestClassifier(LogisticRegression()).fit(x[:100], x[:100] > 0)
    >>> wrapped = wrap(model, label_names=["cat", "dog", "cow"]).calibrate(x[100:])
    >>> wrapped([[4.0, -1.0, 5.0], [-4.0, -3.0, -5.0]])
    2 samples, 1 flagged
    sample    score  p_value  verdict  predicted
    0        -7.569   0.2475  in       cow 1.00, cat 1.00
    1       -109.69   0.0099  OUT      none
    """
    own = None
    model = getattr(model, "wrapped_", model)  # of a fitted nescio.WithVerdict
    if isinstance(model, Wrapped):
        own, model = model.detector, model.runner
    runner = make_runner(
        model,
        features=features,
        label_names=label_names,
        from_probs=from_probs,
        device=device,
        output=output,
        preprocessing=preprocessing,
        tokenizer=tokenizer,
    )
    if isinstance(detector, str) and detector == AUTO_DETECTOR:
        return Wrapped(runner)
    if isinstance(detector, Path) or (
        isinstance(detector, str) and (detector.endswith(".nescio") or Path(detector).is_file())
    ):
        detector = load(detector)
    return Wrapped(runner, own if detector is None else as_detector(detector))


class Wrapped:
    """A runner of a model and a detector for its outputs. Made by `wrap`.

    It is a value: `fit` and `calibrate` return another one.

    Attributes
    ----------
    runner : Runner
        Runs the model.
    detector : Detector or None
        None if none was chosen; then `fit` chooses, or `calibrate` without `fit`.
    checked : SelfCheck or None
        Which faults the detector sees: the self-check that `calibrate` has made.
    """

    def __init__(
        self, runner: Runner, detector: Detector | None = None, default: Default | None = None
    ) -> None:
        self.runner = runner
        self.detector = detector
        self._default = default
        self._was_fitted = False
        self.checked: SelfCheck | None = None
        if detector is not None:
            self.runner = with_layers(runner, detector)
            check_reads(self.runner, detector)

    @property
    def reason(self) -> str:
        """Why this detector, if `fit` or `calibrate` has chosen it; empty if you have."""
        return "" if self._default is None else self._default.reason

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The label names: those of the model, or else the detector's."""
        if self.runner.label_names is not None or self.detector is None:
            return self.runner.label_names
        return getattr(self.detector, "label_names_", None)

    def outputs(
        self,
        inputs: Any,
        labels: Any = None,
        *,
        ids: Sequence[str] | None = None,
        batch_size: int = 256,
    ) -> Outputs:
        """Return the model's logits and, if chosen or read by the detector, features.

        Parameters
        ----------
        inputs
            What the model takes, samples first: an array or a tensor, a mapping of them by name, a
            tuple of them by position; for scikit-learn also a data frame, a sparse matrix or a
            list. Or batches of these: a DataLoader or another iterable, of inputs or of pairs
            (inputs, labels). With a tokenizer, or for a scikit-learn pipeline that begins with a
            vectoriser: texts, as one str, a list or a column of a table. The outputs keep them
            as `kept["text"]`.
        labels : array of shape (n_samples, n_labels), optional
            Multi-hot truth, to keep with the outputs.
        ids : sequence of str, optional
            One name per sample. By default the index of a pandas frame or column, if inputs is
            one, unless it only counts the rows.
        batch_size : int
            How many samples to run at once. The batches of an iterable are run as they are.
        """
        checked_whole("batch_size", batch_size, minimum=1)
        check_order(inputs, labels=labels, ids=ids)
        if length_of(labels) and length_of(labels) == length_of(inputs):
            as_multi_hot(labels, None, self.label_names, None)  # before the model runs for long
        check_same_order(inputs, labels)
        arrays, own_labels, texts, n_truncated = self._run(inputs, batch_size)
        if own_labels is not None and labels is not None:
            raise InputError(
                "labels were given with the batches and as labels=...; pass them once."
            )
        names, n_labels = self.label_names, arrays["logits"].shape[1]
        if names is not None and len(names) != n_labels:
            raise ShapeError(
                f"the detector was made for {len(names)} labels ({listed(names, 3)}), but the "
                f"model returns {n_labels}. Calibrate a detector on outputs of this model."
            )
        if self.runner.from_probs is None:
            check_logits(arrays["logits"])
        manifest = self.runner.describe()
        if self.runner.tokenizer is not None and texts is not None:
            manifest["n_truncated"] = n_truncated
        if n_truncated:
            warn(
                f"{n_truncated:,} of {len(arrays['logits']):,} texts have more than "
                f"{manifest['max_tokens']:,} tokens. They were cut off: the model has seen only a "
                "part of them.",
                TruncatedTextWarning,
            )
        index = index_of(inputs) if ids is None else None
        return Outputs(
            arrays["logits"],
            features=arrays.get(FEATURES),
            labels=labels if own_labels is None else own_labels,
            ids=ids if index is None else index_ids(index),
            label_names=names,
            manifest=manifest,
            head=self.runner.head({name: array[:batch_size] for name, array in arrays.items()}),
            arrays={name: arrays[name] for name in self.runner.array_names[1:]},
            # As objects: NumPy would make all texts as long as the longest.
            kept={} if texts is None else {TEXT: np.array(texts, dtype=np.object_)},
            index=index,
        )

    def _run(
        self, inputs: Any, batch_size: int
    ) -> tuple[dict[str, Array], Array | None, list[str] | None, int]:
        """Run the model on all batches of the inputs.

        Return the joined arrays, the truth labels if the batches have them, the texts if the
        inputs are texts, and how many of these were cut off.
        """
        blocks: dict[str, list[Array]] = {"logits": []}
        labels: list[Array] = []
        texts: list[str] = []
        n_truncated = 0
        for batch in self.runner.batches(inputs, batch_size):
            for name, array in self.runner.run(batch.inputs).items():
                earlier = blocks.setdefault(name, [])
                if earlier and earlier[0].shape[1] != array.shape[1]:
                    raise ShapeError(
                        f"the model returned {name} of {earlier[0].shape[1]} columns for one batch "
                        f"and of {array.shape[1]} for another."
                    )
                earlier.append(array)
            if batch.labels is not None:
                labels.append(to_numpy(batch.labels))
            if labels and len(labels) != len(blocks["logits"]):
                raise InputError("some of the batches have labels, and others do not.")
            texts += batch.texts or []
            n_truncated += batch.n_truncated
        if not blocks["logits"]:
            again = " A generator gives its batches once: make a new one."
            hint = again if isinstance(inputs, Iterator) else ""
            raise ShapeError(f"there are no inputs: not a single sample was given.{hint}")
        arrays = {name: np.concatenate(parts) for name, parts in blocks.items()}
        is_text = len(texts) == len(arrays["logits"])
        joined = np.concatenate(labels) if labels else None
        return arrays, joined, texts if is_text else None, n_truncated

    # --- verdicts ---

    def predict(
        self,
        inputs: Any,
        labels: Any = None,
        *,
        ids: Sequence[str] | None = None,
        batch_size: int = 256,
        groups: Any = None,
        fdr: float | None = None,
        label_threshold: float = 0.5,
    ) -> Prediction:
        """Return predicted labels, probabilities and verdict of each sample.

        Calling the wrapped model does the same.

        Parameters
        ----------
        inputs, labels, ids, batch_size
            As `outputs` takes them.
        groups, fdr
            As the detector's `assess` takes them.
        label_threshold : float
            A label is predicted if its probability is above this.
        """
        detector = self._calibrated()
        check_order(inputs, groups=groups)
        outputs = self.outputs(inputs, labels=labels, ids=ids, batch_size=batch_size)
        assessment = detector.assess(outputs, groups=groups, fdr=fdr, from_probs=False)
        return Prediction(outputs, assessment, label_threshold)

    __call__ = predict

    def assess(self, inputs: Any, **options: Any) -> Assessment:
        """Return score, p-value and verdict of each sample; takes what `predict` takes."""
        return self.predict(inputs, **options).assessment

    def explain(
        self, inputs: Any, *, ids: Any = None, groups: Any = None, batch_size: int = 256
    ) -> ExplainedVerdicts:
        """Return the reasons of the verdicts, as the detector's `explain` does.

        The features of a table, if it is not given in batches, have its names and units.
        """
        detector = self._calibrated()
        check_order(inputs, groups=groups)
        outputs = self.outputs(inputs, ids=ids, batch_size=batch_size)
        explanation = detector.explain(outputs, groups=groups, from_probs=False)
        return self.runner.explained(explanation, inputs)

    # --- the detector ---

    def fit(self, train: Any, labels: Any = None, *, batch_size: int = 256) -> Wrapped:
        """Return the model with a detector that has learned from training inputs.

        `calibrate` has to follow. If you chose no detector, it is the default for this data;
        `reason` says which and why.

        Parameters
        ----------
        train
            In-distribution inputs, as `outputs` takes them; best those that the model was trained
            on.
        labels : array of shape (n_samples, n_labels), optional
            Multi-hot truth, if the detector learns from it and the batches do not have it.
        batch_size : int
            How many samples to run at once.
        """
        runner = self.runner
        if self.label_names is None and hasattr(labels, "columns"):
            runner = runner.changed(label_names=[str(name) for name in labels.columns])
        if self.detector is not None and self._default is None:
            own = copy.deepcopy(self.detector)
            if _read_by(own) & {FEATURES, "head", PENULTIMATE} == {FEATURES}:
                runner = runner.fitted_to(train)
            ready = Wrapped(runner, own)
            outputs = ready.outputs(train, labels=labels, batch_size=batch_size)
            return Wrapped(ready.runner, own.fit(outputs, from_probs=False))
        ready, outputs, obstacle = Wrapped(runner)._outputs_with_features(
            runner.fitted_to(train), train, labels, batch_size
        )
        default = default_detector(outputs, no_features=obstacle)
        self._was_fitted = True
        return Wrapped(ready.runner, default.detector.fit(outputs, from_probs=False), default)

    def _outputs_with_features(
        self, runner: Runner, inputs: Any, labels: Any, batch_size: int
    ) -> tuple[Wrapped, Outputs, str]:
        """Return the model, if possible with the default's layers, its outputs, and why not."""
        first = inputs
        if once := isinstance(inputs, Iterator):
            first = list(islice(inputs, 1))
            inputs = chain(first, inputs)
        # A scikit-learn model has its input as features. More of them may be a sparse vocabulary.
        is_read = INPUT in (*runner.automatic, runner.features)
        choices = [Combined()] if is_read else [GUARDED_INPUT, Combined()]
        if getattr(runner, "n_features", 0) > MOST_FEATURES:
            choices = []
        # A layer may be no matrix, or have words or missing values, which the model takes, but no
        # detector. If the inputs themselves are wrong, the error comes again at the end.
        obstacle = ""
        for detector in choices:
            has_layers = False
            try:
                ready = Wrapped(with_layers(runner, detector))
                if not is_read and ready.runner.features == INPUT:  # it has no other layer
                    continue
                check_reads(ready.runner, detector)
                if not (has_layers := ready._has_layers(first)):
                    continue
                outputs = ready.outputs(inputs, labels=labels, batch_size=batch_size)
            except NescioError as error:
                if once and has_layers:
                    raise
                obstacle = error.reason.removesuffix(".")
                continue
            layers = (outputs.features, *outputs.arrays.values())
            finite = all(layer is None or np.isfinite(layer).all() for layer in layers)
            # NaN or infinity in the logits too is no missing value that the model takes.
            if once or finite or not np.isfinite(outputs.logits.max()):
                return ready, outputs, ""
            obstacle = "those of the model hold NaN or infinity"
        return self, self.outputs(inputs, labels=labels, batch_size=batch_size), obstacle

    def _has_layers(self, inputs: Any) -> bool:
        """Return whether the first inputs have the layers, and an input that is not too wide."""
        for batch in islice(self.runner.batches(inputs, _PROBED), 1):
            arrays = self.runner.run(batch.inputs)
            return INPUT not in arrays or arrays[INPUT].shape[1] <= MOST_FEATURES
        return True  # without inputs, which is an error of its own

    def calibrate(
        self,
        held_out: Any,
        labels: None = None,
        *,
        tpr: float | None = None,
        confidence: float | None = None,
        groups: Any = None,
        batch_size: int = 256,
        self_check: bool = True,
    ) -> Wrapped:
        """Return the model with a detector that is calibrated on held-out inputs.

        It ends with a self-check on a few of them, the attribute `checked`, and a
        `BlindSpotWarning` if gross faults are let through.

        Parameters
        ----------
        held_out
            In-distribution inputs that neither the model nor the detector has learned from, as
            `outputs` takes them.
        labels : None
            Calibration needs none: labels are an error that says so.
        tpr, confidence, groups
            As the detector's `calibrate` takes them.
        batch_size : int
            How many samples to run at once.
        self_check : bool
            Whether to check for blind spots. The model runs on 50 inputs eight times.
        """
        check_no_labels(labels)
        check_order(held_out, groups=groups)
        model, detector, default = self, copy.deepcopy(self.detector), self._default
        if detector is None:
            if self._was_fitted:
                warn(
                    "fit returns a new model, and what it has learned is not used here. Keep its "
                    "result: wrapped = wrapped.fit(train, labels).calibrate(held_out).",
                    DefaultDetectorWarning,
                )
            model, outputs, _ = self._outputs_with_features(self.runner, held_out, None, batch_size)
        else:
            outputs = self.outputs(held_out, batch_size=batch_size)
        # `fit` did not know how many held-out samples there would be.
        has_learned = bool(detector and detector.learns_from)
        needed = MIN_WITH_TRAINING if has_learned else MIN_HELD_OUT
        too_few = default and isinstance(detector, Combined) and len(outputs) < needed
        if detector is None or too_few:
            default = default_detector(held_out=outputs, has_learned=has_learned)
            detector = default.detector
            if too_few and not has_learned:  # `fit` has said what is in the way
                few = f"With {len(outputs)} held-out samples, {detector.name} alone: the ranges"
                alone = f"{few} need {needed} held-out samples."
                default = default._replace(reason=f"{self.reason} {alone}")
                warn(alone, DefaultDetectorWarning)
        options = {"tpr": tpr, "confidence": confidence, "groups": groups}
        detector.calibrate(outputs, **options, from_probs=False)
        # These were logits, so later ones are too, even if those of strange inputs look otherwise.
        model.runner.from_probs = bool(model.runner.from_probs)
        calibrated = Wrapped(model.runner, detector, default)
        if self_check:
            calibrated.checked = calibrated.self_check(
                held_out, outputs=outputs, groups=groups, n_samples=_FEW, batch_size=batch_size
            )
            warn_of_blind_spots(calibrated.checked, has_learned=has_learned or bool(self._default))
        return calibrated

    def self_check(
        self,
        inputs: Any,
        *,
        outputs: Outputs | None = None,
        groups: Any = None,
        n_samples: int = 200,
        batch_size: int = 256,
    ) -> SelfCheck:
        """Return how many inputs would be flagged after gross faults, as one table.

        The faults are those of numbers (of two or three dimensions), a pandas frame, images (of
        four), or texts; the table names them. The model runs on each. A fault with which it raises
        an error counts as seen. Of a DataLoader, the first batch is used. Other inputs, such as
        tokens or batches, cannot be changed, and some models do not run on a few inputs: the faults
        are then made in the outputs, as the detector's own `self_check` does.

        Parameters
        ----------
        inputs
            In-distribution inputs, as `outputs` takes them.
        outputs : Outputs, optional
            Their outputs, if you have them: inputs that cannot be changed are not run again.
        groups
            As the detector's `assess` takes them.
        n_samples : int
            How many of the inputs to use, evenly spaced.
        batch_size : int
            How many samples to run at once.
        """
        check_order(inputs, groups=groups)
        detector, fixed = self._calibrated(), self.runner.fixed_batch or 1
        whole = inputs
        if groups is None and hasattr(inputs, "dataset"):  # of torch's DataLoader: its first batch
            first = next(iter(inputs))
            inputs = first[0] if isinstance(first, list | tuple) else first
        checked_whole("n_samples", n_samples, minimum=1)
        part = changeable(
            inputs,
            max(MOST_ROWS, n_samples),
            is_table=self.runner.kind == "sklearn" and self.runner.takes(inputs),
            is_bytes=self.runner.is_image_bytes(inputs),
        )
        if part is not None:
            whole_batches = -(-n_samples // fixed) * fixed
            chosen = spread_rows(len(part.rows), whole_batches)
            own = groups_at(part.rows[chosen], groups, len(inputs))

            values = {INPUT: part.values}
            if part.kind == TABLES:  # a fault in a column that nothing reads is no fault
                values = {INPUT: part.values[self.runner.read(part.values.columns)]}

            def flagged(values: dict[str, Any]) -> BoolArray:
                few = rows_of(values[INPUT], chosen)
                if part.kind == TABLES:
                    few = with_cells(rows_of(part.values, chosen), few)
                return ~self.assess(few, groups=own, batch_size=batch_size).in_distribution

            with suppress(NescioError):  # of a model that takes whole batches only
                return check_faults(detector.name, part.kind, INPUT, values, chosen, flagged)
        if outputs is None:
            outputs = self.outputs(whole, batch_size=batch_size)
        return detector.self_check(outputs, groups=groups, n_samples=n_samples, from_probs=False)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the detector as one file; the model, and what prepares a table, are not saved."""
        self._calibrated().save(path, force=force)
        if PREPARED in self.runner.layers:
            warn(
                f"{path} has the detector alone. The features that it reads are made of the table "
                "by a transformer, which is not in it. To load both later, with the model, use "
                "save_pretrained('FOLDER') and nescio.from_pretrained('FOLDER'), or export_onnx.",
                NescioWarning,
            )

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """Write the model, the detector and a model card to a folder, as Hugging Face has them.

        `nescio.from_pretrained` reads it. `nescio.integrations.hugging_face.save_pretrained`
        documents the options.
        """
        from nescio.integrations.hugging_face import save_pretrained

        save_pretrained(self, folder, **options)

    def _calibrated(self) -> Detector:
        if self.detector is None or not hasattr(self.detector, "calibration_"):
            exported = "in_distribution" in getattr(self.runner, "output_names", ())
            own = " The file's own verdicts are its output in_distribution, for onnxruntime."
            raise NotCalibratedError(
                "there is no calibrated detector to give a verdict. Write wrapped = "
                "wrapped.calibrate(held_out), which returns a new model, or pass one: wrap(model, "
                f"detector='tagger.nescio').{own if exported else ''}"
            )
        return self.detector

    def __repr__(self) -> str:
        parts = [f"{self.runner.kind}: {cut(self.runner.describe()['model'], 200)}"]
        if self.runner.layers:
            parts.append(f"features={cut(repr(','.join(self.runner.layers)), 300)}")
        if self.detector is not None:
            first = getattr(getattr(self.detector, "calibration_", None), "first", None)
            parts.append(f"detector={cut(self._detector_text(), 300)}")
            parts.append(
                "not calibrated" if first is None else guarantee_text(first.tpr, first.confidence)
            )
        return f"Wrapped({', '.join(parts)})"

    def _detector_text(self) -> str:
        if isinstance(self.detector, Combined):
            return f"combined of {counted(len(self.detector.detectors), 'part')}"
        return "none yet" if self.detector is None else self.detector.text(defaults=False)

    def _repr_html_(self) -> str:
        calibration, checked = getattr(self.detector, "calibration_", None), self.checked
        names = self.label_names or ()
        rows = {
            "model": str(self.runner.describe()["model"]),
            "labels": listed([cut(name, 24) for name in names], 3, quoted=False) or "no names",
            "features": ", ".join(self.runner.layers) or "none",
            "detector": self._detector_text(),
            "calibration": "not calibrated" if calibration is None else calibration.summary(),
        }
        return result_card(
            View(
                f"Wrapped model ({self.runner.kind})",
                table={"part": list(rows), "": list(rows.values())},
                charts=lambda: [
                    *([] if calibration is None else [calibration.chart()]),
                    *([] if checked is None else [checked.drawn()]),
                ],
                notes=[self.reason, "" if checked is None else checked.summary()],
            )
        )


# --- the layers that a detector reads ------------------------------------------------------------


def _read_by(detector: Detector) -> set[str]:
    """Return the names of all arrays that a detector reads."""
    return {*detector.scores_from, *detector.learns_from, *detector.learns_from_held_out}


def with_layers(runner: Runner, detector: Detector) -> Runner:
    """Return a runner that also gives what the detector reads, if the model has the layers."""
    reads = _read_by(detector) - {"logits", "labels"}
    if not reads:
        return runner
    named = sorted(reads - {FEATURES, "head", *runner.array_names})
    missing = tuple(name for name in named if runner.has_layer(name))
    layers = runner.layers
    if FEATURES in reads and (not layers or runner.layers_are_default):
        layers = (*(_features_of(runner, detector) or layers[:1]), *layers[1:])
    elif not layers:
        layers = missing[:1] or (AUTO_LAYER,)
    layers = layers and layers + missing  # a further layer must not become the features
    return runner if layers == runner.layers else runner.changed(features=layers)


def _features_of(runner: Runner, detector: Detector) -> tuple[str, ...]:
    """Return the layer that the features are if the caller chose none; nothing if not known."""
    made_with: tuple[str, ...] = getattr(detector, "layers_", ())[:1]
    if FEATURES in getattr(runner, "output_names", ()):  # an ONNX file that names them
        return (FEATURES,)
    of_same_kind = getattr(detector, "_made_with", {}).get("kind") == runner.kind
    n_columns = None if of_same_kind else getattr(detector, "n_columns_", {}).get(FEATURES)
    if made_with and runner.has_layer(made_with[0], n_columns):
        return made_with
    reads_head = "head" in detector.scores_from and PENULTIMATE not in detector.scores_from
    if reads_head and runner.has_layer(PENULTIMATE):  # it takes the features as the head's input
        return (PENULTIMATE,)
    unknown = hasattr(detector, "n_columns_")  # made with features, but not known which
    return () if unknown or runner.layers else (AUTO_LAYER,)


def check_reads(runner: Runner, detector: Detector) -> None:
    """Raise if the model cannot give what the detector reads."""
    reads = _read_by(detector)
    if reads & {FEATURES, "head", PENULTIMATE} and not runner.layers:
        why = "the model has no layer that is known to be suitable. Choose one"
        outputs = ", ".join(getattr(runner, "output_names", ()))
        named = f" The file has the outputs {outputs}." if outputs else ""
        made_with = getattr(detector, "layers_", ())[:1]
        if made_with == (PREPARED,):
            why = (
                "it is not known from which layer: a transformer of the table made them. Keep it "
                "with the model (save_pretrained), fit and calibrate again, or pass the transformer"
            )
        elif made_with and not runner.has_layer(made_with[0]):
            why = (
                f"the model has no layer {made_with[0]!r}, with which it was made. Fit and "
                "calibrate again, or choose a layer"
            )
        elif hasattr(detector, "n_columns_"):
            why = "it is not known from which layer. Choose the one it was made with, or 'auto'"
        arrays = " and ".join(sorted(reads - {"logits", "labels"}))
        raise MissingInputError(
            f"{detector.name} reads {arrays}, and {why} (features=..., --features).{named}"
        )
    # The features may be the input of the head, under another name.
    missing = sorted(
        reads - {"logits", FEATURES, "head", "labels", PENULTIMATE, *runner.array_names}
    )
    if missing:
        raise MissingInputError(
            f"{detector.name} reads {', '.join(missing)}, which a wrapped model does not give. "
            "Use Outputs with this array; for perturbed inputs, see nescio extract --tuned."
        )
    ours, theirs = runner.label_names, getattr(detector, "label_names_", None)
    if ours is not None and theirs is not None and ours != theirs:
        raise LabelMismatchError(label_difference(theirs, ours).replace("the data", "the model"))
