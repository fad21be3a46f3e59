"""Compare the speed of nescio with other implementations. Prints times and ratios.

    python benchmarks/speed.py            all parts
    python benchmarks/speed.py scoring    one part: scoring, mahalanobis, metrics, neighbours,
                                          perturbation

Absolute times depend on the machine, so look at the ratios. All implementations are timed in turn,
for several rounds, and the medians are compared. So other load on the machine affects all of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from nescio import LocalOutlierFactor, Mahalanobis, evaluate, scores
from nescio._threads import map_rows
from nescio.scores.kernels import joint_energy_by_products, joint_energy_direct

# Idle threads of torch and BLAS keep a processor busy for a short time after their work.
SETTLE_SECONDS = 0.25


def compare(
    title: str, baseline: str, contenders: dict[str, Callable[[], object]], *, rounds: int = 7
) -> None:
    """Time all contenders in turn, and print how many times as fast as the baseline each one is."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            time.sleep(SETTLE_SECONDS)
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"\n{title}")
    for name, median in medians.items():
        ratio = medians[baseline] / median
        print(f"  {name:<52}{median * 1e3:>10.1f} ms {ratio:>9.2f}x")


def scoring() -> None:
    import torch

    logits = np.random.default_rng(0).normal(-4, 3, (500_000, 80)).astype(np.float32)
    tensor = torch.from_numpy(logits)
    paper = "paper's formula: torch.log(1 + torch.exp(x)).sum(1)"

    def blocked_softplus() -> torch.Tensor:
        result = torch.empty(len(tensor))
        for start in range(0, len(tensor), 2048):
            rows = slice(start, start + 2048)
            torch.sum(torch.nn.functional.softplus(tensor[rows]), 1, out=result[rows])
        return result

    compare(
        f"joint energy of 500,000 x 80 float32, {torch.get_num_threads()} threads",
        paper,
        {
            paper: lambda: torch.log(1 + torch.exp(tensor)).sum(1),
            "paper's formula in NumPy": lambda: np.log(1 + np.exp(logits)).sum(1),
            "torch softplus in blocks": blocked_softplus,
            "nescio, torch in": lambda: scores.joint_energy(tensor),
            "nescio, NumPy in": lambda: scores.joint_energy(logits),
            "nescio, NumPy in: exp, log1p": lambda: map_rows(joint_energy_direct, logits),
            "nescio, NumPy in: products": lambda: map_rows(joint_energy_by_products, logits),
            "reading the array (sum of all elements)": lambda: logits.sum(),
        },
    )
    far = logits[:20_000] - np.float32(36)
    exact = np.logaddexp(far.astype(np.float64), 0).sum(1)
    error = np.max(np.abs(scores.joint_energy(far) / exact - 1))
    written = len(np.unique(np.log(1 + np.exp(far)).sum(1)))
    print(f"  20,000 samples with logits around -40: largest relative error {error:.1e};")
    print(f"  the paper's formula in NumPy gives {written} distinct score(s) for all of them")


def mahalanobis() -> None:
    rng = np.random.default_rng(0)
    labels = rng.random((4000, 80)) < 0.04
    labels[np.arange(4000), rng.integers(0, 80, 4000)] = True
    features = (labels @ rng.normal(size=(80, 1024)) + rng.normal(size=(4000, 1024))).astype("f4")
    new = rng.normal(0, 2, (2000, 1024)).astype(np.float32)
    detector = Mahalanobis().fit(features, labels)
    precision = (detector.whitening_ @ detector.whitening_.T).astype(np.float32)
    means = np.stack([features[labels[:, i]].mean(0) for i in range(80)])

    def diagonal_of_products() -> np.ndarray:
        """Compute a whole n-by-n matrix for each label, and use only its diagonal."""
        return np.max([-np.diag((new - m) @ precision @ (new - m).T) for m in means], axis=0)

    slow = "one label at a time, diagonal of an n-by-n product"
    compare(
        "Mahalanobis scores of 2,000 x 1,024 float32, 80 labels",
        slow,
        {slow: diagonal_of_products, "nescio": lambda: detector.score_samples(new)},
        rounds=3,
    )
    difference = np.max(np.abs(detector.score_samples(new) / diagonal_of_products() - 1))
    print(f"  largest relative difference {difference:.1e}")


