"""False alarms: which inputs are flagged, and how they are grouped."""

from dataclasses import replace

import numpy as np
import pytest

from nescio.metrics.comparison import Scored
from nescio.outputs import Outputs
from nescio.report.alarms import false_alarms, flagged
from nescio.report.panels import find_threshold


def test_five_per_cent_are_flagged():
    assert np.flatnonzero(flagged(np.arange(100.0), 0.95)).tolist() == [0, 1, 2, 3, 4]
    assert flagged(np.array([-np.inf, 1.0]), 0.95).tolist() == [True, False]


def test_no_threshold_if_too_many_are_out():
    assert find_threshold(np.array([-np.inf, 1.0]), 0.95) is None


def test_false_alarms_are_counted_by_true_label(evidence):
    labels = np.zeros((100, 3), dtype=np.uint8)
    labels[:20, 0] = 1  # joint energy flags 1 to 4 of these, and 50, which has no label
    labels[20:40, 1] = 1
    labelled = replace(evidence, id_outputs=Outputs(np.zeros((100, 3)), labels=labels))
    found = false_alarms(labelled, 0.95)
    assert found["kind"] == found["label_kind"] == "true"
    assert (
        "5 of 100 inputs are flagged by joint_energy, 5 by max_logit, 4 by both" in found["totals"]
    )
    rows = [
        (one["label"], one["n_inputs"], one["by_detector"]["joint_energy"]["flagged"])
        for one in found["by_label"]
    ]
    assert rows == [("label 0", 20, 4), ("label 1", 20, 0)]
    assert found["by_label"][0]["by_detector"]["max_logit"]["share"] == 0.25
    assert "joint_energy: 1 of 60 inputs with 0 true labels, 1.7 %" in found["by_count"]


def test_without_truth_the_most_likely_label_counts(evidence):
    logits = np.full((100, 3), -3.0)
    logits[:10, 2] = -1  # nothing is predicted, yet this one is the likeliest
    found = false_alarms(replace(evidence, id_outputs=Outputs(logits)), 0.95)
    assert (found["kind"], found["label_kind"]) == ("predicted", "most likely")
    assert [(one["label"], one["n_inputs"]) for one in found["by_label"]] == [
        ("label 2", 10),
        ("label 0", 90),
    ]
    assert "joint_energy: 5 of 100 inputs with 0 predicted labels" in found["by_count"]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((12, 10, 9), "Labels with fewer than 10 inputs are not listed."),
        ((7, 4, 3), "Labels with fewer than 7 inputs are not listed."),
        ((1, 0, 0), "Labels without inputs are not listed."),
        ((12, 11, 10), ""),
    ],
)
def test_the_cut_that_was_used_is_said(evidence, sizes, said):
    labels = np.zeros((100, 3), dtype=np.uint8)
    for at, size in enumerate(sizes):
        labels[:size, at] = 1
    labelled = replace(evidence, id_outputs=Outputs(np.zeros((100, 3)), labels=labels))
    found = false_alarms(labelled, 0.95)
    assert found["left_out"] == said
    least = min(10, max(sizes))
    assert sorted(one["n_inputs"] for one in found["by_label"]) == sorted(
        size for size in sizes if size >= least
    )


def test_the_best_detectors_are_beside_the_two(evidence):
    later = Scored(np.arange(100.0)[::-1].copy(), {})
    more = {f"d{at}": later for at in range(9)}
    changed = replace(evidence, scores={**evidence.scores, **more})
    found = false_alarms(changed, 0.95, ["d0", "joint_energy", "d0"])
    assert list(found["styles"]) == ["joint_energy", "max_logit", "d0"]
    assert "4 by both; 5 by d0." in found["totals"]
    assert "d0: 5 of 100 inputs" in found["by_count"]
    assert found["by_count"].count('class="bar c0"') == found["by_count"].count('class="bar joint"')
    # At most as many detectors as there are colours.
    assert len(false_alarms(changed, 0.95, list(more))["styles"]) == 5
