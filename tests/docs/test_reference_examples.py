"""Every public name has an example: in its docstring, or in a page that the tests run."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

from nescio.errors import NescioError, NescioWarning

pytest.importorskip("torch")
pytest.importorskip("ray")

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
PYTHON = "\n".join(
    block
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
)
# Nobody makes these: the example of what returns them shows them.
RETURNED_BY = {
    "nescio.calibration": {"calibrate": "Calibration Medians"},
    "nescio.choosing": {"choose": "Choice FoldFacts Standing"},
    "nescio.lab.data": {
        "find_damaged": "BadFile",
        "parse_address": "DataAddress DataSource",
        "load_folder": "Split",
    },
    "nescio.detectors": {"assess": "Assessment"},
    "nescio.explain": {
        "explain": "Explanation LabelTerm PartReason PartsExplanation Reason ExplainedVerdicts"
    },
    "nescio.export": {"export_onnx": "Differences Exported", "DetectorHead": "FusedOutputs"},
    "nescio.metrics": {
        "compare": "Comparison",
        "delong_test": "AurocDifference",
        "evaluate": "Estimate Evaluation",
    },
    "nescio.monitor": {"Monitor": "Change Place Window"},
    "nescio.models": {"wrap": "PredictedRow Prediction Runner Wrapped"},
    "nescio.service": {"make_app": "Settings"},
}
# These need images, a network or a cluster. The page shows them as commands, which the tests of
# the command line run.
COMMANDS = {
    "how-to/datasets.md": "load_coco load_digits load_imagenet22k load_nus_wide load_textures"
    " load_voc_trainval",
    "how-to/train-a-network.md": "Epoch Run Extraction extract",
    "explanation/input-perturbation.md": "tune",
    "how-to/monitor-a-stream.md": "draw_monitor",
    "how-to/run-on-a-cluster.md": "ray_scoring",
}
WITH_A_COMMAND = {name for names in COMMANDS.values() for name in names.split()}


def public() -> dict[str, list[str]]:
    """The public classes and functions by module."""
    result = {}
    for page in REFERENCE:
        for module in re.findall(r"^## (nescio\.[\w.]+)", page.read_text("utf-8"), re.M):
            loaded = importlib.import_module(module)
            names = getattr(loaded, "__all__", ())
            things = ((name, getattr(loaded, name)) for name in names)
            result[module] = [
                name
                for name, thing in things
                if (inspect.isclass(thing) or inspect.isfunction(thing))
                and not (inspect.isclass(thing) and issubclass(thing, NescioError | NescioWarning))
            ]
    return result


PUBLIC = public()


def has_example(module: str, name: str) -> bool:
    thing = pkgutil.resolve_name(f"{module}:{name}")
    return "Examples\n" in (thing.__doc__ or "") or shown_in_a_page(name)


def shown_in_a_page(name: str) -> bool:
    return re.search(rf"\b{name}\b", PYTHON) is not None


def test_every_public_name_has_an_example():
    assert sum(map(len, PUBLIC.values())) > 100
    without = {
        f"{module}.{name}"
        for module, names in PUBLIC.items()
        for name in names
        if name not in " ".join(RETURNED_BY.get(module, {}).values()).split()
        and name not in WITH_A_COMMAND
        and not has_example(module, name)
    }
    assert without == set(), "write a short Examples section in the docstring"


def test_what_returns_a_result_has_an_example():
    for module, makers in RETURNED_BY.items():
        for maker, names in makers.items():
            assert set(names.split()) <= set(PUBLIC[module]), names
            assert shown_in_a_page(maker) or has_example(module, maker), maker
