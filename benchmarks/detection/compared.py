"""Other libraries on the same multi-label data: FPR95, AUROC and time, over five seeds.

    make build/peers
    python benchmarks/detection/compared.py --results benchmarks/results/compared.json

A small network learns which of the digits 0 to 6 a scene shows: one to four of scikit-learn's
digits on a grid. Unknown are scenes of the digits 7 to 9 (near), patches of photographs and noise
(far). A seed makes the scenes and the network. Every method gets the same arrays: the logits, or
the activations of the layer before them, and runs with the defaults of its library. Methods that
need one class per sample get the label with the largest logit. Two other data sets were tried first
and given up because they took too long: larger scenes (a part of one seed ran) and sentences (none
did). PyOD's PCA was left out after one seed: it could not tell samples apart. Nothing else was
chosen by a result.

A time is of fitting on 3,000 scenes and scoring 4,000, relative to nescio's method in the first
row with a 1 that reads the same array, with OMP_NUM_THREADS=1. oodeel runs the network itself,
which is part of its time, and pytorch-ood's KNN uses all processors.
A library that is not installed is left out.

`--render` prints the tables of docs/explanation/compared-with.md from the committed results.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_sample_images
from torch import nn

import nescio
from nescio.detectors.registry import build_detector
from nescio.outputs import Outputs

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "build" / "peers"
RESULTS = Path(__file__).parents[1] / "results" / "compared.json"
SEEDS = 5
OOD = {"unseen": "unseen digits", "photos": "photos", "noise": "noise"}

Arrays = dict[str, Outputs]  # by split
Scenes = tuple[NDArray[np.float64], NDArray[np.uint8]]  # pixels and labels
Scores = dict[str, np.ndarray]  # by split; higher means more in-distribution
Method = Callable[[nn.Sequential, Arrays, dict[str, torch.Tensor]], Scores]


# --- the network ------------------------------------------------------------------------------


def scenes(digits: Sequence[int], images: slice, n: int, rng: np.random.Generator) -> Scenes:
    """Return scenes of one to four of these digits on a two by two grid, and which they show."""
    data = load_digits()
    shares = [data.images[data.target == digit][images] / 16 for digit in digits]
    pixels, labels = np.zeros((n, 2, 8, 2, 8)), np.zeros((n, len(digits)), np.uint8)
    for scene, label in zip(pixels, labels, strict=True):
        for cell in rng.permutation(4)[: rng.integers(1, 5)]:
            digit = rng.integers(len(digits))
            scene[cell // 2, :, cell % 2] = rng.choice(shares[digit])
            label[digit] = 1
    return pixels.reshape(n, 256), labels


def photos(n: int, rng: np.random.Generator) -> np.ndarray:
    """Return grey patches of scikit-learn's two photographs."""
    grey = [image.mean(2) / 255 for image in load_sample_images().images]
    corners = rng.integers(0, [400, 600], (n, 2))
    return np.stack(
        [grey[i % 2][y : y + 16, x : x + 16].ravel() for i, (y, x) in enumerate(corners)]
    )


def make_data(seed: int) -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """Return the pixels and the labels of every part; parts share no image of a digit."""
    rng = np.random.default_rng(seed)
    parts = {
        "train": scenes(range(7), slice(0, 100), 3000, rng),
        "val": scenes(range(7), slice(100, 135), 1000, rng),
        "test": scenes(range(7), slice(135, 170), 1000, rng),
    }
    pixels = {name: result for name, (result, _) in parts.items()} | {
        "unseen": scenes(range(7, 10), slice(0, 170), 1000, rng)[0],
        "photos": photos(1000, rng),
        "noise": rng.uniform(0, 1, (1000, 256)),
    }
    labels = {name: truth for name, (_, truth) in parts.items()}
    return {
        name: torch.as_tensor(rows, dtype=torch.float32) for name, rows in pixels.items()
    }, labels


def trained(pixels: torch.Tensor, labels: np.ndarray, seed: int) -> nn.Sequential:
    """Train the network: two hidden layers, the second of them the features."""
    torch.manual_seed(seed)
    layers = [nn.Linear(pixels.shape[1], 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(64, labels.shape[1]))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-4)
    truth = torch.as_tensor(labels, dtype=torch.float32)
    for _ in range(20):
        for rows in torch.randperm(len(pixels)).split(100):
            optimiser.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(
                network(pixels[rows]), truth[rows]
            )
            loss.backward()
            optimiser.step()
    return network.eval()


