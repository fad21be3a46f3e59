"""The speed of a monitor, its delay after a change, and its rate of false alarms.

python benchmarks/speed/monitor.py           run everything
python benchmarks/speed/monitor.py speed     one part: speed, delays, alarms
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from nescio import JointEnergy, Monitor
from nescio.monitor.martingale import Bag, Floats, Martingale

N_LABELS = 80


def _capital(p_values: Floats) -> Floats:
    """Return the logarithm of the capital after each p-value."""
    martingale = Martingale()
    return martingale.add(martingale.gains(p_values))


def speed() -> None:
    """Samples per second of `update`, the best of five rounds."""
    rng = np.random.default_rng(0)
    detector = JointEnergy().calibrate(rng.normal(-3, 2, (5000, N_LABELS)).astype(np.float32))
    logits = rng.normal(-3, 2, (100_000, N_LABELS)).astype(np.float32)
    whole = detector.assess(logits)
    for size in (1000, 64, 1):
        starts = range(0, min(len(logits), 2000 * size), size)
        blocks = [whole[index : index + size] for index in starts]
        times = []
        for _ in range(5):
            monitor = Monitor(detector)
            start = time.perf_counter()
            for assessment in blocks:
                monitor.update(assessment)
            times.append(time.perf_counter() - start)
        rate = len(blocks) * size / min(times)
        print(f"blocks of {size:>5,}: {rate:>10,.0f} samples per second")


def delays() -> None:
    """Inputs between a change and the alarm at alpha = 0.01: the median of ten runs."""
    for n, before, shift, share in (
        (1000, 0, -1.0, 1.0),
        (1000, 20_000, -1.0, 1.0),
        (1000, 20_000, -0.5, 1.0),
        (5000, 100_000, -0.5, 1.0),
        (5000, 100_000, -0.2, 1.0),
        (5000, 20_000, -4.0, 0.05),
        (5000, 20_000, -4.0, 0.02),
    ):
        result = []
        for seed in range(10):
            rng = np.random.default_rng(seed)
            stream = rng.normal(size=before + 20_000)
            bag = Bag(np.sort(rng.normal(size=n)))
            stream[before:] += shift * (rng.random(20_000) < share)
            capital = _capital(bag.add(stream, rng.random(len(stream))))
            crossed = np.flatnonzero(capital >= np.log(100))
            result.append(float(crossed[0] + 1 - before) if len(crossed) else np.inf)
        what = f"{share:.0%} of scores {shift:+g} after {before:,} inputs, n = {n:,}"
        print(f"{what:<75}: {statistics.median(result):,.0f}")


def alarms() -> None:
    """False alarms at alpha = 0.1 in 400 streams of 2,000 inputs, with online and fixed ranks."""
    for n, kind in ((50, "continuous"), (1000, "continuous"), (50, "tied"), (1000, "tied")):
        result = {"online": 0, "fixed": 0}
        for seed in range(400):
            rng = np.random.default_rng(seed)
            values = rng.normal(size=n + 2000)
            if kind == "tied":
                values = np.minimum(values, 0.5).round(1)
            calibration, stream = np.sort(values[:n]), values[n:]
            uniform = rng.random(2000)
            below = np.searchsorted(calibration, stream, side="right")
            for name, p_values in (
                ("online", Bag(calibration).add(stream, uniform)),
                ("fixed", (below + uniform) / (n + 1)),
            ):
                result[name] += bool(_capital(p_values).max() >= np.log(10))
        shares = ", ".join(f"{name} ranks {count / 400:.1%}" for name, count in result.items())
        print(f"{n:>5,} calibration scores, {kind:<10}: {shares}")


if __name__ == "__main__":
    parts = {part.__name__: part for part in (speed, delays, alarms)}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=parts)
    chosen = parser.parse_args().part
    for name, part in parts.items():
        if chosen in (None, name):
            print(f"\n{part.__doc__}")
            part()
