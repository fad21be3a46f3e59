"""Build the documentation of this version beside those of other versions.

    python tools/docs_version.py FOLDER

Writes FOLDER/VERSION and FOLDER/versions.json, which the page's version menu reads, and
FOLDER/index.html, which leads to the newest version. Serve FOLDER. For the documentation of an
older release, check out its tag and run this with the same folder.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from nescio._version import __version__

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "zensical.toml"


def versioned(config: str, folder: str) -> str:
    """Return the configuration for a site in this folder, with a menu of versions."""
    for old, new in (
        ('\nsite_dir = "site"\n', f'\nsite_dir = "{folder}"\n'),
        ("\n[project.extra]\n", '\n[project.extra]\nversion.provider = "mike"\n'),
    ):
        if config.count(old) != 1:
            raise SystemExit(f"{CONFIG} must have the line {old.strip()} once.")
        config = config.replace(old, new)
    return config


def numbers(version: str) -> list[int]:
    """Return the numbers of a version, to sort by."""
    return [int(number) for number in re.findall(r"\d+", version)]


def write_index(folder: Path) -> list[str]:
    """Write the list of the versions in a folder, newest first, and a page that leads to it."""
    versions = sorted(
        (page.parent.name for page in folder.glob("*/index.html")), key=numbers, reverse=True
    )
    entries = [{"version": name, "title": name, "aliases": []} for name in versions]
    (folder / "versions.json").write_text(json.dumps(entries, indent=1) + "\n", "utf-8")
    (folder / "index.html").write_text(
        f'<!doctype html>\n<meta http-equiv="refresh" content="0; url={versions[0]}/index.html">\n'
        f'<a href="{versions[0]}/index.html">The documentation of nescio {versions[0]}</a>\n',
        "utf-8",
    )
    return versions


def main() -> None:
    """Build, then list the versions."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    folder = Path(sys.argv[1]).resolve()
    target = os.path.relpath(folder / __version__, ROOT)
    temporary = ROOT / f".{CONFIG}"  # beside the original, because its paths are relative to it
    try:
        temporary.write_text(
            versioned((ROOT / CONFIG).read_text("utf-8"), Path(target).as_posix()), "utf-8"
        )
        command = ["-m", "zensical", "build", "--strict", "--clean", "--config-file", temporary]
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    finally:
        temporary.unlink(missing_ok=True)
    print(f"{folder}: {', '.join(write_index(folder))}")


if __name__ == "__main__":
    main()
