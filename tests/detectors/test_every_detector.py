"""What holds for every detector, or for several."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

import nescio as ns
from nescio.checks import CHECKS, NEEDS_CALIBRATION, make_outputs
from nescio.detectors import DETECTORS, features
from nescio.errors import ImplausibleValuesWarning, ParameterError


def _sklearn_checks():
    of_logits = ns.Combined(["max_logit", "lof(n_neighbors=3)"])
    for detector in (*(kind() for kind in DETECTORS.values()), of_logits):
        alone = len(detector.scores_from) == 1 and "head" not in detector.learns_from
        if not alone or detector.name == "linear_probe":
            continue  # scikit-learn's data is a single array, often without labels
        for estimator, check in estimator_checks_generator(
            detector, expected_failed_checks=NEEDS_CALIBRATION, mark="skip"
        ):
            label = getattr(check, "func", check).__name__
            if label == "check_array_api_input":
                continue  # arrays of other libraries, which nescio does not take
            yield pytest.param(estimator, check, id=f"{detector.name}-{label}")


@pytest.mark.parametrize(("estimator", "check"), list(_sklearn_checks()))
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        # scikit-learn's data is often positive
        warnings.simplefilter("ignore", ImplausibleValuesWarning)
        check(estimator)


@pytest.mark.filterwarnings("ignore:.* calibration scores equal:nescio.errors.TiedScoresWarning")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", DETECTORS)
def test_common_checks(name, check):
    check(DETECTORS[name]())


@pytest.mark.parametrize(
    "name", [name for name, kind in DETECTORS.items() if "layer" in kind().get_params()]
)
def test_another_layer(name):
    train, new = make_outputs(100), make_outputs(20, seed=1)
    detector = DETECTORS[name](layer="mahalanobis_max").fit(train)
    assert detector.n_columns_["mahalanobis_max"] == 8
    moved = [replace(data, features=data.arrays["mahalanobis_max"]) for data in (train, new)]
    expected = DETECTORS[name]().fit(moved[0]).score_samples(moved[1])
    np.testing.assert_array_equal(detector.score_samples(new), expected)


@pytest.mark.parametrize("elements", [1, 1000])
@pytest.mark.parametrize("name", ["knn", "nnguide", "label_neighbours", "vim", "linear_probe"])
def test_blocks_of_any_size_give_the_same(name, elements, monkeypatch):
    detector, new = DETECTORS[name]().fit(make_outputs(200)), make_outputs(60, seed=1)
    expected = detector.score_samples(new)
    monkeypatch.setattr(features, "_LARGEST_BLOCK", elements)
    np.testing.assert_allclose(detector.score_samples(new), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("detector", "message"),
    [
        (ns.JointEnergy(tpr=1.0), "tpr must lie"),
        (ns.JointEnergy(tpr="0.9"), "tpr must lie"),
        (ns.JointEnergy(nonfinite="ignore"), "'raise' or 'out'"),
        *((ns.ReAct(wrong), "percentile must lie between 0 and 100") for wrong in (0, 100, "90")),
        (ns.GEN(gamma=0), "gamma"),
        (ns.GEN(gamma=1), "gamma"),
        (ns.GEN(k=0), "k must be a whole number"),
        *(
            (ns.GradNorm(wrong), "target must be a number of at least 0 and at most 1")
            for wrong in (-0.1, 1.1, "zero", np.nan)
        ),
        (ns.ODIN("mean"), "aggregate must be 'max' or 'sum'"),
        (ns.Mahalanobis("mean"), "aggregate must be 'max' or 'sum'"),
        (ns.Mahalanobis(normalise="yes"), "normalise must be True or False, got 'yes'"),
        (ns.RelativeMahalanobis(normalise=1), "normalise must be True or False, got 1"),
        (ns.ViM(n_components=-1), "n_components must be a whole number"),
        (ns.NNGuide(k=0), "k must be a whole number"),
        *(
            (ns.LocalOutlierFactor(n_neighbors=wrong), "n_neighbors must be a whole number")
            for wrong in (0, 1.5, "5", True)
        ),
        (ns.IsolationForest(n_trees=0), "n_trees must be a whole number of at least 1"),
        (ns.IsolationForest(seed=-1), "seed must be a whole number of at least 0"),
        (ns.NearestNeighbours(bank=4), r"bank must be 0 \(all .* at least k = 5, got 4"),
        *(
            (ns.NearestNeighbours(layer=wrong), "layer must be 'features' or the name")
            for wrong in ("logits", "head", "", None)
        ),
    ],
    ids=str,
)
def test_parameters_outside_of_what_is_allowed(detector, message):
    with pytest.raises(ParameterError, match=message):
        detector.fit(make_outputs(60))
