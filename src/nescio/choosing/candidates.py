"""The detectors that `choose` ranks if none are given."""

from __future__ import annotations

from collections.abc import Sequence

_OF_LOGITS = (
    "joint_energy",
    "top_k_joint_energy",
    "max_logit",
    "top_k_prob",
    "combined(detectors=[joint_energy, top_k_joint_energy], rule=fisher)",
)
_OF_FEATURES = (
    "knn{layer}",
    "mahalanobis(normalise=true{and_layer})",
    "relative_mahalanobis{layer}",
    "vim{layer}",
    "nnguide{layer}",
    "combined(detectors=[top_k_joint_energy, relative_mahalanobis{layer}], rule=cauchy)",
    "combined(detectors=[joint_energy, knn{layer}], rule=fisher)",
    "combined(detectors=[top_k_joint_energy, mahalanobis(normalise=true{and_layer})], rule=fisher)",
    "combined(detectors=[top_k_joint_energy, relative_mahalanobis{layer}, knn{layer}], "
    "rule=cauchy)",
)


def default_candidates(layers: Sequence[str]) -> list[str]:
    """Return the detectors of logits, and those of features once for each layer.

    Simple ones come first: of detectors that are about as good, the one with the fewest parts is
    picked, and the first of equal ones.

    Examples
    --------
    >>> default_candidates([])[:2]
    ['joint_energy', 'top_k_joint_energy']
    >>> default_candidates(["features", "input"])[14:16]
    ['knn(layer=input)', 'mahalanobis(normalise=true, layer=input)']
    """
    found = list(_OF_LOGITS)
    for name in layers:
        only, more = ("", "") if name == "features" else (f"(layer={name})", f", layer={name}")
        found += [text.format(layer=only, and_layer=more) for text in _OF_FEATURES]
    return found
