"""Common checks for any detector, nescio's own and yours.

>>> from nescio.checks import check_detector
>>> from nescio import JointEnergy
>>> check_detector(JointEnergy())

Each check takes a detector, works on a clone of it and raises `AssertionError` with what it found.
A detector that derives from `Detector` and reads a single array also passes scikit-learn's
`check_estimator(detector, expected_failed_checks=NEEDS_CALIBRATION)`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.base import clone

from nescio._io.files import to_json
from nescio._validation import Array
from nescio.detectors import DETECTORS, Detector, NotCalibratedError, as_detector
from nescio.detectors.base import learning_half
from nescio.detectors.saving import plain_params
from nescio.errors import InputError, MissingInputError, NescioError, ParameterError, ShapeError
from nescio.explain import Explanation
from nescio.outputs import Head, Outputs

__all__ = ["CHECKS", "NEEDS_CALIBRATION", "check_detector", "make_outputs"]

NEEDS_CALIBRATION = dict.fromkeys(
    (
        "check_classifier_data_not_an_array",
        "check_dict_unchanged",
        "check_dtype_object",
        "check_estimators_dtypes",
        "check_estimators_nan_inf",
        "check_estimators_pickle",
        "check_f_contiguous_array_estimator",
        "check_fit2d_predict1d",
        "check_fit_idempotent",
        "check_fit_score_takes_y",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_n_features_in_after_fitting",
        "check_outliers_fit_predict",
        "check_outliers_train",
    ),
    "predict needs calibrate, on other data than fit; or the data lies in [0, 1], as no logits do",
)
"""Checks of scikit-learn that call `predict` after `fit` alone, with the reason."""

_N_LABELS = 6
_N_FEATURES = 8


def make_outputs(n_samples: int, *, seed: int = 0, shift: float = 0.0) -> Outputs:
    """Make outputs of an imagined model: features that depend on the labels, and a linear head.

    `shift` moves the features away from the data and lowers every logit; then the logits are not
    those of the head.

    Examples
    --------
    >>> outputs = make_outputs(50)
    >>> outputs.logits.shape, outputs.features.shape, outputs.labels.shape
    ((50, 6), (50, 8), (50, 6))
    """
    rng = np.random.default_rng([seed, n_samples])
    pattern = np.random.default_rng(7).normal(0, 2, (_N_LABELS, _N_FEATURES))
    labels = (rng.random((n_samples, _N_LABELS)) < 0.3).astype(np.uint8)
    labels[np.arange(n_samples), rng.integers(0, _N_LABELS, n_samples)] = 1
    features = labels @ pattern + rng.normal(0, 0.4, (n_samples, _N_FEATURES))
    head = Head(6.0 * np.linalg.pinv(pattern).T, np.full(_N_LABELS, -4.0))
    logits = features @ head.weight.T + head.bias - shift
    features += shift
    return Outputs(
        logits,
        features=features,
        labels=labels,
        label_names=[f"label {i}" for i in range(_N_LABELS)],
        head=head,
        arrays={
            **{f"odin_{aggregate}": logits * 1.1 for aggregate in ("max", "sum")},
            **{f"mahalanobis_{aggregate}": features * 1.01 for aggregate in ("max", "sum")},
        },
    )


def check_detector(detector: Detector) -> None:
    """Run every check on a detector; it is silent if there is nothing wrong."""
    detector = as_detector(detector)
    for check in CHECKS:
        check(detector)


def check_says_what_it_is(detector: Detector) -> None:
    """The detector has a name, a source and a docstring, and declares what it reads."""
    assert detector.name, "name must be set"
    taken = DETECTORS.get(detector.name, type(detector))
    assert taken is type(detector), (
        f"the name {detector.name!r} is that of nescio's {taken.__name__}"
    )
    assert detector.paper, "paper must say where the method comes from"
    assert type(detector).__doc__, "the class needs a docstring"
    assert detector.scores_from, "scores_from must name at least one array"
    learns = bool(detector.learns_from or detector.learns_from_held_out)
    assert learns == bool(detector.learned), (
        "a method that learns declares what from (learns_from, learns_from_held_out) and what it "
        "sets (learned)"
    )


def check_scores_one_number_per_sample(detector: Detector) -> None:
    """Scores are finite float64 of shape (n_samples,), and the same when computed twice."""
    fitted = _fitted(detector)
    scores = fitted.score_samples(make_outputs(50, seed=1))
    assert scores.shape == (50,), f"expected shape (50,), got {scores.shape}"
    assert scores.dtype == np.float64, f"expected float64, got {scores.dtype}"
    assert np.isfinite(scores).all(), "scores must be finite on finite input"
    assert np.array_equal(scores, fitted.score_samples(make_outputs(50, seed=1))), "not repeatable"


def check_samples_are_independent(detector: Detector) -> None:
    """A sample's score does not depend on the other samples of its batch or on its position."""
    fitted = _fitted(detector)
    outputs = make_outputs(40, seed=2)
    together = fitted.score_samples(outputs)
    alone = np.concatenate([fitted.score_samples(outputs[[i]]) for i in range(40)])
    np.testing.assert_allclose(alone, together, rtol=1e-9, atol=1e-9)
    order = np.random.default_rng(0).permutation(40)
    np.testing.assert_allclose(
        fitted.score_samples(outputs[order]), together[order], rtol=1e-9, atol=1e-9
    )


