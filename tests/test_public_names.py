import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nescio


def test_every_public_name_is_there():
    for name in nescio.__all__:
        assert getattr(nescio, name) is not None
    assert set(nescio.__all__) == set(nescio._MODULE_OF) | set(nescio._MODULES) - {"detectors"}
    assert set(nescio.__all__) <= set(dir(nescio))


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(nescio, "Sofmax")


def test_the_import_is_light():
    heavy = "sklearn scipy torch pandas matplotlib pyarrow rich typer"
    code = f"import sys, nescio; print([m for m in {heavy.split()!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_using_nescio_never_imports_torch():
    code = (
        "import sys, numpy as np, nescio as ns\n"
        "x = np.random.default_rng(0).normal(size=(100, 4))\n"
        "ns.JointEnergy().calibrate(x).assess(x)\n"
        "print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_contract_of_independent_detectors_lists_every_file():
    root = Path(__file__).resolve().parents[1]
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    (independent,) = (c for c in contracts["contracts"] if c["type"] == "independence")
    files = {path.stem for path in (root / "src/nescio/detectors").glob("*.py")}
    methods = sorted(files - {"__init__", "base", "inputs", "naming"})
    assert independent["modules"] == [f"nescio.detectors.{name}" for name in methods]


def test_the_version_is_one_a_release_can_have():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", nescio.__version__)
