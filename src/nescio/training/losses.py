"""The losses that a network is trained with.

Each one takes logits and multi-hot labels, both of shape (n_samples, n_labels), and returns their
mean loss.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

_FOCUS = 4.0
_MARGIN = 0.05

Loss = Callable[[Tensor, Tensor], Tensor]


def asymmetric_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the asymmetric loss (Ridnik et al., ICCV 2021), with the paper's default values.

    A label that is present has the binary cross-entropy, -log p (in the paper's symbols, gamma+ is
    0). For a label that is absent, p is first lowered by a margin m = 0.05, to no less than 0. Its
    loss is then q^4 times -log(1 - q), where q is the lowered p (gamma- is 4). So the many absent
    labels with a low probability hardly count, and those below the margin not at all.
    """
    lowered = (logits.sigmoid() - _MARGIN).clamp(min=0)
    absent = -(lowered**_FOCUS) * (-lowered).log1p()
    return (-labels * logsigmoid(logits) + (1 - labels) * absent).mean()


LOSSES: dict[str, Loss] = {
    "bce": binary_cross_entropy_with_logits,
    "asymmetric": asymmetric_loss,
}
"""Every loss, by its name in the settings."""
