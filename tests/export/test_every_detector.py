"""Every detector that can be exported, alone, under onnxruntime: the same verdicts as in Python."""

import numpy as np
import pytest

import nescio as ns

from .conftest import N_LABELS, metadata, run, some_logits, tau_of
from .test_fused import LOGIT_DETECTORS, mahalanobis, rows_to_judge

pytestmark = pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")


def close(found, wanted, calibration, tolerance=1e-5):
    """Scores to a relative tolerance; p-values and verdicts but where rounding may decide."""
    with np.errstate(invalid="ignore"):
        off = np.abs(found["score"] - wanted.scores) / np.abs(wanted.scores)
    same = found["score"] == wanted.scores
    assert np.all(same | (off < tolerance))
    slack = np.where(np.isfinite(wanted.scores), tolerance * np.abs(wanted.scores), 0)
    low, high = (
        calibration.p_values(wanted.scores + sign * slack, wanted.groups) for sign in (-1, 1)
    )
    assert ((found["p_value"] >= low - 1e-12) & (found["p_value"] <= high + 1e-12)).all()
    near = np.abs(wanted.scores - calibration.tau_of(wanted.groups)) <= slack
    assert (near | (found["in_distribution"] == wanted.in_distribution)).all()
    assert near.mean() < 0.05


# One in two by label count: the search for the p-value does not depend on the score.
@pytest.mark.parametrize(
    ("name", "groups"),
    [(name, (None, "label_count")[at % 2]) for at, name in enumerate(LOGIT_DETECTORS)],
)
def test_a_logit_detector_alone(name, groups, tmp_path):
    detector = ns.DETECTORS[name](nonfinite="out").calibrate(some_logits(), groups=groups)
    path = tmp_path / "alone.onnx"
    exported = ns.export_onnx(None, path, detector=detector)
    assert exported.inputs == {"logits": ("batch", N_LABELS)}
    assert exported.outputs == ("probs", "score", "p_value", "in_distribution")
    rows = rows_to_judge()
    found = run(path, logits=rows)
    # Relative, so that scores of inputs far away, as small as 1e-13, count too.
    close(found, detector.assess(rows), detector.calibration_)
    np.testing.assert_allclose(found["probs"], ns.scores.label_prob(rows), rtol=1e-5)
    assert tau_of(path) == detector.calibration_.taus
    assert metadata(path)["nescio.detector"] == name
    one = run(path, logits=rows[:1])
    assert one["score"].shape == (1,)
    assert one["score"][0] == pytest.approx(found["score"][0], rel=1e-6)


@pytest.mark.parametrize(("aggregate", "groups"), [("max", None), ("sum", "label_count")])
def test_mahalanobis_alone(aggregate, groups, tmp_path):
    detector, outputs = mahalanobis(aggregate, groups)
    path = tmp_path / "alone.onnx"
    exported = ns.export_onnx(None, path, detector=detector, samples=outputs[:50])
    feed = {"features": outputs.features * 2}
    if groups is None:
        assert exported.outputs == ("score", "p_value", "in_distribution")
    else:
        assert exported.outputs == ("probs", "score", "p_value", "in_distribution")
        feed["logits"] = outputs.logits
    feed["features"][:3, 0] = np.nan, np.inf, -np.inf
    found = run(path, **feed)
    wanted = detector.assess(ns.Outputs(outputs.logits, features=feed["features"]))
    close(found, wanted, detector.calibration_)
    assert (found["score"][:3] == -np.inf).all()


def test_rows_that_python_refuses_are_out(tmp_path):
    """A graph cannot raise: what nonfinite='raise' refuses gets the smallest p-value."""
    detector = ns.MaxLogit().calibrate(some_logits(), tpr=0.9)
    path = tmp_path / "alone.onnx"
    ns.export_onnx(None, path, detector=detector)
    rows = some_logits(4, seed=8)
    rows[0, 0], rows[1, 0], rows[2, 0] = np.nan, np.inf, -np.inf
    found = run(path, logits=rows)
    assert (found["score"][:2] == -np.inf).all()
    assert found["p_value"][:2] == pytest.approx(1 / 401)
    assert not found["in_distribution"][:2].any()
    # -inf marks a masked label, which this detector takes.
    assert found["score"][2] == rows[2, 1:].max()
    # A maximum is not rounded: ties with tau are in, whatever runs the graph.
    at_tau = np.full((1, N_LABELS), detector.offset_, np.float32)
    below = np.nextafter(at_tau, np.float32(-np.inf))
    assert run(path, logits=np.concatenate([at_tau, below]))["in_distribution"].tolist() == [
        True,
        False,
    ]
