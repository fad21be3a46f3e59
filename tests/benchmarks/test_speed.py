"""benchmarks/speed: what is measured is what the page says."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from speed import harness
from speed.harness import Bench
from speed.page import write_page

RESULTS = ROOT / "benchmarks" / "results.json"


@pytest.fixture
def ticking(monkeypatch):
    """A clock that stands still unless some work moves it, and no pauses."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda seconds: None)
    monkeypatch.setattr(harness, "time", clock)

    def taking(seconds):
        def run():
            now[0] += seconds

        return run

    return taking


def test_a_ratio_is_the_peers_time_by_ours(ticking):
    bench = Bench()
    ratios = bench.compare("work", "peer", {"peer": ticking(3.0), "ours": ticking(0.5)})
    assert ratios == pytest.approx({"peer": 1.0, "ours": 6.0})


def test_work_that_grows_with_the_square_has_slope_2(ticking):
    bench = Bench()
    sizes = [10, 100, 1000]
    slopes = bench.growth("work", "n", lambda size: ticking(size**2 / 1e3), sizes)
    assert slopes == pytest.approx({"nescio": 2.0})


def test_the_page_says_which_goals_were_met(ticking, tmp_path, capsys):
    bench = Bench()
    works = {"peer": ticking(3.0), "fast": ticking(0.5), "slow": ticking(2.0)}
    bench.compare("work", "peer", works, goal={"fast": 5, "slow": 5})
    bench.fact("peak", 900, "MB", at_most=1000)
    bench.fact("recall", 0.5, at_least=0.9)
    bench.growth("work", "K", lambda size: ticking(size), [1, 2, 4])
    for folder in ("explanation", "images"):
        (tmp_path / folder).mkdir()
    write_page({"part": {"machine": harness.machine(), "records": bench.records}}, tmp_path)
    page = (tmp_path / "explanation" / "speed.md").read_text()
    assert "fast against peer | 5x | 6.00x | met" in page
    assert "slow against peer | 5x | 1.50x | **missed**" in page
    assert "peak | at most 1000 MB | 900 MB | met" in page
    assert "recall | at least 0.9 | 0.5 | **missed**" in page
    assert "slope 1.00" in (tmp_path / "images" / "growth-part-1.svg").read_text()
    assert capsys.readouterr().out.count("MISSED") == 2


def test_the_page_in_the_docs_is_made_from_the_results(tmp_path):
    for folder in ("explanation", "images"):
        (tmp_path / folder).mkdir()
    write_page(json.loads(RESULTS.read_text()), tmp_path)
    for made in (path for path in tmp_path.rglob("*") if path.is_file()):
        committed = ROOT / "docs" / made.relative_to(tmp_path)
        assert made.read_text("utf-8") == committed.read_text("utf-8"), made.name
