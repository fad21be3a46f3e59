"""What the commands on images share."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from nescio._io.tables import require
from nescio.data import DATASETS, Split, load, parse_address
from nescio.errors import ParameterError

NetworkFile = Annotated[
    Path,
    typer.Argument(
        readable=False,
        metavar="MODEL",
        help="A network from 'nescio train' or 'nescio convert'.",
    ),
]
WholeData = Annotated[
    str | None,
    typer.Argument(help="Train and val of a data set, as coco:/data/coco.", metavar="[DATA]"),
]
Device = Annotated[
    str,
    typer.Option(help="Where the network runs: auto, cpu, cuda, cuda:1, mps."),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Images at a time; more for a GPU.")]
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
    str,
    typer.Option(help="Which features to keep: 'pooled' (what the head reads) or 'penultimate'."),
]


def require_vision() -> None:
    """Raise, with what to install, unless the packages are there; make the process fit for them."""
    for module in ("torch", "torchvision", "PIL"):
        require(module, "vision")
    from nescio.runners.devices import keep_freed_memory

    keep_freed_memory()
    # Odd metadata is common in photographs from the web and harms nothing.
    warnings.filterwarnings("ignore", module="PIL")


def load_part(address: str, part: str, *, skip_bad: bool) -> Split:
    """The given part of a data set."""
    kind = parse_address(address).kind
    if DATASETS[kind].splits == ():
        raise ParameterError(
            f"{kind} has no {part} part: name the data to train and validate on with --train and "
            "--val."
        )
    return load(address, split=part, skip_bad=skip_bad)


def load_named(address: str, part: str, *, skip_bad: bool) -> Split:
    """Data that was named for one purpose: as it is, or its part of that name if it has parts."""
    parsed = parse_address(address)
    if parsed.split or not DATASETS[parsed.kind].splits:
        return load(address, skip_bad=skip_bad)
    return load_part(address, part, skip_bad=skip_bad)


def chosen_splits(
    data: str | None, train: str | None, val: str | None, *, skip_bad: bool
) -> tuple[Split, Split]:
    """Training and validation data: the parts of one data set, or named one by one."""
    named = None if data is None else parse_address(data)
    if named is not None and named.split and not (train and val):
        DATASETS[named.kind].check_split(named.split)
        raise ParameterError(
            f"{data} is a single split. Leave the split out to take train and val, or name both "
            "with --train and --val."
        )
    found = []
    for part, address in (("train", train), ("val", val)):
        if address is not None:
            found.append(load_named(address, part, skip_bad=skip_bad))
        elif data is not None:
            found.append(load_part(data, part, skip_bad=skip_bad))
        else:
            raise ParameterError(f"name the data: DATA, as in coco:/data/coco, or --{part}.")
    return found[0], found[1]


def read_label_names(source: str) -> tuple[str, ...]:
    """Label names from a data set (KIND:PATH) or a text file, a name a line."""
    kind = source.partition(":")[0].partition("@")[0]
    if kind in DATASETS and ":" in source:
        names = load_named(source, "val", skip_bad=False).label_names
        if names is None:
            raise ParameterError(f"{source} has no label names.")
        return names
    path = Path(source)
    if not path.is_file():
        raise ParameterError(
            f"--labels must be a data set, as coco:/data/coco, or a text file with a name a line; "
            f"there is no file {source}."
        )
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise ParameterError(f"--labels {source} is not a text file in UTF-8.") from error
    return tuple(line for line in lines if line)
