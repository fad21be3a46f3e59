"""Tiny evidence for reports."""

from __future__ import annotations

import numpy as np
import pytest

from nescio import scores
from nescio.lab.benchmark.results import Evidence, Line
from nescio.metrics import evaluate
from nescio.metrics.comparison import Scored
from nescio.outputs import Outputs

DETECTORS = {
    "joint_energy": scores.joint_energy,
    "max_logit": scores.max_logit,
    "sum_prob": scores.sum_prob,
    "top_k_joint_energy(k=5)": lambda logits: scores.top_k_joint_energy(logits, 5),
    "msp": scores.msp,
}


@pytest.fixture
def make_outputs():
    """Random logits, higher for the labels that an input has."""

    def make(n_samples=120, n_labels=7, *, lift=4.0, seed=0, labels=True, ids=True, names=True):
        rng = np.random.default_rng(seed)
        truth = (rng.random((n_samples, n_labels)) < 2 / n_labels).astype(np.uint8)
        return Outputs(
            rng.normal(-2, 1.5, (n_samples, n_labels)) + lift * truth,
            labels=truth if labels else None,
            ids=[f"folder/{number}.jpg" for number in range(n_samples)] if ids else None,
            label_names=[f"label-{number}" for number in range(n_labels)] if names else None,
        )

    return make


@pytest.fixture
def make_evidence(make_outputs):
    """Evidence of a network that finds the labels of its ID data and few in the OOD sets."""

    def make(id_name="pets", oods=("stones",), *, seed=0, detectors=None, roots=None, **outputs):
        id_outputs = make_outputs(seed=10 * seed, **outputs)
        shape = {name: outputs[name] for name in ("n_samples", "n_labels") if name in outputs}
        ood_outputs = {
            ood: make_outputs(seed=10 * seed + number, lift=0.9, labels=False, **shape)
            for number, ood in enumerate(oods, start=1)
        }
        scored = {
            name: Scored(
                np.asarray(score(id_outputs.logits), dtype=np.float64),
                {ood: np.float64(score(outputs.logits)) for ood, outputs in ood_outputs.items()},
            )
            for name, score in (detectors or DETECTORS).items()
        }
        return Evidence(id_name, seed, id_outputs, ood_outputs, scored, roots or {})

    return make


@pytest.fixture
def make_lines():
    """The result lines of evidence."""

    def make(*evidence, n_bootstrap=20, manifest=None):
        return [
            Line(
                "tiny",
                run.id_name,
                ood,
                name,
                run.seed,
                evaluate(scored.id_scores, scored.ood_scores[ood], n_bootstrap=n_bootstrap),
                manifest=manifest or {"data": {"id": run.id_name}, "versions": {"numpy": "2"}},
            )
            for run in evidence
            for ood in run.ood_outputs
            for name, scored in run.scores.items()
        ]

    return make


@pytest.fixture
def evidence():
    """100 ID inputs of scores 0 to 99 under both, but for the few that are judged differently."""
    joint, largest = np.arange(100.0), np.arange(100.0)
    joint[[0, 50]] = 50, 0  # input 0 is right under joint energy, 50 under the largest logit
    ood = {"joint_energy": np.array([0.0, 99, 2, 50]), "max_logit": np.array([60.0, 1, 90, 50])}
    logits = np.zeros((100, 3))
    logits[:, 1] = -4
    return Evidence(
        "pets",
        0,
        Outputs(
            logits, ids=[f"{number}.jpg" for number in range(100)], label_names=["a", "b", "c"]
        ),
        {"stones": Outputs(np.ones((4, 3)), ids=[f"{number}.jpg" for number in range(4)])},
        {
            "joint_energy": Scored(joint, {"stones": ood["joint_energy"]}),
            "max_logit": Scored(largest, {"stones": ood["max_logit"]}),
        },
    )
