"""A network's outputs on a data set, computed once, in parts that survive a crash.

Each part is a file of its own, written whole or not at all. Interrupted work goes on with the next
part, and the result is the same to the last byte. Parts and results carry the key of what they were
made from, the network's content hash first of all: those of another network are refused.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nescio._io.files import check_target
from nescio._io.tensors import Stacked, read_tensors, write_tensors
from nescio._validation import checked_whole
from nescio._version import __version__
from nescio.data.preprocessing import Preprocessing
from nescio.data.split import BadFile, Split
from nescio.errors import DatasetError, FileError, FileFormatError, ParameterError
from nescio.networks.checkpoint import Checkpoint
from nescio.networks.network import prepared
from nescio.outputs import Outputs, check_outputs_target, save_in_parts
from nescio.runners.images import Reader, in_batches
from nescio.training.perturb import find_directions, step
from nescio.training.tuning import Tuning

FEATURES = ("pooled", "penultimate")
_BATCHES_A_PART = 16

Compute = Callable[[Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Extraction:
    """What `extract` did.

    Attributes
    ----------
    path : Path
    n_images : int
        In the file.
    n_computed : int
        Of these, computed now; the others were there already.
    seconds : float
    skipped : tuple of BadFile
    """

    path: Path
    n_images: int
    n_computed: int
    seconds: float
    skipped: tuple[BadFile, ...]


def extract(
    checkpoint: Checkpoint,
    split: Split,
    path: str | Path,
    *,
    features: str = "pooled",
    tuning: Tuning | None = None,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
    skip_bad: bool = False,
    force: bool = False,
    on_images: Callable[[int], object] = lambda count: None,
) -> Extraction:
    """Write the `Outputs` of a network on a split.

    If `path` holds this very result already, nothing is done. If it holds another, it is replaced
    only with `force`.

    Parameters
    ----------
    checkpoint : Checkpoint
    split : Split
    path : path
        Ends in .safetensors. While the work lasts, its parts are in a folder beside it.
    features : {"pooled", "penultimate"}
        What the head reads, or what its last layer reads.
    tuning : Tuning, optional
        With it, the outputs get what ODIN and the perturbed Mahalanobis read.
    device, batch_size
        Part of the key: another batch size may round differently.
    skip_bad : bool
        Leave out images that cannot be read, and say so in the manifest.
    on_images : callable
        Called with the number of images just done.
    """
    check_outputs_target(path)
    if features not in FEATURES:
        raise ParameterError(f"features must be one of {', '.join(FEATURES)}, got {features!r}.")
    checked_whole("batch_size", batch_size, minimum=1)
    model_hash = checkpoint.content_hash()
    if tuning is not None:
        tuning.check_model(model_hash, features)
    manifest = {
        **split.manifest(),
        "model": checkpoint.architecture.name,
        "model_hash": model_hash,
        "features": features,
        "image_size": checkpoint.preprocessing.size,
        "batch_size": batch_size,
        "device": torch.device(device).type,
        "nescio_version": __version__,
        "torch_version": torch.__version__,
        "tuning": None if tuning is None else tuning.chosen(),
    }
    path = Path(path)
    started = time.perf_counter()
    work = PartialWork(path, manifest, len(split), batch_size)
    if _is_done(path, manifest, skip_bad=skip_bad, force=force):
        work.remove()  # a crash may have come before that
        on_images(len(split))
        done = Outputs.load(path)
        skipped = tuple(BadFile(**bad) for bad in done.manifest["skipped"])
        return Extraction(path, len(done), 0, time.perf_counter() - started, skipped)
    network = prepared(checkpoint.network, device)
    if force:
        work.remove_others()
    reader = Reader(split, checkpoint.preprocessing, skip_bad=skip_bad)
    compute = _computation(network, checkpoint.preprocessing, features, tuning)
    n_computed = work.run(reader, compute, torch.device(device), on_images)
    labels = split.labels_for(checkpoint.label_names)
    skipped = _assemble(work, split, labels, checkpoint.label_names, force=force)
    n_images = len(split) - (len(skipped) - len(split.skipped))
    return Extraction(path, n_images, n_computed, time.perf_counter() - started, skipped)


def _computation(
    network: nn.Module, preprocessing: Preprocessing, features: str, tuning: Tuning | None
) -> Compute:
    def plain(inputs: Tensor) -> dict[str, Tensor]:
        with torch.inference_mode():
            outputs = network(inputs)
        return {"logits": outputs.logits, "features": getattr(outputs, features)}

    def with_perturbed(inputs: Tensor) -> dict[str, Tensor]:
        assert tuning is not None
        found = find_directions(network, inputs, preprocessing, tuning.aggregates)
        result = {
            "logits": found.outputs.logits,
            "features": getattr(found.outputs, features),
        }
        for setting in tuning.best:
            outputs = step(network, inputs, found, setting.aggregate, setting.epsilon)
            name = f"{setting.method}_{setting.aggregate}"
            if setting.temperature is None:
                result[name] = getattr(outputs, features)
            else:
                result[name] = outputs.logits / setting.temperature
        return result

    return plain if tuning is None else with_perturbed


def _is_done(path: Path, manifest: Mapping[str, Any], *, skip_bad: bool, force: bool) -> bool:
    """Whether the file is the result of this very work; raises if it is another one's."""
    if path.is_file():
        try:
            theirs = Outputs.load(path).manifest
        except FileFormatError:
            theirs = {}
        if {name: theirs.get(name) for name in manifest} == dict(manifest):
            skipped = theirs.get("skipped", [])
            if skipped and not skip_bad:
                raise DatasetError(
                    f"{path} was made without {len(skipped):,} images that could not be read, the "
                    f"first {skipped[0]['file']}. Pass skip_bad=True (--skip-bad) if that is fine, "
                    "or mend them and start over (--force)."
                )
            return True
        if not force:
            raise FileError(
                f"{path} exists and was not made from this: {_difference(manifest, theirs)} "
                "Pass force=True (--force) to replace it."
            )
    check_target(path, force=force)
    return False


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """What is different about work that was done from something else."""
    if not theirs:
        return "it has no manifest."
    for name, value in ours.items():
        if theirs.get(name) == value:
            continue
        if name == "tuning":
            return "it was made with other settings of ODIN and Mahalanobis (--tuned), or none."
        if name == "model_hash":
            theirs_hash = str(theirs.get(name))[:12]
            return f"it was made by another network ({theirs_hash}, not {value[:12]})."
        return f"its {name} is {theirs.get(name)!r}, not {value!r}."
    return ""


