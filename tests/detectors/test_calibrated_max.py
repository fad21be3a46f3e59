"""The largest standardised logit: the numbers of the definition."""

import numpy as np
import pytest

import nescio as ns


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_largest_logit_in_standard_deviations_of_its_label(dtype, rng):
    train, new = (rng.normal([-8, -2, 0], [1, 3, 5], (n, 3)).astype(dtype) for n in (200, 30))
    expected = [
        max((row[i] - train[:, i].mean()) / train[:, i].std() for i in range(3)) for row in new
    ]
    tolerance = 1e-12 if dtype == np.float64 else 1e-4
    detector = ns.CalibratedMax().fit(train)
    np.testing.assert_allclose(detector.score_samples(new), expected, rtol=tolerance)


def test_masked_logits_are_not_learned_from(rng):
    train = rng.normal(-2, 3, (100, 3))
    masked = train.copy()
    masked[50:, 1], masked[:, 2] = -np.inf, -np.inf
    detector = ns.CalibratedMax().fit(masked)
    assert detector.means_[1] == pytest.approx(train[:50, 1].mean())
    assert detector.scales_[1] == pytest.approx(train[:50, 1].std())
    scores = detector.score_samples(np.array([[-np.inf, 4.0, -np.inf], [-np.inf] * 3]))
    assert scores.tolist() == [(4.0 - detector.means_[1]) / detector.scales_[1], -np.inf]


def test_a_constant_label_is_only_centred(rng):
    train = rng.normal(-2, 3, (100, 2))
    train[:, 1] = 0.1
    detector = ns.CalibratedMax().fit(train)
    assert detector.scales_[1] == 1.0
    assert detector.score_samples(np.array([[-90.0, 5.1]]))[0] == pytest.approx(5.0)
