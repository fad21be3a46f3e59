"""Leave-labels-out with the paper's head: how well are unknown objects in familiar images found?

    python benchmarks/detection/left_out.py --train train.safetensors --held-out val.safetensors

The outputs need features and labels. The detectors are those of the benchmark coco70-methods. For
each seed, the labels are divided into five parts. For each part, the paper's head is trained on the
features without these labels, as `nescio train` does (Adam, 1e-4, the epoch with the lowest loss on
a sixth of the training samples, which also serve as held-out data). Samples that carry only
left-out labels count as out-of-distribution, held-out samples with another label as
in-distribution. `nescio choose` measures the same with a smaller head that needs no torch.

The table has FPR95 in per cent over all folds, and the difference to joint
energy, fold by fold, with its standard error.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from nescio.detectors.registry import build_detector
from nescio.lab.benchmark.spec import load_spec
from nescio.lab.networks.network import TwoLayerHead
from nescio.metrics.comparison import compare_outputs
from nescio.outputs import Head, Outputs

DETECTORS = load_spec("coco70-methods").detectors
EPOCHS, BATCH = 20, 64


def trained_head(features, labels, reference, truth, seed):
    """Return the paper's head after the epoch with the lowest loss on the reference samples."""
    torch.manual_seed(seed)
    head = TwoLayerHead(features.shape[1], labels.shape[1])
    optimiser = torch.optim.Adam(head.parameters(), lr=1e-4)
    x, y, x_ref, y_ref = map(torch.as_tensor, (features, labels, reference, truth))
    best, state = np.inf, {}
    for epoch in range(EPOCHS):
        head.train()
        order = np.random.default_rng((seed, epoch)).permutation(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            optimiser.zero_grad()
            bce(head(x[rows]), y[rows]).backward()
            optimiser.step()
        head.eval()
        with torch.inference_mode():
            loss = float(bce(head(x_ref), y_ref))
        if loss < best:
            best, state = loss, {name: value.clone() for name, value in head.state_dict().items()}
    head.load_state_dict(state)
    return head.eval()


def outputs_of(head, features, labels=None, label_names=None):
    """Return all that the detectors of coco70-methods read."""
    with torch.inference_mode():
        hidden = head.hidden(torch.as_tensor(features))
        logits = head.labels(hidden)
    last = Head(head.labels.weight.detach().numpy(), head.labels.bias.detach().numpy())
    arrays = {"penultimate": hidden.numpy()}
    return Outputs(
        logits.numpy(), features, labels, label_names=label_names, head=last, arrays=arrays
    )


def fold_fpr(train, held_out, gone, seed):
    """Return the FPR95 of each detector if the labels `gone` are left out."""
    kept = np.setdiff1d(np.arange(train.n_labels), gone)
    order = np.random.default_rng((8, seed)).permutation(len(train))
    in_reference = np.isin(np.arange(len(train)), order[: len(train) // 6])
    kept_train, kept_held = (outputs.labels[:, kept].any(1) for outputs in (train, held_out))
    gone_train, gone_held = (
        outputs.labels[:, gone].any(1) & ~has_kept_label
        for outputs, has_kept_label in ((train, kept_train), (held_out, kept_held))
    )
    parts = {"train": kept_train & ~in_reference, "reference": kept_train & in_reference}
    x = {name: train.features[rows] for name, rows in parts.items()}
    y = {name: train.labels[rows][:, kept].astype("f4") for name, rows in parts.items()}
    x["id"] = held_out.features[kept_held]
    x["ood"] = np.concatenate([train.features[gone_train], held_out.features[gone_held]])
    head = trained_head(x["train"], y["train"], x["reference"], y["reference"], seed)
    made = {name: outputs_of(head, rows, y.get(name)) for name, rows in x.items()}
    comparison = compare_outputs(
        {name: build_detector(name) for name in DETECTORS},
        made["id"],
        {"left out": made["ood"]},
        train=made["train"],
        held_out=made["reference"],
        n_bootstrap=0,
    )
    if comparison.skipped:
        raise SystemExit(f"skipped: {comparison.skipped}")
    return [100 * comparison.results["left out"][name].fpr.value for name in DETECTORS]


def main() -> None:
    """Train the heads and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", required=True)
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    train, held_out = Outputs.load(options.train), Outputs.load(options.held_out)
    by_seed = []
    for seed in range(options.seeds):
        labels = np.random.default_rng((7, seed)).permutation(train.n_labels)
        by_seed.append([fold_fpr(train, held_out, labels[index::5], seed) for index in range(5)])
        print(f"seed {seed}: {np.mean(by_seed[-1], 0).round(1).tolist()}", flush=True)
    print_table(DETECTORS, np.array(by_seed))


def print_table(names, fprs):
    """Print means over seeds, and paired differences to joint energy over seeds and folds."""
    differences = fprs - fprs[..., [names.index("joint_energy")]]
    print("\n| detector | FPR95, mean ± sd over seeds | difference to joint energy ± se |")
    print("|---|---:|---:|")
    for index, name in enumerate(names):
        values, paired = fprs[..., index].mean(1), differences[..., index].ravel()
        error = paired.std(ddof=1) / np.sqrt(len(paired))
        spread = values.std(ddof=1) if len(values) > 1 else 0.0
        mean = f"{values.mean():.1f} ± {spread:.1f}"
        print(f"| `{name}` | {mean} | {paired.mean():+.1f} ± {error:.1f} |")


if __name__ == "__main__":
    main()
