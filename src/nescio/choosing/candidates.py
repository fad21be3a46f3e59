"""The detectors that `choose` ranks if none are given."""

from __future__ import annotations

from collections.abc import Sequence

_OF_LOGITS = (
    "joint_energy",
    "top_k_joint_energy(k=20)",
    "top_k_joint_energy",
    "max_logit",
    "top_k_prob",
)
_OF_FEATURES = (
    "knn{layer}",
    "label_neighbours{layer}",
    "linear_probe{layer}",
    "mahalanobis(normalise=true{and_layer})",
    "relative_mahalanobis{layer}",
    "vim{layer}",
    "nnguide{layer}",
    "combined(detectors=[joint_energy, label_neighbours{layer}, linear_probe{layer}])",
    "combined(detectors=[joint_energy, label_neighbours{layer}])",
    "combined(detectors=[joint_energy, knn{layer}], rule=fisher)",
    "combined(detectors=[top_k_joint_energy, mahalanobis(normalise=true{and_layer})], rule=fisher)",
)


def default_candidates(layers: Sequence[str]) -> list[str]:
    """Return the detectors of logits, and those of features once for each layer.

    Simple ones come first: of equal ones, the first is picked.

    Examples
    --------
    >>> default_candidates([])[:2]
    ['joint_energy', 'top_k_joint_energy(k=20)']
    >>> default_candidates(["features", "input"])[16:18]
    ['knn(layer=input)', 'label_neighbours(layer=input)']
    """
    found = list(_OF_LOGITS)
    for name in layers:
        only, more = ("", "") if name == "features" else (f"(layer={name})", f", layer={name}")
        found += [text.format(layer=only, and_layer=more) for text in _OF_FEATURES]
    return found
