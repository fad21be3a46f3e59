"""nescio train, tune, extract and convert: networks and their outputs on images."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Argument, Option

from nescio._io.files import check_target
from nescio._validation import checked_choice
from nescio.cli.console import AsJson, Force, print_facts, print_json, print_rows, progress_bar, say
from nescio.cli.models import (
    MODEL_HELP,
    Device,
    Mean,
    ModelOptions,
    Module,
    RunOptions,
    Runtime,
    SkipBad,
    Std,
    TrainingData,
    chosen_preprocessing,
    is_onnx,
    read_label_names,
    readable,
)
from nescio.errors import FileError, ParameterError, ShapeError, require
from nescio.models.images import Preprocessing
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from torch import nn

    from nescio.lab.extraction import Extraction
    from nescio.lab.training import Epoch


def train(
    output: Annotated[Path, "The folder of the run."],
    data: TrainingData,
    config: Annotated[
        Path | None, "A TOML file with settings. The defaults are those of the paper."
    ] = None,
    model: Annotated[
        str | None,
        "densenet121 (default), resnet101 or another torchvision model, timm/NAME, "
        "efficientnet-lite0, or module:PACKAGE.MODULE:FACTORY.",
    ] = None,
    weights: Annotated[str | None, "Initial weights: imagenet (default), a file, or none."] = None,
    freeze: Annotated[bool, "Train only the head, on features that are computed once."] = False,
    epochs: Annotated[int | None, Option(min=1, help="Number of epochs; default 50.")] = None,
    batch_size: Annotated[int | None, Option(min=2, help="Images per batch; default 64.")] = None,
    seed: Annotated[int | None, Option(min=0, help="Random seed; default 0.")] = None,
    device: Device = "auto",
    cache: Annotated[
        Path | None,
        "The folder for the features of --freeze, which runs can share; default: the run's folder.",
    ] = None,
    runtime: Runtime = "auto",
    resume: Annotated[bool, "Continue the run in the folder, if there is one."] = False,
    force: Annotated[bool, "Replace the run in the folder."] = False,
    as_json: AsJson = False,
) -> None:
    """Train a multi-label network on images, with the paper's settings by default.

    Example: nescio train coco:/data/coco -o runs/coco
    """
    require("torchvision", "torch")
    from nescio.lab.settings import TrainSettings
    from nescio.lab.training import train as run_training
    from nescio.models.torch_models import choose_device

    if resume and force:
        raise ParameterError("--resume continues a run and --force replaces it: choose one.")
    where = choose_device(device)
    settings = TrainSettings() if config is None else TrainSettings.from_toml(config)
    options: dict[str, dict[str, Any]] = {
        "model": {"name": model, "weights": weights, "freeze": freeze or None},
        "training": {"epochs": epochs, "batch_size": batch_size, "seed": seed},
    }
    settings = settings.updated(
        {
            section: {name: value for name, value in values.items() if value is not None}
            for section, values in options.items()
        }
    )
    train_split, val_split = data.load()
    n_epochs = settings.training.epochs

    def print_epoch(done: Epoch) -> None:
        Console(stderr=True, highlight=False).print(
            f"epoch {done.epoch:>3} of {n_epochs}: train loss {done.train_loss:.4f}, "
            f"val loss {done.val_loss:.4f}, mAP {done.val_map:.4f}"
        )

    n_images = (n_epochs + settings.model.freeze) * len(train_split)
    with progress_bar("training", n_images) as advance:
        run = run_training(
            settings,
            train_split,
            val_split,
            output,
            device=where,
            resume=resume,
            force=force,
            cache=cache,
            runtime=runtime,
            on_images=advance,
            on_epoch=print_epoch,
        )
    facts = {"checkpoint": str(run.checkpoint), "best": vars(run.best)}
    print_facts(facts | {"epochs": len(run.history)}, as_json=as_json)


def tune(
    model: Annotated[
        Path,
        Argument(metavar="MODEL", help="A network from 'nescio train' or 'nescio convert'."),
    ],
    output: Annotated[Path, "The file of settings to write."],
    data: TrainingData,
    run: RunOptions,
    aggregates: Annotated[
        list[str] | None,
        Option("--aggregate", help="Tune for 'max' or 'sum' only. May be repeated. Default: both."),
    ] = None,
    config: Annotated[Path | None, "A TOML file of settings."] = None,
    module: Module = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Choose the settings of ODIN and Mahalanobis on synthetic data, as in the paper.

    In-distribution validation images are compared with noise and with corruptions of themselves. No
    out-of-distribution data is used. The training outputs that Mahalanobis learns from are written
    next to the settings.

    Example: nescio tune runs/coco/best.safetensors coco:/data/coco -o outputs/tuned.json
    """
    require("torchvision", "torch")
    from nescio.lab.extraction import Runtimes, extract
    from nescio.lab.networks.network import load_checkpoint
    from nescio.lab.perturbation import AGGREGATES, tune as run_tuning
    from nescio.lab.settings import TuneSettings
    from nescio.models.torch_models import choose_device

    wanted = [
        checked_choice("--aggregate", name, AGGREGATES)
        for name in dict.fromkeys(aggregates or AGGREGATES)
    ]
    settings = TuneSettings() if config is None else TuneSettings.from_toml(config)
    where = choose_device(run.device)
    runtimes = Runtimes(run.runtime)
    checkpoint = load_checkpoint(model, module=module)
    train_split, val_split = data.load()
    train_split.require_labels(checkpoint.label_names)
    output.parent.mkdir(parents=True, exist_ok=True)
    check_target(output, force=force)
    outputs_path = output.parent / f"{train_split.title}.safetensors"
    with progress_bar(train_split.title, len(train_split)) as advance:
        extract(
            checkpoint,
            train_split,
            outputs_path,
            device=where,
            batch_size=run.batch_size,
            runtime=runtimes,
            force=force,
            on_images=advance,
        )
    with progress_bar("tuning", settings.n_steps(len(val_split))) as advance:
        tuning = run_tuning(
            checkpoint,
            val_split,
            Outputs.load(outputs_path),
            settings,
            aggregates=wanted,
            device=where,
            batch_size=run.batch_size,
            runtime=runtimes,
            on_images=advance,
        )
    tuning.save(output, force=force)
    if as_json:
        print_json({"output": str(output), "best": tuning.chosen()})
        return
    print_rows(tuning.chosen(), title="Lowest FPR95 on the synthetic sets")
    say(f"saved {output}; training outputs: {outputs_path}")


