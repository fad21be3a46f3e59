"""Processors, and work that is done ahead on them."""

import threading

import pytest

from nescio import _threads
from nescio._threads import available_cpus, map_ahead


def test_results_come_in_order_and_few_are_computed_ahead():
    started, most = [], []

    def items():
        for item in range(30):
            started.append(item)
            yield item

    def slow(item):
        if item % 3 == 0:
            threading.Event().wait(0.002)
        return 2 * item

    verdicts = []
    for result in map_ahead(slow, items(), workers=2):
        verdicts.append(result)
        most.append(len(started) - len(verdicts))
    assert verdicts == [2 * item for item in range(30)]
    assert max(most) <= 4


def test_errors_of_items_and_of_the_work_reach_the_caller():
    def items():
        yield 1
        yield 0
        raise KeyError("the reader")

    results = map_ahead(lambda item: 1 // item, items(), workers=2)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
    with pytest.raises(KeyError, match="the reader"):
        list(map_ahead(str, items(), workers=2))


def test_a_caller_may_stop_early():
    before = set(threading.enumerate())
    results = map_ahead(str, iter(range(1000)), workers=2)
    assert next(results) == "0"
    assert set(threading.enumerate()) > before
    results.close()
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize(
    ("quota", "most"),
    [("100000 100000", 1), ("150000 100000", 2), ("20000 100000", 1), ("max 100000", None)],
)
def test_a_container_uses_as_many_processors_as_its_limit(quota, most, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(_threads, "_QUOTA_FILE", tmp_path / "cpu.max")
    monkeypatch.setattr(_threads, "_most_cpus", None)  # another test may have limited this process
    monkeypatch.setattr(_threads.os, "sched_getaffinity", lambda _: range(64), raising=False)
    _threads._container_cpus.cache_clear()
    try:
        assert _threads.cpu_limit() == most
        assert available_cpus() == (most or 64)
        monkeypatch.setattr(_threads, "_most_cpus", 1)
        assert available_cpus() == 1
    finally:
        _threads._container_cpus.cache_clear()