def outputs_of(network: nn.Sequential, pixels: dict, labels: dict) -> Arrays:
    with torch.inference_mode():
        features = {split: network[:-1](rows) for split, rows in pixels.items()}
        return {
            split: Outputs(network[-1](rows).numpy(), rows.numpy(), labels=labels.get(split))
            for split, rows in features.items()
        }


# --- the methods ------------------------------------------------------------------------------


def of_nescio(detector: str, *, one_class: bool = False) -> Method:
    def run(network, made, pixels):
        result = build_detector(detector)
        train = made["train"]
        if one_class:
            classes = np.eye(train.n_labels, dtype=np.uint8)[train.logits.argmax(1)]
            train = Outputs(train.logits, train.features, labels=classes)
        if result.learns_from:
            result.fit(train)
        if detector == "combined":
            result.calibrate(made["val"])
        return {split: result.score_samples(made[split]) for split in ("test", *OOD)}

    return run


def of_arrays(kind: str, fit: Callable, score: Callable) -> Method:
    """Make a method of a peer's fit(train array, class of each sample) and score(fitted, array)."""

    def run(network, made, pixels):
        arrays = {split: getattr(outputs, kind) for split, outputs in made.items()}
        fitted = fit(arrays["train"], made["train"].logits.argmax(1), network)
        return {split: np.asarray(score(fitted, arrays[split])) for split in ("test", *OOD)}

    return run


def pytorch_ood_methods() -> Iterator[tuple[str, str, Method]]:
    from pytorch_ood import detector

    def from_logits(kind):
        return of_arrays(
            "logits",
            lambda train, classes, network: kind(None),
            lambda fitted, logits: -fitted.predict_logits(torch.as_tensor(logits)).numpy(),
        )

    def from_features(make):
        return of_arrays(
            "features",
            lambda train, classes, network: make(network).fit_features(
                torch.as_tensor(train), torch.as_tensor(classes)
            ),
            lambda fitted, rows: -fitted.predict_features(torch.as_tensor(rows)).numpy(),
        )

    for kind in (detector.EnergyBased, detector.MaxLogit, detector.MaxSoftmax):
        yield kind.__name__, "logits", from_logits(kind)
    for kind in (detector.KNN, detector.Mahalanobis, detector.RMD):
        yield kind.__name__, "features", from_features(lambda network, kind=kind: kind(None))
    yield (
        "ViM",
        "features",
        from_features(
            lambda network: detector.ViM(
                None, d=32, w=network[-1].weight.detach(), b=network[-1].bias.detach()
            )
        ),
    )


def oodeel_methods() -> Iterator[tuple[str, str, Method]]:
    from oodeel.methods import DKNN, MLS, Energy, Mahalanobis
    from torch.utils.data import DataLoader, TensorDataset

    def method(kind, **layers):
        def run(network, made, pixels):
            def loader(split, *more):
                return DataLoader(TensorDataset(pixels[split], *more), batch_size=500)

            classes = torch.as_tensor(made["train"].logits.argmax(1))
            result = kind()
            result.fit(network, fit_dataset=loader("train", classes), verbose=False, **layers)
            return {split: -result.score(loader(split))[0] for split in ("test", *OOD)}

        return run

    yield "Energy", "logits", method(Energy)
    yield "MLS", "logits", method(MLS)
    yield "DKNN", "features", method(DKNN, feature_layers_id=[-2])
    yield "Mahalanobis", "features", method(Mahalanobis, feature_layers_id=[-2])


def pyod_methods() -> Iterator[tuple[str, str, Method]]:
    for module, name in (
        *(("ecod", "ECOD"), ("copod", "COPOD"), ("knn", "KNN"), ("lof", "LOF")),
        ("iforest", "IForest"),
    ):
        kind = getattr(importlib.import_module(f"pyod.models.{module}"), name)
        options = {"random_state": 0} if name == "IForest" else {}
        yield (
            name,
            "features",
            of_arrays(
                "features",
                lambda train, classes, network, kind=kind, options=options: kind(**options).fit(
                    train
                ),
                lambda fitted, rows: -fitted.decision_function(rows),
            ),
        )


