import warnings

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from nescio.checks import CHECKS, NEEDS_CALIBRATION
from nescio.detectors import DETECTORS
from nescio.errors import ImplausibleValuesWarning


def _sklearn_checks():
    for name, detector in DETECTORS.items():
        alone = len(detector().scores_from) == 1 and "head" not in detector().learns_from
        if not alone or name == "linear_probe":
            continue  # scikit-learn's data is a single array, often without labels
        for estimator, check in estimator_checks_generator(
            detector(), expected_failed_checks=NEEDS_CALIBRATION, mark="skip"
        ):
            label = getattr(check, "func", check).__name__
            if label == "check_array_api_input":
                continue  # arrays of other libraries, which nescio does not take
            yield pytest.param(estimator, check, id=f"{name}-{label}")


@pytest.mark.parametrize(("estimator", "check"), list(_sklearn_checks()))
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        # scikit-learn's data is often positive
        warnings.simplefilter("ignore", ImplausibleValuesWarning)
        check(estimator)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", DETECTORS)
def test_common_checks(name, check):
    check(DETECTORS[name]())
