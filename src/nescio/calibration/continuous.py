"""P-values as a continuous function of the score, for scores that are made of p-values."""

from __future__ import annotations

import numpy as np

from nescio.calibration.thresholds import Scores


def tail_scale(reference: Scores) -> float:
    """Return the scale of the lower tail: how far the lowest tenth lies below the next score."""
    lowest = max(1, len(reference) // 10)
    scale = reference[min(lowest, len(reference) - 1)] - reference[:lowest].mean()
    return float(scale or reference[-1] - reference[0] or 1.0)


def continuous_p_values(reference: Scores, scores: Scores, limits: Scores | None = None) -> Scores:
    """Return p-values of scores against n reference scores, as a continuous function.

    At the i-th smallest reference score it is i / (n + 1), and it is linear between them. So
    P(p <= i / (n + 1)) = i / (n + 1) for i < n and a new score from the same distribution, as for
    the conformal p-value, which is larger by at most 1 / (n + 1). At and above the largest
    reference score it is n / (n + 1). Below the smallest one it falls as 1 / (n + 1) / (1 + gap /
    scale), so that scores keep their order however low they are; `tail_scale` is the scale.

    A score from the limit of a reference score on counts as at least that score. So rounding does
    not move a score across several reference scores that are tied.

    Parameters
    ----------
    reference : array of shape (n,)
        Finite and ascending.
    scores : array of shape (n_samples,)
    limits : array of shape (n,), optional
        What counts as tied with each reference score (`tie_limits`); by default the score itself.

    Examples
    --------
    >>> continuous_p_values(np.array([0.0, 1.0, 3.0]), np.array([-1.0, 0.0, 2.0, 9.0]))
    array([0.125, 0.25 , 0.625, 0.75 ])
    """
    n = len(reference)
    scores = np.minimum(scores, reference[-1])
    tied = reference if limits is None else limits
    below = np.searchsorted(tied, scores, side="right")  # or equal
    lower, upper = reference[np.maximum(below - 1, 0)], reference[np.minimum(below, n - 1)]
    between = np.maximum(scores - lower, 0.0) / np.where(upper > lower, upper - lower, 1.0)
    gaps = np.maximum(reference[0] - scores, 0.0) / tail_scale(reference)
    return np.where(below == 0, 1 / (1 + gaps), below + between) / (n + 1)
