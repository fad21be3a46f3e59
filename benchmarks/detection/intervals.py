"""Measure how often intervals of 95 % contain the true FPR95, AUROC and AUPR.

    python benchmarks/detection/intervals.py            10 minutes: docs/explanation/metrics.md
    python benchmarks/detection/intervals.py --runs 50  a quick look

Each run draws ID and OOD scores from known distributions and computes an interval by each method.
The true values are those of a very large sample. The last column counts, for each method, the runs
in which an interval does not contain the estimate itself.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from nescio import evaluate
from nescio.metrics.measures import Ranking, bca_levels

MEASURES = ("fpr", "auroc", "aupr")
METHODS = ("percentile", "basic", "BCa", "nescio")
TAILS = [0.025, 0.975]
LARGE = 400_000
ROUNDING = 1e-9

Scores = np.ndarray
Draw = Callable[[np.random.Generator, int], Scores]


def normal(mean: float) -> Draw:
    return lambda rng, n: rng.normal(mean, 1, n)


def rounded(mean: float) -> Draw:
    return lambda rng, n: rng.normal(mean, 1, n).round()


# How ID and OOD scores are drawn, and how many of each.
SCENARIOS: dict[str, tuple[Draw, Draw, int, int]] = {
    "balanced": (normal(2), normal(0), 300, 300),
    "few samples": (normal(2), normal(0), 20, 20),
    "many ID, few OOD": (normal(2), normal(0), 500, 25),
    "few ID, many OOD": (normal(2), normal(0), 25, 500),
    "many ties": (rounded(2), rounded(0), 200, 200),
    "nearly separated": (normal(4), normal(0), 100, 100),
    "separated": (normal(20), normal(0), 50, 50),
    "no better than chance": (normal(0), normal(0), 100, 100),
    "swapped": (normal(0), normal(3), 50, 50),
}


def textbook_resamples(
    id_scores: Scores, ood_scores: Scores, n_resamples: int, rng: np.random.Generator
) -> dict[str, Scores]:
    """Draw scores with replacement and measure them; copies of a score count as tied."""
    result = []
    for _ in range(n_resamples):
        drawn = (rng.choice(scores, len(scores)) for scores in (id_scores, ood_scores))
        result.append(Ranking.from_scores(*drawn).measures())
    return {name: np.array([item[name] for item in result]) for name in MEASURES}


def textbook_intervals(samples: Scores, value: float) -> Iterator[tuple[str, float, float]]:
    """Give the intervals of the usual methods by name."""
    low, high = np.quantile(samples, TAILS)
    yield "percentile", low, high
    yield "basic", max(0.0, 2 * value - high), min(1.0, 2 * value - low)
    low, high = np.quantile(samples, bca_levels(samples, value, TAILS))
    yield "BCa", low, high


def measure(name: str, n_runs: int, n_resamples: int) -> None:
    """Print the coverage of every method for one way to draw scores."""
    draw_id, draw_ood, n_id, n_ood = SCENARIOS[name]
    rng = np.random.default_rng(0)
    large = draw_id(rng, LARGE), draw_ood(rng, LARGE)
    # The AUPR depends on the ratio of ID to OOD samples.
    exact = evaluate(*large, id_to_ood=n_id / n_ood, n_bootstrap=0)
    truth = {"fpr": exact.fpr.value, "auroc": exact.auroc.value, "aupr": exact.aupr_at_ratio.value}
    covered: Counter[tuple[str, str]] = Counter()
    excluded: Counter[str] = Counter()
    for seed in range(n_runs):
        id_scores, ood_scores = draw_id(rng, n_id), draw_ood(rng, n_ood)
        ours = evaluate(id_scores, ood_scores, n_bootstrap=n_resamples, seed=seed)
        samples = textbook_resamples(id_scores, ood_scores, n_resamples, rng)
        misses = set()
        for key in MEASURES:
            estimate = getattr(ours, key)
            result = [*textbook_intervals(samples[key], estimate.value)]
            for method, low, high in [*result, ("nescio", estimate.low, estimate.high)]:
                covered[key, method] += low - ROUNDING <= truth[key] <= high + ROUNDING
                if not low - ROUNDING <= estimate.value <= high + ROUNDING:
                    misses.add(method)
        excluded.update(misses)
    cells = [f"{name}, {n_id} ID, {n_ood} OOD"]
    cells += [
        " / ".join(f"{100 * covered[key, method] / n_runs:.0f}" for key in MEASURES)
        for method in METHODS
    ]
    cells.append(" / ".join(str(excluded[method]) for method in METHODS))
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--resamples", type=int, default=300)
    options = parser.parse_args()
    print(f"| Scores | {' | '.join(METHODS)} | excluded, of {options.runs} runs |")
    print(f"|---|{'---|' * len(METHODS)}---|")
    for name in SCENARIOS:
        measure(name, options.runs, options.resamples)


if __name__ == "__main__":
    main()
