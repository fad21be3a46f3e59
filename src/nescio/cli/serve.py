"""nescio serve: run the HTTP service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from nescio._io.files import existing_file
from nescio._io.tables import require
from nescio.cli.options import DetectorFile
from nescio.cli.vision import ImageSize, LogitsOutput, Mean, Std, parse_colours
from nescio.errors import ParameterError

_LEVELS = ("debug", "info", "warning", "error")
_TOKEN_VARIABLE = "NESCIO_TOKEN"


def serve(
    detector: DetectorFile,
    model: Annotated[
        Path | None,
        typer.Option(readable=False, help="An ONNX file that computes logits, for /v1/predict."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="A tokenizer.json, or a folder with one, for a model that takes texts. A file of "
            "nescio export has its own.",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="The address to listen on; 0.0.0.0 is every address of this machine."),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="The port; 0 takes a free one, which the log names."),
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="A file with the bearer token that callers must send. Without this option, the "
            f"token is read from the environment variable {_TOKEN_VARIABLE}, if it is set.",
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="An origin whose web pages may call the service, such as https://example.org. "
            "May be repeated.",
        ),
    ] = None,
    logits: LogitsOutput = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="The features of the model, if the detector needs them: an output or another "
            "tensor of the file, 'pooled' or 'penultimate'. Default: the layer that the detector "
            "was made with, or the output named features."
        ),
    ] = None,
    from_probs: Annotated[
        bool, typer.Option("--from-probs", help="The model returns probabilities, not logits.")
    ] = False,
    runtime: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What runs the model: onnxruntime, openvino, or auto for the faster of both, "
            "which is measured at the start.",
        ),
    ] = "auto",
    image_size: ImageSize = None,
    mean: Mean = None,
    std: Std = None,
    max_body_mb: Annotated[
        float, typer.Option(min=0.001, help="Maximum body size in MB (for JSON: a quarter of it).")
    ] = 32.0,
    max_rows: Annotated[
        int, typer.Option(min=1, help="Maximum number of rows per request.")
    ] = 100_000,
    max_megapixels: Annotated[
        float, typer.Option(min=0.001, help="Maximum image size in millions of pixels.")
    ] = 50.0,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Maximum number of requests in progress; others get 503.")
    ] = 256,
    drain_seconds: Annotated[
        float,
        typer.Option(min=0.0, help="How long requests are still accepted after SIGTERM."),
    ] = 1.0,
    monitor_state: Annotated[
        Path | None,
        typer.Option(
            readable=False, help="A file that keeps the state of the monitor between runs."
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="The probability that the monitor ever raises a false alarm.")
    ] = 0.01,
    log_level: Annotated[
        str, typer.Option(help=f"One of {', '.join(_LEVELS)}; at warning, requests are not logged.")
    ] = "info",
) -> None:
    """Serve verdicts over HTTP, with a page at / and the API's description at /docs.

    SIGTERM or Ctrl-C stops the service after all accepted requests are answered. SIGHUP, or POST
    /v1/reload, reads the files of the detector and the model again. The log has one line of JSON
    per event.

    Example: nescio serve tagger.nescio --model tagger.onnx
    """
    for module in ("starlette", "uvicorn", "msgspec", "prometheus_client"):
        require(module, "serve")
    from nescio import service

    if log_level not in _LEVELS:
        raise ParameterError(f"--log-level must be one of {', '.join(_LEVELS)}, got {log_level!r}.")
    settings = service.Settings(
        detector=detector,
        model=model,
        tokenizer=tokenizer,
        logits=logits,
        features=features,
        from_probs=from_probs,
        runtime=runtime,
        image_size=image_size,
        mean=parse_colours("--mean", mean),
        std=parse_colours("--std", std),
        token=_token(token_file),
        cors_origins=tuple(cors_origin or ()),
        max_body_bytes=round(max_body_mb * 1e6),
        max_rows=max_rows,
        max_pixels=round(max_megapixels * 1e6),
        max_requests=max_requests,
        drain_seconds=drain_seconds,
        monitor_state=monitor_state,
        alpha=alpha,
    )
    service.serve(settings, host=host, port=port, log_level=log_level)


def _token(path: Path | None) -> str | None:
    """Return the token. It is never an argument: other users can see the command line."""
    if path is None:
        given = os.environ.get(_TOKEN_VARIABLE)
        return None if given is None else given.strip()
    # `Settings` rejects a token that is empty or not ASCII.
    return existing_file(path).read_bytes().decode("latin-1").strip()
