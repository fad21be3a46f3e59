"""nescio export: a classifier and its detector in one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nescio._io.files import check_target, replacing
from nescio._io.tables import require, to_json
from nescio._validation import looks_like_probabilities
from nescio.cli.options import (
    AsJson,
    DetectorFile,
    Force,
    load_detector,
    read_for,
    refuse_overwriting,
    terminal,
    working,
)
from nescio.cli.vision import (
    MODEL_HELP,
    Features,
    ImageSize,
    LogitsOutput,
    Mean,
    ModelFromProbs,
    Module,
    Std,
    open_runner,
)
from nescio.errors import InputError, ParameterError

if TYPE_CHECKING:
    from nescio.detectors import Detector
    from nescio.export import Exported
    from nescio.runners import Wrapped


def export(
    detector: DetectorFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The ONNX file to write, name.onnx.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help=f"The classifier: {MODEL_HELP}. Without it, only the detector is written."
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
    logits: LogitsOutput = None,
    features: Features = None,
    from_probs: ModelFromProbs = None,
    input_shape: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES", help="The shape of one input, for random samples: 3,224,224."
        ),
    ] = None,
    image_size: ImageSize = None,
    mean: Mean = None,
    std: Std = None,
    opset: Annotated[
        int | None,
        typer.Option(help="The ONNX opset, 18 or above. Default: that of an .onnx file, or 18."),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="The largest allowed difference from Python, relative to the value if above 1."
        ),
    ] = 1e-4,
    triton: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write Triton's configuration of the file: NAME/config.pbtxt.",
        ),
    ] = None,
    module: Module = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a classifier and its detector as one ONNX file, which runs without nescio and torch.

    onnxruntime runs the file before it gets its name. If the results differ from Python's, no file
    is written.

    Example: nescio export tagger.nescio --model model.onnx -o fused.onnx
    """
    if output.suffix.lower() != ".onnx":
        raise ParameterError(f"--output must end in .onnx, got {str(output)!r}.")
    check_target(output, force=force)
    refuse_overwriting(output, detector, samples, None if model is None else Path(model))
    if triton is not None:
        if triton.suffix.lower() != ".pbtxt":
            raise ParameterError(f"--triton must end in .pbtxt, got {str(triton)!r}.")
        check_target(triton, force=force)
    shape = None if input_shape is None else _sizes(input_shape)
    for package in ("torch", "onnx", "onnxruntime", "onnxscript"):
        require(package, "export")
    from nescio.export import export_onnx, triton_config
    from nescio.runners import wrap

    loaded = load_detector(detector)
    settings: dict[str, Any] = {"opset": opset, "tolerance": tolerance, "force": force}
    with working("exporting"):
        if model is None:
            if (image_size, mean, std) != (None, None, None):
                raise ParameterError("--image-size, --mean and --std need --model.")
            given = None if samples is None else read_for(loaded, samples, from_probs=from_probs)
            exported = export_onnx(None, output, detector=loaded, samples=given, **settings)
        else:
            runner = open_runner(
                model,
                module=module,
                features=features,
                output=logits,
                from_probs=from_probs,
                image_size=image_size,
                mean=mean,
                std=std,
            )
            wrapped = wrap(runner, detector=loaded)
            inputs = _checked_inputs(wrapped, samples, shape, from_probs=from_probs)
            exported = export_onnx(wrapped, output, samples=inputs, **settings)
    if triton is not None:
        with replacing(triton, force=force) as temporary:
            temporary.write_text(triton_config(output), "utf-8")
    _print(exported, loaded, as_json=as_json)


def _checked_inputs(
    wrapped: Wrapped,
    samples: Path | None,
    shape: tuple[int, ...] | None,
    *,
    from_probs: bool | None,
) -> Any:
    """Return inputs to check the graph on; reject outputs that look like probabilities."""
    from nescio.export.exporting import run_samples, sample_inputs
    from nescio.export.samples import read_samples

    given = None if samples is None else read_samples(samples)
    inputs = sample_inputs(wrapped.runner, given, shape)
    outputs = run_samples(wrapped, inputs, shape if samples is None else None)
    if from_probs is None and looks_like_probabilities(outputs.logits, at_least=1):
        raise InputError(
            "every output of the model lies within [0, 1]. These look like probabilities, but "
            "logits are expected. Pass --from-probs if they are probabilities, --from-logits if "
            "not."
        )
    return inputs.data


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
        facts = {**vars(exported), "path": str(exported.path), "detector": detector.name}
        typer.echo(to_json({**facts, "differences": vars(differences)}))
        return
    console = terminal()
    shapes = (f"{name} ({', '.join(map(str, shape))})" for name, shape in exported.inputs.items())
    console.print(f"inputs   {', '.join(shapes)}", soft_wrap=True)
    console.print(f"outputs  {', '.join(exported.outputs)}", soft_wrap=True)
    figures = f"score {differences.score:.1e}, p-value {differences.p_value:.1e}"
    if "logits" in exported.outputs:
        figures = f"logits {differences.logits:.1e}, {figures}"
    samples = "1 sample" if exported.n_samples == 1 else f"{exported.n_samples:,} samples"
    console.print(
        f"checked on {samples}; largest difference from Python: {figures}; verdicts that differ: "
        f"{differences.verdicts:,}",
        soft_wrap=True,
    )
    if exported.fixed_batch is not None:
        console.print(f"fixed batch size, as in the model: {exported.fixed_batch}")
    console.print(f"saved {exported.path}", soft_wrap=True)
