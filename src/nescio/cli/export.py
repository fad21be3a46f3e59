"""nescio export: a classifier and its detector in one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nescio._io.files import check_target
from nescio._io.tables import require, to_json
from nescio._validation import looks_like_probabilities
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
from nescio.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from nescio.errors import InputError, MissingInputError, ParameterError

if TYPE_CHECKING:
    from nescio.detectors import Detector
    from nescio.export import Exported
    from nescio.runners import Wrapped

_OWN = "module:"


def export(
    detector: DetectorFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the ONNX file, name.onnx.")
    ],
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
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Pixels a side of the images that the model takes, for a service to scale images "
            "to. An .onnx file may say it itself.",
        ),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="R,G,B",
            help="What is subtracted from each colour, on the scale from 0 to 1; ImageNet's, "
            "0.485,0.456,0.406, if not given.",
        ),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(
            metavar="R,G,B",
            help="What each colour is then divided by; ImageNet's, 0.229,0.224,0.225, if not "
            "given.",
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
    if output.suffix.lower() != ".onnx":
        raise ParameterError(f"--output must end in .onnx, got {str(output)!r}.")
    check_target(output, force=force)
    refuse_overwriting(output, detector, samples, None if model is None else Path(model))
    shape = None if input_shape is None else _sizes(input_shape)
    images = None if (image_size, mean, std) == (None, None, None) else (image_size, mean, std)
    for package in ("torch", "onnx", "onnxruntime", "onnxscript"):
        require(package, "export")
    from nescio.export import export_onnx

    loaded = load_detector(detector)
    settings: dict[str, Any] = {"detector": loaded, "opset": opset, "tolerance": tolerance}
    with working("exporting"):
        if model is None:
            if images is not None:
                raise ParameterError("--image-size, --mean and --std need --model.")
            given = None if samples is None else read_outputs(samples, from_probs=from_probs)
            exported = export_onnx(None, output, samples=given, force=force, **settings)
        else:
            wrapped, stored = _wrapped(model, loaded, logits, features, from_probs, module)
            if images is not None and stored is not None:
                raise ParameterError(
                    "the network brings its preprocessing: leave --image-size, --mean and --std "
                    "out."
                )
            settings["preprocessing"] = stored if images is None else _images(wrapped, *images)
            inputs = _checked_inputs(
                wrapped, samples, shape, settings["preprocessing"], from_probs=from_probs
            )
            exported = export_onnx(wrapped, output, samples=inputs, force=force, **settings)
    _print(exported, loaded, as_json=as_json)


def _images(wrapped: Wrapped, size: int | None, mean: str | None, std: str | None) -> Preprocessing:
    """What the options say of images, and the graph of their size."""
    if size is None and wrapped.kind == "onnx":
        shapes = [node.shape for node in wrapped.session.get_inputs()]  # type: ignore[attr-defined]
        size = next((shape[2] for shape in shapes if len(shape) == 4), None)
    if not isinstance(size, int):
        raise ParameterError("say how large the images are, too: --image-size 224.")
    return Preprocessing(
        size,
        IMAGENET_MEAN if mean is None else _colours("--mean", mean),
        IMAGENET_STD if std is None else _colours("--std", std),
    )


def _colours(option: str, text: str) -> Any:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ParameterError(
            f"{option} must be three numbers, such as 0.485,0.456,0.406, got {text!r}."
        ) from error


def _checked_inputs(
    wrapped: Wrapped,
    samples: Path | None,
    shape: tuple[int, ...] | None,
    preprocessing: Preprocessing | None,
    *,
    from_probs: bool | None,
) -> Any:
    """Inputs to check the graph on; what looks like probabilities is refused unless announced."""
    from nescio.export.exporting import run_samples, sample_inputs
    from nescio.export.sample_files import read_samples
    from nescio.export.samples import check_images

    if preprocessing is not None and wrapped.kind == "onnx":
        check_images(wrapped, preprocessing, None)
    if preprocessing is not None and shape is None:
        shape = (3, preprocessing.size, preprocessing.size)
    given = None if samples is None else read_samples(samples)
    inputs = sample_inputs(wrapped, given, shape)
    outputs = run_samples(wrapped, inputs, shape if samples is None else None)
    if from_probs is None and looks_like_probabilities(outputs.logits, at_least=1):
        raise InputError(
            "every output of the model lies within [0, 1]. These look like probabilities, and "
            "logits are expected. Pass --from-probs if they are, --from-logits if not."
        )
    return inputs.data


def _wrapped(
    model: str,
    detector: Detector,
    logits: str | None,
    features: str | None,
    from_probs: bool | None,
    module: str | None,
) -> tuple[Wrapped, Preprocessing | None]:
    """The classifier, and what is done to images before it, where that is known."""
    from nescio.runners import wrap

    settings: dict[str, Any] = {"from_probs": bool(from_probs), "output": logits}
    if model.startswith(_OWN):
        own = _own_module(model.removeprefix(_OWN))
        return wrap(own, features=features, **settings), None
    if Path(model).suffix.lower() == ".onnx":
        file = wrap(model, features=features, **settings)
        if features is None and detector.input_name() == "features":
            names = [node.name for node in file.session.get_outputs()]  # type: ignore[attr-defined]
            if "features" not in names:
                raise MissingInputError(
                    f"{detector.name} reads features, and no output of {model} has that name. Say "
                    f"which holds them: --features NAME, one of {', '.join(names)}."
                )
            file = wrap(file, features="features")
        return file, None
    require_vision()
    from nescio.training import load_checkpoint

    checkpoint = load_checkpoint(model, module=module)
    layer = _layer(checkpoint.network, "pooled" if features is None else features)
    wrapped = wrap(
        checkpoint.network, features=layer, label_names=checkpoint.label_names, **settings
    )
    return wrapped, checkpoint.preprocessing


def _own_module(target: str) -> Any:
    """What a function of the user's own makes: a torch module."""
    import torch

    from nescio.networks.backbones import import_factory

    factory = import_factory(target)
    try:
        made = factory()
    except Exception as error:  # it is not ours, and may raise anything
        raise ParameterError(
            f"{target}() failed: {type(error).__name__}: {error}. It must take no arguments and "
            "give a torch module."
        ) from error
    if not isinstance(made, torch.nn.Module):
        raise ParameterError(f"{target}() must give a torch module, got a {type(made).__name__}.")
    return made


def _layer(network: Any, features: str) -> str:
    """The layer whose output 'nescio extract' stores under that name."""
    from nescio.runners.extract import FEATURES
    from nescio.training import TappedNetwork

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
    samples = "1 sample" if exported.n_samples == 1 else f"{exported.n_samples:,} samples"
    one = differences.verdicts == 1
    console.print(
        f"checked on {samples}; largest difference to Python: {', '.join(figures)}; "
        + ("1 verdict differs" if one else f"{differences.verdicts:,} verdicts differ"),
        soft_wrap=True,
    )
    if exported.fixed_batch is not None:
        inputs = "1 input" if exported.fixed_batch == 1 else f"{exported.fixed_batch} inputs"
        console.print(
            f"it takes {inputs} at a time, no more and no fewer, as the model does", soft_wrap=True
        )
    console.print(f"saved {exported.path}", soft_wrap=True)
