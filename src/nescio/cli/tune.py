"""nescio tune: the settings of ODIN and Mahalanobis."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from nescio._io.files import check_target
from nescio._io.tables import to_json
from nescio._validation import checked_choice
from nescio.cli.options import AsJson, Force, progress_bar, terminal
from nescio.cli.vision import (
    BatchSize,
    Device,
    Module,
    NetworkFile,
    Runtime,
    SkipBad,
    WholeData,
    chosen_splits,
    require_vision,
)
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.training import Tuning


def tune(
    model: NetworkFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file of settings to write.")],
    data: WholeData = None,
    train_address: Annotated[
        str | None, typer.Option("--train", help="The data that Mahalanobis learns from.")
    ] = None,
    val_address: Annotated[
        str | None, typer.Option("--val", help="The in-distribution data to tune on.")
    ] = None,
    aggregates: Annotated[
        list[str] | None,
        typer.Option(
            "--aggregate", help="Tune for 'max' or 'sum' only. May be repeated. Default: both."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings; --images overrides it.")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(min=2, help="The maximum number of images of each set. Default: 1000."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Decides the choice of images and the noise.")
    ] = 0,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which activations Mahalanobis reads: 'pooled' (the default), 'penultimate', "
            "'input' or the name of a layer.",
        ),
    ] = None,
    device: Device = "auto",
    batch_size: BatchSize = 16,
    runtime: Runtime = "auto",
    module: Module = None,
    skip_bad: SkipBad = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Choose the settings of ODIN and Mahalanobis on synthetic data, as in the paper.

    In-distribution validation images are compared with noise and with corruptions of themselves. No
    out-of-distribution data is used. The training outputs that Mahalanobis learns from are written
    next to the settings.

    Example: nescio tune runs/coco/best.safetensors coco:/data/coco -o outputs/tuned.json
    """
    require_vision()
    from nescio.data.damage import without_damaged
    from nescio.runners.perturb import AGGREGATES
    from nescio.runners.runtimes import Runtimes
    from nescio.training import (
        TuneSettings,
        choose_device,
        extract,
        load_checkpoint,
        tune as run_tuning,
    )

    wanted = [
        checked_choice("--aggregate", name, AGGREGATES)
        for name in dict.fromkeys(aggregates or AGGREGATES)
    ]
    settings = TuneSettings() if config is None else TuneSettings.from_toml(config)
    settings = settings if images is None else replace(settings, images=images)
    where = choose_device(device)
    runtimes = Runtimes(runtime)
    checkpoint = load_checkpoint(model, module=module)
    train_split, val_split = chosen_splits(data, train_address, val_address, skip_bad=skip_bad)
    train_split.require_labels(checkpoint.label_names)
    output.parent.mkdir(parents=True, exist_ok=True)
    check_target(output, force=force)
    outputs_path = output.parent / f"{train_split.title}.safetensors"
    with progress_bar(train_split.title, len(train_split)) as advance:
        extract(
            checkpoint,
            train_split,
            outputs_path,
            features=features,
            device=where,
            batch_size=batch_size,
            runtime=runtimes,
            skip_bad=skip_bad,
            force=force,
            on_images=advance,
        )
    if skip_bad:
        val_split = without_damaged(val_split)
    with progress_bar("tuning", settings.n_steps(len(val_split))) as advance:
        tuning = run_tuning(
            checkpoint,
            val_split,
            Outputs.load(outputs_path),
            settings,
            features=features or "pooled",
            aggregates=wanted,
            seed=seed,
            device=where,
            batch_size=batch_size,
            runtime=runtimes,
            on_images=advance,
        )
    tuning.save(output, force=force)
    if as_json:
        typer.echo(to_json({"output": str(output), "best": tuning.chosen()}))
        return
    console = terminal()
    console.print(_table(tuning))
    console.print(f"saved {output}; training outputs: {outputs_path}", soft_wrap=True)


def _table(tuning: Tuning) -> Table:
    table = Table(title="Lowest FPR95 on the synthetic sets")
    for title in ("method", "aggregate", "epsilon", "temperature", "FPR95", "settings tried"):
        table.add_column(title, justify="left" if title in ("method", "aggregate") else "right")
    tried = Counter((setting.method, setting.aggregate) for setting in tuning.grid)
    for best in tuning.best:
        which = (best.method, best.aggregate)
        temperature = "" if best.temperature is None else f"{best.temperature:g}"
        numbers = (f"{best.epsilon:g}", temperature, f"{100 * best.fpr95:.2f}", str(tried[which]))
        table.add_row(*which, *numbers)
    return table
