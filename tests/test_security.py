"""SECURITY.md: the tests that it names exist, and the commands open no connection."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]

OFFLINE = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        sys.stderr.write(f"{event} {arguments}")
        raise SystemExit(86)

sys.addaudithook(refuse)
from nescio.cli import app
app()
"""


def test_every_test_that_the_page_names_exists():
    content = (ROOT / "SECURITY.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`:\s+((?:`test_\w+`(?:,\s+)?)+)", content)
    assert len(named) > 8
    for file, tests in named:
        source = (ROOT / file).read_text("utf-8")
        for name in re.findall(r"test_\w+", tests):
            assert f"def {name}(" in source, f"{file} has no {name}"


def test_every_promise_names_a_test():
    content = (ROOT / "SECURITY.md").read_text("utf-8")
    promises = content.partition("try to break it.")[2].partition("\n\nIt does not promise")[0]
    for promise in promises.split("\n- ")[1:]:
        assert "`test_" in promise or "does not hold" in promise, promise


def test_the_commands_open_no_connection(tmp_path):
    logits = np.random.default_rng(0).normal(-2, 3, (200, 4))
    np.save(tmp_path / "x.npy", logits)
    np.save(tmp_path / "far.npy", -logits)
    commands = (
        "calibrate x.npy -o x.nescio",
        "info x.nescio",
        "score x.nescio x.npy -o scored.csv",
        "monitor scored.csv --detector x.nescio",
        "eval --id x.npy --ood far.npy",
    )
    for command in commands:
        run = subprocess.run(
            [sys.executable, "-c", OFFLINE, *command.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, f"{command}: {run.stderr}"
