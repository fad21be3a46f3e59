"""Does the default see gross faults? The share that it flags, mean and smallest over five seeds.

    python benchmarks/detection/gross_faults.py
    python benchmarks/detection/gross_faults.py --results benchmarks/results/gross-faults.json

Faults of the kind that happens in production: inputs on another scale, black, white or inverted
images, noise, shifted or zeroed tables. Four models of scikit-learn's data, each one trained,
fitted and calibrated as the README does it:

- MLP and CNN on pairs of digits, with one hidden layer before the last one as features;
- a linear model behind a StandardScaler, and a forest, on make_multilabel_classification.

Three ways to calibrate: "fit", with training inputs and labels; "calibrate", on held-out inputs
alone, where the model gives features; "logits", on an array of logits. "joint energy" is the
paper's method, for comparison. The weights of the guard were chosen in view of these seeds.

The sets "8 and 9" (unknown digits), "turned" and "reversed" (columns in another order) are no gross
faults, but show what is left. "test" is ordinary data: its share is the rate of false alarms.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import nescio as ns
from nescio.detectors.combined import default_detector
from nescio.errors import NescioWarning

SEEDS = 5
SCALE = ("x 2", "x 10", "x 16", "x 255", "x 1000", "noise x 16")
NO_FAULT = ("test", "8 and 9", "turned", "reversed")


def digit_pairs(rows, n_samples, rng):
    """Return images of two digits side by side, from 0 to 1, and which of 0 to 7 they show."""
    digits = load_digits()
    left, right = rng.choice(rows, (2, n_samples))
    images = np.concatenate([digits.images[left], digits.images[right]], axis=2)[:, None] / 16
    shown = np.stack([digits.target[left], digits.target[right]], axis=1)
    return images.astype("f4"), (shown[:, :, None] == np.arange(8)).any(1)


def networks(seed: int) -> Iterator[tuple]:
    """Give name, model, training inputs, labels, held-out inputs and faulty inputs."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    target = load_digits().target
    known = rng.permutation(np.flatnonzero(target < 8))
    x, y = digit_pairs(known[:800], 3000, rng)
    held_out, _ = digit_pairs(known[800:1100], 1500, rng)
    test, _ = digit_pairs(known[1100:], 1000, rng)
    noise = rng.random(test.shape, dtype="f4")
    faulty = {
        "test": test,
        **{f"x {factor}": factor * test for factor in (2, 16, 255)},
        "/ 16": test / 16,
        "inverted": 1 - test,
        "black": 0 * test,
        "white": 0 * test + 1,
        "noise": noise,
        "noise x 16": 16 * noise,
        "shuffled": test.reshape(1000, -1)[:, rng.permutation(128)].reshape(test.shape),
        "turned": test[:, :, ::-1, ::-1].copy(),
        "8 and 9": digit_pairs(np.flatnonzero(target >= 8), 1000, rng)[0],
    }
    last = (nn.Linear(64, 8),)
    convolutions = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d((2, 4)), nn.Flatten()),
    )
    models = {
        "MLP": nn.Sequential(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), *last),
        "CNN": nn.Sequential(convolutions, nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 8)),
    }
    for name, model in models.items():
        train(model, torch.from_numpy(x), torch.from_numpy(y).float())
        yield name, model, x, y, held_out, faulty


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(12):
        for rows in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows]).backward()
            optimiser.step()
    model.eval()


def tables(seed: int) -> Iterator[tuple]:
    """The same for a table of 20 columns of counts."""
    x, y = make_multilabel_classification(2500, 20, n_classes=5, random_state=seed)
    rng = np.random.default_rng(seed)
    (x, held_out, test), labels = np.split(x, [1500, 2000]), y[:1500]
    one_column = test[test[:, 5] > 0].copy()  # 100 times 0 is no fault
    one_column[:, 5] *= 100
    faulty = {
        "test": test,
        "x 10": 10 * test,
        "x 1000": 1000 * test,
        "one column x 100": one_column,
        "+ 100": test + 100,
        "negative": -test,
        "zeros": 0 * test,
        "means": 0 * test + x.mean(0),
        "noise": rng.normal(0, 50, test.shape),
        "reversed": test[:, ::-1].copy(),
    }
    models = {
        "scaler and linear": make_pipeline(
            StandardScaler(), OneVsRestClassifier(LogisticRegression())
        ),
        "forest": RandomForestClassifier(50, random_state=seed),
    }
    for name, model in models.items():
        yield name, model.fit(x, labels), x, labels, held_out, faulty


def flagged(model, x, labels, held_out, faulty) -> dict[str, dict[str, float]]:
    """Return the share that is flagged, by way to calibrate and by fault."""
    logits = ns.wrap(model).outputs(held_out)
    detectors = {
        "logits": default_detector(held_out=logits).detector,
        "joint energy": ns.JointEnergy(),
    }
    ways = {
        "fit": ns.wrap(model).fit(x, labels).calibrate(held_out, self_check=False),
        "calibrate": ns.wrap(model).calibrate(held_out, self_check=False),
    }
    for name, detector in detectors.items():
        ways[name] = ns.wrap(model, detector=detector.calibrate(logits, from_probs=False))
    return {
        name: {
            fault: float(1 - way.assess(inputs).in_distribution.mean())
            for fault, inputs in faulty.items()
        }
        for name, way in ways.items()
    }


def render(results: dict) -> str:
    """Return a table for the networks and one for the tables, then what is below 95 %."""
    texts = []
    models = list(results)
    for pair in (models[:2], models[2:]):
        columns = [(model, way) for model in pair for way in results[model][0]]
        heads = " | ".join(f"{model}: {way}" for model, way in columns)
        texts += [f"\n| fault | {heads} |", f"|---|{'---:|' * len(columns)}"]
        for fault in results[pair[0]][0]["fit"]:
            cells = [
                cell([100 * seed[way][fault] for seed in results[model]]) for model, way in columns
            ]
            texts.append(f"| {fault} | {' | '.join(cells)} |")
    texts.append("")
    for way, faults in (("fit", None), ("calibrate", None), ("logits", SCALE)):
        for model, by_seed in results.items():
            chosen = [f for f in faults or by_seed[0]["fit"] if f in by_seed[0]["fit"]]
            means = {f: np.mean([r[way][f] for r in by_seed]) for f in chosen if f not in NO_FAULT}
            missed = ", ".join(f"{f} {100 * m:.0f} %" for f, m in means.items() if m < 0.95)
            texts.append(f"{way}, {model}: below 95 %: {missed or 'none'}")
    return "\n".join(texts)


def cell(shares: list[float]) -> str:
    mean, smallest = np.mean(shares), min(shares)
    return f"{mean:.0f}" if mean - smallest < 0.5 else f"{mean:.0f} ({smallest:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, help="write the shares of each seed to this file")
    parser.add_argument("--render", type=Path, help="print the tables of such a file, and end")
    options = parser.parse_args()
    if options.render:
        print(render(json.loads(options.render.read_text())))
        return
    warnings.simplefilter("ignore", NescioWarning)
    torch.set_num_threads(1)
    results = defaultdict(list)
    for seed in range(SEEDS):
        for problems in (networks, tables):
            for name, *problem in problems(seed):
                results[name].append(flagged(*problem))
    if options.results:
        options.results.write_text(json.dumps(results, indent=1) + "\n")
    print(render(results))


if __name__ == "__main__":
    main()
