"""nescio convert: a network trained elsewhere, as a file that extract and tune read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nescio._io.files import check_target
from nescio._io.tables import to_json
from nescio.cli.options import AsJson, Force, terminal
from nescio.cli.vision import read_label_names, require_vision
from nescio.errors import ParameterError, ShapeError

if TYPE_CHECKING:
    from torch import nn


def convert(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="densenet121 or resnet101 for a checkpoint of the paper's repository, or "
            "module:PACKAGE.MODULE:FACTORY for a network of your own.",
        ),
    ],
    weights: Annotated[
        Path,
        typer.Option(readable=False, help="Its state dict: of the backbone, for the paper's."),
    ],
    labels: Annotated[
        str,
        typer.Option(help="The label names in order: a data set, or a text file, a name a line."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it.")],
    head: Annotated[
        Path | None,
        typer.Option(readable=False, help="The state dict of the paper's classifier."),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(help="The layer of your own network whose output is the features."),
    ] = None,
    image_size: Annotated[int, typer.Option(min=8, help="Pixels a side that it takes.")] = 256,
    mean: Annotated[
        tuple[float, float, float], typer.Option(help="Of each colour, from 0 to 1.")
    ] = (0.485, 0.456, 0.406),
    std: Annotated[
        tuple[float, float, float], typer.Option(help="Of each colour, from 0 to 1.")
    ] = (0.229, 0.224, 0.225),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Turn a network trained elsewhere into a file that extract and tune read.

    Example: nescio convert densenet121 --weights densenet.pth --head densenetclsfier.pth --labels
    coco:/data/coco -o coco.safetensors
    """
    require_vision()
    from nescio.networks.network import HIDDEN_UNITS
    from nescio.training import (
        Architecture,
        Checkpoint,
        Preprocessing,
        build_network,
        load_paper_checkpoint,
    )

    check_target(output, force=force)
    label_names = read_label_names(labels)
    own = name.startswith("module:")
    if own == (head is not None):
        raise ParameterError(
            "a checkpoint of the paper's repository has two files, --weights and --head; a network "
            "of your own has --weights and --features."
        )
    network: nn.Module
    n_hidden = HIDDEN_UNITS
    if head is not None:
        if features is not None:
            raise ParameterError("--features is for a network of your own; leave it out.")
        network = load_paper_checkpoint(name, weights, head)
        n_labels, n_hidden = network.head.get_parameter("labels.weight").shape
        if n_labels != len(label_names):
            raise ShapeError(f"{head} has {n_labels} labels; {labels} names {len(label_names)}.")
    else:
        network = build_network(name, len(label_names), weights=weights, features=features)
    architecture = Architecture(name, n_hidden, features)
    preprocessing = Preprocessing(image_size, mean, std)
    facts = {"converted_from": [path.name for path in (weights, head) if path is not None]}
    Checkpoint(network, architecture, label_names, preprocessing, facts).save(output, force=force)
    if as_json:
        typer.echo(
            to_json({"output": str(output), "model": name, "label_names": list(label_names)})
        )
        return
    terminal().print(f"saved {output}: {name}, {len(label_names)} labels", soft_wrap=True)
