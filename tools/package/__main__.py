"""Build the wheel and the sdist, and check both: make package.

1. The wheel has every file of src/nescio and no other, and the sdist builds the same wheel.
2. In an empty environment, with the core dependencies only, the README's first example and the
   commands work, and what needs an extra says which one.
3. The build steps of deploy/Dockerfile run in the same environment. Its command then serves
   verdicts and writes no file, its health check passes, and SIGTERM stops it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import contents
import image

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
FOLDER = ROOT / "build" / "package"
# As in the image, no bytecode of what is never imported: this halves the time to install.
QUICK = {"PIP_COMPILE": "0", "PIP_QUIET": "2", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def main() -> None:
    """Run all steps; the first that fails ends the program."""
    for folder in (DIST, FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    os.environ.update(QUICK)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # nescio must come from the wheel, and the size is that of an image with bytecode.
    for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(name, None)

    wheel, sdist = step("build", build)
    step("contents", contents.check, ROOT, wheel, sdist, FOLDER / "from-source")
    built = image.Image(ROOT, FOLDER)
    step("empty environment", empty_environment, built, wheel)
    step("smoke test", smoke_test, built)
    step("steps of the Dockerfile", built.build)
    step("command of the Dockerfile", built.serve)
    for file in (wheel, sdist):
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")
    print(f"the image: {built.size() / 1e6:.0f} MB, and its base")


def step(title: str, work, *arguments):
    """Do one step, and say how long it took."""
    start = time.perf_counter()
    result = work(*arguments)
    print(f"{title}: {time.perf_counter() - start:.1f} s", flush=True)
    return result


def build() -> tuple[Path, Path]:
    """Build the sdist, the wheel from it, and a wheel from the source to compare with."""
    command = [sys.executable, "-m", "build", "--no-isolation"]
    for options in (["--outdir", DIST], ["--wheel", "--outdir", FOLDER / "from-source"]):
        done = subprocess.run([*command, *options, ROOT], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
    [wheel], [sdist] = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def empty_environment(built: image.Image, wheel: Path) -> None:
    """Install the wheel with its core dependencies, and nothing else."""
    built.make_environment()
    pip = [sys.executable, "-m", "pip", "--python", built.environment, "install"]
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", wheel], check=True)


def smoke_test(built: image.Image) -> None:
    """Run smoke.py with the Python of the environment, in an empty folder."""
    where = FOLDER / "empty"
    where.mkdir()
    script = Path(__file__).with_name("smoke.py")
    subprocess.run([built.python, script, ROOT / "README.md"], cwd=where, check=True)


if __name__ == "__main__":
    main()