def cleanlab_methods() -> Iterator[tuple[str, str, Method]]:
    from cleanlab.outlier import OutOfDistribution

    def fit(train, classes, network):
        result = OutOfDistribution()
        result.fit(features=train, verbose=False)
        return result

    yield (
        "OutOfDistribution",
        "features",
        of_arrays("features", fit, lambda fitted, rows: fitted.score(features=rows)),
    )


def nescio_methods() -> Iterator[tuple[str, str, Method]]:
    for name in ("joint_energy", "max_logit", "msp"):
        yield name, "logits", of_nescio(name)
    for name in ("knn", "combined", "label_neighbours", "mahalanobis", "relative_mahalanobis"):
        yield name, "features", of_nescio(name)
    for name in ("vim", "knn(k=50)"):
        yield name, "features", of_nescio(name)
    name = "relative_mahalanobis(normalise=false)"  # as pytorch-ood's: one class, raw features
    yield f"{name}, one class", "features", of_nescio(name, one_class=True)


# Library, its package, its methods. nescio is first: its methods are what times are relative to.
LIBRARIES = {
    "nescio": ("nescio", nescio_methods),
    "pytorch-ood": ("pytorch_ood", pytorch_ood_methods),
    "oodeel": ("oodeel", oodeel_methods),
    "PyOD": ("pyod", pyod_methods),
    "cleanlab": ("cleanlab", cleanlab_methods),
}
REFERENCE = {"logits": "joint_energy", "features": "knn"}


# --- the comparison ---------------------------------------------------------------------------


def run_all() -> dict:
    """Run every method on every seed; return versions and rows."""
    torch.set_num_threads(1)  # and OMP_NUM_THREADS=1: the arrays are small
    methods = [
        (library, name, reads, method)
        for library, (package, made) in LIBRARIES.items()
        if importlib.util.find_spec(package)
        for name, reads, method in made()
    ]
    rows: dict[tuple, dict] = {}
    for seed in range(SEEDS):
        pixels, labels = make_data(seed)
        network = trained(pixels["train"], labels["train"], seed)
        made = outputs_of(network, pixels, labels)
        for library, name, reads, method in methods:
            start = time.perf_counter()
            scores = method(network, made, pixels)
            seconds = time.perf_counter() - start
            row = rows.setdefault(
                (library, name), {"reads": reads, "seconds": [], **{ood: [] for ood in OOD}}
            )
            row["seconds"].append(seconds)
            for ood in OOD:
                result = nescio.evaluate(scores["test"], scores[ood], n_bootstrap=0)
                row[ood].append([100 * result.fpr.value, 100 * result.auroc.value])
        print(f"seed {seed}", file=sys.stderr, flush=True)
    used = {library for library, _ in rows}
    return {
        "versions": {name: _version(name) for name in LIBRARIES if name in used},
        "rows": [{"library": item, "method": name, **row} for (item, name), row in rows.items()],
    }


def _version(library: str) -> str:
    return nescio.__version__ if library == "nescio" else version(library.lower())


def render(results: dict) -> str:
    """Return the tables: first the methods of logits, then those of features."""
    lines = [", ".join(f"{name} {number}" for name, number in results["versions"].items())]
    for reads, reference in REFERENCE.items():
        rows = [row for row in results["rows"] if row["reads"] == reads]
        own = next(row for row in rows if row["method"] == reference)
        heads = [f"{ood}, FPR95 ↓ | AUROC ↑" for ood in OOD.values()]
        lines += ["", f"| library | method | {' | '.join(heads)} | time |"]
        lines += ["|---|---|" + "---:|" * 7]
        for row in sorted(rows, key=lambda row: mean(mean(f for f, _ in row[o]) for o in OOD)):
            cells = [spread(column) for ood in OOD for column in zip(*row[ood], strict=True)]
            ratio = median(row["seconds"]) / median(own["seconds"])
            cells.append("1" if row is own else f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}")
            lines.append(f"| {row['library']} | `{row['method']}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: tuple[float, ...]) -> str:
    return f"{mean(values):.1f} ± {stdev(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, help="write the results to this file")
    parser.add_argument("--render", action="store_true", help="only print the committed results")
    options = parser.parse_args()
    if options.render:
        results = json.loads(RESULTS.read_text("utf-8"))
    else:
        sys.path.insert(0, str(PEERS))
        warnings.simplefilter("ignore")  # of the peers
        results = run_all()
    if options.results:
        options.results.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(render(results))


if __name__ == "__main__":
    main()
