"""Scores of how in-distribution a sample is, from the logits of a multi-label classifier.

Every score is a pure function from logits of shape (n_samples, n_labels) to one number per sample,
and a higher number means more in-distribution. Each is one of three label-wise terms

    logit    f
    prob     1 / (1 + exp(-f))
    energy   log(1 + exp(f))

under one of three aggregations over the labels (max, sum, top-k), or the softmax score `msp`.
`label_score` computes any entry of that table.

NumPy in, NumPy out. torch in, torch out: on the same device, and differentiable. 16-bit input is
computed and returned in float32. A logit of -inf marks a masked label, which does not count.

A tensor on the CPU outside of autograd takes the NumPy kernel, which is faster; see `benchmarks/`.
A sample's score does not depend on the other samples in the batch.
"""

from __future__ import annotations

from nescio.scores.functions import (
    SCORES,
    joint_energy,
    label_energy,
    label_prob,
    label_score,
    logits_from_probs,
    max_energy,
    max_logit,
    max_prob,
    msp,
    sum_logit,
    sum_prob,
    top_k_joint_energy,
    top_k_logit,
    top_k_prob,
)

__all__ = [
    "SCORES",
    "joint_energy",
    "label_energy",
    "label_prob",
    "label_score",
    "logits_from_probs",
    "max_energy",
    "max_logit",
    "max_prob",
    "msp",
    "sum_logit",
    "sum_prob",
    "top_k_joint_energy",
    "top_k_logit",
    "top_k_prob",
]
