"""ReAct, DICE, ASH and SCALE: the numbers of the definition, one sample at a time."""

import numpy as np
import pytest

import nescio as ns
from fixtures.rectified import plain_energy, relu_outputs
from nescio.errors import MissingInputError, ShapeError


@pytest.mark.parametrize("percentile", [50, 90.0])
def test_every_activation_is_clipped_at_one_percentile_of_the_training_data(percentile):
    train, new = relu_outputs(), relu_outputs(30, seed=1)
    detector = ns.ReAct(percentile).fit(train)
    below = (train.features <= detector.ceiling_).mean()
    assert below == pytest.approx(percentile / 100, abs=1 / train.features.size)
    expected = [
        plain_energy(np.minimum(row, detector.ceiling_), new.head.weight, new.head.bias)
        for row in new.features
    ]
    np.testing.assert_allclose(detector.score_samples(new), expected, rtol=1e-12)


def test_the_input_of_the_head_comes_before_other_features():
    outputs = relu_outputs()
    other = ns.Outputs(
        outputs.logits,
        features=np.zeros((120, 3)),
        head=outputs.head,
        arrays={"penultimate": outputs.features},
    )
    expected = ns.ReAct().fit(outputs).score_samples(outputs)
    np.testing.assert_array_equal(ns.ReAct().fit(other).score_samples(other), expected)


def test_what_is_missing_or_does_not_fit_is_named():
    outputs = relu_outputs()
    with pytest.raises(MissingInputError, match="react reads penultimate, which these outputs do"):
        ns.ReAct().fit(ns.Outputs(outputs.logits, outputs.features))
    pooled = ns.Outputs(outputs.logits, outputs.features[:, :7], head=outputs.head)
    with pytest.raises(ShapeError, match="the head reads 20 values, but its input has 7 columns"):
        ns.ReAct().fit(pooled).score_samples(pooled)


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
    for weight in sorted(contributions, key=contributions.get)[-n_kept:]:
        kept[weight] = 1
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


@pytest.mark.parametrize(("percentile", "n_kept"), [(90, 2), (85.0, 3), (50, 10), (99, 1)])
def test_the_largest_inputs_are_kept_and_scaled(percentile, n_kept):
    new = relu_outputs(30, seed=1)
    expected = []
    for row in new.features:
        order = np.argsort(row)
        pruned = row.copy()
        pruned[order[:-n_kept]] = 0
        pruned *= np.exp(row.sum() / pruned.sum())
        expected.append(plain_energy(pruned, new.head.weight, new.head.bias))
    np.testing.assert_allclose(ns.ASH(percentile).score_samples(new), expected, rtol=1e-12)


def test_every_input_has_a_finite_score():
    """Zeros, negative values, and a flat row, whose two sums differ most."""
    rows = np.stack([np.zeros(2000), np.full(2000, -1.0), np.arange(2000) * 1e-9 + 1.0])
    head = ns.Head(np.ones((3, 2000)), np.zeros(3))
    outputs = ns.Outputs(rows @ head.weight.T, rows.astype(np.float32), head=head)
    for kind in (ns.ASH, ns.Scale):
        scores = kind(99.95).score_samples(outputs)
        assert np.isfinite(scores).all()
        assert scores[0] == pytest.approx(3 * np.log(2))
        assert scores[0] > scores[1]


@pytest.mark.parametrize(("percentile", "n_large"), [(85, 3), (50, 10)])
def test_all_inputs_are_scaled_by_one_factor_per_sample(percentile, n_large):
    new = relu_outputs(30, seed=1)
    expected = [
        plain_energy(
            row * np.exp(row.sum() / np.sort(row)[-n_large:].sum()),
            new.head.weight,
            new.head.bias,
        )
        for row in new.features
    ]
    np.testing.assert_allclose(ns.Scale(percentile).score_samples(new), expected, rtol=1e-12)
