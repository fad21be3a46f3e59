"""Write the exact versions and the licences of the packages that are installed.

    make lock        constraints.txt, and deploy/requirements.txt with hashes for the image

Run it in a fresh environment (make clean), after the tests have passed with new versions.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "constraints.txt"
IMAGE = ROOT / "deploy" / "requirements.txt"
IMAGE_EXTRAS = ("serve", "onnx")
_MACHINES = ("x86_64", "aarch64")
_SYSTEMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
_LONGEST_LICENCE = 60  # some packages put the whole text into the field
_DEVELOPMENT = "development"


def requirements() -> dict[str, list[str]]:
    """Return the requirements of nescio: its own, those of each extra, and for development."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = project["dependency-groups"]
    return {
        "nescio": project["project"]["dependencies"],
        **project["project"]["optional-dependencies"],
        # Not what is only compared with, in an environment of its own.
        _DEVELOPMENT: [
            item
            for name, group in groups.items()
            for item in group
            if isinstance(item, str) and name != "bench"
        ],
    }


def normal(requirement: str) -> str:
    """Return the name of a requirement, as package indexes compare names."""
    result = re.match(r"[\w.-]+", requirement)
    assert result is not None, requirement
    return re.sub(r"[-_.]+", "-", result[0]).lower()


def closure(names: list[str]) -> Iterator[Distribution]:
    """Yield the installed packages that these need, directly or through others."""
    waiting, seen = [normal(name) for name in names], set()
    while waiting:
        name = waiting.pop()
        if name in seen or name == "nescio":
            continue
        seen.add(name)
        try:
            result = distribution(name)
        except PackageNotFoundError:  # for another system or version of Python
            continue
        yield result
        needed = result.requires or []
        waiting += [normal(item) for item in needed if "extra ==" not in item.replace("'", '"')]


def licence(package: Distribution) -> str:
    """Return the licence that a package states: an SPDX expression, a name, or where to read it.

    Some packages put the whole text into the field for its name. Its first line says little
    ("Copyright 2018", a line of "="), so the classifiers count first.
    """
    metadata: Any = package.metadata
    if expression := metadata.get("License-Expression"):
        return expression.strip()
    stated = (metadata.get("License") or "").strip()
    if stated and stated != "UNKNOWN" and "\n" not in stated and len(stated) <= _LONGEST_LICENCE:
        return stated
    classifiers = metadata.get_all("Classifier") or []
    named = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License ::")]
    files = metadata.get_all("License-File") or []
    first = stated.partition("\n")[0].strip()
    if (
        not named
        and re.search("licen[cs]e", first, re.IGNORECASE)
        and len(first) <= _LONGEST_LICENCE
    ):
        return first
    return ", ".join(named) or (f"see its file {files[0]}" if files else "none stated")


def image_requirements() -> str:
    """Return what the image installs, and hatchling, which builds nescio in it, with their hashes.

    A package may have a file for each kind of machine. Only files that need not be built count.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    names = [*requirements()["nescio"], *project["build-system"]["requires"]]
    names += [name for extra in IMAGE_EXTRAS for name in requirements()[extra]]
    hashes = defaultdict(set)
    for machine in _MACHINES:
        platforms = [f"--platform={system}_{machine}" for system in _SYSTEMS]
        pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        with tempfile.TemporaryDirectory() as folder:
            options = ["--only-binary=:all:", f"--target={folder}", "--report=-"]
            options += [f"--constraint={LOCK}", *platforms]
            report = subprocess.run([*pip, *options, *names], check=True, stdout=subprocess.PIPE)
        for package in json.loads(report.stdout)["install"]:
            version = f"{normal(package['metadata']['name'])}=={package['metadata']['version']}"
            hashes[version].add(package["download_info"]["archive_info"]["hashes"]["sha256"])
    lines = [
        " ".join([version, *(f"--hash=sha256:{digest}" for digest in sorted(digests))])
        for version, digests in sorted(hashes.items())
    ]
    return "\n".join(["# What the image installs: `make lock`.", *lines]) + "\n"


def main() -> None:
    """Write the lock files."""
    lines = set()
    for names in requirements().values():
        for package in closure(names):
            version = package.version.partition("+")[0]  # without a local build
            lines.add(f"{normal(package.name)}=={version}  # {licence(package)}\n")
    python = ".".join(map(str, sys.version_info[:2]))
    head = f"# Exact versions and licences: `make lock`, Python {python} on {sys.platform}.\n"
    LOCK.write_text(head + "".join(sorted(lines)), "utf-8")
    IMAGE.write_text(image_requirements(), "utf-8")


if __name__ == "__main__":
    main()
