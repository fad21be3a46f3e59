"""The losses that a network is trained with.

Each one takes logits and multi-hot labels, both of shape (n_samples, n_labels), and returns their
mean loss.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from nescio.scores import joint_energy

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


def energy_gap(
    logits: Tensor, labels: Tensor, outlier_logits: Tensor, margins: tuple[float, float]
) -> Tensor:
    """Return how far joint energies are on the wrong side of two margins, as squared hinges.

    This is the energy-bounded loss of Liu et al. (NeurIPS 2020) with joint energy. The energy of a
    sample with a label should be at least the first margin, that of an outlier at most the second.
    A sample without any label has no reason for a high energy, and adds nothing.

    The sum of the two means is divided by the number of labels, as the other losses are means over
    labels, so that its weight means the same for any number of labels.

    Parameters
    ----------
    logits, labels : Tensor of shape (n_samples, n_labels)
        Of in-distribution samples.
    outlier_logits : Tensor of shape (n_outliers, n_labels)
    margins : tuple of two floats
    """
    inside, outside = margins
    too_low = (inside - joint_energy(logits)).clamp(min=0) * labels.amax(1)
    too_high = (joint_energy(outlier_logits) - outside).clamp(min=0)
    return (too_low.square().mean() + too_high.square().mean()) / logits.shape[1]
