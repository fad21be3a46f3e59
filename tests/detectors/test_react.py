"""ReAct: the numbers of the definition, one sample at a time."""

import numpy as np
import pytest

import nescio as ns
from fixtures.rectified import plain_energy, relu_outputs
from nescio.errors import MissingInputError, ParameterError, ShapeError


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


def test_what_no_sample_exceeds_is_joint_energy():
    train, new = relu_outputs(), relu_outputs(30, seed=1)
    detector = ns.ReAct().fit(train)
    detector.ceiling_ = np.array(1e6)
    np.testing.assert_allclose(detector.score_samples(new), ns.scores.joint_energy(new.logits))


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
    for percentile in (0, 100, "90"):
        with pytest.raises(ParameterError, match="percentile must lie between 0 and 100"):
            ns.ReAct(percentile).fit(outputs)
