"""The torch module: the same numbers as Python, on any device and precision, and traceable."""

import numpy as np
import pytest

import nescio as ns
from nescio.errors import ExportError, MissingInputError, ShapeError

torch = pytest.importorskip("torch")

from fixtures.export import (
    N_LABELS,
    a_network,
    calibrated,
    mahalanobis,
    of_features,
    some_inputs,
    some_logits,
    whole_outputs,
)
from nescio.detectors.features import FeatureDetector
from nescio.export import DetectorHead
from nescio.export.detector_head import SCORES
from nescio.export.parity import check_parity

OF_FEATURES = {name for name, kind in ns.DETECTORS.items() if issubclass(kind, FeatureDetector)}
TRACEABLE = [
    name for name in ns.DETECTORS if ns.DETECTORS[name].traceable and name not in OF_FEATURES
]
EXPORTED = {*SCORES, *(name for name, kind in ns.DETECTORS.items() if kind.traceable), "combined"}
# These call the same kernel; the last step of the other three rounds differently.
SAME_TO_THE_LAST_BIT = set(ns.scores.SCORES) - {"max_energy", "max_prob", "exp_joint_energy"}
REFUSED = ("odin", "mahalanobis_perturbed", "lof", "isolation_forest")

pytestmark = pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")


def rows_to_judge():
    """New rows, calibration rows (ties), extremes, and values that cannot be used."""
    levels = [np.full((1, N_LABELS), v, np.float32) for v in (-30, 60, 1e4, -1e4, 0, -np.inf)]
    bad = some_logits(3, seed=5)
    bad[[0, 1, 2], 2] = np.nan, np.inf, -np.inf
    return np.concatenate([some_logits(200, seed=4), some_logits()[:50], *levels, bad])


def outputs_to_judge(dtype="f4"):
    """The rows to judge with features, some of which cannot be used either."""
    rows = rows_to_judge().astype(dtype)
    whole = whole_outputs(len(rows), seed=6, dtype=dtype)
    features = 2 * whole.features
    features[:3, 0] = np.nan, np.inf, -np.inf
    features[3], features[4] = 0.0, -1.0
    return ns.Outputs(rows, features, head=whole.head)


def same(assessment, outputs):
    np.testing.assert_array_equal(outputs.score.numpy(), assessment.scores)
    np.testing.assert_array_equal(outputs.p_value.numpy(), assessment.p_values)
    np.testing.assert_array_equal(outputs.in_distribution.numpy(), assessment.in_distribution)


def test_every_detector_is_exported_or_says_why_not():
    assert set(ns.DETECTORS) == {*EXPORTED, *REFUSED}


@pytest.mark.parametrize("groups", [None, "label_count"])
@pytest.mark.parametrize("name", TRACEABLE)
def test_the_head_gives_what_the_detector_gives(name, groups):
    detector = calibrated(name, groups)
    judged = outputs_to_judge()
    head = DetectorHead(detector, head=judged.head)
    outputs = head(torch.from_numpy(judged.logits), torch.from_numpy(judged.features))
    tensors = {field: tensor.numpy() for field, tensor in outputs._asdict().items()}
    check_parity(tensors, judged, detector, tolerance=1e-5)
    if name in SAME_TO_THE_LAST_BIT:
        same(detector.assess(judged), outputs)


@pytest.mark.parametrize("groups", [None, "label_count"])
def test_the_head_of_a_combination(groups):
    guard = "out_of_range(layer=logits, held_out=true)"
    parts = [*ns.scores.SCORES, ns.Combined(["joint_energy", "msp"]), guard]
    detector = ns.Combined(parts, list(range(1, 1 + len(parts))), nonfinite="out")
    # In float64: a p-value is steep between reference scores that are close to each other.
    logits = some_logits(800).astype(np.float64)
    detector.calibrate(logits, groups=groups)
    rows = np.concatenate([rows_to_judge(), logits[50:]])
    outputs = DetectorHead(detector)(torch.from_numpy(rows))
    tensors = {field: tensor.numpy() for field, tensor in outputs._asdict().items()}
    check_parity(tensors, ns.Outputs(rows), detector, tolerance=1e-6)


