"""nescio train: train a multi-label network on images."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from nescio._io.tables import to_json
from nescio.cli.options import AsJson, progress_bar, terminal
from nescio.cli.vision import Device, Runtime, SkipBad, WholeData, chosen_splits, require_vision
from nescio.errors import ParameterError

if TYPE_CHECKING:
    from nescio.training.settings import TrainSettings
    from nescio.training.trainer import Epoch


def train(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the run.")],
    data: WholeData = None,
    train_address: Annotated[
        str | None,
        typer.Option("--train", help="The data to train on, such as coco@train:/data/coco."),
    ] = None,
    val_address: Annotated[
        str | None, typer.Option("--val", help="The data to validate on, such as table@val:my.csv.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            readable=False, help="A TOML file with settings. The defaults are those of the paper."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="densenet121 (default), resnet101 or another torchvision model, timm/NAME, "
            "efficientnet-lite0, or module:PACKAGE.MODULE:FACTORY."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Initial weights: imagenet (default), a file, or none."),
    ] = None,
    freeze: Annotated[
        bool,
        typer.Option("--freeze", help="Train only the head, on features that are computed once."),
    ] = False,
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of epochs; default 50.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=2, help="Images per batch, over all processes; default 64.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed; default 0.")] = None,
    device: Device = "auto",
    cache: Annotated[
        Path | None,
        typer.Option(
            help="The folder for the features of --freeze, which runs can share; default: the "
            "run's folder."
        ),
    ] = None,
    runtime: Runtime = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder, if there is one.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in the folder.")] = False,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Train a multi-label network on images, with the paper's settings by default.

    Example: nescio train coco:/data/coco -o runs/coco

    Several GPUs: torchrun --nproc-per-node 4 -m nescio train coco:/data/coco -o runs/coco
    """
    require_vision()
    from nescio.training import TrainSettings, choose_device, train as run_training
    from nescio.training.distributed import World

    if resume and force:
        raise ParameterError("--resume continues a run and --force replaces it: choose one.")
    where = choose_device(device)
    settings = TrainSettings() if config is None else TrainSettings.from_toml(config)
    settings = settings.updated(
        _given(
            model={"name": model, "weights": weights, "freeze": freeze or None},
            training={"epochs": epochs, "batch_size": batch_size, "seed": seed},
        )
    )
    train_split, val_split = chosen_splits(data, train_address, val_address, skip_bad=skip_bad)
    speaks = World.from_environment().leads
    n_passes = settings.training.epochs + settings.model.freeze + skip_bad
    quiet = as_json or not speaks
    bar = None if quiet else progress_bar("training", n_passes * len(train_split))
    with bar or nullcontext(lambda count: None) as advance:
        run = run_training(
            settings,
            train_split,
            val_split,
            output,
            device=where,
            resume=resume,
            force=force,
            skip_bad=skip_bad,
            cache=cache,
            runtime=runtime,
            on_reading=advance,
            on_images=advance,
            on_epoch=(lambda epoch: None) if quiet else partial(_print_epoch, settings),
        )
    if not speaks:
        return
    if as_json:
        report = {
            "checkpoint": str(run.checkpoint),
            "best": vars(run.best),
            "epochs": len(run.history),
        }
        typer.echo(to_json(report))
        return
    terminal().print(
        f"best epoch {run.best.epoch} of {len(run.history)} by {settings.training.select}: loss "
        f"{run.best.val_loss:.4f}, mAP {run.best.val_map:.4f}; wrote {run.checkpoint}",
        soft_wrap=True,
    )


def _given(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options that were given, by section."""
    return {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in sections.items()
    }


def _print_epoch(settings: TrainSettings, done: Epoch) -> None:
    Console(stderr=True, highlight=False).print(
        f"epoch {done.epoch:>3} of {settings.training.epochs}: train loss {done.train_loss:.4f}, "
        f"val loss {done.val_loss:.4f}, mAP {done.val_map:.4f}"
    )
