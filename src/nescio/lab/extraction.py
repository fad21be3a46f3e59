"""A model's outputs on the images of a data set, computed once.

The result carries a manifest of what it was made from, the model's content hash first of all:
results of another model are neither used nor replaced without being asked to. The work is done in
parts. Each part is a file, written completely or not at all: interrupted work continues with the
next part, and the result is the same to the last byte. The network itself runs, or a checked copy
of it by onnxruntime.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nescio._io.files import check_target, exclusive, locked
from nescio._io.tensors import FileKind
from nescio._validation import Array, checked_choice, checked_whole
from nescio.errors import ExportError, FileError, FileFormatError, ParameterError, require
from nescio.lab.data.split import BadFile, Indices, Reader, Split, in_batches
from nescio.models.base import Layers, Runner, make_runner
from nescio.outputs import Outputs
from nescio.outputs.files import check_outputs_target, save_in_parts

if TYPE_CHECKING:
    from torch import Tensor

    from nescio.lab.networks.network import Checkpoint
    from nescio.lab.perturbation import Tuning
    from nescio.models.torch_models import TorchRunner

__all__ = ["Extraction", "extract"]

EXTRACTION_VERSION = 2
"""Raise it if the same model and images give other outputs than before."""

AUTO_RUNTIME, TORCH, ONNXRUNTIME = "auto", "torch", "onnxruntime"

TOLERANCE = 1e-4
"""The largest difference from the network itself, absolute and relative."""

_MIN_BATCHES = 20  # with fewer, the export takes longer than it saves
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_IMAGES = "images"
_NO_MEMORY = re.compile("out of memory|allocate memory")

_BATCHES_PER_PART = 16
_PART = FileKind("nescio.part", "part of an extraction")

Arrays = Mapping[str, Array]
"""The named arrays of consecutive images."""

ReadBatches = Callable[[Iterable[Indices]], Iterator[Array]]
RunBatch = Callable[[Any], Arrays]


@dataclass(frozen=True)
class Extraction:
    """What `extract` did."""

    path: Path
    n_images: int  # in the file
    n_computed: int  # of these, now; the others were there already
    seconds: float
    skipped: tuple[BadFile, ...]  # the images that were left out of the split
    runtime: RuntimeChoice  # what ran the model, and why


def extract(
    model: Any,
    split: Split,
    path: str | Path,
    *,
    features: Layers | None = None,
    tuning: Tuning | None = None,
    train: Outputs | None = None,
    pooled: NDArray[np.float32] | None = None,
    device: Any = None,
    batch_size: int = 16,
    runtime: str | Runtimes = AUTO_RUNTIME,
    force: bool = False,
    on_images: Callable[[int], object] = lambda count: None,
) -> Extraction:
    """Write the `Outputs` of a model on a split of images.

    If `path` already holds this result, nothing is done. If it holds another, it is replaced only
    with `force`. An image that cannot be read is an error: leave it out of the split by
    `split.without(nescio.lab.data.find_damaged(split))`.

    Parameters
    ----------
    model : Runner, Checkpoint, or any other model that `nescio.wrap` takes
        It must take images and have a preprocessing.
    path : path
        Ends in .safetensors. During the work, its parts are in a folder next to it.
    features, device : optional
        As `nescio.wrap` takes them. Those of a checkpoint are "pooled,penultimate" if not given.
    tuning : Tuning, optional
        With it, the outputs also get what ODIN and the perturbed Mahalanobis read. Only for torch
        modules.
    train : Outputs, optional
        Outputs of the same model on the training data, for a tuning whose step needs them
        (`Tuning.needs_train`).
    pooled : array of shape (n_images, n_features), optional
        What the backbone of a checkpoint gives for the images, as `cached_features` returns it.
        Then only the head runs.
    batch_size : int
        Part of the manifest: another batch size may round differently.
    runtime : {"auto", "torch", "onnxruntime"} or Runtimes
        What runs a torch module: torch itself, or onnxruntime with an exported copy, on the CPU.
        "auto" is onnxruntime if it is installed and there are more than 20 batches, else torch. It
        is not part of what decides the outputs: both give the same up to 1e-4, which is checked,
        and a finished result of either is used. Pass a `Runtimes` to keep the copy for several data
        sets.
    on_images : callable
        Called with the number of images just done.
    """
    started = time.perf_counter()
    check_outputs_target(path)
    checked_whole("batch_size", batch_size, minimum=1)
    path = Path(path)
    if not path.parent.is_dir():
        check_target(path, force=force)  # raises
    runner = make_runner(model, features=features, device=device)
    batch_size = runner.fixed_batch or batch_size
    manifest = _manifest(runner, split, batch_size, tuning, train)
    # Versions of nescio, torch and other libraries do not count: after an upgrade, work goes on.
    versions = {name for name in manifest if name.endswith("_version")} - {"extraction_version"}
    key = {name: value for name, value in manifest.items() if name not in versions}
    parts = PartFiles(path, len(split), batch_size)
    with exclusive(parts.folder, "output file"):
        existing = _existing(path, key, force=force)
        if existing is not None:
            n_computed, choice = 0, RuntimeChoice(existing.manifest["runtime"], "up to date")
            on_images(len(split))
        else:
            if pooled is not None:
                choice = RuntimeChoice(TORCH, "only the last layers run")
                run = runner.head_runner().run  # type: ignore[attr-defined]
                read: ReadBatches = partial(map, pooled.__getitem__)
            else:
                read, run, choice = _image_pass(
                    runner, split, batch_size, Runtimes.of(runtime), tuning, train
                )
            # One runtime computes all parts of a result.
            with memory_advice(f"Take a batch size (--batch-size) of less than {batch_size}."):
                part_key = {**key, "runtime": choice.runtime}
                n_computed = parts.complete(part_key, read, run, on_images)
            _save(parts, runner, split, {**manifest, **choice.facts()}, force=force)
        # Of a finished result, only a crash may have left them.
        shutil.rmtree(parts.folder, ignore_errors=True)
    seconds = time.perf_counter() - started
    return Extraction(path, len(split), n_computed, seconds, split.skipped, choice)


def _manifest(
    runner: Runner,
    split: Split,
    batch_size: int,
    tuning: Tuning | None,
    train: Outputs | None,
) -> dict[str, Any]:
    """Return what decides the outputs; raise if the model or the settings cannot be used."""
    if runner.preprocessing is None:
        raise ParameterError(
            f"extraction needs to know how an image becomes the input of {runner!r}: pass "
            "preprocessing=... to wrap (--image-size, --mean, --std)."
        )
    model_hash = runner.content_hash()
    if tuning is not None:
        if runner.kind != "torch" or runner.from_probs:
            raise ParameterError(
                "ODIN and the perturbed Mahalanobis need the gradient of a torch module that gives "
                f"logits, and {runner!r} is of kind {runner.kind}. Leave out tuning (--tuned)."
            )
        tuning.check_model(model_hash, str(runner.features))
    manifest = {
        **split.manifest(),
        **runner.describe(),
        "model_hash": model_hash,
        "preprocessing": json.loads(json.dumps(asdict(runner.preprocessing))),
        "batch_size": batch_size,
        "tuning": None if tuning is None else tuning.chosen(),
        "extraction_version": EXTRACTION_VERSION,
    }
    if tuning is not None and tuning.needs_train:
        manifest["train_data"] = tuning.checked_train(train).manifest["data_fingerprint"]
    return manifest


def _existing(path: Path, key: Mapping[str, Any], *, force: bool) -> Outputs | None:
    """Return existing outputs if they match this extraction; raise otherwise."""
    if path.is_file():
        difference = "it is damaged, or no file of outputs."
        with suppress(FileFormatError):
            outputs = Outputs.load(path)
            difference = _difference(key, outputs.manifest)
        if not difference:
            return outputs
        if not force:
            raise FileError(
                f"{path} exists and was made from something else: {difference} Pass force=True to "
                "replace it."
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
    parts: PartFiles, runner: Runner, split: Split, manifest: Mapping[str, Any], *, force: bool
) -> None:
    """Write the parts as one file of outputs."""
    labels = None if runner.label_names is None else split.labels_for(runner.label_names)
    made = parts.read()
    head = runner.head({name: rows[: manifest["batch_size"]] for name, rows in made[0].items()})
    outputs = []
    for part, images in zip(made, parts.images, strict=True):
        arrays, rows = dict(part), slice(images.start, images.stop)
        outputs.append(
            Outputs(
                arrays.pop("logits"),
                features=arrays.pop("features", None),
                labels=None if labels is None else labels[rows],
                ids=split.files[rows],
                label_names=runner.label_names,
                head=head,
                arrays=arrays,
            )
        )
    manifest = {**manifest, "skipped": [asdict(bad) for bad in split.skipped]}
    save_in_parts(parts.path, outputs, manifest, force=force)


class PartFiles:
    """The parts of a result, as files in a folder next to it."""

    def __init__(self, path: Path, n_images: int, batch_size: int) -> None:
        self.path, self.folder = path, path.with_name(path.name + ".parts")
        batches, step = in_batches(n_images, batch_size), _BATCHES_PER_PART
        self.parts = [batches[i : i + step] for i in range(0, len(batches), step)]
        self.images = [range(part[0].start, part[-1].stop) for part in self.parts]

    def complete(
        self,
        key: Mapping[str, Any],
        read: ReadBatches,
        run: RunBatch,
        on_images: Callable[[int], object],
    ) -> int:
        """Compute the parts that are missing, damaged or of another key; return how many images."""
        self.folder.mkdir(exist_ok=True)
        missing = {
            number: part for number, part in enumerate(self.parts) if not self._has(number, key)
        }
        n_missing = sum(len(self.images[number]) for number in missing)
        on_images(sum(map(len, self.images)) - n_missing)
        # One stream of batches for all parts: reading continues while a part is written.
        stream = read(batch for part in missing.values() for batch in part)
        for number, part in missing.items():
            blocks = []
            for batch in part:
                blocks.append(run(next(stream)))
                on_images(len(batch))
            arrays = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
            _PART.write(self._file(number), arrays, {"key": key}, force=True)
        return n_missing

    def read(self) -> list[Arrays]:
        """Return the arrays of all parts, memory-mapped."""
        files = map(self._file, range(len(self.images)))
        return [_PART.read(file, verify=False)[0] for file in files]  # `complete` has verified them

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.safetensors"

    def _has(self, number: int, key: Mapping[str, Any]) -> bool:
        try:
            return not _difference(key, _PART.read(self._file(number))[1]["key"])
        except FileError:  # there is none, or it is damaged
            return False


# --- computing ---


def _image_pass(
    runner: Runner,
    split: Split,
    batch_size: int,
    runtimes: Runtimes,
    tuning: Tuning | None,
    train: Outputs | None,
) -> tuple[ReadBatches, RunBatch, RuntimeChoice]:
    """Return how images are read and run by the chosen runtime, and which one that is."""
    assert runner.preprocessing is not None
    read = Reader(split, runner.preprocessing).batches
    batches = in_batches(len(split), batch_size)
    fast, choice = runtimes.choose(runner, lambda: next(read(batches[:1])), len(batches))
    if tuning is None:
        return read, checked_run(fast, runner), choice
    return read, tuning.perturbed(runner, train, fast=fast), choice


@contextmanager
def memory_advice(advice: str) -> Iterator[None]:
    """Say what to set if the memory is too small for what is done in the block."""
    try:
        yield
    except Exception as error:  # torch on a GPU, torch on the CPU and onnxruntime differ
        reason = str(error.__cause__ or error).partition("\n")[0]
        if not _NO_MEMORY.search(reason):
            raise
        raise ParameterError(f"the memory is too small: {reason} {advice}") from error


# --- features of a frozen backbone ---


def cached_features(
    checkpoint: Checkpoint,
    split: Split,
    cache: Path,
    *,
    device: Any = "cpu",
    runtime: str | Runtimes = AUTO_RUNTIME,
    on_images: Callable[[int], object] = lambda count: None,
) -> NDArray[np.float32]:
    """Return what a network's backbone gives for images, from the cache or computed into it."""
    from nescio.lab.networks.network import prepared
    from nescio.models.torch_models import TorchRunner

    key = {
        **split.manifest(),
        "version": EXTRACTION_VERSION,
        "model": checkpoint.architecture.name,
        "backbone_hash": checkpoint.backbone_hash,
        "preprocessing": asdict(checkpoint.preprocessing),
    }
    short = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    path = cache / f"features-{split.title}-{short}.safetensors"
    with nullcontext() if path.exists() else locked(path):
        if path.exists():
            on_images(len(split))
        else:
            backbone = prepared(checkpoint.network.get_submodule("backbone"), device)
            runner = TorchRunner(backbone, preprocessing=checkpoint.preprocessing)
            runner.channels_last = True
            # What a backbone returns takes the place of logits.
            extract(runner, split, path, runtime=runtime, on_images=on_images)
    return Outputs.load(path).logits.astype(np.float32, copy=False)


