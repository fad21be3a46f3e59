"""Options of models, networks and image data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from nescio.cli.console import FromProbs, progress_bar, read_names
from nescio.errors import ParameterError, require
from nescio.lab.data import DATASETS, Split, find_damaged, load, parse_address
from nescio.models.images import Preprocessing

if TYPE_CHECKING:
    from nescio.models import Runner

MODEL_HELP = (
    "an .onnx file, a network from 'nescio train' or 'nescio convert', or "
    "module:PACKAGE.MODULE:FACTORY for your own torch module"
)
Device = Annotated[str, "Where the network runs: auto, cpu, cuda, cuda:1, mps."]
Runtime = Annotated[
    str,
    "What runs the network: torch, or onnxruntime with a copy of it on the CPU. The default, auto, "
    "takes onnxruntime if it is installed and there are more than 20 batches. Both give the same "
    "to 1e-4.",
]
SkipBad = Annotated[bool, "Leave out images that are missing or damaged, and record them."]
Module = Annotated[
    str | None,
    Option(
        metavar="PACKAGE.MODULE:FACTORY",
        help="The function that builds your own network, for a file made from one.",
    ),
]
Mean = Annotated[
    str | None,
    Option(
        metavar="R,G,B",
        help="What is subtracted from each colour, on the scale from 0 to 1. Default: ImageNet's, "
        "0.485,0.456,0.406.",
    ),
]
Std = Annotated[
    str | None,
    Option(
        metavar="R,G,B",
        help="What each colour is then divided by. Default: ImageNet's, 0.229,0.224,0.225.",
    ),
]


@dataclass(frozen=True)
class RunOptions:
    """How a network is run on many images."""

    device: Device = "auto"
    batch_size: Annotated[int, Option(min=1, help="Images per batch; use more on a GPU.")] = 16
    runtime: Runtime = "auto"


@dataclass(frozen=True)
class ModelOptions:
    """What a model's outputs are, and how images become its inputs."""

    logits: Annotated[str | None, "Which of the model's outputs are the logits."] = None
    features: Annotated[
        str | None,
        Option(
            metavar="NAME[,NAME...]",
            help="Which layers to take: 'pooled', 'penultimate', 'input', 'auto' (the first of "
            "these that the model has), the name of a layer, or a tensor of an ONNX file. The "
            "first are the features, and the others have their own names. Default for nescio's "
            "networks: pooled,penultimate; in 'nescio serve', what the detector was made with.",
        ),
    ] = None
    from_probs: FromProbs = None
    image_size: Annotated[
        int | None,
        Option(
            min=8,
            help="Side length in pixels of the model's images. nescio's networks and files from "
            "'nescio export' have their own.",
        ),
    ] = None
    mean: Mean = None
    std: Std = None

    def open(
        self,
        model: str,
        device: str | None = None,
        *,
        module: str | None = None,
        label_names: Sequence[str] | None = None,
    ) -> Runner:
        """Return a runner of a model that a command was given, on a device."""
        from nescio.models.base import make_runner

        opened: object = model
        if is_onnx(model):
            device = None if device == "auto" else device
        else:
            opened = _open_network(model, module)
            if device is not None:
                from nescio.models.torch_models import choose_device

                device = str(choose_device(device))
        runner = make_runner(
            opened,
            features=self.features,
            output=self.logits,
            from_probs=self.from_probs,
            label_names=label_names,
            device=device,
        )
        if (self.image_size, self.mean, self.std) == (None, None, None):
            return runner
        if hasattr(opened, "preprocessing"):
            raise ParameterError(
                "the network has its own preprocessing: leave out --image-size, --mean and --std."
            )
        return make_runner(runner, preprocessing=self._preprocessing(runner))

    def _preprocessing(self, runner: Runner) -> Preprocessing:
        stored, size = runner.preprocessing, self.image_size
        if size is None and stored is None and runner.kind == "onnx":
            shapes = runner.input_shapes.values()  # type: ignore[attr-defined]
            size = next((shape[2] for shape in shapes if len(shape) == 4), None)
        if not isinstance(size, int) and stored is None:
            raise ParameterError("give the size of the images too: --image-size 224.")
        return chosen_preprocessing(stored or Preprocessing(), size, self.mean, self.std)

    def settings(self) -> dict[str, Any]:
        """Return the options by name, with numbers instead of texts."""
        colours = {
            name: parse_numbers(f"--{name}", getattr(self, name)) for name in ("mean", "std")
        }
        return vars(self) | {name: numbers or None for name, numbers in colours.items()}


