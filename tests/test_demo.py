import json

import numpy as np
import pytest

import nescio as ns
from nescio import demo
from nescio.detectors import DETECTORS


@pytest.fixture(scope="module")
def scenes():
    return demo.digit_scenes(seed=0)


def test_the_scenes_are_what_they_are_said_to_be(scenes):
    assert len(scenes.train) == 6000
    assert scenes.test.label_names == tuple(f"digit {i}" for i in range(7))
    assert scenes.train.labels.sum(1).min() >= 1
    assert scenes.train.labels.sum(1).max() == 4
    assert scenes.held_out.labels.sum() == 0
    assert scenes.val.manifest["split"] == "val"


def test_unseen_digits_are_mistaken_for_several_known_ones_at_once(scenes):
    """What docs/how-to/choose-a-detector.md gives as the reason why joint energy loses here."""
    seen, unseen = scenes.test.logits, scenes.held_out.logits
    assert (unseen > 0).sum(1).mean() > (seen > 0).sum(1).mean()
    assert unseen[unseen > 0].mean() < 0.7 * seen[seen > 0].mean()


def test_the_network_has_learned(scenes):
    assert ns.metrics.mean_average_precision(scenes.test.labels, scenes.test.logits) > 0.95


def test_the_logits_are_those_of_the_network(scenes, monkeypatch):
    """The forward pass written out agrees with scikit-learn's own probabilities."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.random((50, 256)), rng.integers(0, 2, (50, 7)).astype(np.uint8)
    monkeypatch.setattr(demo, "_EPOCHS", 3)
    model = demo._train(pixels, labels, seed=0)
    outputs = demo._outputs(model, pixels, labels, "x", 0)
    np.testing.assert_allclose(
        ns.scores.label_prob(outputs.logits), model.predict_proba(pixels), atol=1e-5
    )


def test_the_command_reports_and_leaves_a_detector(nescio, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_EPOCHS", 2)
    code, out, _ = nescio("demo", "--seeds", "2", "-o", tmp_path / "demo", "--json")
    assert code == 0
    report = json.loads(out)
    # All but those that read perturbed inputs, which need a network.
    assert set(DETECTORS) - set(report["detectors"]) == {"odin", "mahalanobis_perturbed"}
    assert len(report["detectors"]["lof"]["auroc"]) == 2
    data = tmp_path / "demo" / "test.safetensors"
    code, out, _ = nescio("score", tmp_path / "demo" / "digits.nescio", data, "--json")
    flagged = json.loads(out)["n_flagged"] / 2000
    assert flagged == pytest.approx(1 - report["test_kept"])
    code, _, err = nescio("demo", "-o", tmp_path / "demo")
    assert code == 1
    assert "exists already" in err


def test_the_table_for_people(nescio, monkeypatch):
    monkeypatch.setattr(demo, "_EPOCHS", 1)
    code, out, _ = nescio("demo", "--seeds", "2")
    assert code == 0
    assert "standard deviation over 2 seeds" in out
    assert "joint_energy" in out
