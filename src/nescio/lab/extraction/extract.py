"""A model's outputs on the images of a data set, computed once.

The result carries a manifest of what it was made from, the model's content hash first of all:
results of another model are neither used nor replaced without being asked to. The work is done in
parts. Each part is a file, written completely or not at all: interrupted work continues with the
next part, and the result is the same to the last byte.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nescio._io.files import check_target, exclusive, locked
from nescio._io.tensors import FileKind
from nescio._validation import Array, checked_choice, checked_whole
from nescio.detectors import Mahalanobis
from nescio.errors import DatasetError, ExportError, FileError, FileFormatError, ParameterError
from nescio.lab.data.check import without_damaged
from nescio.lab.data.corrupt import CORRUPTIONS
from nescio.lab.data.split import BadFile, Split
from nescio.lab.extraction.image_batches import (
    CorruptedReader,
    ImageBatch,
    Indices,
    Reader,
    in_batches,
)
from nescio.lab.extraction.perturb import Tuning, run_perturbed
from nescio.lab.extraction.runtimes import AUTO, TORCH, RuntimeChoice, Runtimes, checked_run
from nescio.models.base import Layers, Runner, make_runner
from nescio.outputs import Outputs, check_outputs_target, save_in_parts

if TYPE_CHECKING:
    from torch import nn

    from nescio.lab.networks.checkpoint import Checkpoint

EXTRACTION_VERSION = 2
"""Raise it if the same model and images give other outputs than before."""

_BATCHES_PER_PART = 16
_PART = FileKind("nescio.part", "part of an extraction")

OnImages = Callable[[int], object]
"""Called with the number of images just done."""

Wanted = Mapping[int, Sequence[Indices]]
"""The batches of each part to compute, by its number."""


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
    """

    path: Path
    n_images: int
    n_computed: int
    seconds: float
    skipped: tuple[BadFile, ...]
    runtime: RuntimeChoice


