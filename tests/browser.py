"""A Chromium that is driven over its own debugging pipe, with the standard library alone."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Chromium reads commands from descriptor 3 and answers on descriptor 4.
_LAUNCH = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
_LAUNCH += "os.execvp(sys.argv[3], sys.argv[3:])"

# What a page reports when it is not quiet.
_NOISE = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}


@dataclass
class Browser:
    """One page of a headless Chromium; `events` is all that it reported."""

    commands: int
    answers: int
    events: list = field(default_factory=list)
    session: str | None = None
    _target: str | None = None
    _count: int = 0
    _buffer: bytes = b""

    def send(self, method, **params):
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda reply: reply.get("id") == self._count)
        assert "error" not in answer, answer
        return answer["result"]

    def _wait(self, wanted, seconds=120):
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

    def open(self, page, *, scheme="light", width=1200, height=900, scripts=True):
        """Open a file, or an address, in a new tab; the old one is closed."""
        self.close()
        self._target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=self._target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(width, height)
        self.prefer(scheme)
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.events.clear()
        self.send("Page.navigate", url=page.as_uri() if isinstance(page, Path) else page)
        self._wait(lambda event: event.get("method") == "Page.loadEventFired")

    def close(self):
        """Close the tab, if there is one."""
        self.session = None
        if self._target is not None:
            self.send("Target.closeTarget", targetId=self._target)
            self._target = None

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

    def until(self, script, seconds=120):
        """Wait until a script gives something that JavaScript takes for true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < end, f"never came true: {script}"
            time.sleep(0.02)

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
            )

    @property
    def noise(self):
        """Errors, warnings and what was written to the console."""
        return [event for event in self.events if event["method"] in _NOISE]

    @property
    def requested(self):
        """The addresses that were asked for, in order."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]


def chromium() -> str | None:
    """The program, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def launched(program: str, profile: Path) -> Iterator[Browser]:
    """A browser that ends with the block."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    launcher = [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out)]
    options = (
        "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run "
        "--disable-component-update --hide-scrollbars --remote-debugging-pipe"
    )
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
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
