"""A model's outputs on the images of a data set, computed once.

The result carries a manifest of what it was made from, the model's content hash first of all:
results of another model are neither used nor replaced without being asked to.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nescio._io.files import check_target
from nescio._io.locks import exclusive
from nescio._validation import Array, checked_choice, checked_whole
from nescio.data.corrupt import CORRUPTIONS
from nescio.data.damage import without_damaged
from nescio.data.split import BadFile, Split, content_changed
from nescio.detectors import Mahalanobis
from nescio.errors import DatasetError, FileError, FileFormatError, ParameterError
from nescio.outputs import Outputs, check_outputs_target, save_in_parts
from nescio.runners.base import Runner
from nescio.runners.corrupted import CorruptedReader
from nescio.runners.dispatch import make_runner
from nescio.runners.features import Layers
from nescio.runners.images import ImageBatch, Indices, Reader
from nescio.runners.parts import ComputeParts, PartialWork, difference
from nescio.runners.runtimes import AUTO, RuntimeChoice, Runtimes
from nescio.runners.work import Task, run_task

if TYPE_CHECKING:
    from nescio.runners.perturb import Tuning

EXTRACTION_VERSION = 2
"""Raise it if the same model and images give other outputs than before."""

_OWN_VERSION = "extraction_version"


@dataclass(frozen=True)
class Extraction:
    """What `extract` did.

    Attributes
    ----------
    path : Path
    n_images : int
        Images in the file.
    n_computed : int
        The number of them that were computed now; the others were there already.
    seconds : float
    skipped : tuple of BadFile
    runtime : RuntimeChoice
        What ran the model, and why.
    at_once : int or None
        How many images were run together, if the memory did not suffice for a batch.
    """

    path: Path
    n_images: int
    n_computed: int
    seconds: float
    skipped: tuple[BadFile, ...]
    runtime: RuntimeChoice
    at_once: int | None = None


def extract(
    model: Any,
    split: Split,
    path: str | Path,
    *,
    features: Layers | None = None,
    crops: bool = False,
    tuning: Tuning | None = None,
    train: Outputs | None = None,
    corruption: str | None = None,
    device: Any = None,
    batch_size: int = 16,
    runtime: str | Runtimes = AUTO,
    cache: str | Path | None = None,
    skip_bad: bool = False,
    force: bool = False,
    on_images: Callable[[int], object] = lambda count: None,
    engine: Engine | None = None,
) -> Extraction:
    """Write the `Outputs` of a model on a split of images.

    If `path` holds this very result already, nothing is done. If it holds another, it is replaced
    only with `force`.

    Parameters
    ----------
    model : Runner, Checkpoint, or anything that `make_runner` takes
        It must take images and have a preprocessing.
    split : Split
    path : path
        Ends in .safetensors. During the work, its parts are in a folder next to it.
    features, device : optional
        Passed to `make_runner`. Those of a checkpoint are "pooled,penultimate" if not given.
    crops : bool
        Run nine crops of each image too, for the detector "mixed"; ten times the work.
    tuning : Tuning, optional
        With it, the outputs also get what ODIN and the perturbed Mahalanobis read. Only for torch
        modules.
    train : Outputs, optional
        Outputs of the same model on the training data, for a tuning whose step needs them
        (`Tuning.needs_train`).
    corruption : str, optional
        One of `nescio.data.CORRUPTIONS`, to run the model on corrupted images instead, for example
        as a far set of `choose`.
    batch_size : int
        Part of the manifest: another batch size may round differently. If the memory does not
        suffice for a batch, it is run in halves, and so are the following ones.
    runtime : str or Runtimes
        What runs the model: "eager", "channels-last", "onnxruntime", "openvino", "compile", or
        "auto" for the fastest of them, which is measured if there are enough images. It is not part
        of what decides the outputs: all of them give the same up to 1e-4, which is checked, and
        finished or unfinished results of another one are used. Pass a `Runtimes` to keep the choice
        for several data sets.
    cache : path, optional
        A folder with features of frozen backbones, as `train` keeps them. If it has those of this
        backbone and split, only the head runs.
    skip_bad : bool
        Leave out images that cannot be read, and list them in the manifest.
    on_images : callable
        Called with the number of images just done.
    engine : callable, optional
        Computes the outputs elsewhere, such as on a cluster with `nescio.ray.ray_engine`. By
        default, this process does.
    """
    check_outputs_target(path)
    checked_whole("batch_size", batch_size, minimum=1)
    runner = make_runner(model, features=features, device=device, crops=crops)
    runtimes = Runtimes.of(runtime)
    if corruption is not None:
        split = _to_corrupt(split, corruption, tuning, skip_bad=skip_bad)
    manifest = {
        **split.manifest(),
        **_described(runner, tuning),
        "batch_size": runner.fixed_batch or batch_size,
        "tuning": None if tuning is None else tuning.chosen(),
        "corruption": corruption,
        _OWN_VERSION: EXTRACTION_VERSION,
    }
    if engine is not None and "device" in manifest:
        manifest["device"] = engine.device
        if engine.device != "cpu" and runtimes.name == AUTO:
            runtimes = Runtimes(runner.runtime)  # what is fast here says nothing about a GPU
    if tuning is not None and tuning.needs_train:
        manifest["train_data"] = tuning.checked_train(train).manifest["data_fingerprint"]
    path = Path(path)
    started = time.perf_counter()
    key = _without_other_versions(manifest)
    work = PartialWork(
        path,
        key,
        len(split),
        manifest["batch_size"],
        skip_bad=skip_bad,
        runtime=runtimes.name,
    )
    if not path.parent.is_dir():
        check_target(path, force=force)  # raises
    with exclusive(work.folder, "output file"):
        done = _done(path, key, split, skip_bad=skip_bad, force=force)
        if done is not None:
            work.remove()  # a crash may have left them
            on_images(len(split))
            skipped = tuple(BadFile(**bad) for bad in done.manifest["skipped"])
            choice = RuntimeChoice(done.manifest.get("runtime", runner.runtime), "up to date")
            return Extraction(path, len(done), 0, time.perf_counter() - started, skipped, choice)
        if force:
            work.remove_others()
        task, elsewhere = None, None
        if tuning is None and corruption is None:
            task = _from_cache(runner, split, cache)
        if task is None:
            gaussian = Mahalanobis().fit(train) if tuning and tuning.needs_train else None
            computation = Computation(split, tuning, gaussian, corruption, skip_bad)
            task = computation.task(runner)
            elsewhere = None if engine is None else partial(engine, computation, runner)
        made = run_task(work, task, runtimes, on_images, elsewhere)
        skipped = _assemble(work, runner, split, {**manifest, **made.facts()}, force=force)
    n_images = len(split) - (len(skipped) - len(split.skipped))
    seconds = time.perf_counter() - started
    return Extraction(path, n_images, made.n_computed, seconds, skipped, made.choice, made.at_once)


def _without_other_versions(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides the outputs: not the versions of nescio, torch and other libraries.

    So an upgrade neither rejects nor repeats what has been extracted.
    """
    return {
        name: value
        for name, value in manifest.items()
        if name == _OWN_VERSION or not name.endswith("_version")
    }


