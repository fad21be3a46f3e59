"""The model card: a README.md with the header that the hub of Hugging Face reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from nescio.calibration import Calibration
from nescio.detectors import Detector
from nescio.detectors.saving import plain_params
from nescio.errors import ParameterError
from nescio.metrics import Evaluation
from nescio.metrics.comparison import Comparison
from nescio.runners import Runner, Wrapped

CARD_FILE = "README.md"

_TAGS = ("nescio", "multi-label-classification", "out-of-distribution-detection")
_MOST_LABELS = 100
_LIBRARIES = {"sklearn": "sklearn", "transformers": "transformers"}
_TASKS = {
    "input_ids": "text-classification",
    "pixel_values": "image-classification",
    "input_values": "audio-classification",
    "input_features": "audio-classification",
}
_USE = """```python
import nescio as ns

model = ns.from_pretrained("path/of/this/folder")
print(model(inputs))
```"""


Row = tuple[str, str, Evaluation]  # OOD set, detector


def card_text(title: str, wrapped: Wrapped, rows: list[Row] | None) -> str:
    """Return the text of the card of a model as it was read back from its files."""
    detector = wrapped.detector
    assert detector is not None
    names = wrapped.label_names
    what = "several labels at once" if names is None else f"{len(names):,} labels"
    sections = [
        _header(wrapped.runner),
        f"# {_plain(title)}",
        f"A multi-label classifier of {what}. Each prediction comes with a verdict: whether the "
        "input is like the data that the model was calibrated on (in-distribution). Do not trust "
        "the labels of an input that is out.",
        "## Use",
        _USE,
        "## Calibration",
        _calibration(detector),
    ]
    if names is not None:
        sections += ["## Labels", _labels(names)]
    if rows:
        sections += ["## Evaluation", _table(rows)]
    return "\n\n".join(sections) + "\n"


def _header(runner: Runner) -> str:
    """Return the YAML header; the values are JSON, which is YAML too."""
    entries = {"library_name": _LIBRARIES.get(runner.kind, "nescio"), "pipeline_tag": _task(runner)}
    lines = [f"{name}: {json.dumps(value)}" for name, value in entries.items() if value]
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in _TAGS), "---"])


def _task(runner: Runner) -> str | None:
    """Return the hub's name of the task, if the model says what it takes."""
    if runner.preprocessing is not None:
        return "image-classification"
    if runner.kind == "sklearn":
        return "tabular-classification" if hasattr(runner.model, "n_features_in_") else None
    return _TASKS.get(str(getattr(runner.model, "main_input_name", "")))


def _calibration(detector: Detector) -> str:
    calibration: Calibration = detector.calibration_
    params = json.dumps(chosen_params(detector))
    thresholds = ", ".join(
        f"{value:.6g}" if calibration.by is None else f"{value:.6g} ({_plain(name)})"
        for name, value in calibration.threshold_values.items()
    )
    statement = "\n".join(f"> {_plain(line)}" for line in calibration.statement().splitlines())
    return (
        f"The detector is `{detector.name}` with `{_plain(params)}`. It was calibrated "
        f"on {calibration.n_samples:,} held-out samples. Threshold: {thresholds}.\n\n{statement}"
    )


def chosen_params(detector: Detector) -> dict[str, Any]:
    """Return the parameters without the TPR, which `calibrate` may have been given another of."""
    return {name: value for name, value in plain_params(detector).items() if name != "tpr"}


def _labels(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_LABELS
    shown = [f"`{_plain(name)}`" for name in names[:_MOST_LABELS]]
    return ", ".join([*shown, f"and {more:,} more"] if more > 0 else shown)


def _table(rows: list[Row]) -> str:
    fpr = rows[0][2].fpr_name
    lines = [
        f"| OOD set | detector | {fpr} ↓ | AUROC ↑ | AUPR ↑ |",
        "|---|---|---|---|---|",
        *(
            f"| {_cell(ood)} | {_cell(name)} | {one.fpr} | {one.auroc} | {one.aupr} |"
            for ood, name, one in rows
        ),
    ]
    return (
        "\n".join(lines) + "\n\nIn per cent, with intervals in brackets. In-distribution samples "
        "are the positive side."
    )


def result_rows(result: Any) -> Iterator[Row]:
    """Give OOD set, detector (both empty for a single evaluation) and evaluation, the best first.

    Raises an error unless this is an `Evaluation` or a `Comparison`.
    """
    if isinstance(result, Evaluation):
        yield "", "", result
    elif isinstance(result, Comparison):
        for ood, results in result.results.items():
            for name in result.ranked(ood):
                yield ood, name, results[name]
    else:
        raise ParameterError(
            f"an Evaluation or a Comparison is needed, got {type(result).__name__}. "
            "nescio.evaluate returns the one, nescio.compare the other."
        )


def _plain(text: str) -> str:
    """Return text on one line that cannot end a code span or start HTML."""
    return " ".join(text.split()).replace("`", "'").replace("<", "&lt;")


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|") or "-"