def check_arrays_and_outputs_agree(detector: Detector) -> None:
    """A plain array gives what Outputs give if it is all that the detector reads."""
    fitted = _fitted(detector)
    outputs = make_outputs(30, seed=3)
    array = np.array(outputs.get(fitted.scores_from[0]))
    if len(fitted.scores_from) > 1:
        _expect(MissingInputError, fitted.score_samples, array)
        return
    scores = fitted.score_samples(outputs)
    np.testing.assert_allclose(fitted.score_samples(array), scores, rtol=1e-12)
    single = fitted.score_samples(array.astype(np.float32))
    np.testing.assert_allclose(single, scores, rtol=1e-3, atol=1e-3)


def check_input_is_left_alone(detector: Detector) -> None:
    """Neither learning nor scoring writes to its input."""
    outputs = make_outputs(200, seed=4)
    before = {name: getattr(outputs, name).copy() for name in ("logits", "features", "labels")}
    clone(detector).fit(outputs)
    _fitted(detector).calibrate(outputs).assess(outputs)
    for name, array in before.items():
        assert np.array_equal(array, getattr(outputs, name)), f"{name} was changed"


def check_can_be_cloned(detector: Detector) -> None:
    """A clone has the same parameters and nothing learned."""
    copy = clone(_fitted(detector))
    assert plain_params(copy) == plain_params(detector), "parameters differ after clone"
    assert not hasattr(copy, "offset_"), "a clone must not keep the threshold"


def check_refuses_before_calibration(detector: Detector) -> None:
    """There is no verdict without a threshold, and no p-value without calibration."""
    outputs = make_outputs(200, seed=5)
    fresh = clone(detector)
    for uncalibrated in (fresh, clone(detector).fit(outputs)):
        for method in (uncalibrated.predict, uncalibrated.decision_function, uncalibrated.assess):
            _expect(NotCalibratedError, method, outputs)
        _expect(NotCalibratedError, uncalibrated.save, "never-written.nescio")


def check_keeps_the_promised_share(detector: Detector) -> None:
    """At least the promised share of the calibration data is kept; p-values match verdicts."""
    held_out = make_outputs(500, seed=6)
    outputs = held_out[~learning_half(500)] if detector.learns_from_held_out else held_out
    for tpr in (0.8, 0.95):
        fitted = _fitted(detector).calibrate(held_out, tpr=tpr)
        result = fitted.assess(outputs)
        kept = result.in_distribution.mean()
        assert kept >= tpr, f"kept {kept:.3f} of the calibration data, promised {tpr}"
        flagged = result.p_values <= 1 - tpr + 1e-12
        assert np.array_equal(flagged, ~result.in_distribution), "p-values contradict verdicts"
        expected = np.where(result.in_distribution, 1, -1)
        assert np.array_equal(fitted.predict(outputs), expected), "predict contradicts assess"
        decided = fitted.decision_function(outputs) >= 0
        assert np.array_equal(decided, result.in_distribution), "decision_function contradicts"


def check_calibrates_on_data_that_it_has_not_learned_from(detector: Detector) -> None:
    """What a detector learns from held-out data does not depend on the half that calibrates it."""
    if not detector.learns_from_held_out:
        return
    held_out, other = make_outputs(201, seed=15), make_outputs(201, seed=16)
    learning = learning_half(201)
    fitted = _fitted(detector).calibrate(held_out)
    (threshold,) = fitted.calibration_.thresholds.values()
    scores = np.sort(fitted.score_samples(held_out[~learning]))
    assert np.array_equal(threshold.scores, scores), "the wrong rows calibrate"
    other_half = Outputs.concat([held_out[learning], other[~learning]])
    order = np.empty(201, int)
    order[np.concatenate([np.flatnonzero(learning), np.flatnonzero(~learning)])] = np.arange(201)
    again = _fitted(detector).calibrate(other_half[order])
    new = make_outputs(40, seed=17)
    assert np.array_equal(again.score_samples(new), fitted.score_samples(new)), (
        "what it has learned depends on the half that calibrates"
    )


