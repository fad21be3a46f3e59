"""Joint energy against the paper's formula."""

from __future__ import annotations

import numpy as np

from nescio import scores
from nescio._threads import map_rows
from nescio.scores.kernels import joint_energy_by_products, joint_energy_direct
from speed.harness import Bench


def run(bench: Bench) -> None:
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

    bench.compare(
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
    what = "20,000 samples with logits around -40"
    bench.fact(f"{what}: largest relative error", error, at_most=1e-5)
    bench.fact(f"{what}: distinct scores by the paper's formula in NumPy", written)
