"""What methods share that change the input of the head and recompute the logits.

Their score is the joint energy of the new logits, in place of the softmax energy of the papers.
"""

from __future__ import annotations

from typing import Any

from nescio import scores
from nescio._validation import Array
from nescio.detectors.tensors import exp, largest, like, where
from nescio.errors import ShapeError

READS = ("penultimate", "head")
"""The input of the head, and the head."""

# exp(50) is far from the largest float32. A sum over the positive values can be more than 50
# times that of the values above the percentile only if fewer than 2 % of them are above it.
_LARGEST_EXPONENT = 50.0


def energy_of(inputs: Any, weight: Any, bias: Any) -> Array:
    """Return the joint energy of the logits that a head gives for changed inputs."""
    check_width(inputs, weight)
    return scores.joint_energy(inputs @ like(weight, inputs).T + like(bias, inputs))


def check_width(inputs: Any, weight: Any) -> None:
    """Raise unless the head has one weight per column of its inputs."""
    if inputs.shape[1] != weight.shape[1]:
        raise ShapeError(
            f"the head reads {weight.shape[1]} values, but its input has {inputs.shape[1]} "
            "columns. If the features are those of another layer, add the input of the head: "
            "Outputs(..., arrays={'penultimate': ...})."
        )


def cut_off(inputs: Any, percentile: float) -> Any:
    """Return the percentile of each row: as a column, the smallest value that is kept."""
    n_kept = max(1, inputs.shape[1] - round(inputs.shape[1] * percentile / 100))
    return largest(inputs, n_kept)[:, :1]


def growth(inputs: Any, lowest: Any) -> Any:
    """Return exp(sum of a row / sum of its values from `lowest` on) as a column.

    The papers take inputs that have passed a ReLU. Of other inputs, only positive values count.
    """
    positive = inputs.clip(min=0.0)
    total = positive.sum(1)[:, None]
    kept = (positive * (inputs >= lowest)).sum(1)[:, None]
    ratio = where(kept > 0, total / where(kept > 0, kept, 1.0), 1.0)
    return exp(ratio.clip(max=_LARGEST_EXPONENT))