def _described(runner: Runner, tuning: Tuning | None) -> dict[str, Any]:
    """Return what the manifest says about the model; raise if it cannot be used."""
    if runner.preprocessing is None:
        raise ParameterError(
            f"extraction needs to know how an image becomes the input of {runner!r}: pass "
            "preprocessing=... to make_runner (--image-size, --mean, --std)."
        )
    model_hash = runner.content_hash()
    if model_hash is None:
        raise ParameterError(
            f"{runner!r} has no content hash, so results could not be told from those of another "
            "model. Pass the path of the ONNX file instead of a session."
        )
    if tuning is not None:
        if runner.crops:
            raise ParameterError("crops and tuned settings cannot be combined: extract twice.")
        if runner.kind != "torch" or runner.from_probs:
            raise ParameterError(
                "ODIN and the perturbed Mahalanobis need the gradient of a torch module that "
                f"returns logits, and {runner!r} is of kind {runner.kind}. Leave out tuning "
                "(--tuned)."
            )
        tuning.check_model(model_hash, str(runner.features))
    preprocessing = json.loads(json.dumps(runner.preprocessing.as_dict()))
    return {**runner.describe(), "model_hash": model_hash, "preprocessing": preprocessing}


@dataclass(frozen=True)
class Computation:
    """What an extraction computes with a runner of its model, here or on another machine."""

    split: Split
    tuning: Tuning | None = None
    gaussian: Mahalanobis | None = None
    corruption: str | None = None
    skip_bad: bool = False

    def task(self, runner: Runner) -> Task:
        """Return how the inputs are read, and what is computed from them."""
        preprocessing = runner.preprocessing
        assert preprocessing is not None
        if self.corruption is not None:
            corrupted = CorruptedReader(Reader(self.split, preprocessing), self.corruption)
            return Task.plain(runner, corrupted.batches, preprocessing.normalise)
        reader = Reader(self.split, preprocessing, skip_bad=self.skip_bad)
        tuning = self.tuning
        if tuning is None:
            return Task.plain(runner, reader.batches)
        from nescio.runners.perturb import run_perturbed

        steps = {(one.direction, one.epsilon) for one in tuning.best if one.epsilon > 0}
        return Task(
            runner,
            reader.batches,
            lambda pixels: pixels,
            lambda fast: partial(run_perturbed, runner, tuning, self.gaussian, fast=fast),
            n_passes=len(steps),
        )


