"""Checkpoints of the paper's own repository."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from nescio.errors import FileFormatError, ParameterError
from nescio.networks.backbones import build_network
from nescio.networks.network import Network
from nescio.networks.weights import load_state, read_state_dict

# Where the modules are that the paper's repository numbers in its backbone files.
_PAPER_STAGES = {"densenet121": "features", "resnet101": ""}
_PAPER_HEAD = {"way1.0.": "hidden.0.", "way1.1.": "hidden.1.", "cls.": "labels."}


def load_paper_checkpoint(name: str, backbone_file: str | Path, head_file: str | Path) -> Network:
    """Read a network that was trained with the paper's own code.

    Parameters
    ----------
    name : "densenet121" or "resnet101"
        The backbone's architecture.
    backbone_file, head_file : path
        Such as densenet.pth and densenetclsfier.pth, with or without the `module.` prefix of
        data-parallel training. The numbers of labels and hidden units are read from the head.
    """
    if name not in _PAPER_STAGES:
        allowed = " or ".join(map(repr, _PAPER_STAGES))
        raise ParameterError(f"name must be {allowed}, got {name!r}.")
    head_state = _paper_head_state(head_file)
    n_labels, n_hidden = head_state["labels.weight"].shape
    network = build_network(name, n_labels, n_hidden=n_hidden)
    assert isinstance(network, Network)
    load_state(
        network.head,
        head_state,
        source=head_file,
        expected=f"the head (way1, cls) that the paper's code saves with its {name}",
    )
    load_state(
        network.backbone,
        _paper_backbone_state(network.backbone, _PAPER_STAGES[name], backbone_file),
        source=backbone_file,
        expected=f"the numbered modules of {name} that the paper's code saves",
    )
    return network


def _paper_head_state(path: str | Path) -> dict[str, Tensor]:
    state = {}
    for name, tensor in read_state_dict(path).items():
        prefix = next((prefix for prefix in _PAPER_HEAD if name.startswith(prefix)), "")
        state[_PAPER_HEAD.get(prefix, "") + name.removeprefix(prefix)] = tensor
    if "labels.weight" not in state or state["labels.weight"].ndim != 2:
        raise FileFormatError(
            f"{path} has no matrix 'cls.weight', so it is not a classifier that the paper's code "
            "saved. Are the two files swapped?"
        )
    return state


def _paper_backbone_state(backbone: nn.Module, stages: str, path: str | Path) -> dict[str, Tensor]:
    """Return the state with names instead of numbers: "0.weight" is "features.conv0.weight"."""
    children = [name for name, _ in backbone.get_submodule(stages).named_children()]
    names = {str(at): f"{stages}.{name}".lstrip(".") for at, name in enumerate(children)}
    state = {}
    for key, tensor in read_state_dict(path).items():
        number, _, rest = key.partition(".")
        state[f"{names.get(number, number)}.{rest}"] = tensor
    return state