def test_a_combination_that_cannot_be_exported_says_why():
    with pytest.raises(ns.detectors.NotCalibratedError, match="no threshold yet"):
        DetectorHead(ns.Combined())
    with_lof = ns.Combined(["msp", "lof"]).fit(some_logits()).calibrate(some_logits(seed=1))
    with pytest.raises(ExportError, match="with one of its parts: lof cannot be exported: it sear"):
        DetectorHead(with_lof)


def test_relative_mahalanobis_that_learned_without_labels():
    detector, outputs = of_features(ns.RelativeMahalanobis())
    detector.fit(outputs.features[:200]).calibrate(outputs.features[200:])
    scores = DetectorHead(detector).judge(None, torch.from_numpy(outputs.features))[0]
    np.testing.assert_allclose(scores, detector.score_samples(outputs.features), rtol=1e-6)


@pytest.mark.filterwarnings("ignore::nescio.errors.TiedScoresWarning")
@pytest.mark.parametrize("name", ["joint_energy", "max_prob", "top_k_logit", "msp", "gen"])
def test_ties_have_the_same_verdict_in_torch_and_in_any_precision(name):
    rng = np.random.default_rng(0)
    values = np.array([-2.2, -1.1, 1.1, 2.2])  # few scores, which lie far apart
    held_out, new = (rng.choice(values, (n, 6)) for n in (400, 200))
    detector = ns.detectors.DETECTORS[name]().calibrate(held_out)
    expected = detector.assess(new)
    for dtype in (torch.float32, torch.float64):
        verdicts = DetectorHead(detector)(torch.from_numpy(new).to(dtype))
        np.testing.assert_array_equal(verdicts.p_value, expected.p_values)
        np.testing.assert_array_equal(verdicts.in_distribution, expected.in_distribution)


def test_tau_and_calibration_scores_keep_their_last_digits():
    logits = some_logits().astype(np.float64) + 1e-12  # no score is a float32
    detector = ns.MaxLogit().calibrate(logits, tpr=0.9)
    logits[0] = np.nextafter(detector.offset_, -np.inf)
    same(detector.assess(logits), DetectorHead(detector)(torch.from_numpy(logits)))
    # A score of plus infinity is above all.
    infinite = DetectorHead(ns.SumLogit().calibrate(some_logits()))(torch.full((1, 6), 3e38))
    assert (infinite.score.item(), infinite.p_value.item()) == (np.inf, 1.0)


def test_probabilities_become_logits():
    detector = ns.JointEnergy().calibrate(some_logits())
    probs = ns.scores.label_prob(some_logits(50, seed=9))
    probs[0], probs[1, 0] = 0.0, 1.0
    head = DetectorHead(detector, from_probs=True)
    wanted = detector.assess(ns.scores.logits_from_probs(probs))
    np.testing.assert_allclose(head(torch.from_numpy(probs)).score, wanted.scores, rtol=1e-6)
    outside = torch.full((2, N_LABELS), 0.5)
    outside[0, 0], outside[1, 0] = 1.5, -0.5
    assert head(outside).score.tolist() == [-np.inf, -np.inf]