def metrics() -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.normal(1, 1, 1_000_000), rng.normal(0, 1, 1_000_000)
    truth = np.repeat([1, 0], 1_000_000)
    both = np.concatenate([id_scores, ood_scores])

    def three_calls() -> dict[str, float]:
        fpr, tpr, _ = roc_curve(truth, both)
        return {
            "fpr": fpr[np.argmax(tpr >= 0.95)],
            "auroc": roc_auc_score(truth, both),
            "aupr": average_precision_score(truth, both),
        }

    theirs = "scikit-learn: roc_curve, roc_auc, average_precision"
    compare(
        "FPR95, AUROC and AUPR of 2,000,000 scores",
        theirs,
        {
            theirs: three_calls,
            "nescio (and both conventions, and AUPR at 1:1)": lambda: evaluate(
                id_scores, ood_scores, n_bootstrap=0
            ),
        },
    )
    ours, reference = evaluate(id_scores, ood_scores, n_bootstrap=0), three_calls()
    difference = max(abs(float(getattr(ours, name)) - reference[name]) for name in reference)
    print(f"  largest difference {difference:.1e}")


def neighbours() -> None:
    from sklearn.neighbors import LocalOutlierFactor as SklearnLof

    rng = np.random.default_rng(0)
    for n_labels in (5, 15, 80):
        mixing = rng.normal(size=(n_labels, n_labels))
        train, new = (rng.normal(size=(n, n_labels)) @ mixing for n in (10_000, 4000))
        theirs = SklearnLof(novelty=True).fit(train)
        ours = LocalOutlierFactor().fit(train)
        compare(
            f"LOF of 4,000 samples against 10,000, {n_labels} labels",
            "scikit-learn",
            {
                "scikit-learn": lambda theirs=theirs, new=new: theirs.score_samples(new),
                "nescio": lambda ours=ours, new=new: ours.score_samples(new),
            },
        )


def perturbation() -> None:
    import torch

    from nescio.networks.network import prepared
    from nescio.runners.perturb import find_directions, step
    from nescio.runners.torch_models import TorchRunner
    from nescio.runners.tune_settings import ODIN_EPSILONS
    from nescio.training import Preprocessing, build_network
    from nescio.training.tuning import TEMPERATURES

    torch.manual_seed(0)
    network = prepared(build_network("resnet18", 80), "cpu")
    module = TorchRunner(network).module()
    inputs = torch.randn(4, 3, 64, 64)
    preprocessing = Preprocessing(64)
    std = preprocessing.per_colour(preprocessing.std, inputs)

    def direct() -> torch.Tensor:
        """Compute each of the 84 settings separately: a gradient, a step, a second pass."""
        found = []
        for epsilon in ODIN_EPSILONS:
            for temperature in TEMPERATURES:
                x = inputs.clone().requires_grad_(True)
                top = network(x).amax(1)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    top, torch.ones_like(top)
                )
                (gradient,) = torch.autograd.grad(loss, x)
                with torch.inference_mode():
                    logits = network(inputs - epsilon * gradient.sign() / std)
                found.append(torch.sigmoid(logits / temperature).amax(1))
        return torch.stack(found)

    def shared() -> torch.Tensor:
        """One gradient for all of them, one pass for each epsilon."""
        directions = find_directions(module, inputs, preprocessing, ("max",))
        found = []
        for epsilon in ODIN_EPSILONS:
            logits = step(module, inputs, directions, "max", epsilon).logits
            found += [torch.sigmoid(logits / temperature).amax(1) for temperature in TEMPERATURES]
        return torch.stack(found)

    compare(
        "ODIN's 84 settings, ResNet-18 on 4 images of 64 x 64",
        "each setting separately",
        {"each setting separately": direct, "nescio": shared},
        rounds=3,
    )
    print(f"  largest difference {float((direct() - shared()).abs().max()):.1e}")


PARTS = {
    "scoring": scoring,
    "mahalanobis": mahalanobis,
    "metrics": metrics,
    "neighbours": neighbours,
    "perturbation": perturbation,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare the speed of nescio.")
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    chosen = parser.parse_args().parts or list(PARTS)
    unknown = set(chosen) - set(PARTS)
    if unknown:
        parser.error(f"no part {sorted(unknown)[0]!r}; choose from {', '.join(PARTS)}")
    for part in chosen:
        PARTS[part]()
