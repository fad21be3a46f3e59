"""DICE: the numbers of the definition, one weight at a time."""

import numpy as np
import pytest

import nescio as ns
from fixtures.rectified import plain_energy, relu_outputs
from nescio.errors import ShapeError


@pytest.mark.parametrize("sparsity", [0.3, 0.9])
def test_the_weights_with_the_largest_contributions_are_kept(sparsity):
    train, new = relu_outputs(), relu_outputs(30, seed=1)
    head = train.head
    contributions = {
        (label, unit): head.weight[label, unit] * train.features[:, unit].mean()
        for label in range(5)
        for unit in range(20)
    }
    n_kept = round(100 * (1 - sparsity))
    kept = np.zeros((5, 20))
    for at in sorted(contributions, key=contributions.get)[-n_kept:]:
        kept[at] = 1
    detector = ns.DICE(sparsity).fit(train)
    np.testing.assert_array_equal(detector.kept_, kept == 1)
    expected = [plain_energy(row, head.weight * kept, head.bias) for row in new.features]
    np.testing.assert_allclose(detector.score_samples(new), expected, rtol=1e-12)


def test_at_least_one_weight_is_kept():
    outputs = relu_outputs()
    assert ns.DICE(0.999).fit(outputs).kept_.sum() == 1


def test_another_head_is_refused():
    outputs = relu_outputs()
    detector = ns.DICE().fit(outputs)
    with pytest.raises(ShapeError, match=r"shape \(5, 20\), but this one has \(4, 20\)"):
        detector.score_samples(outputs.select_labels([0, 1, 2, 3]))


def test_of_equal_contributions_no_more_are_kept():
    outputs = relu_outputs()
    head, features = outputs.head, np.where(np.arange(20) < 15, 0.0, outputs.features)  # dead units
    logits = features @ head.weight.T + head.bias
    detector = ns.DICE(0.5).fit(ns.Outputs(logits, features, head=head))
    assert detector.kept_.sum() == 50
