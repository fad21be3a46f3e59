"""Heads that are trained anew."""

from dataclasses import replace

import numpy as np
import pytest

from fixtures.labelled import labelled
from nescio.choosing.head import refit_head
from nescio.metrics import mean_average_precision

KEPT = [0, 2, 3, 6]


def refitted(train, *, hidden=False):
    return refit_head(
        train, labelled(100, seed=2), KEPT, hidden=hidden, rng=np.random.default_rng(0)
    )


@pytest.mark.parametrize("hidden", [False, True])
def test_a_refitted_head_learns_its_labels(hidden):
    test = labelled(300, seed=3, arrays={"odin_max": np.zeros((300, 8))})
    found = refitted(labelled(400), hidden=hidden).outputs(test)
    assert mean_average_precision(test.labels[:, KEPT], found.logits) > 0.9
    assert np.array_equal(found.labels, test.labels[:, KEPT])
    assert found.features is test.features
    assert "odin_max" not in found.names
    assert ("penultimate" in found.arrays) == hidden
    # Detectors that read the head find the logits in it.
    again = found.get("penultimate") @ found.head.weight.T + found.head.bias
    np.testing.assert_allclose(again, found.logits, rtol=1e-3, atol=1e-3)


def test_other_layers_are_kept_and_the_old_penultimate_layer_is_not():
    arrays = {"early": np.ones((50, 3)), "penultimate": np.ones((50, 2))}
    test = labelled(50, seed=3, head=None, arrays=arrays, manifest={"layers": ["early"]})
    found = refitted(labelled(200), hidden=True).outputs(test)
    assert found.arrays["early"] is test.arrays["early"]
    assert found.arrays["penultimate"].shape[1] > 2
    assert list(refitted(labelled(200)).outputs(test).arrays) == ["early"]


def test_features_of_any_scale_are_learned():
    """Large offsets, tiny and constant features: the head is the same for the same data."""
    train, test = labelled(400), labelled(100, seed=3)
    check = labelled(100, seed=2)

    def moved(outputs):
        scale = np.array([1e3, 1e-3] * 6)
        features = np.column_stack([outputs.features * scale + 1e4, np.full(len(outputs), 7.0)])
        return replace(outputs, features=features, head=None)

    rng = np.random.default_rng(0)
    head = refit_head(moved(train), moved(check), KEPT, hidden=False, rng=rng)
    logits = head.outputs(moved(test)).logits
    np.testing.assert_allclose(logits, refitted(train).outputs(test).logits, atol=0.02)


def test_a_label_that_is_never_there_gets_low_logits():
    train = labelled(400)
    train.labels[:, 2] = 0
    logits = refitted(train).outputs(labelled(100, seed=3)).logits
    assert np.isfinite(logits).all()
    assert logits[:, KEPT.index(2)].max() < -2