def extract(
    model: Any,
    split: Split,
    path: str | Path,
    *,
    features: Layers | None = None,
    tuning: Tuning | None = None,
    train: Outputs | None = None,
    corruption: str | None = None,
    device: Any = None,
    batch_size: int = 16,
    runtime: str | Runtimes = AUTO,
    cache: str | Path | None = None,
    skip_bad: bool = False,
    force: bool = False,
    on_images: OnImages = lambda count: None,
    engine: Engine | None = None,
) -> Extraction:
    """Write the `Outputs` of a model on a split of images.

    If `path` already holds this result, nothing is done. If it holds another, it is replaced only
    with `force`.

    Parameters
    ----------
    model : Runner, Checkpoint, or anything that `make_runner` takes
        It must take images and have a preprocessing.
    split : Split
    path : path
        Ends in .safetensors. During the work, its parts are in a folder next to it.
    features, device : optional
        Passed to `make_runner`. Those of a checkpoint are "pooled,penultimate" if not given.
    tuning : Tuning, optional
        With it, the outputs also get what ODIN and the perturbed Mahalanobis read. Only for torch
        modules.
    train : Outputs, optional
        Outputs of the same model on the training data, for a tuning whose step needs them
        (`Tuning.needs_train`).
    corruption : str, optional
        One of `nescio.lab.data.CORRUPTIONS`, to run the model on corrupted images instead, for
        example as a far set of `choose`.
    batch_size : int
        Part of the manifest: another batch size may round differently.
    runtime : {"auto", "torch", "onnxruntime"} or Runtimes
        What runs a torch module: torch itself, or onnxruntime with an exported copy, on the CPU.
        "auto" is onnxruntime if it is installed and there are more than 20 batches, else torch. It
        is not part of what decides the outputs: both give the same up to 1e-4, which is checked,
        and a finished result of either is used. Pass a `Runtimes` to keep the copy for several data
        sets.
    cache : path, optional
        A folder with features of frozen backbones, as `train` keeps them. If it has those of this
        backbone and split, only the head runs.
    skip_bad : bool
        Leave out images that cannot be read, and list them in the manifest.
    on_images : callable
        Called with the number of images just done.
    engine : callable, optional
        Computes the outputs elsewhere, such as on a cluster with
        `nescio.lab.extraction.on_ray.ray_engine`. By default, this process does.
    """
    check_outputs_target(path)
    checked_whole("batch_size", batch_size, minimum=1)
    path = Path(path)
    runner = make_runner(model, features=features, device=device)
    runtimes = Runtimes.of(runtime)
    if corruption is not None:
        checked_choice("corruption", corruption, tuple(CORRUPTIONS))
        if tuning is not None:
            raise ParameterError(
                "the perturbed outputs of corrupted images are not computed: pass "
                "either tuning (--tuned) or corruption (--corruption)."
            )
        if skip_bad:  # an image that cannot be read cannot be the partner of another one either
            split = without_damaged(split)
    manifest = {
        **split.manifest(),
        **_described(runner, tuning),
        "batch_size": runner.fixed_batch or batch_size,
        "tuning": None if tuning is None else tuning.chosen(),
        "corruption": corruption,
        "extraction_version": EXTRACTION_VERSION,
    }
    if engine is not None and "device" in manifest:
        manifest["device"] = engine.device
    if tuning is not None and tuning.needs_train:
        manifest["train_data"] = tuning.checked_train(train).manifest["data_fingerprint"]
    # Versions of nescio, torch and other libraries do not count: after an upgrade, work goes on.
    versions = {name for name in manifest if name.endswith("_version")} - {"extraction_version"}
    key = {name: value for name, value in manifest.items() if name not in versions}
    started = time.perf_counter()
    parts = PartFiles(
        path, key, len(split), manifest["batch_size"], skip_bad=skip_bad, replace=force
    )
    if not path.parent.is_dir():
        check_target(path, force=force)  # raises
    with exclusive(parts.folder, "output file"):
        done = _done(path, key, skip_bad=skip_bad, force=force)
        if done is not None:
            parts.remove()  # a crash may have left them
            on_images(len(split))
            skipped = tuple(BadFile(**bad) for bad in done.manifest["skipped"])
            choice = RuntimeChoice(done.manifest["runtime"], "up to date")
            return Extraction(path, len(done), 0, time.perf_counter() - started, skipped, choice)
        gaussian = Mahalanobis().fit(train) if tuning and tuning.needs_train else None
        computation = Computation(split, tuning, gaussian, corruption, skip_bad)
        batches = [batch for part in parts.parts for batch in part]
        head_only = _from_cache(runner, computation, cache)
        if head_only is not None:
            choice = RuntimeChoice(TORCH, "only the last layers run")
            made = list(head_only(dict(enumerate(parts.parts)), on_images))
            n_computed = len(split)
        else:
            if engine is None:
                compute, choice = computation.by(runner, runtimes, batches)
            else:
                n_batches = computation.n_passes * len(batches)
                choice = runtimes.named(runner, n_batches, engine.device)
                compute = engine(computation, runner, choice.runtime)
            parts.key["runtime"] = choice.runtime  # one runtime computes all parts of a result
            try:
                n_computed = parts.complete(compute, on_images)
            except ExportError:  # the runtime is wrong: its parts must not be continued
                parts.remove()
                raise
            made = parts.read()
        skipped = _save(path, made, runner, split, {**manifest, **choice.facts()}, force=force)
        parts.remove()
    n_images = len(split) - (len(skipped) - len(split.skipped))
    return Extraction(path, n_images, n_computed, time.perf_counter() - started, skipped, choice)


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
        if runner.kind != "torch" or runner.from_probs:
            raise ParameterError(
                "ODIN and the perturbed Mahalanobis need the gradient of a torch module that "
                f"returns logits, and {runner!r} is of kind {runner.kind}. Leave out tuning "
                "(--tuned)."
            )
        tuning.check_model(model_hash, str(runner.features))
    preprocessing = json.loads(json.dumps(runner.preprocessing.as_dict()))
    return {**runner.describe(), "model_hash": model_hash, "preprocessing": preprocessing}


