"""The built site in a browser: the first screen, the search, dark colours, a narrow screen.

`make docs` builds the site, and `make test` runs it just before. A site that is older than its
sources is not tested.
"""

import base64
import functools
import http.server
import io
import json
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from nescio import __version__

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "site"
PAGES = (
    "index.html",
    "how-to/which-detector.html",
    "reference/scores-and-outputs.html",
    "errors/shape-error.html",
)
NARROW = 390

sys.path.append(str(ROOT / "tools"))


@pytest.fixture(scope="module")
def site():
    built = SITE / "index.html"
    sources = [ROOT / "zensical.toml", *(ROOT / "docs").rglob("*.*")]
    if not built.exists() or built.stat().st_mtime < max(file.stat().st_mtime for file in sources):
        pytest.skip("the site is not built, or older than its sources: run make docs")
    return SITE


@pytest.fixture(scope="module")
def served(site):
    """The site over HTTP."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def colours(browser) -> int:
    """How many colours a screenshot of the page has."""
    image = pytest.importorskip("PIL.Image")
    taken = base64.b64decode(browser.send("Page.captureScreenshot")["data"])
    return len(image.open(io.BytesIO(taken)).convert("RGB").getcolors(1 << 24))


def test_the_footer_and_the_configuration_name_this_version(site):
    pages = [path.read_text("utf-8") for path in site.rglob("*.html")]
    shown = [re.search(r"nescio ([\d.]+\d)\. Licence", page) for page in pages]
    assert {result[1] for result in shown if result} == {__version__}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_shows_a_picture_and_a_verdict(site, browser, scheme):
    browser.open(site / "index.html", width=1300, height=900, scheme=scheme)
    shown = json.loads(
        browser.run(
            "JSON.stringify([...document.querySelectorAll('article pre, article img')]"
            ".map(e => [e.tagName, e.innerText ?? '', e.naturalWidth ?? 0,"
            " e.getBoundingClientRect().height, e.getBoundingClientRect().bottom]))"
        )
    )
    first = [item for item in shown if item[3] > 0 and item[4] < 900]
    assert [item[2] > 0 for item in first if item[0] == "IMG"] == [True]
    assert any("OUT" in item[1] for item in first)
    assert browser.noise == []
    assert all(asked.startswith(("file:", "data:")) for asked in browser.requested)
    assert colours(browser) > 50


@pytest.mark.parametrize("page", PAGES)
def test_a_phone_shows_whole_lines_and_every_picture(site, browser, page):
    browser.open(site / page, width=NARROW, height=800, scheme="dark")
    assert browser.run("document.documentElement.scrollWidth") <= NARROW
    assert browser.run("[...document.images].every(image => image.complete && image.naturalWidth)")
    assert browser.noise == []
    assert colours(browser) > 20


def test_an_api_page_shows_examples(site):
    page = (site / "reference" / "scores-and-outputs.html").read_text("utf-8")
    assert len(re.findall(r"Examples:?<", page)) >= 10


SEARCH = """(() => {
  const found = [];
  const walk = node => {
    if (node.shadowRoot) walk(node.shadowRoot);
    for (const child of node.childNodes) {
      if (child.nodeType === 3) found.push(child.textContent); else walk(child);
    }
  };
  walk(document.body);
  return found.join(" ");
})()"""


@pytest.mark.parametrize("over", ["http", "folder"])
def test_the_search_finds_a_word(site, served, browser, over):
    browser.open(f"{served}/index.html" if over == "http" else site / "index.html", width=1300)
    browser.until("document.querySelector('.md-search__button')")
    browser.run("document.querySelector('.md-search__button').click()")
    browser.until("document.activeElement !== document.body")
    browser.send("Input.insertText", text="threshold")
    end = time.monotonic() + 30
    while not re.search(r"\d+ +results", browser.run(SEARCH)):
        assert time.monotonic() < end, "the search gives no result"
        time.sleep(0.05)
    assert browser.noise == []


def test_the_search_leaves_out_decision_records(site):
    """They are for developers: each has `search: {exclude: true}` above its title."""
    items = json.loads((site / "search.json").read_text("utf-8"))["items"]
    pages = {item["location"].partition("#")[0] for item in items}
    assert "how-to/which-detector.html" in pages
    assert not [page for page in pages if page.startswith("adr/")]


def test_versions_are_listed_newest_first(tmp_path):
    from docs_version import versioned, write_index

    for name in ("0.9.0", "0.10.0", "0.2.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    assert write_index(tmp_path) == ["0.10.0", "0.9.0", "0.2.0"]
    listed = json.loads((tmp_path / "versions.json").read_text("utf-8"))
    assert [item["version"] for item in listed] == ["0.10.0", "0.9.0", "0.2.0"]
    assert "0.10.0/index.html" in (tmp_path / "index.html").read_text("utf-8")
    config = versioned((ROOT / "zensical.toml").read_text("utf-8"), "build/docs/0.10.0")
    assert '\nsite_dir = "build/docs/0.10.0"\n' in config
    assert '\nversion.provider = "mike"\n' in config
