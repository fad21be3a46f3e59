"""The figures of the scores of detectors."""

import numpy as np

from fixtures.reports import build
from nescio import scores


def test_the_corner_is_drawn_if_a_curve_gets_there(make_evidence, make_lines):
    def corners(**detectors):
        evidence = make_evidence(detectors=detectors)
        page = build(make_lines(evidence, n_bootstrap=0), [evidence])
        assert page.count("svg", aria_label="ROC curves, pets against stones") == 1
        name = "ROC curves, pets against stones, upper left corner"
        found = page.count("svg", aria_label=name)
        assert ("Upper left corner" in page.text) == ("Whole" in page.text) == bool(found)
        return found

    def backwards(logits):
        return -scores.joint_energy(logits)

    assert corners(backwards=backwards) == 0
    assert corners(same=lambda logits: np.ones(len(logits))) == 0  # the diagonal
    assert corners(backwards=backwards, joint_energy=scores.joint_energy) == 1
    assert corners(forwards=scores.joint_energy, backwards=backwards) == 1
