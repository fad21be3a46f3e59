"""From how many held-out and training samples on is the default better than joint energy alone?

    python benchmarks/detection/few_samples.py --train train.safetensors \
        --held-out val.safetensors --id test.safetensors --ood textures.safetensors

The default takes half of the held-out samples for the p-values of its parts, so that fewer of them
set the threshold. The first table has, in per cent, what each form of the default keeps of the
in-distribution data and lets through of each out-of-distribution set at its own threshold: means
over 20 random draws of so many held-out samples. The second one has the same for draws of so many
training samples, with all held-out samples.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

from nescio import Combined, JointEnergy, OutOfRange, TopKJointEnergy
from nescio.detectors import Detector
from nescio.detectors.combined import MOST_LABELS
from nescio.errors import NescioWarning
from nescio.outputs import Outputs

SIZES = (60, 80, 100, 120, 160, 200, 400)
TRAINING_SIZES = (5, 20, 40, 80, 120, 160, 320, 1000)
DRAWS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in ("--train", "--held-out", "--id"):
        parser.add_argument(option, required=True)
    parser.add_argument("--ood", required=True, nargs="+")
    options = parser.parse_args()
    warnings.simplefilter("ignore", NescioWarning)
    paths = (options.train, options.held_out, options.id, *options.ood)
    train, held_out, *shown = map(Outputs.load, paths)
    many = train.n_labels > MOST_LABELS
    energy = TopKJointEnergy(MOST_LABELS) if many else JointEnergy()
    detectors = {
        "joint energy": energy,
        "logits": Combined([energy, OutOfRange("logits", held_out=True)]),
        "features, no training data": Combined([energy, OutOfRange(held_out=True)]),
        "with training data": Combined().fit(train, from_probs=False),
    }
    print(f"| held-out samples | {' | '.join(detectors)} |\n|---:|{'---|' * len(detectors)}")
    for size in SIZES:
        cells = []
        for detector in detectors.values():
            kept = []
            for draw in range(DRAWS):
                detector.calibrate(held_out[drawn(held_out, size, draw)], from_probs=False)
                kept.append(shares(detector, shown))
            cells.append(cell(kept))
        print(f"| {size} | {' | '.join(cells)} |", flush=True)
    without = detectors["features, no training data"].calibrate(held_out, from_probs=False)
    print("\n| training samples | kept: through |\n|---:|---|")
    print(f"| 0 | {cell([shares(without, shown)])} |")
    for size in TRAINING_SIZES:
        kept = []
        for draw in range(DRAWS):
            learned = Combined().fit(train[drawn(train, size, draw)], from_probs=False)
            kept.append(shares(learned.calibrate(held_out, from_probs=False), shown))
        print(f"| {size:,} | {cell(kept)} |", flush=True)


def drawn(outputs: Outputs, size: int, draw: int) -> np.ndarray:
    """Return the rows of a random draw."""
    return np.random.default_rng(draw).permutation(len(outputs))[:size]


def shares(detector: Detector, shown: list[Outputs]) -> list[float]:
    """Return what the detector keeps of each set."""
    return [(detector.predict(outputs, from_probs=False) == 1).mean() for outputs in shown]


def cell(kept: list[list[float]]) -> str:
    """Write the means over the draws: of the in-distribution data, then of the others."""
    inside, *through = 100 * np.mean(kept, axis=0)
    return f"{inside:.1f}: {', '.join(f'{share:.1f}' for share in through)}"


if __name__ == "__main__":
    main()
