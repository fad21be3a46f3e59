"""Known and unknown together: the three scores, the verdicts, and what is promised."""

from dataclasses import replace

import numpy as np
import pytest

import nescio as ns
from nescio.calibration.continuous import continuous_p_values
from nescio.checks import check_detector, make_outputs
from nescio.detectors.steps import learning_half
from nescio.errors import InputError, MissingInputError, ParameterError


def changed(outputs, row, *, whole=0.0, crops=(0.0,) * 9):
    """Return outputs with something added to the logits of one image and of its crops."""
    logits, of_crops = outputs.logits.copy(), outputs.arrays["crops_logits"].copy()
    logits[row] += whole
    of_crops[row] += np.repeat(crops, outputs.n_labels)
    return replace(outputs, logits=logits, arrays={**outputs.arrays, "crops_logits": of_crops})


def test_the_score_is_the_smallest_p_value_of_image_lowest_and_highest_crop():
    held_out, outputs = make_outputs(400), make_outputs(50, seed=1)
    detector = ns.Mixed("max_logit").calibrate(held_out)

    def three(of):
        crops = of.arrays["crops_logits"].reshape(len(of), 9, -1).max(2)
        return of.logits.max(1), crops.min(1), crops.max(1)

    reference = [np.sort(column) for column in three(held_out[learning_half(400)])]
    p_values = [
        continuous_p_values(ours, theirs)
        for ours, theirs in zip(reference, three(outputs), strict=True)
    ]
    expected = np.min(p_values, axis=0)  # ties by rounding aside
    np.testing.assert_allclose(detector.score_samples(outputs), expected, atol=1e-3)


def test_an_image_with_something_known_and_something_unknown_is_mixed():
    detector = ns.Mixed().calibrate(make_outputs(500))
    outputs = make_outputs(5, seed=1)
    outputs = changed(outputs, 1, crops=[-30.0] * 3 + [0.0] * 6)  # the upper crops show nothing
    outputs = changed(outputs, 2, whole=-30, crops=[-30.0] * 8 + [4.0])
    outputs = changed(outputs, 3, whole=-30, crops=[-30.0] * 9)
    found = detector.assess(outputs)
    assert found.verdicts.tolist() == ["in", "MIXED", "MIXED", "OUT", "in"]
    assert found.mixed.tolist() == [False, True, True, False, False]
    assert found.in_distribution.tolist() == [True, False, False, False, True]
    assert found.heat_map(1)[0].min() == 1
    assert found.heat_map(1)[3].max() < 0.5
    # Rows can be chosen and joined, as the service does.
    joined = ns.Assessment.concat([found[:2], found[2:]])
    for name, column in found.columns().items():
        assert np.array_equal(joined.columns()[name], column), name
    assert list(found.columns())[-10:] == ["mixed", *(f"crop_{at}" for at in range(1, 10))]
    assert np.array_equal(joined.crops, found.crops)
    assert "MIXED" in repr(found)
    with pytest.raises(InputError, match="heat map"):
        ns.JointEnergy().calibrate(make_outputs(100)).assess(outputs).heat_map(0)


def test_in_distribution_images_keep_the_promised_share():
    shares = []
    for seed in range(20):
        detector = ns.Mixed().calibrate(make_outputs(200, seed=seed), tpr=0.9)
        shares.append(
            np.mean(detector.assess(make_outputs(1000, seed=100 + seed)).verdicts == "in")
        )
    # 100 images calibrate each time: the share kept is 0.9 on average, with a spread of 0.03.
    assert 0.87 < np.mean(shares) < 0.93


def test_a_crop_is_flagged_if_it_lies_below_the_lowest_crops_of_ordinary_images():
    detector = ns.Mixed().calibrate(make_outputs(500))
    outputs = make_outputs(200, seed=3)
    found = detector.assess(outputs)
    energies = np.logaddexp(0, outputs.arrays["crops_logits"]).reshape(200, 9, -1).sum(2)
    expected = continuous_p_values(detector.reference_[:, 1], energies.min(1))
    np.testing.assert_allclose(found.crops.min(1), expected, atol=1e-3)


def test_detectors_that_learn_do_so_from_images_and_crops():
    train = make_outputs(60)
    detector = ns.Mixed(ns.NearestNeighbours(k=2)).fit(train)
    (part,) = detector.detectors_
    unit = train.features[4] / np.linalg.norm(train.features[4])
    np.testing.assert_allclose(part.bank_[40], unit)
    crop = train.arrays["crops_features"].reshape(60, 9, -1)[4, 8]
    np.testing.assert_allclose(part.bank_[49], crop / np.linalg.norm(crop))
    assert len(part.bank_) == 600
    with pytest.raises(InputError, match="learned from this very data"):
        detector.calibrate(train)


@pytest.mark.parametrize(
    "part",
    [
        "mahalanobis",
        "vim",
        "label_neighbours(bank=20)",
        "combined(detectors=[joint_energy, knn(bank=20)])",
    ],
)
def test_any_detector_can_score_the_crops(part):
    check_detector(ns.Mixed(part))


def test_what_cannot_be_scored():
    with pytest.raises(ParameterError, match="scores crops itself"):
        ns.Mixed("mixed").calibrate(make_outputs(100))
    with pytest.raises(MissingInputError, match=r"crops_logits.*extract --crops"):
        ns.Mixed().calibrate(ns.Outputs(make_outputs(100).logits))
    found = ns.Mixed(nonfinite="out").calibrate(make_outputs(100))
    outputs = changed(make_outputs(3, seed=1), 1, whole=np.nan)
    assert found.assess(outputs).verdicts[1] == "OUT"
    assert (found.assess(outputs).crops[1] == 0).all()
