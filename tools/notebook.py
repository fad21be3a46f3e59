"""Run the notebook of the documentation, and write its outputs into the page.

    make notebook                       text below the cells, pictures in docs/images
    python tools/notebook.py --check    only say where the page shows another text

The page is a notebook in the Markdown format of jupytext. Its cells run in a Jupyter kernel. Below
a cell follow what it prints or shows as text, and a picture of a figure or of a result's HTML.
"""

from __future__ import annotations

import base64
import io
import operator
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorials" / "notebook.md"
IMAGES = ROOT / "docs" / "images"

_PICTURE = re.compile(r"!\[[^\n]*\]\(\.\./images/(notebook-\d+\.png)\)")
# A cell, and what was written below it.
_CELL = re.compile(
    r"^```python\n(?P<source>.*?)^```\n"
    r"(?P<shown>(?:\n```text\n.*?^```\n|\n!\[[^\n]*\]\(\.\./images/notebook-\d+\.png\)\n)*)",
    re.MULTILINE | re.DOTALL,
)
_TEXT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COLOURS = 64  # of a picture


class Output(NamedTuple):
    """What a cell gave: text, and the HTML or the PNG of a picture."""

    text: str
    html: str | None
    png: bytes | None


def run(page: str) -> list[Output]:
    """Run the cells of a page in a Jupyter kernel."""
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.reads(page, fmt="md")
    # jupytext makes cells of blocks in some other languages too: a shell command would be run
    # here, and by everyone who runs all cells.
    ours = [cell["source"].strip() for cell in _CELL.finditer(page)]
    rest = [cell.source for cell in code_cells(notebook) if cell.source.strip() not in ours]
    if rest:
        raise ValueError(f"only Python is run; mark this block as console:\n{rest[0]}")
    # The figures of a screen have more pixels per inch than those of a page.
    options = ["--InlineBackend.rc={'figure.dpi': 100}"]
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", extra_arguments=options)
    with tempfile.TemporaryDirectory() as folder:
        client.resources = {"metadata": {"path": folder}}
        client.execute()
    return [_output(cell.outputs) for cell in code_cells(notebook)]


def code_cells(notebook: Any) -> list[Any]:
    """Return the cells that are run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _output(cell_outputs: list[Any]) -> Output:
    """Return the outputs of one cell, without warnings; a frame of pandas is shown as text."""
    text, html, png = "", None, None
    for output in cell_outputs:
        if output.get("name") == "stderr":
            continue
        data = output.get("data", {})
        result = data.get("text/html", "")
        if "image/png" in data:
            png = base64.b64decode(data["image/png"])
        elif result.startswith('<div class="nescio">'):
            html = result
        else:
            text += output.get("text", "") or data.get("text/plain", "")
    return Output(text.strip("\n"), html, png)


def differences(
    page: str, outputs: list[Output], same: Callable[[str, str], bool] = operator.eq
) -> list[tuple[str, str, str]]:
    """Return the cells below which the page shows another text or lacks a picture.

    A difference is the source of the cell, what it gave and what is shown.
    """
    result = []
    for cell, output in zip(_CELL.finditer(page), outputs, strict=True):
        shown = "\n".join(_TEXT.findall(cell["shown"])).strip("\n")
        pictures = len(_PICTURE.findall(cell["shown"]))
        expected = int(output.html is not None or output.png is not None)
        if not same(output.text, shown) or pictures != expected:
            gives = output.text + "\n(a picture)" * expected
            result.append((cell["source"], gives, shown + "\n(a picture)" * pictures))
    return result


def write(page: str, outputs: list[Output]) -> str:
    """Write the pictures, and return the page with all outputs."""
    names = iter(range(1, 1 + len(outputs)))
    remaining = iter(outputs)
    for old in IMAGES.glob("notebook-*.png"):
        old.unlink()

    def cell(match: re.Match[str]) -> str:
        output = next(remaining)
        parts = [f"```python\n{match['source']}```\n"]
        if output.text:
            parts.append(f"\n```text\n{output.text}\n```\n")
        if output.html is not None or output.png is not None:
            name = f"notebook-{next(names)}.png"
            picture = output.png if output.html is None else screenshot(output.html)
            (IMAGES / name).write_bytes(smaller(picture or b""))
            parts.append(f"\n![{alt_text(output)}](../images/{name})\n")
        return "".join(parts)

    return _CELL.sub(cell, page)


def alt_text(output: Output) -> str:
    """Return the title of a result, for readers who do not see the picture."""
    result = re.search(r'<p class="title">(.*?)</p>', output.html or "")
    return "The figure that the cell draws" if result is None else result[1].replace("]", ")")


def screenshot(html: str) -> bytes:
    """Return a picture of HTML, as a browser shows it."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import chromium, launched

    program = chromium()
    if program is None:
        sys.exit("make notebook needs chromium, to take pictures of results.")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "card.html"
        page.write_text(f"<!doctype html><meta charset=utf-8><body style='margin:4px'>{html}")
        with launched(program, Path(folder) / "profile") as browser:
            browser.open(page, width=880, height=400)
            box = browser.run(
                "(({x, y, width, height}) => ({x, y, width, height}))"
                "(document.querySelector('.nescio').getBoundingClientRect())"
            )
            clip = {**box, "scale": 1.5}
            taken = browser.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    return base64.b64decode(taken["data"])


def smaller(png: bytes) -> bytes:
    """Return a picture with few colours, which makes a small file."""
    from PIL import Image

    stream = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(_COLOURS).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def main(arguments: list[str]) -> int:
    """Run the page; write it, or say where it differs."""
    page = PAGE.read_text("utf-8")
    outputs = run(page)
    if "--check" not in arguments:
        PAGE.write_text(write(page, outputs), "utf-8")
        return 0
    differing = differences(page, outputs)
    for source, gives, shown in differing:
        print(f"after the cell:\n{source}gives:\n{gives}\nshown:\n{shown}\n")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
