"""nescio extract: the outputs of a model on images."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nescio.cli.options import AsJson, Engine, Force, is_ray, output_option
from nescio.cli.printing import print_json, progress_bar, say
from nescio.cli.vision import (
    MODEL_HELP,
    ModelOptions,
    Module,
    RunOptions,
    SkipBad,
    is_onnx,
    read_label_names,
    readable,
    require_vision,
)
from nescio.errors import FileError, ParameterError
from nescio.lab.data.corrupt import CORRUPTIONS
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.lab.extraction.extract import Extraction


def extract(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"The model: {MODEL_HELP}.")],
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...", help="Data sets, as coco@test:/data/coco textures:/data/dtd."
        ),
    ],
    output: Annotated[Path, output_option("A folder; one file is written per data set.")],
    options: ModelOptions,
    run: RunOptions,
    tuned: Annotated[
        Path | None,
        typer.Option(
            help="Settings from 'nescio tune': adds what ODIN and perturbed Mahalanobis read."
        ),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            help="The training outputs that 'nescio tune' has written, if the settings need them."
        ),
    ] = None,
    corruption: Annotated[
        list[str] | None,
        typer.Option(
            help="Corrupt the images first, for 'nescio choose --far': "
            f"{', '.join(CORRUPTIONS)}. May be repeated; one file is written per corruption."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="The label names in the model's order: a data set, or a text file with one name "
            "per line. nescio's networks have their own."
        ),
    ] = None,
    module: Module = None,
    skip_bad: SkipBad = False,
    engine: Engine = "local",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a model's logits and features for images to files that the other commands read.

    If the command is interrupted, run it again: it continues where it stopped. Results that exist
    already are not computed again; results of another model are not replaced without --force.

    Example: nescio extract best.safetensors coco@test:/data/coco textures:/data/dtd -o outputs
    """
    from nescio.lab.data import load
    from nescio.lab.extraction import extract as run_extraction
    from nescio.lab.extraction.runtimes import Runtimes

    require_vision(torch=not is_onnx(model) or tuned is not None)
    label_names = None if labels is None else read_label_names(labels)
    open_on = partial(options.open, module=module, label_names=label_names)
    on_ray = is_ray(engine)
    runner = open_on(model, "cpu" if on_ray else run.device)
    tuning = None
    if tuned is not None:
        from nescio.lab.extraction.perturb import Tuning

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
    corruptions: Sequence[str | None] = corruption or (None,)
    place: AbstractContextManager[Any] = nullcontext()
    if on_ray:
        from nescio.lab.extraction.on_ray import ray_engine

        # Without a choice, onnxruntime uses the processors, here and on a cluster.
        device = "cpu" if is_onnx(model) and run.device == "auto" else run.device
        place = ray_engine(model, open_on, device=device)
    with place as cluster:
        for split, corrupted in itertools.product(splits, corruptions):
            title = f"{split.title}-{corrupted}" if corrupted else split.title
            with progress_bar(title, len(split)) as advance:
                result = run_extraction(
                    runner,
                    split,
                    output / f"{title}.safetensors",
                    tuning=tuning,
                    train=train_outputs,
                    corruption=corrupted,
                    batch_size=run.batch_size,
                    runtime=runtimes,
                    force=force,
                    on_images=advance,
                    engine=cluster,
                )
            done.append(result)
            if not as_json:
                _say_result(result)
    if as_json:
        print_json([{**asdict(result), "path": str(result.path)} for result in done])


def _say_result(result: Extraction) -> None:
    """Print how many images a file has, how many were computed, and by what."""
    done = "up to date"
    if result.n_computed:
        rate = result.n_computed / max(result.seconds, 1e-9)
        done = f"{result.n_computed:,} computed, {rate:.1f} images per second"
    if result.skipped:
        done += f", {len(result.skipped):,} left out and listed in the file"
    say(f"{result.path}: {result.n_images:,} images ({done})")
    if result.n_computed:
        say(f"  {result.runtime}")