def _done(path: Path, key: Mapping[str, Any], *, skip_bad: bool, force: bool) -> Outputs | None:
    """Return existing outputs if they match this extraction; raise otherwise."""
    if path.is_file():
        try:
            outputs = Outputs.load(path)
            theirs = dict(outputs.manifest)
        except FileFormatError:
            theirs = {}
        if not _difference(key, theirs):
            skipped = theirs["skipped"]
            if skipped and not skip_bad:
                raise DatasetError(
                    f"{path} was made without {len(skipped):,} images that could not be read, the "
                    f"first is {skipped[0]['file']}. Pass skip_bad=True to accept "
                    "that, or fix the images and start again with force=True."
                )
            return outputs
        if not force:
            raise FileError(
                f"{path} exists and was made from something else: {_difference(key, theirs)} "
                "Pass force=True to replace it."
            )
    check_target(path, force=force)
    return None


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Return a sentence on how the key of other work differs from ours; empty if it does not."""
    name = next((name for name in ours if theirs.get(name) != ours[name]), None)
    if name is None:
        return ""
    explained = {
        "data_sample": "the images have changed since then; their names and sizes are the same.",
        "model_hash": "it was made by another network.",
        "tuning": "it was made with other settings of ODIN and Mahalanobis (--tuned), or none.",
    }
    return explained.get(name, f"its {name} is {theirs.get(name)!r}, not {ours[name]!r}.")


def _save(
    path: Path,
    parts: Sequence[Part],
    runner: Runner,
    split: Split,
    manifest: Mapping[str, Any],
    *,
    force: bool,
) -> tuple[BadFile, ...]:
    """Write the parts as one file of outputs; return the images that were left out."""
    bad = [file for part in parts for file in part.bad]
    arrays = [dict(part.arrays) for part in parts if len(part.arrays["indices"])]
    if not arrays:
        raise DatasetError(f"none of the {len(bad):,} images could be read.")
    labels = None if runner.label_names is None else split.labels_for(runner.label_names)
    head = runner.head({name: rows[: manifest["batch_size"]] for name, rows in arrays[0].items()})
    outputs = []
    for part in arrays:
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
    skipped = (*split.skipped, *bad)
    manifest = {**manifest, "skipped": [asdict(item) for item in skipped]}
    save_in_parts(path, outputs, manifest, force=force)
    return skipped


# --- parts ---


class Part(NamedTuple):
    """The arrays of one part, its images among them as "indices"."""

    number: int
    arrays: Mapping[str, Array]
    bad: tuple[BadFile, ...]


ComputeParts = Callable[[Wanted, OnImages], Iterable[Part]]
"""Computes parts, in any order."""


class PartFiles:
    """The parts of a result, as files in a folder next to it.

    Parts with another key are an error, or computed again with `replace`.
    """

    def __init__(
        self,
        path: Path,
        key: Mapping[str, Any],
        n_images: int,
        batch_size: int,
        *,
        skip_bad: bool,
        replace: bool,
    ) -> None:
        self.key = dict(key)
        self.skip_bad = skip_bad
        self.replace = replace
        self.folder = path.with_name(path.name + ".parts")
        batches = in_batches(n_images, batch_size)
        starts = range(0, len(batches), _BATCHES_PER_PART)
        self.parts = [batches[start : start + _BATCHES_PER_PART] for start in starts]

    def complete(self, compute: ComputeParts, on_images: OnImages) -> int:
        """Compute the missing parts; return the number of images computed."""
        self.folder.mkdir(exist_ok=True)
        missing = {at: part for at, part in enumerate(self.parts) if not self._exists(at)}
        done = [part for at, part in enumerate(self.parts) if at not in missing]
        on_images(sum(len(batch) for part in done for batch in part))
        n_computed = 0
        for part in compute(missing, on_images):
            metadata = {"key": self.key, "skipped": [asdict(item) for item in part.bad]}
            _PART.write(self._file(part.number), part.arrays, metadata, force=True)
            n_computed += len(part.arrays["indices"])
        return n_computed

    def read(self) -> list[Part]:
        """Return all parts, memory-mapped."""
        parts = []
        for number in range(len(self.parts)):
            arrays, metadata = _PART.read(self._file(number), verify=False)  # `complete` has
            bad = tuple(BadFile(**item) for item in metadata["skipped"])
            parts.append(Part(number, arrays, bad))
        return parts

    def remove(self) -> None:
        """Remove the parts, once the result is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.safetensors"

    def _exists(self, number: int) -> bool:
        """Return whether a usable part exists; raise if it was made from something else."""
        try:
            metadata = _PART.read(self._file(number))[1]
        except FileError:  # there is none, or it is damaged
            return False
        difference = _difference(self.key, metadata["key"])
        if difference and not self.replace:
            raise FileError(
                f"{self.folder} holds unfinished work on something else: {difference} Pass "
                "force=True to start again."
            )
        # Without skip_bad, a part that lacks images is computed again, so that the error is raised.
        return not difference and (self.skip_bad or not metadata["skipped"])


# --- computing ---


@dataclass(frozen=True)
class Computation:
    """What an extraction computes with a runner of its model, here or on another machine."""

    split: Split
    tuning: Tuning | None = None
    gaussian: Mahalanobis | None = None
    corruption: str | None = None
    skip_bad: bool = False

    @property
    def n_passes(self) -> int:
        """How often the chosen runtime runs per batch."""
        return 1 if self.tuning is None else self.tuning.n_passes

    def by(
        self, own: Runner, runtimes: Runtimes, batches: Sequence[Indices]
    ) -> tuple[ComputeParts, RuntimeChoice]:
        """Return how parts are computed by the chosen runtime, and which one that is."""
        preprocessing = own.preprocessing
        assert preprocessing is not None
        reader = Reader(self.split, preprocessing, skip_bad=self.skip_bad)
        read = reader.batches
        if self.corruption is not None:
            read = CorruptedReader(reader, self.corruption).batches

        def inputs(pixels: Array) -> Array:  # corrupted images are not bytes
            return pixels if self.corruption is None else preprocessing.normalise(pixels)

        def first_batch() -> Array:
            found = (inputs(batch.pixels) for batch in read(batches) if len(batch.indices))
            return next(found, np.empty(0))

        fast, choice = runtimes.choose(own, first_batch, self.n_passes * len(batches))
        if self.tuning is not None:
            run = partial(run_perturbed, own, self.tuning, self.gaussian, fast=fast)
            return partial(compute_parts, read, run), choice
        checked = checked_run(fast, own)
        return partial(compute_parts, read, lambda pixels: checked(inputs(pixels))), choice