class Engine(Protocol):
    """Computes the parts of an extraction elsewhere, with the same model."""

    @property
    def device(self) -> str:
        """Where the model runs, as the manifest records it."""

    def __call__(self, computation: Computation, runner: Runner, runtime: str) -> ComputeParts:
        """Return how parts are computed with the model that a runner runs, by a runtime."""


def _from_cache(runner: Runner, split: Split, cache: str | Path | None) -> Task | None:
    """Return what is computed from features in a cache; None if it does not have them."""
    # The cache has the features of whole images only.
    found = None if cache is None or runner.crops else runner.cached(split, cache)
    if found is None:
        return None
    features, rest = found
    read = partial(_rows_of, features)
    return Task(runner, read, lambda rows: rows, lambda fast: rest.run, n_passes=0)


def _to_corrupt(split: Split, corruption: str, tuning: Tuning | None, *, skip_bad: bool) -> Split:
    """Return the images to corrupt: an image that cannot be read cannot be a partner either."""
    checked_choice("corruption", corruption, tuple(CORRUPTIONS))
    if tuning is not None:
        raise ParameterError(
            "the perturbed outputs of corrupted images are not computed: pass "
            "either tuning (--tuned) or corruption (--corruption)."
        )
    return without_damaged(split) if skip_bad else split


def _rows_of(features: Array, batches: Iterable[Indices]) -> Iterator[ImageBatch]:
    for indices in batches:
        at = np.asarray(indices, np.int64)
        yield ImageBatch(at, np.asarray(features[at]))


def _done(
    path: Path, key: Mapping[str, Any], split: Split, *, skip_bad: bool, force: bool
) -> Outputs | None:
    """Return the file's outputs if they are of this very work; raise if they are of another."""
    if path.is_file():
        found = None
        try:
            found = Outputs.load(path)
            theirs = found.manifest
        except FileFormatError:
            theirs = {}
        expected = {name: value for name, value in key.items() if name not in split.content}
        same = {name: theirs.get(name) for name in expected} == expected
        changed = content_changed(theirs, split.content)
        if found is not None and same and not changed:
            skipped = theirs.get("skipped", [])
            if skipped and not skip_bad:
                raise DatasetError(
                    f"{path} was made without {len(skipped):,} images that could not be read, the "
                    f"first is {skipped[0]['file']}. Pass skip_bad=True to accept "
                    "that, or fix the images and start again with force=True."
                )
            return found
        if not force:
            why = changed if same else difference(expected, theirs)
            raise FileError(
                f"{path} exists and was made from something else: {why} Pass force=True to "
                "replace it."
            )
    check_target(path, force=force)
    return None


def _assemble(
    work: PartialWork, runner: Runner, split: Split, about: Mapping[str, Any], *, force: bool
) -> tuple[BadFile, ...]:
    """Join the parts into the result and remove them."""
    parts, bad = work.read()
    skipped = (*split.skipped, *bad)
    labels = None if runner.label_names is None else split.labels_for(runner.label_names)
    first = {name: array[: work.batch_size] for name, array in parts[0].items()}
    head = runner.head(first)
    outputs = []
    for part in parts:
        indices = part.pop("indices")
        outputs.append(
            Outputs(
                part.pop("logits"),
                features=part.pop("features", None),
                labels=None if labels is None else labels[indices],
                ids=[split.files[index] for index in indices],
                label_names=runner.label_names,
                head=head,
                arrays=part,
            )
        )
    manifest = {**about, "skipped": [asdict(item) for item in skipped]}
    save_in_parts(work.path, outputs, manifest, force=force)
    work.remove()
    return skipped
