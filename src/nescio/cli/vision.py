"""What the commands that run models on images share."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nescio._optional import require
from nescio.cli.options import read_names
from nescio.cli.printing import progress_bar
from nescio.errors import ParameterError
from nescio.lab.data import DATASETS, Split, load, parse_address, without_damaged
from nescio.models.images import Preprocessing

if TYPE_CHECKING:
    from nescio.models import Runner

NetworkFile = Annotated[
    Path,
    typer.Argument(
        readable=False,
        metavar="MODEL",
        help="A network from 'nescio train' or 'nescio convert'.",
    ),
]
MODEL_HELP = (
    "an .onnx file, a network from 'nescio train' or 'nescio convert', or "
    "module:PACKAGE.MODULE:FACTORY for your own torch module"
)
WholeData = Annotated[
    str | None,
    typer.Argument(help="A data set with train and val, as coco:/data/coco.", metavar="[DATA]"),
]
Device = Annotated[
    str,
    typer.Option(help="Where the network runs: auto, cpu, cuda, cuda:1, mps."),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Images per batch; use more on a GPU.")]
Runtime = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What runs the network: torch, or onnxruntime with a copy of it on the CPU. The "
        "default, auto, takes onnxruntime if it is installed and there are more than 20 batches. "
        "Both give the same to 1e-4.",
    ),
]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad", help="Leave out images that are missing or damaged, and record them."
    ),
]
Module = Annotated[
    str | None,
    typer.Option(
        metavar="PACKAGE.MODULE:FACTORY",
        help="The function that builds your own network, for a file made from one.",
    ),
]
Features = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,NAME...]",
        help="Which layers to take: 'pooled', 'penultimate', 'input', 'auto' (the first of these "
        "that the model has), the name of a layer, or a tensor of an ONNX file. The first are the "
        "features, and the others have their own names. Default for nescio's networks: "
        "pooled,penultimate.",
    ),
]
ModelFromProbs = Annotated[
    bool | None,
    typer.Option(
        "--from-probs/--from-logits",
        help="The model returns probabilities, which are converted to logits; or logits, even if "
        "they look like probabilities.",
    ),
]
LogitsOutput = Annotated[
    str | None,
    typer.Option("--logits", metavar="NAME", help="Which of the model's outputs are the logits."),
]
ImageSize = Annotated[
    int | None,
    typer.Option(
        min=8,
        help="Side length in pixels of the model's images. nescio's networks and files from "
        "'nescio export' have their own.",
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(
        metavar="R,G,B",
        help="What is subtracted from each colour, on the scale from 0 to 1. Default: ImageNet's, "
        "0.485,0.456,0.406.",
    ),
]
Std = Annotated[
    str | None,
    typer.Option(
        metavar="R,G,B",
        help="What each colour is then divided by. Default: ImageNet's, 0.229,0.224,0.225.",
    ),
]


def require_vision(*, torch: bool = True) -> None:
    """Raise unless the packages for images, and for networks, are installed."""
    for module in ("torch", "torchvision", "PIL") if torch else ("PIL",):
        require(module, "torch")
    # Invalid metadata is common in photographs from the web and does no harm.
    warnings.filterwarnings("ignore", module="PIL")


# --- models -----------------------------------------------------------------------------------


def open_runner(
    model: str,
    *,
    module: str | None = None,
    features: str | None = None,
    output: str | None = None,
    from_probs: bool | None = None,
    labels: str | Sequence[str] | None = None,
    device: str | None = None,
    image_size: int | None = None,
    mean: str | None = None,
    std: str | None = None,
) -> Runner:
    """Return a runner of a model that a command was given, with the options that it takes."""
    from nescio.models import make_runner

    opened: object = model
    if model.startswith("module:"):
        require("torch", "torch")
        from nescio.lab.networks.network import load_own

        opened = load_own(model.removeprefix("module:"))
    elif not is_onnx(model):
        require_vision()
        from nescio.lab.networks.checkpoint import load_checkpoint

        opened = load_checkpoint(model, module=module)
    runner = make_runner(
        opened,
        features=features,
        output=output,
        from_probs=from_probs,
        label_names=read_label_names(labels) if isinstance(labels, str) else labels,
        device=device,
    )
    if (image_size, mean, std) == (None, None, None):
        return runner
    if hasattr(opened, "preprocessing"):
        raise ParameterError(
            "the network has its own preprocessing: leave out --image-size, --mean and --std."
        )
    stored = runner.preprocessing
    if image_size is None and stored is None and runner.kind == "onnx":
        shapes = runner.input_shapes.values()  # type: ignore[attr-defined]
        image_size = next((shape[2] for shape in shapes if len(shape) == 4), None)
    if not isinstance(image_size, int) and stored is None:
        raise ParameterError("give the size of the images too: --image-size 224.")
    chosen = chosen_preprocessing(stored or Preprocessing(), image_size, mean, std)
    return make_runner(runner, preprocessing=chosen)


def is_onnx(model: str) -> bool:
    """Return whether this is the path of an ONNX file."""
    return Path(model).suffix.lower() == ".onnx"


def chosen_preprocessing(
    default: Preprocessing, size: int | None, mean: str | None, std: str | None
) -> Preprocessing:
    """Return the default, changed by the options that were given."""
    return Preprocessing(
        size or default.size,
        parse_colours("--mean", mean) or default.mean,
        parse_colours("--std", std) or default.std,
    )


def parse_colours(option: str, text: str | None) -> tuple[float, float, float] | None:
    """Return three numbers, one per colour, from "R,G,B"; None if the option was not given."""
    if text is None:
        return None
    try:
        red, green, blue = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ParameterError(
            f"{option} must be three numbers, such as 0.485,0.456,0.406, got {text!r}."
        ) from error
    return red, green, blue


# --- data -------------------------------------------------------------------------------------


def _load_named(address: str, part: str, *, skip_bad: bool = False) -> Split:
    """Return data that was named for one purpose: all of it, or the part of that name."""
    parsed = parse_address(address)
    if parsed.split or not DATASETS[parsed.kind].splits:
        return load(address, skip_bad=skip_bad)
    return load(address, split=part, skip_bad=skip_bad)


def chosen_splits(
    data: str | None, train: str | None, val: str | None, *, skip_bad: bool
) -> tuple[Split, Split]:
    """Return training and validation data: parts of one data set, or named separately."""
    splits = []
    for part, named in (("train", train), ("val", val)):
        address = named or data
        if address is None:
            raise ParameterError(f"name the data: DATA, as in coco:/data/coco, or --{part}.")
        parsed = parse_address(address)
        if named is not None:
            splits.append(_load_named(named, part, skip_bad=skip_bad))
        elif parsed.split or DATASETS[parsed.kind].splits == ():
            raise ParameterError(
                f"{data} is a single split. Name a data set that has train and val, or both with "
                "--train and --val."
            )
        else:
            splits.append(load(address, split=part, skip_bad=skip_bad))
    return readable(splits[0], skip_bad=skip_bad), readable(splits[1], skip_bad=skip_bad)


def readable(split: Split, *, skip_bad: bool) -> Split:
    """Return the split without the images that cannot be read, if these may be left out."""
    if not skip_bad:
        return split
    with progress_bar(f"checking {split.title}", len(split)) as advance:
        return without_damaged(split, advance)


def read_label_names(source: str) -> tuple[str, ...]:
    """Return label names from a data set (KIND:PATH) or a text file with one name per line."""
    kind = source.partition(":")[0].partition("@")[0]
    if kind in DATASETS and ":" in source:
        # Photographs that a copy lacks do not change the names.
        names = _load_named(source, "val", skip_bad=True).label_names
        if names is None:
            raise ParameterError(f"{source} has no label names.")
        return names
    if not Path(source).is_file():
        raise ParameterError(
            "--labels must be a data set, as coco:/data/coco, or a text file with one name per "
            f"line; there is no file {source}."
        )
    return tuple(read_names(source))
