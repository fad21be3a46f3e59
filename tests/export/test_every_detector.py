"""Every detector that can be exported, under onnxruntime: the same verdicts as in Python."""

import numpy as np
import pytest
import torch

import nescio as ns
from fixtures.export import (
    N_LABELS,
    calibrated,
    metadata,
    run,
    some_logits,
    threshold_of,
    whole_outputs,
)
from nescio.errors import MissingInputError
from nescio.export import DetectorHead
from nescio.export.graphs import detector_graph, to_bytes, traced
from nescio.export.parity import run_graph
from nescio.models.onnx_models import open_session

from .test_detector_head import TRACEABLE, of_features, outputs_to_judge, rows_to_judge

FEATURE_DETECTORS = {
    "mahalanobis max": ns.Mahalanobis("max"),
    "mahalanobis sum": ns.Mahalanobis("sum"),
    "mahalanobis normalised": ns.Mahalanobis(normalise=True),
    "relative_mahalanobis": ns.RelativeMahalanobis(),
    "relative_mahalanobis not normalised": ns.RelativeMahalanobis(normalise=False),
    "knn": ns.NearestNeighbours(),
    "nnguide": ns.NNGuide(),
    "vim": ns.ViM(),
    "out_of_range": ns.OutOfRange(),
}

pytestmark = pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")


def close(onnx_outputs, wanted, calibration, tolerance=1e-5, least=0.0):
    """Scores to a tolerance, relative to `least` or more; p-values and verdicts but at a tie."""
    with np.errstate(invalid="ignore"):
        off = np.abs(onnx_outputs["score"] - wanted.scores) / np.maximum(
            np.abs(wanted.scores), least
        )
    same = onnx_outputs["score"] == wanted.scores
    assert np.all(same | (off < tolerance))
    slack = np.where(
        np.isfinite(wanted.scores), tolerance * np.maximum(np.abs(wanted.scores), least), 0
    )
    low, high = (
        calibration.p_values(wanted.scores + sign * slack, wanted.groups) for sign in (-1, 1)
    )
    assert (
        (onnx_outputs["p_value"] >= low - 1e-12) & (onnx_outputs["p_value"] <= high + 1e-12)
    ).all()
    near = np.abs(wanted.scores - calibration.threshold_of(wanted.groups)) <= slack
    assert (near | (onnx_outputs["in_distribution"] == wanted.in_distribution)).all()
    assert near.mean() < 0.05


def is_exact(graph):
    """Neither is an operator that runtimes approximate where logits are far below zero."""
    return not {"Softplus", "Sigmoid"} & {node.op_type for node in graph.graph}


class _NoVerdict(torch.nn.Module):
    """In place of the search for the p-value, which does not depend on the detector."""

    by = None

    def forward(self, scores, logits):
        return ()


class _AllScores(torch.nn.Module):
    """Several detectors as one graph: a graph takes seconds, however small it is."""

    def __init__(self, detectors, head):
        super().__init__()
        self.heads = torch.nn.ModuleList(
            DetectorHead(detector, head=head) for detector in detectors
        )
        for head in self.heads:
            head.verdict = _NoVerdict()

    def forward(self, *inputs):
        return tuple(score for head in self.heads for score in head.judge(*inputs))


@pytest.fixture(scope="module", params=[np.float32, np.float64], ids=["float32", "float64"])
def scored(request):
    """For each detector, the scores that onnxruntime gives, and those that Python gives."""
    detectors = {name: calibrated(name) for name in TRACEABLE}
    for name, detector in FEATURE_DETECTORS.items():
        detectors[name], train = of_features(detector)
    combined = ns.Combined(["mahalanobis", "max_logit"], [2, 1])
    detectors["combined"], _ = of_features(combined)
    outputs = outputs_to_judge(request.param)
    # Two rows for the distances: one far away, and one of the training data.
    outputs.features[5], outputs.features[6] = 1e4, train.features[0]
    feed = {"logits": outputs.logits, "features": outputs.features}
    graph = traced(
        _AllScores(detectors.values(), outputs.head).eval(),
        [torch.from_numpy(array[:3]) for array in feed.values()],
        [{0: torch.export.Dim.DYNAMIC}] * 2,
        input_names=feed,
        output_names=detectors,
        what="all of them",
        exact=True,
    )
    assert is_exact(graph)
    onnx_scores = run_graph(open_session(to_bytes(graph, {})), feed, None)
    return {name: (onnx_scores[name], detectors[name].assess(outputs).scores) for name in detectors}


@pytest.mark.parametrize("name", [*TRACEABLE, *FEATURE_DETECTORS])
def test_the_scores_of_every_detector(name, scored):
    onnx_scores, wanted = scored[name]
    # Relative, so that scores of inputs far away, as small as 1e-13, count too.
    # Those of distances may be small differences of large numbers.
    atol = 1e-5 if name in FEATURE_DETECTORS else 0
    np.testing.assert_allclose(onnx_scores, wanted, rtol=1e-5, atol=atol)
    if name in FEATURE_DETECTORS or "penultimate" in ns.DETECTORS[name]().scores_from:
        assert (onnx_scores[:3] == -np.inf).all()


