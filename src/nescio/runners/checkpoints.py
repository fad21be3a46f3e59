"""A runner for nescio's own checkpoints, whose layers "pooled" and "penultimate" have names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, channels_last

from nescio._validation import Array
from nescio.data.split import Split
from nescio.errors import ParameterError
from nescio.networks.checkpoint import Checkpoint
from nescio.networks.network import Network, prepared
from nescio.runners.base import Runner
from nescio.runners.feature_cache import read_features
from nescio.runners.features import INPUT, PENULTIMATE, POOLED
from nescio.runners.torch_models import Tap, TorchRunner


class CheckpointRunner(TorchRunner):
    """Runs the network of a checkpoint, which it moves to its device and puts in eval mode.

    Parameters
    ----------
    model : Checkpoint
    features : str
        "pooled" (what the head reads, the default), "penultimate" (what the head's last layer
        reads), "input", or the name of a layer.
    device : optional
        The CPU if not given.
    """

    def __init__(self, model: Checkpoint, **settings: Any) -> None:
        self.checkpoint = model
        settings["features"] = settings.get("features") or POOLED
        settings["label_names"] = settings.get("label_names") or model.label_names
        settings["preprocessing"] = settings.get("preprocessing") or model.preprocessing
        network = prepared(model.network, settings.get("device") or "cpu")
        super().__init__(network, **settings)
        self.source = model

    def _tap_of(self, features: str) -> Tap:
        return Tap.parse(self.checkpoint.layer(features), self.model)

    def _preprocessed(self, pixels: Tensor) -> Tensor:
        return super()._preprocessed(pixels).contiguous(memory_format=channels_last)

    def content_hash(self) -> str:
        """Return the checkpoint's hash."""
        if self.preprocessing != self.checkpoint.preprocessing:
            raise ParameterError("a checkpoint has its own preprocessing: pass no other.")
        return self.checkpoint.content_hash()

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the network."""
        return {**super().describe(), "model": self.checkpoint.architecture.name}

    def cached(self, split: Split, folder: str | Path) -> tuple[Array, Runner] | None:
        """Return the backbone's features of a split from a cache, if any, and a runner of the head.

        None also if the runner's features are taken inside of the backbone.
        """
        within_head = {POOLED: INPUT, PENULTIMATE: "labels:input"}
        if not isinstance(self.model, Network) or self.features not in within_head:
            return None
        pooled = read_features(self.checkpoint, split, Path(folder))
        if pooled is None:
            return None
        return pooled, TorchRunner(self.model.head, features=within_head[self.features])
