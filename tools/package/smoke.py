"""Use nescio as a newcomer would, where only its core dependencies are installed.

Run by `make package` with the Python of an empty environment, in an empty folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from nescio.cli import main as nescio_main

# What each command needs beyond the core, and the extra that the error must name.
_MISSING = {
    "score tagger.nescio new.npy -o scored.parquet": "files",
    "calibrate s3://bucket/val.parquet -o other.nescio": "files",
    "report --id new.npy --ood ood.npy -o report.html": "report",
    "serve tagger.nescio": "serve",
    "export tagger.nescio --model model.onnx -o fused.onnx": "torch",
    "train coco:folder -o runs": "torch",
    "demo": "torch",
}


def main() -> None:
    """Run all checks."""
    extras = ("pyarrow", "torch", "jinja2", "starlette", "onnx", "pandas", "matplotlib", "PIL")
    check(not any(map(importlib.util.find_spec, extras)), "the environment is empty")
    readme_example(Path(sys.argv[1]).read_text("utf-8"))
    commands()
    for line, extra in _MISSING.items():
        code, _, error = nescio(*line.split())
        named = f"extra '{extra}'" in error and f"'.[{extra}]'" in error
        check(code == 1 and named and "Traceback" not in error, f"nescio {line}: {code}, {error}")


def readme_example(text: str) -> None:
    """Run the first Python example, and compare what it prints, but for decimals."""
    source, shown = re.search(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", text, re.M | re.S
    ).groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "README.md", "exec"), {"__name__": "__main__"})
    lines = [re.sub(r"\d+\.\d+", "#", item).split() for item in (printed.getvalue(), shown)]
    check(lines[0] == lines[1], f"the README's first example prints:\n{printed.getvalue()}")


def commands() -> None:
    """Calibrate, score, explain and evaluate .npy files."""
    rng = np.random.default_rng(0)
    for name, mean, n_rows in (("val", -2, 500), ("new", -2, 50), ("ood", -6, 50)):
        np.save(f"{name}.npy", rng.normal(mean, 2, (n_rows, 8)).astype(np.float32))
    succeeds("calibrate val.npy -o tagger.nescio")
    succeeds("score tagger.nescio ood.npy -o scored.csv")
    rows = Path("scored.csv").read_text("utf-8").splitlines()
    check(len(rows) == 51 and "score" in rows[0], "scored.csv has one row per input")
    result = json.loads(succeeds("eval --id new.npy --ood ood.npy --detector joint_energy --json"))
    check("joint_energy" in json.dumps(result), "eval prints JSON")
    check("energy" in succeeds("explain tagger.nescio ood.npy"), "explain explains")
    check("0.95" in succeeds("info tagger.nescio"), "info says what was promised")
    check("mahalanobis" in succeeds("detectors"), "detectors lists the detectors")
    check("coco70" in succeeds("bench"), "bench lists the specs, which are data of the package")
    # Once as a user starts it.
    script = Path(sys.executable).with_name("nescio")
    version = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    import nescio as ns

    check(ns.__version__ in version.stdout, f"nescio --version prints {version.stdout}")


def nescio(*words: str) -> tuple[int, str, str]:
    """Run a command in this process."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["nescio", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = nescio_main()
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()


def succeeds(line: str) -> str:
    """Run a command that must succeed, and return what it prints."""
    code, out, err = nescio(*line.split())
    check(code == 0, f"nescio {line}: exit code {code}\n{out}{err}")
    return out


def check(fine: bool, what: str) -> None:
    """End the program if something is not as it should be."""
    if not fine:
        raise SystemExit(f"smoke test: {what}")


if __name__ == "__main__":
    main()
