"""The nine scores of the table, and the softmax score, as detectors."""

import numpy as np

from nescio import scores
from nescio.detectors import DETECTORS


def test_there_is_a_detector_for_every_score(rng):
    logits = rng.normal(-2, 3, (40, 9))
    for name, score in scores.SCORES.items():
        detector = DETECTORS[name]()
        expected = score(logits, detector.k) if "top_k" in name else score(logits)
        np.testing.assert_array_equal(detector.score_samples(logits), expected)