class PartialWork:
    """Arrays computed from images part by part, each part a file in a folder beside the result.

    Parameters
    ----------
    path : Path
        Of the result.
    key : mapping
        What the parts are made from; parts with another key are refused.
    n_images, batch_size : int
    """

    def __init__(self, path: Path, key: Mapping[str, Any], n_images: int, batch_size: int) -> None:
        self.path = path
        self.key = dict(key)
        self.folder = path.with_name(path.name + ".parts")
        batches = in_batches(n_images, batch_size)
        self.parts = [
            batches[start : start + _BATCHES_A_PART]
            for start in range(0, len(batches), _BATCHES_A_PART)
        ]

    def run(
        self,
        reader: Reader,
        compute: Compute,
        device: torch.device,
        on_images: Callable[[int], object] = lambda count: None,
    ) -> int:
        """Compute the parts that are missing; gives how many images that were."""
        self.folder.mkdir(exist_ok=True)
        missing = [
            number
            for number in range(len(self.parts))
            if not self._has(number, skip_bad=reader.skip_bad)
        ]
        n_missing = sum(len(batch) for number in missing for batch in self.parts[number])
        n_computed = 0
        on_images(len(reader.split) - n_missing)
        # One stream of batches for all parts: reading goes on while a part is written.
        wanted = (batch for number in missing for batch in self.parts[number])
        stream = reader.batches(wanted)
        for number in missing:
            arrays: dict[str, list[Any]] = {}
            indices: list[Any] = []
            bad: list[BadFile] = []
            for batch_indices in self.parts[number]:
                batch = next(stream)
                if len(batch.indices):
                    computed = compute(reader.preprocessing.inputs(batch.pixels, device))
                    for name, tensor in computed.items():
                        arrays.setdefault(name, []).append(tensor.float().cpu().numpy())
                indices.append(batch.indices)
                bad += batch.bad
                on_images(len(batch_indices))
            self._write(number, arrays, np.concatenate(indices), bad)
            n_computed += sum(map(len, indices))
        return n_computed

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.safetensors"

    def _has(self, number: int, *, skip_bad: bool) -> bool:
        """Whether a part is there; raises if it was made from something else."""
        file = self._file(number)
        if not file.exists():
            return False
        metadata = read_tensors(file)[1]
        if metadata.get("key") != self.key:
            raise FileError(
                f"{self.folder} holds unfinished work on something else: "
                f"{_difference(self.key, metadata.get('key', {}))} Pass force=True (--force) to "
                "start over."
            )
        # Without leave to skip, a part that lacks images is computed again, to raise as it should.
        return skip_bad or not metadata["skipped"]

    def _write(
        self,
        number: int,
        arrays: Mapping[str, Sequence[Any]],
        indices: Any,
        bad: Sequence[BadFile],
    ) -> None:
        tensors = {name: Stacked(blocks) for name, blocks in arrays.items()}
        metadata = {"key": self.key, "skipped": [asdict(item) for item in bad]}
        write_tensors(self._file(number), {**tensors, "indices": indices}, metadata, force=True)

    def read(self) -> tuple[list[dict[str, Any]], tuple[BadFile, ...]]:
        """The arrays of every part, memory-mapped, and the images that were left out."""
        parts, bad = [], []
        for number in range(len(self.parts)):
            tensors, metadata = read_tensors(self._file(number))
            bad += [BadFile(**item) for item in metadata["skipped"]]
            if len(tensors["indices"]):
                parts.append(tensors)
        if not parts:
            raise DatasetError(f"none of the {len(bad):,} images could be read.")
        return parts, tuple(bad)

    def remove_others(self) -> None:
        """Remove unfinished work on something else."""
        try:
            for number in range(len(self.parts)):
                self._has(number, skip_bad=True)
        except FileError:
            self.remove()

    def remove(self) -> None:
        """Remove the parts, once the result is written."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _assemble(
    work: PartialWork,
    split: Split,
    labels: Any,
    label_names: Sequence[str],
    *,
    force: bool,
) -> tuple[BadFile, ...]:
    """Join the parts into the result and remove them."""
    parts, bad = work.read()
    skipped = (*split.skipped, *bad)
    outputs = [
        Outputs(
            part["logits"],
            features=part["features"],
            labels=None if labels is None else labels[part["indices"]],
            ids=[split.files[index] for index in part["indices"]],
            label_names=label_names,
            arrays={
                name: array
                for name, array in part.items()
                if name not in ("logits", "features", "indices")
            },
        )
        for part in parts
    ]
    manifest = {
        **work.key,
        "skipped": [asdict(item) for item in skipped],
    }
    save_in_parts(work.path, outputs, manifest, force=force)
    work.remove()
    return skipped
