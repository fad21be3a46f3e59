"""Tiny evidence for reports, and a Chromium that is driven over its own debugging pipe."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from nescio import scores
from nescio.benchmark.evidence import Evidence
from nescio.benchmark.results import Line
from nescio.comparison import Scored
from nescio.metrics import evaluate
from nescio.outputs import Outputs

DETECTORS = {
    "joint_energy": scores.joint_energy,
    "max_logit": scores.max_logit,
    "sum_prob": scores.sum_prob,
    "top_k_joint_energy(k=5)": lambda logits: scores.top_k_joint_energy(logits, 5),
    "msp": scores.msp,
}


@pytest.fixture
def make_outputs():
    """Random logits, higher for the labels that an input has."""

    def make(n_samples=120, n_labels=7, *, lift=4.0, seed=0, labels=True, ids=True, names=True):
        rng = np.random.default_rng(seed)
        truth = (rng.random((n_samples, n_labels)) < 2 / n_labels).astype(np.uint8)
        return Outputs(
            rng.normal(-2, 1.5, (n_samples, n_labels)) + lift * truth,
            labels=truth if labels else None,
            ids=[f"folder/{at}.jpg" for at in range(n_samples)] if ids else None,
            label_names=[f"label-{at}" for at in range(n_labels)] if names else None,
        )

    return make


@pytest.fixture
def make_evidence(make_outputs):
    """Evidence of a network that finds the labels of its ID data and few in the OOD sets."""

    def make(id_name="pets", oods=("stones",), *, seed=0, detectors=None, roots=None, **outputs):
        id_outputs = make_outputs(seed=10 * seed, **outputs)
        shape = {name: outputs[name] for name in ("n_samples", "n_labels") if name in outputs}
        ood_outputs = {
            ood: make_outputs(seed=10 * seed + at, lift=0.9, labels=False, **shape)
            for at, ood in enumerate(oods, start=1)
        }
        found = {
            name: Scored(
                np.asarray(score(id_outputs.logits), dtype=np.float64),
                {ood: np.float64(score(one.logits)) for ood, one in ood_outputs.items()},
            )
            for name, score in (detectors or DETECTORS).items()
        }
        return Evidence(id_name, seed, id_outputs, ood_outputs, found, roots or {})

    return make


@pytest.fixture
def make_lines():
    """The result lines of evidence."""

    def make(*evidence, n_bootstrap=20, manifest=None):
        return [
            Line(
                "tiny",
                one.id_name,
                ood,
                name,
                one.seed,
                evaluate(scored.id_scores, scored.ood_scores[ood], n_bootstrap=n_bootstrap),
                manifest=manifest or {"data": {"id": one.id_name}, "versions": {"numpy": "2"}},
            )
            for one in evidence
            for ood in one.ood_outputs
            for name, scored in one.scores.items()
        ]

    return make


# Chromium reads commands from descriptor 3 and answers on descriptor 4.
_LAUNCH = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
_LAUNCH += "os.execvp(sys.argv[3], sys.argv[3:])"


@dataclass
class Browser:
    """One page of a headless Chromium; `events` is all that it reported."""

    commands: int
    answers: int
    events: list = field(default_factory=list)
    session: str | None = None
    _count: int = 0
    _buffer: bytes = b""

    def send(self, method, **params):
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda found: found.get("id") == self._count)
        assert "error" not in answer, answer
        return answer["result"]

    def _wait(self, wanted, seconds=30):
        end = time.monotonic() + seconds
        while True:
            while b"\0" in self._buffer:
                text, _, self._buffer = self._buffer.partition(b"\0")
                message = json.loads(text)
                if "method" in message:
                    self.events.append(message)
                if wanted(message):
                    return message
            ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            got = os.read(self.answers, 1 << 20)
            assert got, "Chromium has ended"
            self._buffer += got

    def open(self, path, *, scheme="light", width=1200, height=900, scripts=True):
        self.session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(width, height)
        self.prefer(scheme)
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        self._wait(lambda found: found.get("method") == "Page.loadEventFired")

    def resize(self, width, height):
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def run(self, script):
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
            )


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    launcher = [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out)]
    options = (
        "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run "
        "--disable-component-update --hide-scrollbars --remote-debugging-pipe"
    )
    profile = tmp_path_factory.mktemp("profile")
    process = subprocess.Popen(
        [*launcher, program, *options.split(), f"--user-data-dir={profile}"],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    driven = Browser(ours_out, ours_in)
    try:
        yield driven
        driven.session = None
        driven.send("Browser.close")
    finally:
        os.close(ours_out)
        os.close(ours_in)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