def extract(
    model: Annotated[str, Argument(metavar="MODEL", help=f"The model: {MODEL_HELP}.")],
    data: Annotated[
        list[str],
        Argument(metavar="DATA...", help="Data sets, as coco@test:/data/coco textures:/data/dtd."),
    ],
    output: Annotated[Path, "A folder; one file is written per data set."],
    options: ModelOptions,
    run: RunOptions,
    tuned: Annotated[
        Path | None, "Settings from 'nescio tune': adds what ODIN and perturbed Mahalanobis read."
    ] = None,
    train: Annotated[
        Path | None,
        "The training outputs that 'nescio tune' has written, if the settings need them.",
    ] = None,
    labels: Annotated[
        str | None,
        "The label names in the model's order: a data set, or a text file with one name "
        "per line. nescio's networks have their own.",
    ] = None,
    module: Module = None,
    skip_bad: SkipBad = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a model's logits and features for images to files that the other commands read.

    If the command is interrupted, run it again: it continues where it stopped. Results that exist
    already are not computed again; results of another model are not replaced without --force.

    Example: nescio extract best.safetensors coco@test:/data/coco textures:/data/dtd -o outputs
    """
    from nescio.lab.data import load
    from nescio.lab.extraction import Runtimes, extract as run_extraction

    require("PIL" if is_onnx(model) and tuned is None else "torchvision", "torch")
    label_names = None if labels is None else read_label_names(labels)
    runner = options.open(model, run.device, module=module, label_names=label_names)
    tuning = None
    if tuned is not None:
        from nescio.lab.perturbation import Tuning

        tuning = Tuning.load(tuned)
    train_outputs = None if train is None else Outputs.load(train)
    indexed = [load(address, skip_bad=skip_bad) for address in data]
    splits = [readable(split, skip_bad=skip_bad) for split in indexed]
    title, count = Counter(split.title for split in splits).most_common(1)[0]
    if count > 1:
        raise ParameterError(
            f"two of the data sets would be written to {title}.safetensors. Use a separate "
            "--output for each."
        )
    if output.exists() and not output.is_dir():
        raise FileError(f"{output} is not a folder.")
    output.mkdir(parents=True, exist_ok=True)
    done = []
    runtimes = Runtimes(run.runtime)
    for split in splits:
        with progress_bar(split.title, len(split)) as advance:
            extraction = run_extraction(
                runner,
                split,
                output / f"{split.title}.safetensors",
                tuning=tuning,
                train=train_outputs,
                batch_size=run.batch_size,
                runtime=runtimes,
                force=force,
                on_images=advance,
            )
        done.append(extraction)
        if not as_json:
            _say_extraction(extraction)
    if as_json:
        print_json([{**asdict(extraction), "path": str(extraction.path)} for extraction in done])


def _say_extraction(extraction: Extraction) -> None:
    """Print how many images a file has, how many were computed, and the runtime."""
    done = "up to date"
    if extraction.n_computed:
        rate = extraction.n_computed / max(extraction.seconds, 1e-9)
        done = f"{extraction.n_computed:,} computed, {rate:.1f} images per second"
    if extraction.skipped:
        done += f", {len(extraction.skipped):,} left out and listed in the file"
    say(f"{extraction.path}: {extraction.n_images:,} images ({done})")
    if extraction.n_computed:
        say(f"  {extraction.runtime}")


def convert(
    name: Annotated[
        str,
        Argument(
            metavar="NAME",
            help="densenet121 or resnet101 for a checkpoint of the paper's repository, or "
            "module:PACKAGE.MODULE:FACTORY for your own network.",
        ),
    ],
    weights: Annotated[Path, "Its state dict; for the paper's, that of the backbone."],
    labels: Annotated[
        str, "The label names in order: a data set, or a text file with one name per line."
    ],
    output: Annotated[Path, "The file to write."],
    head: Annotated[Path | None, "The state dict of the paper's classifier."] = None,
    features: Annotated[
        str | None, "The layer of your own network whose output is the features."
    ] = None,
    image_size: Annotated[
        int,
        Option(min=8, help="Side length in pixels of the images that the network was trained on."),
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
    require("torchvision", "torch")
    from nescio.lab.networks.network import (
        HIDDEN_UNITS,
        Architecture,
        Checkpoint,
        build_network,
        load_paper_checkpoint,
        paper_revision,
    )

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
    converted: dict[str, Any] = {"output": str(output), "model": name, "label_names": label_names}
    if head is not None:
        if features is not None:
            raise ParameterError("--features is for your own network: leave it out.")
        network = load_paper_checkpoint(name, weights, head)
        n_labels, n_hidden = network.get_parameter("head.labels.weight").shape
        if n_labels != len(label_names):
            raise ShapeError(f"{head} has {n_labels} labels; {labels} names {len(label_names)}.")
        converted["training code"] = paper_revision(name, network)
    else:
        network = build_network(name, len(label_names), weights=weights, features=features)
    architecture = Architecture(name, n_hidden, features)
    preprocessing = chosen_preprocessing(Preprocessing(), image_size, mean, std)
    facts = {"converted_from": [path.name for path in (weights, head) if path is not None]}
    Checkpoint(network, architecture, label_names, preprocessing, facts).save(output, force=force)
    print_facts(converted, as_json=as_json)
