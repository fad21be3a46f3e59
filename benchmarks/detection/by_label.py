"""Who gets the false alarms: by frequency of the label, with one threshold and with several.

    nescio bench voc20 --data ../shared/data --output build/bench
    python benchmarks/detection/by_label.py build/bench/cache/outputs voc-trainval

It reads the outputs that the benchmark keeps, of its first network: train, val and test. Of val and
test together, a random half calibrates and the other half is judged, ten times.
"""

import sys
import warnings
from pathlib import Path

import numpy as np

import nescio as ns
from nescio.metrics import label_rates

DETECTORS = ("joint_energy", "max_logit", "combined")
COLUMNS = ("all samples", "rare labels", "frequent labels", "worst label", "deviation over labels")


def main(folder: str, data: str) -> None:
    train, val, test = (_read(folder, f"{data}-{split}") for split in ("train", "val", "test"))
    judged = ns.Outputs.concat([val, test])
    print(f"false alarms in per cent, {len(judged) // 2:,} samples calibrate, ten splits")
    print("| detector | thresholds | " + " | ".join(COLUMNS) + " |")
    print("|---|---|" + "---:|" * len(COLUMNS))
    for name in DETECTORS:
        for groups in (None, "label_count", "top_label"):
            shares = [_shares(name, groups, train, judged, seed) for seed in range(10)]
            means = " | ".join(f"{100 * mean:.1f}" for mean in np.mean(shares, axis=0))
            print(f"| `{name}` | {groups or 'one'} | {means} |", flush=True)


def _read(folder: str, name: str) -> ns.Outputs:
    return ns.Outputs.load(min(Path(folder).glob(f"*/{name}-*.safetensors")))


def _shares(
    name: str, groups: str | None, train: ns.Outputs, judged: ns.Outputs, seed: int
) -> list[float]:
    order = np.random.default_rng(seed).permutation(len(judged))
    half = len(order) // 2
    detector = ns.DETECTORS[name]()
    if detector.learns_from:
        detector.fit(train)
    detector.calibrate(judged[order[:half]], groups=groups)
    new = judged[order[half:]]
    rates = label_rates(detector.decision_function(new), new.labels, threshold=0.0)
    by_frequency = {rate.name: rate.false_alarms.value for rate in rates.by_frequency}
    by_label = [rate.false_alarms.value for rate in rates.labels]
    overall = rates.overall.false_alarms.value
    worst, deviation = max(by_label), float(np.std(by_label))
    return [overall, by_frequency["rare"], by_frequency["frequent"], worst, deviation]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
