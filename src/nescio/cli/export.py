"""nescio export: a classifier and its detector in one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nescio.cli.options import (
    AsJson,
    DetectorFile,
    Force,
    FromProbs,
    load_detector,
    read_outputs,
    refuse_overwriting,
    terminal,
    working,
)
from nescio.cli.vision import Module, require_vision
from nescio.errors import ParameterError
from nescio.files import check_target
from nescio.tables import require, to_json

if TYPE_CHECKING:
    from nescio.detectors import Detector
    from nescio.export import Exported
    from nescio.preprocessing import Preprocessing
    from nescio.wrapping import Wrapped

_OWN = "module:"


def export(
    detector: DetectorFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the ONNX file.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="The classifier: an .onnx file, a network from 'nescio train' or 'nescio "
            "convert', or module:PACKAGE.MODULE:FACTORY for a torch module of your own. Without "
            "it, the detector alone is written.",
        ),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="Inputs of the model to check the graph on: .npy, .npz, .safetensors or .parquet. "
            "Random ones if not given. Without --model: logits, as 'nescio score' takes them.",
        ),
    ] = None,
    logits: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which of the model's outputs holds the logits."),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Where the features are, for a detector that reads them: an output of an ONNX "
            "file; 'pooled' (the default) or 'penultimate' of nescio's networks; a layer of your "
            "own module.",
        ),
    ] = None,
    from_probs: FromProbs = None,
    input_shape: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES", help="The shape of one input, for random samples: 3,224,224."
        ),
    ] = None,
    opset: Annotated[
        int | None,
        typer.Option(help="The ONNX opset, 18 or above; that of an .onnx file, or 18."),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="The largest difference to Python, relative to the value if that is above 1."
        ),
    ] = 1e-4,
    module: Module = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a classifier and its detector as one ONNX file, which runs without nescio and torch.

    onnxruntime runs the file before it gets its name; if it gives something else than Python does,
    nothing is written.

    Example: nescio export tagger.nescio --model model.onnx -o fused.onnx
    """
    check_target(output, force=force)
    refuse_overwriting(output, detector, samples, None if model is None else Path(model))
    shape = None if input_shape is None else _sizes(input_shape)
    for package in ("torch", "onnx", "onnxruntime", "onnxscript"):
        require(package, "export")
    from nescio.export import export_onnx
    from nescio.export.sample_files import read_samples

    loaded = load_detector(detector)
    wrapped, preprocessing = None, None
    if model is not None:
        wrapped, preprocessing = _wrapped(model, loaded, logits, features, from_probs, module)
    given: Any = None
    if samples is not None and wrapped is None:
        given = read_outputs(samples, from_probs=from_probs)
    elif samples is not None:
        given = read_samples(samples)
    if preprocessing is not None and shape is None:
        shape = (3, preprocessing.size, preprocessing.size)
    with working("exporting"):
        exported = export_onnx(
            wrapped,
            output,
            detector=loaded,
            samples=given,
            input_shape=shape,
            preprocessing=preprocessing,
            opset=opset,
            tolerance=tolerance,
            force=force,
        )
    _print(exported, loaded, as_json=as_json)


def _wrapped(
    model: str,
    detector: Detector,
    logits: str | None,
    features: str | None,
    from_probs: bool | None,
    module: str | None,
) -> tuple[Wrapped, Preprocessing | None]:
    """The classifier, and what is done to images before it, where that is known."""
    from nescio.wrapping import wrap

    settings: dict[str, Any] = {"from_probs": bool(from_probs), "output": logits}
    if model.startswith(_OWN):
        from nescio.models.backbones import import_factory

        own = import_factory(model.removeprefix(_OWN))()
        return wrap(own, features=features, **settings), None
    if Path(model).suffix.lower() == ".onnx":
        reads_features = detector.input_name() == "features"
        name = "features" if features is None and reads_features else features
        return wrap(model, features=name, **settings), None
    require_vision()
    from nescio.models import load_checkpoint

    checkpoint = load_checkpoint(model, module=module)
    layer = _layer(checkpoint.network, "pooled" if features is None else features)
    wrapped = wrap(
        checkpoint.network, features=layer, label_names=checkpoint.label_names, **settings
    )
    return wrapped, checkpoint.preprocessing


def _layer(network: Any, features: str) -> str:
    """The layer whose output 'nescio extract' stores under that name."""
    from nescio.models import TappedNetwork
    from nescio.models.extract import FEATURES

    if features not in FEATURES:
        raise ParameterError(f"--features must be one of {', '.join(FEATURES)}, got {features!r}.")
    if isinstance(network, TappedNetwork):
        return f"model.{network.layer}"
    return {"pooled": "backbone", "penultimate": "head.hidden"}[features]


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.split(",") if part.strip().isdecimal())
    if len(sizes) != text.count(",") + 1 or 0 in sizes:
        raise ParameterError(
            f"--input-shape must be whole numbers, such as 3,224,224, got {text!r}."
        )
    return sizes


def _print(exported: Exported, detector: Detector, *, as_json: bool) -> None:
    differences = exported.differences
    if as_json:
        facts = {
            "path": str(exported.path),
            "detector": detector.name,
            "inputs": exported.inputs,
            "outputs": exported.outputs,
            "opset": exported.opset,
            "fixed_batch": exported.fixed_batch,
            "n_samples": exported.n_samples,
            "differences": vars(differences),
        }
        typer.echo(to_json(facts))
        return
    console = terminal()
    shapes = (f"{name} ({', '.join(map(str, shape))})" for name, shape in exported.inputs.items())
    console.print(f"inputs   {', '.join(shapes)}", soft_wrap=True)
    console.print(f"outputs  {', '.join(exported.outputs)}", soft_wrap=True)
    figures = [f"score {differences.score:.1e}", f"p-value {differences.p_value:.1e}"]
    if "logits" in exported.outputs:
        figures.insert(0, f"logits {differences.logits:.1e}")
    console.print(
        f"checked on {exported.n_samples:,} samples; largest difference to Python: "
        f"{', '.join(figures)}; {differences.verdicts:,} verdicts differ",
        soft_wrap=True,
    )
    if exported.fixed_batch is not None:
        console.print(
            f"it takes {exported.fixed_batch} inputs at a time, no more and no fewer, as the model "
            "does",
            soft_wrap=True,
        )
    console.print(f"saved {exported.path}", soft_wrap=True)
