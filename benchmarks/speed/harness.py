"""How a part measures: contenders in turn, growth with the size, and single facts.

Absolute times depend on the machine, so look at the ratios. All contenders are timed in turn, for
several rounds, and their medians are compared. So other load on the machine affects all of them.
"""

from __future__ import annotations

import math
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Idle threads of torch and BLAS keep a processor busy for a short time after their work.
SETTLE_SECONDS = 0.25

# A growth is measured for at least this long at each size.
GROWTH_SECONDS = 0.3

# What the sizes of a growth count.
AXES = {"n": "samples", "K": "labels", "D": "features"}

Work = Callable[[], object]


class Bench:
    """Measures and prints, and keeps what was measured in `records`, as JSON can hold it."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def compare(
        self,
        title: str,
        baseline: str,
        contenders: Mapping[str, Work],
        *,
        goal: Mapping[str, float] | None = None,
        rounds: int = 7,
    ) -> dict[str, float]:
        """Time all contenders in turn; return how many times as fast as the baseline each one is.

        Parameters
        ----------
        title : str
        baseline : str
            The peer: the name of one contender.
        contenders : mapping of str to callable
        goal : mapping of str to float, optional
            The ratio that a contender is to reach.
        rounds : int
        """
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for run in contenders.values():
            run()
        for _ in range(rounds):
            for name, run in contenders.items():
                time.sleep(SETTLE_SECONDS)
                times[name].append(_seconds(run))
        medians = {name: statistics.median(values) for name, values in times.items()}
        ratios = {name: medians[baseline] / median for name, median in medians.items()}
        print(f"\n{title}")
        for name, median in medians.items():
            wanted = (goal or {}).get(name)
            against = "" if wanted is None else _verdict(ratios[name] >= wanted, f"{wanted:g}x")
            print(f"  {name:<56}{median * 1e3:>10.3f} ms {ratios[name]:>8.2f}x{against}")
        self._keep(
            "comparison", title, baseline=baseline, seconds=medians, ratios=ratios, goal=goal or {}
        )
        return ratios

    def growth(
        self,
        title: str,
        axis: str,
        make: Callable[[int], Mapping[str, Work] | Work],
        sizes: Sequence[int],
    ) -> dict[str, float]:
        """Time work of growing size; return the slope of each in a log-log plot.

        A slope of 1 means that twice the size takes twice the time.

        Parameters
        ----------
        title : str
        axis : str
            What grows: "n" (samples), "K" (labels) or "D" (features).
        make : callable
            Takes a size and returns the work, or several works by name.
        sizes : sequence of int
            At least three, ascending.
        """
        seconds: dict[str, list[float]] = {}
        for size in sizes:
            made = make(size)
            for name, run in (made if isinstance(made, Mapping) else {"nescio": made}).items():
                run()
                seconds.setdefault(name, []).append(_best(run))
        slopes = {name: _slope(sizes, values) for name, values in seconds.items()}
        print(f"\n{title}: growth with {axis} ({AXES[axis]})")
        for name, values in seconds.items():
            pairs = zip(sizes, values, strict=True)
            shown = ", ".join(f"{size:,}: {value * 1e3:.3g} ms" for size, value in pairs)
            print(f"  {name}: slope {slopes[name]:.2f} ({shown})")
        self._keep("growth", title, axis=axis, sizes=list(sizes), seconds=seconds, slopes=slopes)
        return slopes

    def fact(
        self,
        title: str,
        value: float,
        unit: str = "",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Keep one number, such as a peak of memory, a recall or a largest difference."""
        goals = [] if at_most is None else [_verdict(value <= at_most, f"at most {at_most:g}")]
        if at_least is not None:
            goals.append(_verdict(value >= at_least, f"at least {at_least:g}"))
        print(f"  {title}: {written(value)} {unit}{''.join(goals)}")
        self._keep("fact", title, value=float(value), unit=unit, at_most=at_most, at_least=at_least)

    def _keep(self, kind: str, title: str, **content: Any) -> None:
        self.records.append({"kind": kind, "title": title, **content})


def written(value: float) -> str:
    """Return a number with as many digits as mean something."""
    if value == 0 or (1e-3 <= abs(value) < 1e4):
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.1e}"


def peak_megabytes() -> float:
    """Return the largest resident size of this process so far, in millions of bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    import numpy

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9),
        "avx512": " avx512f" in _cpuinfo(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
    }


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def _processor() -> str:
    lines = (line.partition(":") for line in _cpuinfo().splitlines())
    result = (value.strip() for name, _, value in lines if name.strip() == "model name")
    return next(result, platform.processor() or platform.machine())


def _verdict(met: bool, goal: str) -> str:
    return f"  (goal {goal}: {'met' if met else 'MISSED'})"


def _seconds(run: Work) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _best(run: Work) -> float:
    """Return the shortest of several times: with other load, the one that tells most of the size.

    At least three times, and as many as fit into `GROWTH_SECONDS`.
    """
    times: list[float] = []
    while len(times) < 3 or (sum(times) < GROWTH_SECONDS and len(times) < 1000):
        times.append(_seconds(run))
    return min(times)


def _slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the slope of a least-squares line through the logarithms."""
    x = [math.log(size) for size in sizes]
    return statistics.linear_regression(x, [math.log(value) for value in seconds]).slope
