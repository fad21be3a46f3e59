"""How much AUROC does a smaller bank of knn lose: samples drawn at random, or centres?

    python benchmarks/coreset.py --train TRAIN --id TEST --ood TEXTURES --ood OBJECTS

The files are outputs with features. Each size is measured with the training samples in three
orders, which give other random choices. The table has the AUROC in per cent, as mean and standard
deviation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from nescio import NearestNeighbours, Outputs
from nescio.detectors import steps
from nescio.metrics import auroc

SHARES = (1.0, 0.5, 0.25, 0.1)
ORDERS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a reduced bank of knn loses.")
    parser.add_argument("--train", required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--ood", required=True, action="append")
    options = parser.parse_args()
    train = Outputs.load(options.train).features
    sets = [Outputs.load(path).features for path in (options.id, *options.ood)]
    names = " | ".join(Path(path).stem for path in options.ood)
    print(f"| training samples | detector | {names} |\n|---|---|{'---:|' * len(options.ood)}")
    for share in SHARES:
        bank = round(share * len(train))
        for detector in (
            NearestNeighbours(bank=bank),
            NearestNeighbours(k=1, bank=bank),
            *([NearestNeighbours(k=1, bank=bank, reduce="centers")] if share < 1 else []),
        ):
            found = [aurocs(detector, train, sets, order) for order in range(ORDERS)]
            cells = " | ".join(
                f"{mean:.2f} ± {deviation:.2f}"
                for mean, deviation in zip(np.mean(found, 0), np.std(found, 0), strict=True)
            )
            print(f"| {bank:,} | k = {detector.k}, {detector.reduce} | {cells} |", flush=True)


def aurocs(detector, train, sets, order):
    """Return the AUROC in per cent against each set, with the training samples in another order."""
    steps.learn(detector, train[np.random.default_rng(order).permutation(len(train))], None)
    detector.offset_ = 0.0  # scores need no threshold
    known, *others = (detector.score_samples(features) for features in sets)
    return [100 * auroc(known, strange) for strange in others]


if __name__ == "__main__":
    main()
