"""The image without Docker: run the build steps and the command of deploy/Dockerfile here."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from dockerfile import instructions, last

# A model of one layer, and the detector's eight labels.
_MODEL = """
import numpy, onnx
from onnx import helper
sides = ("x", 1, ["n", 3]), ("logits", 1, ["n", 8])
values = [helper.make_tensor_value_info(*one) for one in sides]
weight = onnx.numpy_helper.from_array(numpy.ones((3, 8), "float32"), "weight")
node = helper.make_node("MatMul", ["x", "weight"], ["logits"])
graph = helper.make_graph([node], "one layer", values[:1], values[1:], [weight])
imports = [helper.make_opsetid("", 17)]
onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), "tagger.onnx")
"""
_FOLDERS = ("/opt/nescio", "/source", "/models", "/state")


class Image:
    """An environment made as the Dockerfile says, in folders below another one.

    What needs a container is left out: the base image, the user that is added, and the mounts.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        self._lines = instructions(root / "deploy" / "Dockerfile")
        self._steps = [item.rest for item in self._lines if item.stage == 0 and item.name == "RUN"]
        self.environment = folder / "opt" / "nescio"
        self.python = self.environment / "bin" / "python"

    def make_environment(self) -> None:
        """Do what the Dockerfile does before it installs packages."""
        (self._folder / "source").mkdir()
        self._run(self._steps[0])

    def build(self) -> None:
        """Copy what the Dockerfile copies, and do its other steps."""
        for line in self._lines:
            if line.stage == 0 and line.name == "COPY":
                *sources, target = line.rest.split()
                for source in sources:
                    self._copy(self._root / source, self._folder / "source" / target)
        for step in self._steps[1:]:
            self._run(step)
        code = (
            "import importlib.util as u; raise SystemExit(any(map(u.find_spec, ['torch', 'pip'])))"
        )
        subprocess.run([self.python, "-c", code], check=True)

    def serve(self) -> None:
        """Start the command, ask for its health and a verdict, and stop it with SIGTERM."""
        models = self._folder / "models"
        models.mkdir()
        shutil.copy(self._folder / "empty" / "tagger.nescio", models)
        subprocess.run([self.python, "-c", _MODEL], cwd=models, check=True)
        words = [*last(self._lines, "ENTRYPOINT").words, *last(self._lines, "CMD").words]
        words += ["--model", "/models/tagger.onnx"]
        (self._folder / "empty-home").mkdir()
        before = self._files()
        words[words.index("0.0.0.0")] = "127.0.0.1"  # nobody else may reach it here
        process = subprocess.Popen(
            [*map(self._here, words), "--port", "0"],
            stderr=subprocess.PIPE,
            **self._as_in_container(),
        )
        try:
            self._ask(process)
            process.send_signal(signal.SIGTERM)
            rest = process.communicate(timeout=30)[1]
            if process.returncode != 0:
                raise SystemExit(f"the service ended with {process.returncode}: {rest.decode()}")
            if self._files() != before:
                written = sorted(self._files().items() - before.items())
                raise SystemExit(f"the service writes files, as {written[:5]}")
        finally:
            process.kill()
            process.wait()

    def size(self) -> int:
        """Return the bytes of what the image has beside its base."""
        return sum(path.lstat().st_size for path in self.environment.rglob("*"))

    def _ask(self, process: subprocess.Popen) -> None:
        for line in process.stderr:
            event = json.loads(line)
            if event["event"] == "serving":
                break
        else:
            raise SystemExit(f"the service did not start: {process.wait()}")
        port = int(event["url"].rpartition(":")[2])
        health = [
            word.replace("8000", str(port)) for word in last(self._lines, "HEALTHCHECK").words
        ]
        subprocess.run(health, check=True, **self._as_in_container())
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        rows = {"logits": [[3.0, -1.0] * 4, [-9.0] * 8]}, {"inputs": {"x": [[0.5] * 3, [-3.0] * 3]}}
        for path, body in zip(("/v1/score", "/v1/predict"), rows, strict=True):
            kind = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), kind)
            answer = json.loads(connection.getresponse().read())
            if answer.get("in_distribution") != [True, False]:
                raise SystemExit(f"{path} answers {answer}")
        connection.close()
        status = Path(f"/proc/{process.pid}/status")
        if status.exists():
            memory = [line for line in status.read_text().splitlines() if line.startswith("VmRSS")]
            print(f"memory of the service: {int(memory[0].split()[1]) / 1e3:.0f} MB")

    def _as_in_container(self) -> dict[str, Any]:
        """Return the folder and the variables of the container; home and /tmp are empty folders."""
        stated = last(self._lines, "ENV").rest.split()
        variables = dict(item.split("=") for item in stated if not item.startswith("PATH="))
        home = dict.fromkeys(("HOME", "TMPDIR"), str(self._folder / "empty-home"))
        path = os.pathsep.join([str(self.environment / "bin"), os.environ["PATH"]])
        return {"cwd": self._folder / "models", "env": {**variables, **home, "PATH": path}}

    def _files(self) -> dict[Path, int]:
        """Return when each file was changed; a read-only container allows no change."""
        return {path: path.lstat().st_mtime_ns for path in self._folder.rglob("*")}

    def _run(self, step: str) -> None:
        words = [self._here(word) for word in shlex.split(step)]
        subprocess.run(words, check=True, cwd=self._folder / "source")

    def _here(self, word: str) -> str:
        """Return a word of a command, with the folders of the image replaced."""
        result = [item for item in _FOLDERS if word.startswith(item)]
        return f"{self._folder}{word}" if result else word

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)


if sys.platform == "win32":
    raise SystemExit("make package runs the steps of the Dockerfile: use Linux or macOS.")
