"""What a wheel and an sdist must have, and must not have."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

_LARGEST = 2_000_000  # bytes; all of nescio is code and small tables
_NOT_IN_SDIST = ("tests", "benchmarks", "docs", "site", "build", ".github", ".ci")


def check(root: Path, wheel: Path, sdist: Path, other: Path) -> None:
    """Check a wheel, its sdist, and the wheel in `other`, which was built without the sdist."""
    result = _members(wheel)
    package = {name: crc for name, crc in result.items() if not name.startswith(_info(wheel))}
    source = {
        path.relative_to(root / "src").as_posix()
        for path in (root / "src" / "nescio").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    _same(f"{wheel.name} and src", set(package), source)
    licence = {f"{_info(wheel)}/licenses/LICENSE"}
    _same("the licence", licence & set(result), licence)
    [direct] = other.glob("*.whl")
    _same(
        "the wheel of the sdist and of the source",
        set(result.items()),
        set(_members(direct).items()),
    )
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    _same("folders that the sdist leaves out", tops & set(_NOT_IN_SDIST), set())
    for file in (wheel, sdist):
        if file.stat().st_size > _LARGEST:
            raise SystemExit(f"{file.name} has {file.stat().st_size:,} bytes: what is in it?")


def _info(wheel: Path) -> str:
    return "-".join(wheel.name.split("-")[:2]) + ".dist-info"


def _members(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {item.filename: item.CRC for item in archive.infolist()}


def _same(what: str, actual: set, expected: set) -> None:
    if actual != expected:
        missing, more = sorted(expected - actual), sorted(actual - expected)
        raise SystemExit(f"{what} differ: missing {missing[:10]}, too many {more[:10]}")