# --- runtimes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RuntimeChoice:
    """Which runtime runs a network, and why."""

    runtime: str
    why: str

    def __str__(self) -> str:
        return f"runtime {self.runtime} ({self.why})."

    def facts(self) -> dict[str, str]:
        """Return what a manifest says about it."""
        facts = {"runtime": self.runtime}
        return facts if self.runtime == TORCH else facts | {"runtime_version": version(ONNXRUNTIME)}


class Runtimes:
    """Chooses the runtime of networks, and keeps the exported copy for the next data set.

    `name` is as for `extract`. The choice does not depend on a measurement, so the same data and
    packages give the same bytes. A copy is used only if its arrays equal those of the network to
    `TOLERANCE` on the first batch; an extraction compares again on batches 2, 4, 8 and so on.
    """

    def __init__(self, name: str = AUTO_RUNTIME) -> None:
        self.name = checked_choice("runtime", name, (AUTO_RUNTIME, TORCH, ONNXRUNTIME))
        self._copy: tuple[Any, Runner] | None = None  # what it was made from, and its runner

    @classmethod
    def of(cls, runtime: str | Runtimes) -> Runtimes:
        """Return the object itself, or one for a name."""
        return runtime if isinstance(runtime, Runtimes) else cls(runtime)

    def choose(
        self, own: Runner, first_batch: Callable[[], Array], n_batches: int
    ) -> tuple[Runner, RuntimeChoice]:
        """Return a runner by the chosen runtime, compared with `own` on `first_batch`; and why."""
        choice = self._named(own, n_batches)
        if own.kind == "onnx" or choice.runtime == TORCH:
            return own, choice
        key = (own.content_hash(), str(own.describe()), own.preprocessing)
        if self._copy is None or self._copy[0] != key:
            images = first_batch()
            try:
                fast = _exported(own, images)  # type: ignore[arg-type]
                problem = difference(fast.run(images), own.run(images))
            except Exception as error:  # a runtime is not ours and may raise anything
                problem = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            if problem:
                reason = f"onnxruntime cannot be used: {problem}"
                if self.name == AUTO_RUNTIME:
                    return own, RuntimeChoice(TORCH, reason)
                raise ParameterError(f"{reason}. Choose torch.")
            self._copy = (key, fast)
        return self._copy[1], choice

    def _named(self, own: Runner, n_batches: int) -> RuntimeChoice:
        """Return the choice without trying it."""
        if own.kind == "onnx":
            if self.name == TORCH:
                raise ParameterError("an ONNX file is run by onnxruntime, got runtime='torch'.")
            return RuntimeChoice(ONNXRUNTIME, "it runs ONNX files")
        if self.name != AUTO_RUNTIME:
            return RuntimeChoice(self.name, "as requested")
        # Only runners of torch place inputs.
        if own.describe().get("device") != "cpu" or not hasattr(own, "placed"):
            return RuntimeChoice(TORCH, "it is no torch network on the CPU")
        if n_batches <= _MIN_BATCHES:
            return RuntimeChoice(TORCH, "there are few batches")
        missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            return RuntimeChoice(TORCH, f"{' and '.join(missing)} not installed")
        return RuntimeChoice(ONNXRUNTIME, "a copy of the network on the CPU")


