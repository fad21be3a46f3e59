"""The k largest logits of 100,000 and 1,000,000 labels: all are formed, or searched by cells."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from functools import cache

import numpy as np

from nescio import HeadJointEnergy, scores
from nescio._validation import FloatArray
from nescio.outputs import Head
from speed.harness import Bench, peak_megabytes

N_UNITS = 128
N_SAMPLES = 256
K = 20
GOAL = 10.0  # at 1,000,000 labels
SIZES = (100_000, 316_000, 1_000_000)


def run(bench: Bench) -> None:
    for kind in (random_head, head_of_topics):
        for n_labels in (SIZES[0], SIZES[-1]):
            if kind is head_of_topics or n_labels == SIZES[0]:
                _compare(bench, kind, n_labels)
    _grow(bench)
    bench.fact("peak memory of this part", peak_megabytes(), "MB", at_most=8000)


def head_of_topics(n_labels: int) -> Head:
    """Made-up labels in topics: 1,000 per topic, 20 per sub-topic.

    The number of cells was chosen on this head, so the recall on another one may be lower.
    """
    rng = np.random.default_rng(0)
    n_topics, n_inner = n_labels // 1000, n_labels // 20
    inner = 0.6 * _directions(n_inner, rng)
    inner += 0.8 * _directions(n_topics, rng)[rng.integers(0, n_topics, n_inner)]
    weight = 0.5 * _directions(n_labels, rng)
    weight += 0.85 * inner[rng.integers(0, n_inner, n_labels)]
    return Head(weight, rng.normal(-12, 1, n_labels).astype(np.float32))


def random_head(n_labels: int) -> Head:
    """Labels without any order, for which cells can promise nothing."""
    rng = np.random.default_rng(0)
    return Head(_directions(n_labels, rng), rng.normal(-12, 1, n_labels).astype(np.float32))


def _directions(n: int, rng: np.random.Generator) -> FloatArray:
    rows = rng.standard_normal((n, N_UNITS), dtype=np.float32)
    rows /= np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    return rows


def _inputs(head: Head) -> FloatArray:
    """Return inputs of the head that are near one label each, with logits of about 4 for it."""
    rng = np.random.default_rng(1)
    near = head.weight[rng.integers(0, len(head.bias), N_SAMPLES)]
    return 18 * (near + 0.5 * _directions(N_SAMPLES, rng)) / 1.1


@cache
def _made(
    kind: Callable[[int], Head], n_labels: int
) -> tuple[Head, FloatArray, HeadJointEnergy, float]:
    """Return a head, inputs of it, a detector, and the seconds that it took to make."""
    head = kind(n_labels)
    inputs = _inputs(head)
    start = time.perf_counter()
    detector = HeadJointEnergy.from_head(head, k=K)
    detector.score_and_bound(inputs)  # what is computed at first use
    return head, inputs, detector, time.perf_counter() - start


def _compare(bench: Bench, kind: Callable[[int], Head], n_labels: int) -> None:
    head, inputs, ours, building = _made(kind, n_labels)
    exact, whole = copy(ours).set_params(probes=0), copy(ours).set_params(k=0)  # the same cells

    def logits() -> FloatArray:
        found = inputs @ head.weight.T
        found += head.bias
        return found

    what = f"{n_labels:,} labels {'in topics' if kind is head_of_topics else 'at random'}"
    goal = GOAL if n_labels == SIZES[-1] else None
    bench.compare(
        f"{N_SAMPLES} samples, {what}, {N_UNITS} units",
        "all logits, joint energy",
        {
            "all logits, joint energy": lambda: scores.joint_energy(logits()),
            f"all logits, joint energy of the {K} largest": lambda: scores.top_k_joint_energy(
                logits(), K
            ),
            "nescio, score": lambda: ours.score_samples(inputs),
            "nescio, score and bound": lambda: ours.score_and_bound(inputs),
            "nescio, score and bound, exact": lambda: exact.score_and_bound(inputs),
            "nescio, all labels": lambda: whole.score_samples(inputs),
        },
        goal=goal and {"nescio, score": goal, "nescio, score and bound": goal},
        rounds=3,
    )
    one = inputs[:1]
    bench.compare(
        f"one sample, {what}, {N_UNITS} units",
        "all logits, joint energy",
        {
            "all logits, joint energy": lambda: scores.joint_energy(
                one @ head.weight.T + head.bias
            ),
            "nescio, score and bound": lambda: ours.score_and_bound(one),
        },
        goal=goal and {"nescio, score and bound": goal},
    )
    bench.fact(f"{what}: time to build", building, "s")
    _state(bench, what, ours, exact, inputs, logits())


def _state(
    bench: Bench,
    what: str,
    ours: HeadJointEnergy,
    exact: HeadJointEnergy,
    inputs: FloatArray,
    logits: FloatArray,
) -> None:
    """Print how much of the k largest logits is found, and how good the bound is."""
    energy = scores.joint_energy(logits).astype(np.float64)
    top = np.partition(logits, -K, axis=1)[:, -K:].astype(np.float64)
    score, bound = ours.score_and_bound(inputs)
    found = ours.top_labels(inputs)[1]
    kept = found >= top.min(1)[:, None] - 1e-4
    bench.fact(f"{what}: recall of the {K} largest", kept.mean(), "")
    bench.fact(f"{what}: mean score of the {K} largest", scores.joint_energy(top).mean())
    bench.fact(f"{what}: mean of what the score lacks", (scores.joint_energy(top) - score).mean())
    bench.fact(f"{what}: mean of what all other labels add", (energy - score).mean())
    bench.fact(f"{what}: mean bound", bound.mean())
    bench.fact(f"{what}: mean bound of the exact search", exact.score_and_bound(inputs)[1].mean())
    naive = (logits.shape[1] - K) * scores.label_energy(top.min(1))
    bench.fact(f"{what}: mean of (n_labels - k) times the energy of the k-th", naive.mean())
    rounded = 1e-5 * energy
    holds = (score <= energy + rounded) & (energy <= score + bound + rounded)
    bench.fact(f"{what}: share of samples for which the bound holds", holds.mean(), at_least=1)


def _grow(bench: Bench) -> None:
    def make(n_labels: int) -> dict[str, Callable[[], object]]:
        head, inputs, ours, _ = _made(head_of_topics, n_labels)
        return {
            "nescio, score and bound": lambda: ours.score_and_bound(inputs),
            "all logits, joint energy": lambda: scores.joint_energy(
                inputs @ head.weight.T + head.bias
            ),
        }

    bench.growth(f"{N_SAMPLES} samples, labels in topics", "K", make, SIZES)
