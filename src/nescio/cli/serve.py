"""nescio serve: verdicts over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from nescio._io.files import existing_file
from nescio._io.tables import require
from nescio.cli.options import DetectorFile
from nescio.errors import ParameterError

_LEVELS = ("debug", "info", "warning", "error")
_TOKEN_VARIABLE = "NESCIO_TOKEN"
_MEGABYTE = 1_000_000


def serve(
    detector: DetectorFile,
    model: Annotated[
        Path | None,
        typer.Option(readable=False, help="An ONNX file from inputs to logits, for /v1/predict."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 is every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one and says which.")
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="A file with the bearer token that callers must send. The environment variable "
            f"{_TOKEN_VARIABLE} does the same.",
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="A web page's origin that may call, such as https://example.org. May be repeated.",
        ),
    ] = None,
    logits: Annotated[
        str | None, typer.Option(help="The model's output that holds the logits.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(help="The model's output that holds the features, for a detector of them."),
    ] = None,
    from_probs: Annotated[
        bool, typer.Option("--from-probs", help="The model gives probabilities, not logits.")
    ] = False,
    image_size: Annotated[
        int | None,
        typer.Option(min=8, help="Pixels a side of the model's images, if its file does not say."),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="R,G,B",
            help="The mean of each colour of its images, from 0 to 1, if its file does not say; "
            "without either, ImageNet's.",
        ),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(metavar="R,G,B", help="The standard deviation of each colour, likewise."),
    ] = None,
    max_body_mb: Annotated[
        float, typer.Option(min=0.001, help="The largest body, in megabytes; of JSON a quarter.")
    ] = 32.0,
    max_rows: Annotated[int, typer.Option(min=1, help="The most inputs in one request.")] = 100_000,
    max_megapixels: Annotated[
        float, typer.Option(min=0.001, help="The largest image, in millions of pixels.")
    ] = 50.0,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Requests under way at once; others get 503.")
    ] = 256,
    drain_seconds: Annotated[
        float,
        typer.Option(min=0.0, help="How long requests are still taken after SIGTERM."),
    ] = 1.0,
    monitor_state: Annotated[
        Path | None,
        typer.Option(readable=False, help="A file that keeps the monitor's state between runs."),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="The probability that the monitor ever gives a false alarm.")
    ] = 0.01,
    log_level: Annotated[
        str, typer.Option(help=f"One of {', '.join(_LEVELS)}; at warning, requests are not logged.")
    ] = "info",
) -> None:
    """Serve verdicts over HTTP, with a page at / and the API's description at /docs.

    SIGTERM or Ctrl-C stops it after everything accepted is answered; SIGHUP, or POST /v1/reload,
    reads the detector's and the model's files again. The log is a line of JSON an event.

    Example: nescio serve tagger.nescio --model tagger.onnx
    """
    for module in ("fastapi", "uvicorn", "msgspec", "prometheus_client"):
        require(module, "serve")
    from nescio import service

    if log_level not in _LEVELS:
        raise ParameterError(f"--log-level must be one of {', '.join(_LEVELS)}, got {log_level!r}.")
    body_bytes = round(max_body_mb * _MEGABYTE)
    settings = service.Settings(
        detector=detector,
        model=model,
        logits=logits,
        features=features,
        from_probs=from_probs,
        image_size=image_size,
        mean=_colours("--mean", mean),
        std=_colours("--std", std),
        token=_token(token_file),
        cors_origins=tuple(cors_origin or ()),
        max_body_bytes=body_bytes,
        max_rows=max_rows,
        max_pixels=round(max_megapixels * 1e6),
        max_requests=max_requests,
        max_waiting_bytes=8 * body_bytes,
        drain_seconds=drain_seconds,
        monitor_state=monitor_state,
        alpha=alpha,
    )
    service.serve(settings, host=host, port=port, log_level=log_level)


def _colours(option: str, text: str | None) -> tuple[float, float, float] | None:
    """Three numbers with commas between them."""
    if text is None:
        return None
    try:
        red, green, blue = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ParameterError(
            f"{option} takes three numbers, as 0.5,0.5,0.5; got {text!r}."
        ) from error
    return red, green, blue


def _token(path: Path | None) -> str | None:
    """The token of the file, or of the environment; it is never an argument, which others see."""
    if path is None:
        given = os.environ.get(_TOKEN_VARIABLE)
        return None if given is None else given.strip()
    # What is not ASCII is refused with the settings, as is what is empty.
    return existing_file(path).read_bytes().decode("latin-1").strip()