def checked_run(fast: Runner, own: Runner) -> Callable[[Any], dict[str, Array]]:
    """Return how `fast` runs a batch, compared with the network on batches 2, 4, 8 and so on."""
    if fast is own:
        return own.run
    n_batches = 0

    def run(inputs: Any) -> dict[str, Array]:
        nonlocal n_batches
        n_batches += 1
        arrays = fast.run(inputs)
        if n_batches > 1 and n_batches & (n_batches - 1) == 0:
            problem = difference(arrays, own.run(inputs))
            if problem:
                raise ExportError(f"onnxruntime is wrong later on: {problem}. Use --runtime torch.")
        return arrays

    return run


def difference(arrays: Mapping[str, Array], expected: Mapping[str, Array]) -> str:
    """Return how arrays differ from those of the network itself; empty if they do not.

    Nothing is close to infinity: a masked label must be masked by every runtime.
    """
    for name, theirs in expected.items():
        ours = arrays[name]
        close = np.isclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        if not close.all():
            largest = float(np.abs(ours - theirs)[~close].max())
            return f"its {name} differ from those of the model itself by up to {largest:.2g}"
    return ""


def _exported(own: TorchRunner, images: Array) -> TorchRunner:
    """Return a runner whose passes are run by onnxruntime, with the weights as they are now."""
    for package in _PACKAGES:
        require(package, "onnx")
    import torch

    from nescio.export.graphs import traced
    from nescio.models.onnx_models import open_session

    ir = require("onnx_ir", "onnx")
    inputs = own.placed(images)
    if inputs.device.type != "cpu":
        raise ParameterError(f"it runs on the CPU, and the model is on {inputs.device}.")
    rows = inputs[:2].contiguous()
    if len(rows) < 2:  # one row would be taken as the only number of rows
        rows = torch.cat([rows, rows])
    names = [f"output_{place}" for place in range(1 + len(own.layers))]
    graph = traced(
        own.module().requires_grad_(False),
        [rows],
        [{0: torch.export.Dim.DYNAMIC}],
        input_names=[_IMAGES],
        output_names=names,
        what="the model",
        exact=bool(own.from_probs),  # logits are then computed from its sigmoids
    )
    content = ir.to_proto(graph).SerializeToString()
    session = open_session(content, threads=torch.get_num_threads())

    def forward(images: Tensor) -> tuple[Tensor, ...]:
        arrays = session.run(names, {_IMAGES: images.contiguous().numpy()})
        return tuple(torch.from_numpy(array) for array in arrays)

    fast = copy.copy(own)
    fast.forward = forward
    return fast