def test_half_precision_leaves_the_calibration_alone():
    detector = ns.JointEnergy().calibrate(some_logits())
    fused = torch.nn.Sequential(*a_network(), DetectorHead(detector)).half()
    assert fused[0].weight.dtype == torch.float16
    assert fused[-1].verdict.table.dtype == torch.float64
    with torch.no_grad():
        outputs = fused(torch.from_numpy(some_inputs(10)).half())
    assert outputs.logits.dtype == torch.float32
    same(detector.assess(outputs.logits.numpy()), outputs)


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_all_tensors_move_to_another_device_with_the_head(name):
    detector = calibrated(name, None)
    head = DetectorHead(detector, head=outputs_to_judge().head).to("meta")
    kept = [value for part in head.modules() for value in vars(part).values()]
    lists = [value for value in kept if isinstance(value, list | tuple)]
    tensors = [
        tensor for value in [kept, *lists] for tensor in value if isinstance(tensor, torch.Tensor)
    ]
    assert tensors == []
    assert all(tensor.is_meta for tensor in head.buffers())


@pytest.mark.parametrize(
    "detector",
    [
        *("joint_energy", "mahalanobis", "react", "ash", ns.Combined(["react", "knn"])),
        ns.Combined(["knn(layer=penultimate)", "knn(layer=0)"]),
    ],
    ids=str,
)
def test_a_head_after_the_module_of_a_wrapped_model(detector):
    inputs = some_inputs(30, seed=3)
    wrapped = ns.wrap(a_network(), features="input", detector=detector)
    wrapped = wrapped.fit(some_inputs(), some_logits(300) > 0).calibrate(some_inputs(seed=2))
    wanted = wrapped(inputs)
    head = DetectorHead(wrapped.detector, head=wanted.outputs.head)
    with torch.no_grad():
        logits, *layers = wrapped.runner.module()(torch.from_numpy(inputs))
        by_layer = dict(zip(wrapped.runner.array_names, layers, strict=True))
        verdicts = head(logits, *(by_layer.get(name, layers[0]) for name in head.layers))
    np.testing.assert_allclose(verdicts.probs, wanted.probs, rtol=1e-5)
    np.testing.assert_allclose(verdicts.score, wanted.assessment.scores, rtol=1e-4)
    assert (verdicts.in_distribution.numpy() == wanted.in_distribution).all()


def test_gradients_flow_through_the_score():
    head = DetectorHead(ns.JointEnergy().calibrate(some_logits()))
    fused = torch.nn.Sequential(a_network(), head)
    inputs = torch.from_numpy(some_inputs(4)).requires_grad_()
    fused(inputs).score.sum().backward()
    assert inputs.grad.abs().sum() > 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_says_why_and_what_instead(name):
    with pytest.raises(ExportError, match=rf"{name} cannot be exported: .*Export mahalanobis"):
        DetectorHead(ns.DETECTORS[name]())


def test_a_detector_of_ones_own_is_refused_unless_it_says_that_it_can():
    class Half(ns.Detector):
        name = "half"

        def _score(self, arrays):
            return ns.scores.joint_energy(arrays.logits) / 2

    with pytest.raises(ExportError, match="set traceable = True"):
        DetectorHead(Half().calibrate(some_logits()))
    Half.traceable = True
    detector = Half().calibrate(some_logits())
    same(detector.assess(some_logits(20)), DetectorHead(detector)(torch.tensor(some_logits(20))))


def test_without_calibration_or_with_groups_of_ones_own():
    with pytest.raises(ns.NotCalibratedError, match="calibrate"):
        DetectorHead(ns.JointEnergy().fit(some_logits()))
    groups = np.resize(["day", "night"], 400)
    with pytest.raises(ExportError, match="by your own groups"):
        DetectorHead(ns.JointEnergy().calibrate(some_logits(), groups=groups))


def test_wrong_inputs():
    head = DetectorHead(ns.JointEnergy().calibrate(some_logits()))
    with pytest.raises(ShapeError, match=r"\(n_samples, 6\), got \(2, 5\)"):
        head(torch.zeros(2, 5))
    with pytest.raises(MissingInputError, match="features"):
        DetectorHead(mahalanobis()[0])(torch.zeros(2, N_LABELS))
    with pytest.raises(MissingInputError, match=r"last layer.*head=outputs\.head"):
        DetectorHead(calibrated("react", None))
