"""nescio export and serve: one ONNX file, and the HTTP service."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Option

from nescio._io.files import check_target, existing_file
from nescio._validation import checked_choice
from nescio.cli.console import (
    AsJson,
    DataOptions,
    DetectorFile,
    Force,
    load_detector,
    print_facts,
    refuse_overwriting,
    working,
)
from nescio.cli.models import MODEL_HELP, ModelOptions, Module, parse_numbers
from nescio.errors import FileFormatError, ParameterError, require
from nescio.outputs.files import read_outputs

_LEVELS = ("debug", "info", "warning", "error")
_TOKEN_VARIABLE = "NESCIO_TOKEN"


def export(
    detector: DetectorFile,
    output: Annotated[Path, "The ONNX file to write, name.onnx."],
    options: ModelOptions,
    model: Annotated[
        str | None, f"The classifier: {MODEL_HELP}. Without it, only the detector is written."
    ] = None,
    samples: Annotated[
        Path | None,
        "Inputs of the model to check the graph on: .npy or, by name, .npz. "
        "Random ones if not given. Without --model: logits, as 'nescio score' takes them.",
    ] = None,
    input_shape: Annotated[
        str | None,
        Option(metavar="SIZES", help="The shape of one input, for random samples: 3,224,224."),
    ] = None,
    tolerance: Annotated[
        float, "The largest allowed difference from Python, relative to the value if above 1."
    ] = 1e-4,
    module: Module = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a classifier and its detector as one ONNX file, which runs without nescio and torch.

    onnxruntime runs the file before it gets its name. If the results differ from Python's, no file
    is written.

    Example: nescio export tagger.nescio --model model.onnx -o fused.onnx
    """
    check_target(output, force=force)
    refuse_overwriting(output, detector, samples, model)
    sizes = parse_numbers("--input-shape", input_shape, int)
    from nescio.export import export_onnx

    loaded = load_detector(detector)
    runner, inputs = None, None
    with working("exporting"):
        if model is not None:
            runner = options.open(model, module=module)
            inputs = None if samples is None else _read_samples(samples)
        elif options != ModelOptions(from_probs=options.from_probs):
            raise ParameterError("the options of a model need --model.")
        elif samples is not None:
            reading = DataOptions(from_probs=options.from_probs).reading(detector=loaded)
            inputs = read_outputs(samples, **reading)
        exported = export_onnx(
            runner,
            output,
            detector=loaded,
            samples=inputs,
            input_shape=sizes,
            tolerance=tolerance,
            force=force,
        )
    facts = vars(exported) | {"path": str(output), "detector": loaded.name}
    print_facts(facts | {"differences": vars(exported.differences)}, as_json=as_json)


def _read_samples(path: Path) -> Any:
    """Read inputs from a file of NumPy: an array, or several by name."""
    try:
        with existing_file(path).open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except (EOFError, ValueError, zipfile.BadZipFile) as error:
        raise FileFormatError(
            f"{path} is not an .npy or .npz file, is damaged, or holds Python objects."
        ) from error


def serve(
    detector: DetectorFile,
    options: ModelOptions,
    model: Annotated[Path | None, "An ONNX file that computes logits, for /v1/predict."] = None,
    tokenizer: Annotated[
        Path | None,
        "A tokenizer.json, or a folder with one, for a model that takes texts. A file of "
        "nescio export has its own.",
    ] = None,
    host: Annotated[
        str, "The address to listen on; 0.0.0.0 is every address of this machine."
    ] = "127.0.0.1",
    port: Annotated[
        int,
        Option(min=0, max=65535, help="The port; 0 takes a free one, which the log names."),
    ] = 8000,
    token_file: Annotated[
        Path | None,
        "A file with the bearer token that callers must send. Without this option, the "
        f"token is read from the environment variable {_TOKEN_VARIABLE}, if it is set.",
    ] = None,
    no_token: Annotated[
        bool,
        Option(
            "--no-token",
            help="Listen on an address that other machines can reach, even without a token.",
        ),
    ] = False,
    max_body_mb: Annotated[
        float, Option(min=0.001, help="Maximum body size in MB (for JSON: a quarter of it).")
    ] = 32.0,
    max_megapixels: Annotated[
        float, Option(min=0.001, help="Maximum image size in millions of pixels.")
    ] = 50.0,
    max_requests: Annotated[
        int, Option(min=1, help="Maximum number of requests in progress; others get 503.")
    ] = 256,
    drain_seconds: Annotated[
        float, Option(min=0.0, help="How long requests are still accepted after SIGTERM.")
    ] = 1.0,
    monitor_state: Annotated[
        Path | None, "A file that keeps the state of the monitor between runs."
    ] = None,
    alpha: Annotated[float, "The probability that the monitor ever raises a false alarm."] = 0.01,
    log_level: Annotated[
        str, f"One of {', '.join(_LEVELS)}; at warning, requests are not logged."
    ] = "info",
) -> None:
    """Serve verdicts over HTTP, with a page at / and the API's description at /openapi.json.

    SIGTERM or Ctrl-C stops the service after all accepted requests are answered. SIGHUP, or POST
    /v1/reload, reads the files of the detector and the model again. The log has one line of JSON
    per event.

    Example: nescio serve tagger.nescio --model tagger.onnx
    """
    for module in ("starlette", "uvicorn", "msgspec", "prometheus_client"):
        require(module, "serve")
    from nescio import service

    checked_choice("--log-level", log_level, _LEVELS)
    settings = service.Settings(
        detector=detector,
        model=model,
        tokenizer=tokenizer,
        **options.settings(),
        token=_token(token_file),
        max_body_bytes=round(max_body_mb * 1e6),
        max_pixels=round(max_megapixels * 1e6),
        max_requests=max_requests,
        drain_seconds=drain_seconds,
        monitor_state=monitor_state,
        alpha=alpha,
    )
    service.serve(settings, host=host, port=port, no_token=no_token, log_level=log_level)


def _token(path: Path | None) -> str | None:
    """Return the token. It is never an argument: other users can see the command line."""
    if path is None:
        token = os.environ.get(_TOKEN_VARIABLE)
        return None if token is None else token.strip()
    # `Settings` rejects a token that is empty or not ASCII.
    return existing_file(path).read_bytes().decode("latin-1").strip()
