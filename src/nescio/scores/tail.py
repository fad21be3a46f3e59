"""How large the energies of labels can be that were not looked at."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nescio.scores.kernels import softplus

Values = NDArray[np.float64]

# log(1 + exp(x)) is at most the broken line through these points: constant before the first one,
# with a slope of 1 after the last one. Where it decays like exp(x), the line is 3 % above it.
_POINTS = np.arange(-60.0, 40.5, 0.5)
_HEIGHTS = softplus(_POINTS)
_SLOPES = np.append(np.diff(_HEIGHTS) / np.diff(_POINTS), 1.0)
_BENDS = np.diff(_SLOPES, prepend=0.0)


def largest_mean_energy(mean: Values, variance: Values, largest: Values) -> Values:
    """Return the largest mean of log(1 + exp(logit)) over logits of which three numbers are known.

    These are their mean, their variance and a number that none of them exceeds. The result is an
    upper bound, and never above log(1 + exp(largest)).

    The energy of a logit is at most a sum of hinges max(logit - t, 0), one per point t of the
    broken line. The mean of each hinge has a known upper bound: Scarf's, of mean and variance, and
    a smaller one where few logits can be as large as `largest`.

    Parameters
    ----------
    mean, variance, largest : arrays of shape (n_samples,)

    Examples
    --------
    >>> largest_mean_energy(np.array([-12.0]), np.array([4.0]), np.array([-3.0])).round(4)
    array([0.0023])
    """
    with np.errstate(all="ignore"):
        top = np.maximum(largest, mean)[:, None]
        above = top - mean[:, None]  # (n_samples, 1)
        spread = np.maximum(variance, 0.0)[:, None]
        beyond = _POINTS - mean[:, None]  # (n_samples, n_points)
        length = np.sqrt(spread + beyond**2)
        # Two forms of (length - beyond) / 2, each without cancellation on its side.
        hinge = np.where(beyond > 0, 0.5 * spread / (length + beyond), 0.5 * (length - beyond))
        # The quadratic through 0 at `low` and through the hinge at `top` is above the hinge.
        low = mean[:, None] - spread / above
        share = spread / (spread + above**2)
        fits = top + low <= 2 * _POINTS
        hinge = np.where(fits, np.minimum(hinge, np.maximum(top - _POINTS, 0.0) * share), hinge)
        hinge = np.where(top <= _POINTS, 0.0, hinge)
        bound = _HEIGHTS[0] + hinge @ _BENDS
    # Without a mean or a variance (an overflow), only `largest` is known.
    return np.asarray(np.fmin(bound, softplus(np.maximum(largest, mean))))
