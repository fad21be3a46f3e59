"""Minimum versions, the lock file and the licences belong together."""

import importlib.util
import re
import tomllib
from email.message import Message
from pathlib import Path
from types import SimpleNamespace

import pytest

version = pytest.importorskip("packaging.version").Version
requirement = pytest.importorskip("packaging.requirements").Requirement
utils = pytest.importorskip("packaging.utils")

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LINES = (ROOT / "constraints.txt").read_text("utf-8").splitlines()[1:]
LOCKED = dict(line.partition("  # ")[0].split("==") for line in LINES)
LICENCES = {line.partition("==")[0]: line.partition("  # ")[2] for line in LINES}


def direct():
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    return [item for item in map(requirement, texts) if item.name != "nescio"]


@pytest.mark.parametrize("needed", direct(), ids=str)
def test_what_is_locked_is_allowed_and_its_licence_is_listed(needed):
    name = utils.canonicalize_name(needed.name)
    assert needed.specifier.contains(LOCKED[name])
    assert LICENCES[name]


def test_minimum_versions_are_those_with_the_fixes():
    table = re.findall(r"^\| (\w+) \| ([\d.]+) \|", (ROOT / "SECURITY.md").read_text("utf-8"), re.M)
    assert len(table) >= 7
    for name, least in table:
        named = [item for item in direct() if utils.canonicalize_name(item.name) == name.lower()]
        assert named, name
        for needed in named:
            minimum = re.search(r">=([\d.]+)", str(needed.specifier))[1]
            assert version(minimum) >= version(least), needed


def test_no_extra_installs_weights_without_a_licence():
    assert not [needed for needed in direct() if "model" in needed.name]


def test_a_package_has_one_minimum_version():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    texts = [text for group in groups.values() for text in group if isinstance(text, str)]
    bounds = {}
    for needed in [*direct(), *map(requirement, texts)]:
        bounds.setdefault(utils.canonicalize_name(needed.name), set()).add(str(needed.specifier))
    assert {name: result for name, result in bounds.items() if len(result) > 1} == {}


def test_every_extra_that_the_code_names_exists_and_has_the_package():
    modules = {"PIL": "pillow", "onnx_ir": "onnxscript", "mlflow": "mlflow-skinny"}
    for file in (ROOT / "src").rglob("*.py"):
        for module, extra in re.findall(
            r'require\(f?"([\w]+)[^"]*", "(\w+)"\)', file.read_text("utf-8")
        ):
            names = [requirement(text).name for text in EXTRAS[extra]]
            assert modules.get(module, module) in names, (file, module, extra)


def test_the_lock_file_names_no_host():
    assert not [line for line in LINES if not re.fullmatch(r"[\w.-]+==[\w.!]+  # .+", line)]
    assert "://" not in "".join(LINES)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("License-Expression", "MIT"), ("License", "other")], "MIT"),
        ([("License", "BSD-3-Clause")], "BSD-3-Clause"),
        ([("License", "===\nTerms"), ("Classifier", "License :: OSI Approved :: BSD License")],
         "BSD License"),
        ([("License", "Copyright 2018 X\n\nText"), ("License-File", "LICENSE.txt")],
         "see its file LICENSE.txt"),
        ([("License", "The MIT License (MIT)\n\nText")], "The MIT License (MIT)"),
        ([("License", "UNKNOWN")], "none stated"),
    ],
)  # fmt: skip
def test_a_licence_has_a_name_and_is_no_line_of_its_text(fields, expected):
    spec = importlib.util.spec_from_file_location("tool", ROOT / "tools" / "dependencies.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    metadata = Message()
    for name, value in fields:
        metadata.add_header(name, value)
    assert tool.licence(SimpleNamespace(metadata=metadata)) == expected
