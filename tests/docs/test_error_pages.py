"""Every error and warning has a page, and the example of the page causes it."""

import inspect
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from nescio import errors
from nescio.detectors import NotCalibratedError
from nescio.errors import NescioError, NescioWarning

PAGES = Path(__file__).resolve().parents[2] / "docs" / "errors"
KINDS = {
    kind.__name__: kind
    for kind in (*vars(errors).values(), NotCalibratedError)
    if inspect.isclass(kind)
    and issubclass(kind, NescioError | NescioWarning)
    and kind not in (NescioError, NescioWarning)  # never raised themselves
}

_EXAMPLE = re.compile(r"^```python\n(.*?)^```$\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BENCHMARK = """
title = "Photos"
seeds = [0, 1]
detectors = ["joint_energy"]
bootstrap = 0
[train]
model = { name = "small-cnn", weights = "none", n_hidden = 4 }
images = { size = 16 }
training = { epochs = 1, lr_head = 1e30 }
[[sets]]
name = "photos"
data = "table:{data}/photos.csv"
ood = { odd = "folder:{data}/odd" }
"""


def page_of(name: str) -> Path:
    return PAGES / f"{re.sub(r'(?<!^)(?=[A-Z])', '-', name).lower()}.md"


def test_there_is_a_page_for_every_error_and_no_other():
    assert len(KINDS) > 20
    assert {page_of(name).name for name in KINDS} | {"index.md"} == {
        page.name for page in PAGES.glob("*.md")
    }
    index = (PAGES / "index.md").read_text("utf-8")
    assert all(f"[`{name}`]({page_of(name).name})" in index for name in KINDS)


@pytest.fixture
def benchmark_of_photos():
    """Write the benchmark of the page on BenchmarkError, with a few tiny images."""
    image_module = pytest.importorskip("PIL.Image")
    pytest.importorskip("torchvision")
    rng = np.random.default_rng(0)
    Path("photos/odd").mkdir(parents=True)
    rows = ["path,split,a,b"]
    for number in range(8):
        pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        for name in (f"{number}.png", f"odd/{number}.png"):
            image_module.fromarray(pixels).save(Path("photos", name))
        split = ("train", "val", "test", "train")[number // 2]
        rows.append(f"{number}.png,{split},{number % 2},{1 - number % 2}")
    Path("photos/photos.csv").write_text("\n".join(rows) + "\n")
    Path("photos.toml").write_text(_BENCHMARK)


@pytest.mark.parametrize("name", KINDS)
def test_the_example_of_a_page_causes_it(name, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if name == "BenchmarkError":
        request.getfixturevalue("benchmark_of_photos")
    if name == "ExportError":
        pytest.importorskip("onnx")
    page = page_of(name).read_text("utf-8")
    assert page.startswith(f"# {name}\n")
    assert "\n## What to do\n" in page
    [(source, shown)] = _EXAMPLE.findall(page)
    hidden = re.findall(r'sys.modules\["(\w+)"\] = None', source)
    for module in hidden:  # put back after the test, whatever the example does
        monkeypatch.setitem(sys.modules, module, pytest.importorskip(module))
    raised = raised_by(source)
    assert type(raised) is KINDS[name]
    message = f"{type(raised).__name__}: {raised}"
    assert message.split() == shown.split(), f"the page should show:\n{message}"


def raised_by(source: str) -> BaseException | None:
    """Run an example; a warning counts as raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NescioWarning)
        try:
            exec(compile(source, "the example", "exec"), {"__name__": "__main__"})
        except (NescioError, NescioWarning) as error:
            return error
    return None
