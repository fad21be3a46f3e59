"""Take the pictures of the documentation, from a real run of the demo.

    make screenshots     runs `nescio demo` if build/demo has no report, then this

    python tools/figures.py build/demo

Needs Chromium. Writes into docs/images: parts of the report, the figures of a monitor, and the
pages of the service. The monitor and the service see the scenes of the demo. The pictures are
8-bit and as narrow as the page of the documentation shows them. CONTRIBUTING.md says where the
other pictures come from.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.request import Request, urlopen

from PIL import Image

from nescio.detectors import JointEnergy, load
from nescio.monitor import Monitor, draw_monitor
from nescio.outputs import Outputs

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path.append(str(ROOT / "tests"))

from browser import Browser, chromium, launched  # noqa: E402

WIDTH = 1000
NARROW = 760
# What the report is cut into: its parts by their address in the page.
REPORT = {
    "report-top": ["#verdicts > h2", "#verdicts > p:not(.aside)", "#verdicts > .sentences"],
    "report-suspicious": ["#verdicts-suspicious"],
    "report-roc-densities": ["#id0-ood0 figure"],
    "report-alarms": ["#verdicts-labels"],
    "report-cases": ["#id0-cases > h3", "#id0-cases .gallery:first-of-type"],
}
DARK = {"report-dark": ["#verdicts-scores"]}


def box(page: Browser, selectors: Sequence[str]) -> dict[str, float]:
    """Return the smallest rectangle around everything that matches, with a margin."""
    rectangles = page.run(
        f"{json.dumps(list(selectors))}.flatMap(s => [...document.querySelectorAll(s)])"
        ".map(e => e.getBoundingClientRect()).filter(r => r.width && r.height)"
        ".map(r => [r.left + scrollX, r.top + scrollY, r.right + scrollX, r.bottom + scrollY])"
    )
    if not rectangles:
        raise SystemExit(f"the page has nothing at {selectors}.")
    left, top = (min(rectangle[i] for rectangle in rectangles) for i in (0, 1))
    right, bottom = (max(rectangle[i] for rectangle in rectangles) for i in (2, 3))
    margin = 8
    return {
        "x": max(left - margin, 0),
        "y": max(top - margin, 0),
        "width": right - max(left - margin, 0) + margin,
        "height": bottom - max(top - margin, 0) + margin,
        "scale": 1,
    }


def take(page: Browser, name: str, selectors: Sequence[str] = ("body",), *, limit: int = 0) -> None:
    """Write a picture of a part of the page; at most `limit` pixels high, if given."""
    clip = box(page, selectors)
    if limit:
        clip["height"] = min(clip["height"], limit)
    data = page.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
    picture = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    if len(picture.getcolors(1 << 24) or ()) < 8:
        raise SystemExit(f"{name} is blank.")
    picture.quantize(128, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)
    print(f"{name}.png: {picture.width} x {picture.height}")


def take_report(page: Browser, report: Path) -> None:
    """Cut the report into its parts."""
    page.open(report, width=WIDTH)
    page.run("document.getElementById('comparison').open = true")
    for name, selectors in REPORT.items():
        take(page, name, selectors, limit=1300)
    page.open(report, width=WIDTH, scheme="dark")
    for name, selectors in DARK.items():
        take(page, name, selectors, limit=1300)
    for scheme in ("light", "dark"):
        page.open(report, width=NARROW, scheme=scheme)
        take_verdicts(page, f"verdicts-{scheme}")


def take_verdicts(page: Browser, name: str) -> None:
    """Take the first two inputs of the first two sets: known scenes and unseen digits."""
    page.run(
        "document.querySelectorAll('#verdicts > .gallery').forEach((gallery, set) => {"
        " [...gallery.children].slice(set < 2 ? 2 : 0).forEach(card => card.remove()); });"
        "document.querySelectorAll('#verdicts > h4').forEach((title, set) => {"
        " if (set > 1) title.remove(); else title.lastElementChild.textContent ="
        " title.lastElementChild.textContent.split(';')[0] + '; the first two'; })"
    )
    take(page, name, ["#verdicts > h4", "#verdicts > .gallery"])


def take_monitor(page: Browser, demo: Path, folder: Path) -> None:
    """Show known scenes to a monitor, then every third one of unseen digits."""
    detector = load(demo / "digits.nescio")
    seen, unseen = (
        Outputs.load(demo / f"{name}.safetensors") for name in ("test", "unseen-digits")
    )
    monitor = Monitor(detector, alpha=0.01)
    for start in range(0, 1500, 250):
        batch = seen[start : start + 250]
        monitor.update(detector.assess(batch))
    for start in range(0, 250, 50):
        for batch in (seen[1500 + 2 * start : 1600 + 2 * start], unseen[start : start + 50]):
            monitor.update(detector.assess(batch))
    draw_monitor(monitor, folder / "monitor.html")
    page.open(folder / "monitor.html", width=WIDTH)
    take(page, "monitor", ["svg"])


@contextlib.contextmanager
def serving(detector: Path) -> Iterator[str]:
    """Start the service; give its address."""
    command = ["-m", "nescio", "serve", detector, "--port", "0", "--log-level", "warning"]
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    try:
        yield json.loads(process.stderr.readline())["url"]
    finally:
        process.terminate()
        process.wait(60)


def take_service(page: Browser, demo: Path, folder: Path) -> None:
    """Serve joint energy on the logits of the demo's network."""
    seen, unseen = (
        Outputs.load(demo / f"{name}.safetensors") for name in ("test", "unseen-digits")
    )
    detector = JointEnergy().calibrate(seen[:1000])
    detector.save(folder / "digits.nescio")
    lowest = int(detector.score_samples(unseen).argmin())
    rows = {"service-page": seen.logits[1001], "service-out": unseen.logits[lowest]}
    with serving(folder / "digits.nescio") as url:
        for start in range(1000, 1400, 100):  # what is tried on the page is no traffic
            body = json.dumps({"logits": seen.logits[start : start + 100].tolist()}).encode()
            urlopen(Request(f"{url}/v1/score", body, {"Content-Type": "application/json"})).close()
        for name, row in rows.items():
            page.open(f"{url}/", width=WIDTH)
            page.until("!document.getElementById('content').hidden")
            words = json.dumps(", ".join(f"{value:.2f}" for value in row))
            page.run(f"document.getElementById('rows').value = {words}")
            page.run("document.querySelector('#rows-form button.main').click()")
            page.until("document.querySelector('.bars')")
            take(page, name, limit=1500)


def main() -> None:
    """Take all pictures."""
    program = chromium()
    if len(sys.argv) != 2 or program is None:
        raise SystemExit(__doc__ if program else "Chromium is not installed.")
    demo = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with launched(program, folder / "profile") as page:
            take_report(page, demo / "report.html")
            take_monitor(page, demo, folder)
            take_service(page, demo, folder)


if __name__ == "__main__":
    main()
