"""nescio convert: a network trained elsewhere, as a file that extract and tune read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nescio._io.files import check_target
from nescio._io.tables import to_json
from nescio.cli.options import AsJson, Force, terminal
from nescio.cli.vision import (
    Mean,
    Std,
    chosen_preprocessing,
    read_label_names,
    require_vision,
)
from nescio.data.preprocessing import Preprocessing
from nescio.errors import ParameterError, ShapeError

if TYPE_CHECKING:
    from torch import nn


def convert(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="densenet121 or resnet101 for a checkpoint of the paper's repository, or "
            "module:PACKAGE.MODULE:FACTORY for your own network.",
        ),
    ],
    weights: Annotated[
        Path,
        typer.Option(readable=False, help="Its state dict; for the paper's, that of the backbone."),
    ],
    labels: Annotated[
        str,
        typer.Option(
            help="The label names in order: a data set, or a text file with one name per line."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    head: Annotated[
        Path | None,
        typer.Option(readable=False, help="The state dict of the paper's classifier."),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(help="The layer of your own network whose output is the features."),
    ] = None,
    image_size: Annotated[
        int,
        typer.Option(
            min=8, help="Side length in pixels of the images that the network was trained on."
        ),
    ] = 256,
    mean: Mean = None,
    std: Std = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Convert a network trained elsewhere to a file that extract and tune read.

    Example: nescio convert densenet121 --weights densenet.pth --head densenetclsfier.pth --labels
    coco:/data/coco -o coco.safetensors
    """
    require_vision()
    from nescio.networks.network import HIDDEN_UNITS
    from nescio.training import Architecture, Checkpoint, build_network, load_paper_checkpoint

    check_target(output, force=force)
    label_names = read_label_names(labels)
    own = name.startswith("module:")
    if own == (head is not None):
        raise ParameterError(
            "a checkpoint of the paper's repository has two files, --weights and --head; your own "
            "network has --weights and --features."
        )
    network: nn.Module
    n_hidden = HIDDEN_UNITS
    if head is not None:
        if features is not None:
            raise ParameterError("--features is for your own network: leave it out.")
        network = load_paper_checkpoint(name, weights, head)
        n_labels, n_hidden = network.get_parameter("head.labels.weight").shape
        if n_labels != len(label_names):
            raise ShapeError(f"{head} has {n_labels} labels; {labels} names {len(label_names)}.")
    else:
        network = build_network(name, len(label_names), weights=weights, features=features)
    architecture = Architecture(name, n_hidden, features)
    preprocessing = chosen_preprocessing(Preprocessing(), image_size, mean, std)
    facts = {"converted_from": [path.name for path in (weights, head) if path is not None]}
    Checkpoint(network, architecture, label_names, preprocessing, facts).save(output, force=force)
    if as_json:
        typer.echo(to_json({"output": str(output), "model": name, "label_names": label_names}))
    else:
        terminal().print(f"saved {output}: {name}, {len(label_names)} labels", soft_wrap=True)
