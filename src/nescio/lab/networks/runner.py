"""A runner for nescio's own checkpoints, whose layers "pooled" and "penultimate" have names."""

from __future__ import annotations

from typing import Any

from nescio.errors import ParameterError
from nescio.lab.networks.checkpoint import Checkpoint
from nescio.lab.networks.network import Network, prepared
from nescio.models.base import INPUT, PENULTIMATE, POOLED
from nescio.models.torch_layers import Tap
from nescio.models.torch_models import TorchRunner


class CheckpointRunner(TorchRunner):
    """Runs the network of a checkpoint, which it moves to its device and puts in eval mode.

    Parameters
    ----------
    model : Checkpoint
    features : str or sequence of str
        "pooled" (what the head reads), "penultimate" (what the head's last layer reads), "input",
        or the name of a layer. The default is "pooled,penultimate"; for a module of the user's own,
        "pooled".
    device : optional
        The CPU if not given.
    """

    channels_last = True

    def __init__(self, model: Checkpoint, **settings: Any) -> None:
        self.checkpoint = model
        own = not isinstance(model.network, Network)
        default = settings.get("features") is None
        if default:
            settings["features"] = POOLED if own else (POOLED, PENULTIMATE)
        settings["label_names"] = settings.get("label_names") or model.label_names
        settings["preprocessing"] = settings.get("preprocessing") or model.preprocessing
        network = prepared(model.network, settings.get("device") or "cpu")
        super().__init__(network, **settings)
        self.source = model
        self.layers_are_default = default

    def _tap_of(self, layer: str) -> Tap:
        return Tap.parse(self.checkpoint.layer(layer), self.model)

    def content_hash(self) -> str:
        """Return the checkpoint's hash."""
        if self.preprocessing != self.checkpoint.preprocessing:
            raise ParameterError("a checkpoint has its own preprocessing: pass no other.")
        return self.checkpoint.content_hash()

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the network."""
        return {**super().describe(), "model": self.checkpoint.architecture.name}

    @property
    def is_after_backbone(self) -> bool:
        """Whether logits and layers can be computed from the features of the backbone."""
        return isinstance(self.model, Network) and {*self.layers} <= {POOLED, PENULTIMATE}

    def head_runner(self) -> TorchRunner:
        """Return a runner of the head, whose input are the pooled features."""
        return _HeadRunner(self.model.head, features=self.layers)


class _HeadRunner(TorchRunner):
    """Runs the head of a network, whose input are the pooled features."""

    def _tap_of(self, layer: str) -> Tap:
        return super()._tap_of(INPUT if layer == POOLED else layer)
