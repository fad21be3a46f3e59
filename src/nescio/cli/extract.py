"""nescio extract: what a network gives for images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nescio._io.tables import to_json
from nescio.cli.options import AsJson, Force, progress_bar, terminal
from nescio.cli.vision import (
    BatchSize,
    Device,
    Features,
    Module,
    NetworkFile,
    SkipBad,
    require_vision,
)
from nescio.errors import FileError, ParameterError


def extract(
    model: NetworkFile,
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...", help="Data sets, as coco@test:/data/coco textures:/data/dtd."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A folder; a file is written for each data set.")
    ],
    tuned: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="Settings from 'nescio tune': adds what ODIN and perturbed Mahalanobis read.",
        ),
    ] = None,
    features: Features = "pooled",
    device: Device = "auto",
    batch_size: BatchSize = 16,
    module: Module = None,
    skip_bad: SkipBad = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a network's logits and features for images, in a file that the other commands read.

    Interrupted work goes on where it stopped when the command is run again, and results that are
    there already are not computed again; those of another network are refused.

    Example: nescio extract best.safetensors coco@test:/data/coco textures:/data/dtd -o outputs
    """
    require_vision()
    from nescio.data import load
    from nescio.training import Tuning, choose_device, extract as run_extraction, load_checkpoint

    where = choose_device(device)
    checkpoint = load_checkpoint(model, module=module)
    tuning = None if tuned is None else Tuning.load(tuned)
    splits = [load(address, skip_bad=skip_bad) for address in data]
    titles = [split.title for split in splits]
    for title in titles:
        if titles.count(title) > 1:
            raise ParameterError(
                f"two of the data sets would be written to {title}.safetensors. Give each an "
                "--output of its own."
            )
    if output.exists() and not output.is_dir():
        raise FileError(f"{output} is not a folder.")
    output.mkdir(parents=True, exist_ok=True)
    console = terminal()
    done = []
    for split in splits:
        with progress_bar(split.title, len(split)) as advance:
            result = run_extraction(
                checkpoint,
                split,
                output / f"{split.title}.safetensors",
                features=features,
                tuning=tuning,
                device=where,
                batch_size=batch_size,
                skip_bad=skip_bad,
                force=force,
                on_images=advance,
            )
        done.append(result)
        if not as_json:
            rate = f"{result.n_computed / max(result.seconds, 1e-9):.1f} images a second"
            how = f"{result.n_computed:,} computed, {rate}" if result.n_computed else "up to date"
            left = (
                f", {len(result.skipped):,} left out, named in the file" if result.skipped else ""
            )
            console.print(
                f"{result.path}: {result.n_images:,} images ({how}{left})", soft_wrap=True
            )
    if as_json:
        report = [
            {
                "path": str(result.path),
                "n_images": result.n_images,
                "n_computed": result.n_computed,
                "seconds": result.seconds,
                "skipped": [vars(bad) for bad in result.skipped],
            }
            for result in done
        ]
        typer.echo(to_json(report))