def check_survives_saving(detector: Detector) -> None:
    """A loaded detector gives the same scores, p-values and verdicts to the last bit."""
    fitted = _fitted(detector).calibrate(make_outputs(1500, seed=7), groups="label_count")
    outputs = make_outputs(60, seed=8, shift=1.0)
    loaded = _reloaded(fitted)
    assert plain_params(loaded) == plain_params(fitted), "parameters changed"
    before, after = fitted.assess(outputs), loaded.assess(outputs)
    for name, column in before.columns().items():
        assert np.array_equal(column, after.columns()[name]), f"{name} changed by saving"


def check_explains_or_refuses(detector: Detector) -> None:
    """The labels' terms add up to the score, before and after saving, or `explain` is refused."""
    fitted = _fitted(detector).calibrate(make_outputs(300, seed=13))
    outputs = make_outputs(30, seed=14)
    if not fitted.explains:
        _expect(ParameterError, fitted.explain, outputs)
        return
    explanation, terms = fitted.explain(outputs), fitted.label_terms()
    if isinstance(explanation, Explanation) and terms is not None:
        counted = np.sort(explanation.terms, axis=1)[:, ::-1][:, : terms.largest].sum(1)
        np.testing.assert_allclose(
            counted, fitted.score_samples(outputs), rtol=1e-9, err_msg="the terms are not the score"
        )
    assert np.array_equal(explanation.scores, fitted.score_samples(outputs)), "other scores"
    after = _reloaded(fitted).explain(outputs)
    assert to_json(after.as_dict()) == to_json(explanation.as_dict()), "changed by saving"


def check_refuses_bad_input(detector: Detector) -> None:
    """NaN, infinity, a wrong rank, a wrong number of columns and no rows are errors."""
    fitted = _fitted(detector)
    good = make_outputs(20, seed=9)
    name = _matrix_name(fitted)
    matrix = np.array(good.get(name))
    for value in (np.nan, np.inf):
        bad = matrix.copy()
        bad[3, 1] = value
        message = _expect(InputError, fitted.score_samples, _with(good, name, bad))
        assert "3" in message, f"the error should name row 3: {message}"
    _expect(InputError, fitted.score_samples, good[:0])
    if len(fitted.scores_from) == 1:
        _expect(ShapeError, fitted.score_samples, matrix[0])
        _expect(ShapeError, fitted.score_samples, matrix[:, :-1])


def check_can_mark_bad_rows_as_out(detector: Detector) -> None:
    """With nonfinite="out", a bad row is out and the other rows are not affected."""
    fitted = _fitted(clone(detector).set_params(nonfinite="out"))
    good = make_outputs(20, seed=10)
    name = _matrix_name(fitted)
    matrix = np.array(good.get(name))
    matrix[3, 1] = np.nan
    bad = _with(good, name, matrix)
    scores = fitted.score_samples(bad)
    assert np.isneginf(scores[3]), f"a bad row must score -inf, got {scores[3]}"
    assert fitted.predict(bad)[3] == -1, "a bad row must be out"
    finite = np.arange(20) != 3
    np.testing.assert_allclose(scores[finite], fitted.score_samples(good)[finite], rtol=1e-9)
    rated = fitted.calibrate(make_outputs(100, seed=12)).assess(bad, fdr=0.01)
    assert not rated.in_distribution[3], "a bad row must be out at any false-alarm rate"


def _matrix_name(detector: Detector) -> str:
    """Return the first array that the detector scores."""
    return next(name for name in detector.scores_from if name != "head")


def _with(outputs: Outputs, name: str, array: Array) -> Outputs:
    """Return the outputs with another array under a name."""
    if name in ("logits", "features"):
        return replace(outputs, **{name: array})  # type: ignore[arg-type]
    return replace(outputs, arrays={**outputs.arrays, name: array})


def _fitted(detector: Detector) -> Detector:
    fitted: Detector = clone(detector).fit(make_outputs(400, seed=11))
    return fitted.calibrate(make_outputs(400, seed=18))


def _reloaded(detector: Detector) -> Detector:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "detector.nescio"
        detector.save(path)
        return type(detector).load(path)


def _expect(error: type[NescioError], call: Callable[..., object], *arguments: object) -> str:
    try:
        call(*arguments)
    except error as raised:
        return str(raised)
    raise AssertionError(f"expected {error.__name__}, but nothing was raised")


CHECKS: tuple[Callable[[Detector], None], ...] = tuple(
    function
    for name, function in list(globals().items())
    if name.startswith("check_") and function is not check_detector
)
"""All of them, in the order of their definitions."""
