import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nescio


def test_every_public_name_is_there():
    for name in dir(nescio):
        assert getattr(nescio, name) is not None
    assert not hasattr(nescio, "Sofmax")
    with pytest.raises(AttributeError, match=r"no attribute 'Jointenergy'\. Did you mean 'JointEn"):
        _ = nescio.Jointenergy


def test_type_checkers_see_what_is_there():
    tree = ast.parse(Path(nescio.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    ours = [node for node in block.body if node.module.partition(".")[0] == "nescio"]
    seen = {alias.asname for node in ours for alias in node.names}
    assert seen == set(dir(nescio)) - {"__version__", "detectors"}


def test_the_import_is_light():
    heavy = "sklearn scipy torch pandas matplotlib mlflow pyarrow rich typer"
    code = f"import sys, nescio; print([m for m in {heavy.split()!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_using_nescio_never_imports_torch():
    code = (
        "import sys, numpy as np, nescio as ns\n"
        "x = np.random.default_rng(0).normal(size=(100, 4))\n"
        "ns.JointEnergy().calibrate(x).assess(x)\n"
        "print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_detectors_do_not_import_each_other():
    """They share functions and base classes; only `combined` is made of other methods."""
    folder = Path(nescio.__file__).parent / "detectors"
    classes = {kind.__name__ for kind in nescio.DETECTORS.values()}
    modules = {kind.__module__ for kind in nescio.DETECTORS.values()}
    for module in modules - {"nescio.detectors.combined"}:
        tree = ast.parse((folder / f"{module.rpartition('.')[2]}.py").read_text())
        imports = {
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("nescio")
            for name in node.names
        }
        assert not classes & imports, module
