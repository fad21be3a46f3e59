"""From how many held-out samples on is the default better than joint energy alone?

    python benchmarks/detection/few_samples.py --train train.safetensors \
        --held-out val.safetensors --id test.safetensors --ood textures.safetensors

The default takes half of the held-out samples for the p-values of its parts, so that fewer of them
set the threshold. The table has, in per cent, what each form of the default keeps of the
in-distribution data and lets through of each out-of-distribution set at its own threshold: means
over 20 random draws of so many held-out samples.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

from nescio import Combined, JointEnergy, OutOfRange, TopKJointEnergy
from nescio.detectors.combined import MOST_LABELS
from nescio.errors import NescioWarning
from nescio.outputs import Outputs

SIZES = (60, 80, 100, 120, 160, 200, 400)
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
                rows = np.random.default_rng(draw).permutation(len(held_out))[:size]
                detector.calibrate(held_out[rows], from_probs=False)
                kept.append([(detector.predict(o, from_probs=False) == 1).mean() for o in shown])
            inside, *through = 100 * np.mean(kept, axis=0)
            cells.append(f"{inside:.1f}: {', '.join(f'{share:.1f}' for share in through)}")
        print(f"| {size} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
