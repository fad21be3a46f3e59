"""Check that a tag, the version, the changelog and the citation agree; print the changes.

python tools/release.py v0.2.0        the section of the changelog, for the notes of a release
python tools/release.py               only check, before a release: [Unreleased] is allowed
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNRELEASED = "Unreleased"


def version(root: Path = ROOT) -> str:
    """Return the version of the package."""
    text = (root / "src" / "nescio" / "_version.py").read_text("utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]


def sections(root: Path = ROOT) -> dict[str, tuple[str, str]]:
    """Return the date and the text of each version of the changelog, the newest first."""
    text = (root / "CHANGELOG.md").read_text("utf-8")
    parts = re.split(r"^## \[(.+?)\](?: - (\S+))?\n", text, flags=re.MULTILINE)[1:]
    return {
        name: (date or "", body.strip())
        for name, date, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def problems(tag: str | None, root: Path = ROOT) -> list[str]:
    """Return what does not agree; with a tag, this version must have been prepared."""
    result = []
    number, changes = version(root), sections(root)
    citation = (root / "CITATION.cff").read_text("utf-8")
    cited = re.search(r'^version: "?([^"\n]+)"?$', citation, re.MULTILINE)[1]
    released = re.search(r'^date-released: "?([\d-]+)"?$', citation, re.MULTILINE)
    if cited != number:
        result.append(f"CITATION.cff has version {cited}, src/nescio/_version.py has {number}.")
    if number not in changes and (tag or UNRELEASED not in changes):
        result.append(f"CHANGELOG.md has no section ## [{number}] - DATE.")
    date = changes.get(number, ("", ""))[0]
    if (released[1] if released else "") != date:
        result.append(f"CHANGELOG.md dates {number} {date or 'not'}, CITATION.cff otherwise.")
    if tag and tag != f"v{number}":
        result.append(f"the tag is {tag}, but the version is {number}: expected v{number}.")
    if tag and changes.get(UNRELEASED, ("", ""))[1]:
        result.append(f"CHANGELOG.md still has changes under [{UNRELEASED}].")
    return result


def main() -> None:
    """Print the changes of a version, or what is wrong."""
    tag = sys.argv[1] if len(sys.argv) > 1 else None
    wrong = problems(tag)
    if wrong:
        raise SystemExit("\n".join(wrong))
    if tag:
        print(sections()[version()][1])


if __name__ == "__main__":
    main()