def test_the_scores_of_a_combination(scored):
    onnx_scores, wanted = scored["combined"]
    # A p-value may be steep between two reference scores that are close to each other.
    np.testing.assert_allclose(onnx_scores, wanted, rtol=1e-3)
    assert (onnx_scores[:3] == -np.inf).all()


def test_probabilities_in_float64():
    detector = ns.JointEnergy().calibrate(some_logits())
    probs = ns.scores.label_prob(some_logits(50, seed=9).astype(np.float64))
    probs[0], probs[1], probs[2] = 0.0, 1.0, 1e-300
    head = DetectorHead(detector, from_probs=True)
    graph = detector_graph(head, {"logits": torch.from_numpy(probs)})
    assert is_exact(graph)
    onnx_outputs = run_graph(open_session(to_bytes(graph, {})), {"given_logits": probs}, None)
    logits = ns.scores.logits_from_probs(probs)
    np.testing.assert_allclose(onnx_outputs["logits"], logits, rtol=1e-12)
    np.testing.assert_allclose(onnx_outputs["score"], detector.score_samples(logits), rtol=1e-12)


def test_a_detector_of_logits_alone(tmp_path):
    detector = ns.TopKJointEnergy(k=3, nonfinite="out").calibrate(
        some_logits(), groups="label_count"
    )
    path = tmp_path / "alone.onnx"
    exported = ns.export_onnx(None, path, detector=detector)
    assert exported.inputs == {"logits": ("batch", N_LABELS)}
    assert exported.outputs == ("probs", "score", "p_value", "in_distribution")
    rows = rows_to_judge()
    onnx_outputs = run(path, logits=rows)
    close(onnx_outputs, detector.assess(rows), detector.calibration_)
    np.testing.assert_allclose(onnx_outputs["probs"], ns.scores.label_prob(rows), rtol=1e-5)
    assert threshold_of(path) == detector.calibration_.threshold_values
    assert metadata(path)["nescio.detector"] == "top_k_joint_energy"
    single = run(path, logits=rows[:1])
    assert single["score"].shape == (1,)
    assert single["score"][0] == pytest.approx(onnx_outputs["score"][0], rel=1e-6)


@pytest.mark.parametrize("kind", [ns.Mahalanobis("sum"), ns.Combined()], ids=["sum", "combined"])
def test_a_detector_of_features_and_label_count_alone(kind, tmp_path):
    detector, outputs = of_features(kind, "label_count")
    path = tmp_path / "alone.onnx"
    exported = ns.export_onnx(None, path, detector=detector, samples=outputs[:50])
    assert exported.outputs == ("probs", "score", "p_value", "in_distribution")
    assert list(exported.inputs) == ["logits", "features"]
    onnx_outputs = run(path, logits=outputs.logits, features=outputs.features)
    close(onnx_outputs, detector.assess(outputs), detector.calibration_, tolerance=1e-4, least=1.0)
    assert metadata(path)["nescio.detector"] == detector.name


def test_a_detector_of_the_input_of_the_head_alone(tmp_path):
    """The graph takes it by its name; the head is part of the graph."""
    detector, outputs = calibrated("react"), whole_outputs(50, seed=7)
    path = tmp_path / "alone.onnx"
    exported = ns.export_onnx(None, path, detector=detector, samples=outputs)
    assert exported.inputs == {"penultimate": ("batch", 9)}
    onnx_outputs = run(path, penultimate=outputs.features)
    close(onnx_outputs, detector.assess(outputs), detector.calibration_)
    with pytest.raises(MissingInputError, match="react reads the classifier's last layer"):
        ns.export_onnx(None, tmp_path / "no.onnx", detector=detector)


def test_rows_that_python_refuses_are_out(tmp_path):
    """A graph cannot raise: what nonfinite='raise' refuses gets the smallest p-value."""
    detector = ns.MaxLogit().calibrate(some_logits(), tpr=0.9)
    path = tmp_path / "alone.onnx"
    ns.export_onnx(None, path, detector=detector)
    rows = some_logits(4, seed=8)
    rows[0, 0], rows[1, 0], rows[2, 0] = np.nan, np.inf, -np.inf
    onnx_outputs = run(path, logits=rows)
    assert (onnx_outputs["score"][:2] == -np.inf).all()
    assert onnx_outputs["p_value"][:2] == pytest.approx(1 / 401)
    assert not onnx_outputs["in_distribution"][:2].any()
    # -inf marks a masked label, which this detector takes.
    assert onnx_outputs["score"][2] == rows[2, 1:].max()
    # A maximum is not rounded: what is at tau is in, whatever runs the graph.
    tau = np.full((1, N_LABELS), detector.offset_, np.float32)
    at_tau, below = (np.nextafter(tau, np.float32(side)) for side in (np.inf, -np.inf))
    assert run(path, logits=np.concatenate([at_tau, below]))["in_distribution"].tolist() == [
        True,
        False,
    ]


def test_a_graph_holds_the_training_samples_once(tmp_path):
    detector, outputs = of_features(ns.NearestNeighbours())
    detector.fit(np.random.default_rng(0).normal(size=(5000, 9))).calibrate(outputs.features)
    path = tmp_path / "alone.onnx"
    ns.export_onnx(None, path, detector=detector)
    assert path.stat().st_size < 1.2 * detector.bank_.nbytes
