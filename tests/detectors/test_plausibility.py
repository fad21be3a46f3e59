"""Calibration data that cannot be meant, and data that the detector has learned from."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

import nescio as ns
from fixtures.own_detectors import Together
from fixtures.rectified import relu_outputs
from nescio.checks import make_outputs
from nescio.detectors import DETECTORS
from nescio.errors import ImplausibleValuesWarning, InputError, TiedScoresWarning

LEARNING = [name for name, kind in DETECTORS.items() if kind().learns_from]


@pytest.mark.parametrize("name", LEARNING)
def test_data_that_was_learned_from_cannot_calibrate(name):
    train = make_outputs(200)
    detector = DETECTORS[name]().fit(train)
    same = replace(train, logits=train.logits.copy(), features=train.features.astype(np.float32))
    order = np.random.default_rng(0).permutation(200)
    for data in (train, same, train[order]):
        with pytest.raises(InputError, match=r"learned from this very data \(200 samples\).*held"):
            detector.calibrate(data)
    assert not hasattr(detector, "offset_")
    detector.calibrate(make_outputs(200, seed=1))
    detector.fit(make_outputs(200, seed=2)).calibrate(train)


def test_the_same_array_is_recognised(rng):
    train = rng.normal(-1, 2, (3000, 4))
    with pytest.raises(InputError, match="learned from this very data"):
        ns.LocalOutlierFactor().fit(train).calibrate(train.tolist())
    ns.JointEnergy().fit(train).calibrate(train)  # it learns nothing


def test_samples_that_were_learned_from_are_noticed(rng, tmp_path):
    train = rng.normal(-1, 2, (3000, 4))
    detector = ns.LocalOutlierFactor().fit(train)
    with pytest.warns(ImplausibleValuesWarning, match=r"about 100% of these samples are equal to"):
        detector.calibrate(train[:1500].astype(np.float32))
    detector.save(tmp_path / "detector.nescio")
    half = train.copy()
    half[::2] += 1
    with pytest.warns(ImplausibleValuesWarning, match=r"about [3-6]\d% of these samples are equal"):
        ns.load(tmp_path / "detector.nescio").calibrate(half)
    few = train.copy()
    few[150:] += 1  # a twentieth: some data has equal rows by nature
    detector.calibrate(few)


def test_rows_of_zeros_are_not_taken_for_learned_samples(rng):
    train, new = rng.normal(size=(2, 4000, 4))
    train[:120] = new[:120] = 0.0  # dead features; their hash is the lowest of all
    ns.NearestNeighbours().fit(train).calibrate(new)


def test_a_small_training_set_is_compared_whole(rng):
    train = rng.normal(-1, 2, (100, 4))
    with pytest.warns(ImplausibleValuesWarning, match="about 50% of these samples"):
        ns.LocalOutlierFactor().fit(train).calibrate(
            np.concatenate([train[:30], rng.normal(-1, 2, (30, 4))])
        )


def test_a_saved_detector_still_knows_the_data(tmp_path):
    train = make_outputs(200)
    fitted = ns.Mahalanobis().fit(train).calibrate(make_outputs(200, seed=1))
    fitted.save(tmp_path / "detector.nescio")
    loaded = ns.load(tmp_path / "detector.nescio")
    with pytest.raises(InputError, match="learned from this very data"):
        loaded.calibrate(train)
    loaded.calibrate(make_outputs(200, seed=2))


def test_a_detector_inside_another_may_calibrate_on_its_arrays():
    class Inner(Together):
        """Calibrates its parts on what it learns from; the guarantee is its own."""

        def _learn(self, arrays):
            super()._learn(arrays)
            self.detectors_ = [clone(part).fit(arrays).calibrate(arrays) for part in self.detectors]

    train = make_outputs(200)
    detector = Inner([ns.JointEnergy(), ns.LocalOutlierFactor()]).fit(train)
    with pytest.raises(InputError, match="together has learned from this very data"):
        detector.calibrate(train)
    detector.calibrate(make_outputs(200, seed=1))


def test_constant_labels_are_named(logits):
    logits[:, 2] = 1.5
    with pytest.warns(ImplausibleValuesWarning, match=r"^all 400 .* for these labels: 2\. A"):
        ns.JointEnergy().calibrate(logits)
    logits[:, 4] = -1.0
    named = ns.Outputs(logits, label_names=list("abcdef"))
    with pytest.warns(ImplausibleValuesWarning, match=r"these labels: 'c', 'e'\. A const"):
        ns.JointEnergy().calibrate(named)


def test_masked_labels_and_labels_that_differ_late_are_not_constant(logits):
    logits[:, 2] = -np.inf
    logits[:-1, 3] = 0.5
    ns.JointEnergy().calibrate(logits)


def test_more_labels_than_samples_may_be_a_transposed_array(rng):
    """With 20 labels or more, a transposed array has enough rows to calibrate on."""
    logits = rng.normal(-2, 3, (300, 20))
    hint = r"20 rows and 300 columns, .*array\.T"
    with pytest.warns(ImplausibleValuesWarning, match=hint) as said:
        ns.JointEnergy().calibrate(logits.T)
    assert len(said) == 1
    names = [f"label {at}" for at in range(300)]
    ns.JointEnergy().calibrate(ns.Outputs(logits.T, label_names=names))  # named, so meant
    ns.JointEnergy().calibrate(logits[:20])  # a square


def test_constant_scores_are_told(logits):
    logits[:] = logits[0]
    with (
        pytest.warns(ImplausibleValuesWarning, match="these labels: 0, 1, 2, 3, 4 and 1 more"),
        pytest.warns(TiedScoresWarning, match="all 400 calibration scores are"),
    ):
        ns.JointEnergy().calibrate(logits)


def test_features_of_another_layer_than_the_input_of_the_head():
    outputs = relu_outputs()
    ns.ASH().fit(outputs)
    halves = replace(outputs, features=outputs.features.astype(np.float16))
    ns.ASH().fit(halves)
    other = replace(outputs, features=outputs.features[:, ::-1])  # as wide, but not its input
    with pytest.warns(ImplausibleValuesWarning, match="the head does not give the logits"):
        ns.ASH().fit(other)


def of_a_model(seed, **manifest):
    about = {"kind": "torch", "model_hash": "aaa", "preprocessing": {"size": 224}} | manifest
    return replace(make_outputs(200, seed=seed), manifest=about)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"model_hash": "bbb"}, r"outputs of another model \(aaa, here bbb\)"),
        ({"preprocessing": {"size": 256}}, r"prepared in another way \(size 224, here size 256\)"),
    ],
)
def test_outputs_of_another_model(manifest, message, tmp_path):
    detector = ns.Mahalanobis().fit(of_a_model(0))
    with pytest.warns(ImplausibleValuesWarning, match=message):
        detector.calibrate(of_a_model(1, **manifest))
    detector.calibrate(of_a_model(1)).save(tmp_path / "x.nescio")
    loaded = ns.load(tmp_path / "x.nescio")
    with pytest.warns(ImplausibleValuesWarning, match=message):
        loaded.assess(of_a_model(2, **manifest))
    # The same model, and one that may be the same: as a graph, or not known.
    for others in (of_a_model(2), of_a_model(2, kind="onnx", model_hash="b"), make_outputs(9)):
        loaded.assess(others)
    loaded.fit(of_a_model(0, **manifest)).calibrate(of_a_model(1, **manifest))