class Engine(Protocol):
    """Computes the parts of an extraction elsewhere, with the same model."""

    @property
    def device(self) -> str:
        """Where the model runs, as the manifest records it."""

    def __call__(self, computation: Computation, runner: Runner, runtime: str) -> ComputeParts:
        """Return how parts are computed with the model that a runner runs, by a runtime."""


def compute_parts(
    read: Callable[[Iterable[Indices]], Iterator[ImageBatch]],
    compute: Callable[[Any], Mapping[str, Array]],
    wanted: Wanted,
    on_images: OnImages,
) -> Iterator[Part]:
    """Compute parts in this process, in order."""
    # One stream of batches for all parts: reading continues while a part is written.
    stream = read(batch for batches in wanted.values() for batch in batches)
    for number, batches in wanted.items():
        blocks: dict[str, list[Array]] = {"indices": []}
        bad: list[BadFile] = []
        for requested in batches:
            batch = next(stream)
            blocks["indices"].append(batch.indices)
            if len(batch.indices):
                for name, array in compute(batch.pixels).items():
                    blocks.setdefault(name, []).append(array)
            bad += batch.bad
            on_images(len(requested))
        arrays = {name: np.concatenate(rows) for name, rows in blocks.items()}
        yield Part(number, arrays, tuple(bad))


# --- features of a frozen backbone ---


def read_features(checkpoint: Checkpoint, split: Split, folder: Path) -> NDArray[np.float32] | None:
    """Return the pooled features of a split from the cache; None if it does not have them."""
    path = _cache_file(checkpoint, split, folder)
    return Outputs.load(path).logits.astype(np.float32, copy=False) if path.exists() else None


def cached_features(
    backbone: nn.Module,
    checkpoint: Checkpoint,
    split: Split,
    cache: Path,
    on_images: OnImages = lambda count: None,
    *,
    runtime: str | Runtimes = AUTO,
) -> NDArray[np.float32]:
    """Return a backbone's pooled features of whole images, from the cache or computed into it.

    `backbone` is that of the checkpoint's network, in eval mode. `runtime` is as for `extract`.
    """
    from nescio.models.torch_models import TorchRunner

    path = _cache_file(checkpoint, split, cache)
    if not path.exists():
        with locked(path):
            if not path.exists():
                runner = TorchRunner(backbone, preprocessing=checkpoint.preprocessing)
                runner.channels_last = True
                # What a backbone returns takes the place of logits. A cache is for use again, not
                # to be kept: parts of something else are replaced.
                extract(runner, split, path, runtime=runtime, on_images=on_images, force=True)
    features = read_features(checkpoint, split, cache)
    assert features is not None
    return features


def _cache_file(checkpoint: Checkpoint, split: Split, folder: Path) -> Path:
    key = {
        **split.manifest(),
        "version": EXTRACTION_VERSION,
        "model": checkpoint.architecture.name,
        "backbone_hash": checkpoint.backbone_hash,
        "preprocessing": checkpoint.preprocessing.as_dict(),
    }
    short = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"features-{split.title}-{short}.safetensors"


def _from_cache(
    runner: Runner, computation: Computation, cache: str | Path | None
) -> ComputeParts | None:
    """Return how the head computes the outputs from features in a cache; None if it has none."""
    changed = computation.tuning is not None or computation.corruption is not None
    if cache is None or changed or not getattr(runner, "is_after_backbone", False):
        return None
    from nescio.lab.networks.runner import CheckpointRunner

    assert isinstance(runner, CheckpointRunner)
    features = read_features(runner.checkpoint, computation.split, Path(cache))
    if features is None:
        return None

    def read(batches: Iterable[Indices]) -> Iterator[ImageBatch]:
        for indices in batches:
            rows = np.asarray(indices, np.int64)
            yield ImageBatch(rows, np.asarray(features[rows]))

    return partial(compute_parts, read, runner.head_runner().run)