def chosen_preprocessing(
    default: Preprocessing, size: int | None, mean: str | None, std: str | None
) -> Preprocessing:
    """Return the default, changed by the options that were given."""
    return Preprocessing(
        size or default.size,
        parse_numbers("--mean", mean) or default.mean,
        parse_numbers("--std", std) or default.std,
    )


def _open_network(model: str, module: str | None) -> object:
    """Return a torch module by its name, or the network of a file."""
    if model.startswith("module:"):
        require("torch", "torch")
        from nescio.lab.networks.network import load_own

        return load_own(model.removeprefix("module:"))
    if Path(model).suffix.lower() != ".safetensors":
        raise ParameterError(
            f"--model must be {MODEL_HELP}; got {model!r}. Export a scikit-learn model in Python: "
            "nescio.export_onnx(wrapped, 'model.onnx')."
        )
    require("torchvision", "torch")
    from nescio.lab.networks.network import load_checkpoint

    return load_checkpoint(model, module=module)


def is_onnx(model: str) -> bool:
    """Return whether this is the path of an ONNX file."""
    return Path(model).suffix.lower() == ".onnx"


def parse_numbers(option: str, text: str | None, kind: type = float) -> Any:
    """Return the numbers of an option that is given as "a,b,c"; None if it was not given."""
    if text is None:
        return None
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise ParameterError(
            f"{option} must be numbers with commas between them, got {text!r}."
        ) from error


@dataclass(frozen=True)
class TrainingData:
    """The images for training and validation: splits of one data set, or named separately."""

    data: Annotated[
        str | None,
        Argument(help="A data set with train and val, as coco:/data/coco.", metavar="[DATA]"),
    ] = None
    train: Annotated[str | None, "The training data, such as coco@train:/data/coco."] = None
    val: Annotated[str | None, "The validation data, such as table@val:my.csv."] = None
    skip_bad: SkipBad = False

    def load(self) -> tuple[Split, Split]:
        """Return the training and the validation data."""
        splits = self._part("train", self.train), self._part("val", self.val)
        train, val = (readable(split, skip_bad=self.skip_bad) for split in splits)
        return train, val

    def _part(self, part: str, named: str | None) -> Split:
        if named is not None:
            return _load_named(named, part, skip_bad=self.skip_bad)
        if self.data is None:
            raise ParameterError(f"name the data: DATA, as in coco:/data/coco, or --{part}.")
        if parse_address(self.data).split:
            raise ParameterError(
                f"{self.data} is a single split. Name a data set that has train and val, or both "
                "with --train and --val."
            )
        return load(self.data, split=part, skip_bad=self.skip_bad)


def _load_named(address: str, part: str, *, skip_bad: bool) -> Split:
    """Return data that was named for one purpose: all of it, or the part of that name."""
    parsed = parse_address(address)
    whole = parsed.split or not DATASETS[parsed.kind].splits
    return load(address, split=None if whole else part, skip_bad=skip_bad)


def readable(split: Split, *, skip_bad: bool) -> Split:
    """Return the split without the images that cannot be read, if these may be left out."""
    if not skip_bad:
        return split
    with progress_bar(f"checking {split.title}", len(split)) as advance:
        return split.without(find_damaged(split, advance))


def read_label_names(source: str) -> tuple[str, ...]:
    """Return label names from a data set (KIND:PATH) or a text file with one name per line."""
    kind = source.partition(":")[0].partition("@")[0]
    if kind in DATASETS and ":" in source:
        # Photographs that a copy lacks do not change the names.
        names = _load_named(source, "val", skip_bad=True).label_names
        if names is None:
            raise ParameterError(f"{source} has no label names.")
        return names
    return tuple(read_names(source))
