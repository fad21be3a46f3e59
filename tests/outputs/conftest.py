"""Outputs to work with."""

import numpy as np
import pytest

from nescio import Outputs
from nescio.outputs import Head


@pytest.fixture
def outputs(rng):
    return Outputs(
        rng.normal(size=(5, 3)).astype(np.float32),
        features=rng.normal(size=(5, 4)),
        labels=rng.integers(0, 2, (5, 3)),
        ids=["a", "bß", "", "日本", "e"],
        label_names=["cat", "dog", "bird"],
        manifest={"dataset": "zoo", "split": "val", "model": {"sha256": "ab"}},
    )


@pytest.fixture
def whole(rng):
    """Outputs that have everything."""
    features = rng.normal(size=(6, 2))
    head = Head(rng.normal(size=(3, 2)), rng.normal(size=3))
    return Outputs(
        features @ head.weight.T + head.bias,
        features=features,
        labels=rng.integers(0, 2, (6, 3)),
        ids=list("abcdef"),
        label_names=["cat", "dog", "car"],
        head=head,
        arrays={"mine": rng.normal(size=(6, 4))},
    )
