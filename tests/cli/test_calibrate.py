"""nescio calibrate."""

import json
import warnings

import numpy as np
import pytest

import nescio as ns
from fixtures.commands import in_a_process
from nescio.detectors import DETECTORS


@pytest.mark.parametrize("name", ["joint_energy", "mahalanobis", "isolation_forest", "combined"])
def test_detectors_of_each_kind_from_the_command_line(here, nescio, name):
    train = ("--train", "train.safetensors") if DETECTORS[name]().learns_from else ()
    code, _, err = nescio("calibrate", "held.safetensors", "-d", name, "-o", "x.nescio", *train)
    assert (code, err) == (0, "")
    code, out, _ = nescio("score", "x.nescio", "far.safetensors", "--json")
    assert code == 0
    assert json.loads(out)["n_samples"] == 100
    code, out, _ = nescio("info", "x.nescio")
    assert code == 0
    assert f"detector             {name}" in out
    assert "true TPR" in out


def test_groups_rates_and_settings(here, nescio):
    fit = ("calibrate", "held.safetensors", "-o", "x.nescio", "--force")
    code, out, _ = nescio(*fit, "--by-label-count", "--confidence", "0.9")
    assert code == 0
    assert "(predicted labels: " in out
    assert next(iter(ns.load("x.nescio").calibration_.thresholds.values())).confidence == 0.9
    rows = json.loads(nescio("score", "x.nescio", "far.safetensors", "--json")[1])["rows"]
    assert {row["group"] for row in rows} <= set(ns.load("x.nescio").calibration_.threshold_values)
    code, out, _ = nescio("score", "x.nescio", "far.safetensors")
    assert " group " in out
    by_tau = sum(not row["in_distribution"] for row in rows)
    _, out, _ = nescio("score", "x.nescio", "far.safetensors", "--fdr", "0.1", "--json")
    expected = ns.load("x.nescio").assess(ns.Outputs.load("far.safetensors"), fdr=0.1)
    assert json.loads(out)["n_flagged"] == len(expected.flagged) != by_tau
    code, out, _ = nescio("info", "x.nescio")
    assert "confidence           0.9" in out
    assert nescio(*fit, "-d", "top_k_joint_energy(k=2)")[0] == 0
    assert ns.load("x.nescio").k == 2
    code, _, _ = nescio(*fit, "-d", "mahalanobis(aggregate=sum)", "--train", "train.safetensors")
    assert code == 0
    assert ns.load("x.nescio").aggregate == "sum"


def test_probabilities_are_refused_unless_announced(here, nescio, rng):
    np.save("probs.npy", rng.random((200, 4)))
    code, out, err = nescio("calibrate", "probs.npy", "-o", "x.nescio")
    assert (code, out) == (1, "")
    assert "look like probabilities" in err
    assert "--from-probs" in err
    assert not (here / "x.nescio").exists()
    assert nescio("calibrate", "probs.npy", "-o", "x.nescio", "--from-probs")[0] == 0
    assert nescio("score", "x.nescio", "probs.npy")[0] == 1
    assert nescio("score", "x.nescio", "probs.npy", "--from-probs")[0] == 0
    np.save("few.npy", np.array([[0.2, 0.3, 0.4, 0.5]]))
    assert nescio("score", "x.nescio", "few.npy")[0] == 0  # four values prove nothing
    np.save("percent.npy", 100 * rng.random((200, 4)))
    code, out, err = nescio("calibrate", "percent.npy", "-o", "z.nescio")
    assert (code, out) == (1, "")
    assert "look like percentages" in err
    assert "divide them by 100" in nescio("score", "x.nescio", "percent.npy", "--from-probs")[2]
    np.save("strong.npy", 1 + 9 * rng.random((3, 4)))  # a few samples may have only large logits
    assert nescio("score", "x.nescio", "strong.npy")[::2] == (0, "")
    np.save("softmax.npy", rng.dirichlet(np.ones(4), 200))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = nescio("calibrate", "softmax.npy", "-o", "s.nescio", "--from-probs")
    assert code == 0
    assert err.startswith("warning: the probabilities of every sample sum to 1")
    np.save("other.npy", rng.random((200, 4)))
    evaluate = ("eval", "--id", "probs.npy", "--ood", "other.npy", "-d", "msp")
    assert nescio(*evaluate)[0] == 1
    assert nescio(*evaluate, "--from-probs")[0] == 0


def test_bad_rows_can_be_told_to_count_as_out(here, nescio):
    spoiled = np.load("val.npy")
    spoiled[7, 2] = np.nan
    np.save("spoiled.npy", spoiled)
    code, _, err = nescio("calibrate", "spoiled.npy", "-o", "x.nescio")
    assert code == 1
    assert "in 1 of 500 rows: 7." in err
    assert nescio("calibrate", "spoiled.npy", "-o", "x.nescio", "--nonfinite", "out")[0] == 0
    rows = json.loads(nescio("score", "x.nescio", "spoiled.npy", "--json")[1])["rows"]
    assert rows[7]["score"] is None
    assert rows[7]["in_distribution"] is False
    np.save("probs.npy", ns.scores.label_prob(spoiled))
    fit = ("calibrate", "probs.npy", "-o", "y.nescio")
    code, _, err = nescio(*fit, "--nonfinite", "out")
    assert (code, "look like probabilities" in err) == (1, True)
    assert nescio(*fit, "--nonfinite", "out", "--from-probs")[0] == 0


def test_a_full_disk_is_one_line_and_leaves_nothing(here):
    import resource

    def no_large_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    before = sorted(here.iterdir())
    finished = in_a_process("calibrate", "val.npy", "-o", "x.nescio", preexec_fn=no_large_files)
    assert finished.returncode == 1
    assert finished.stderr == "error: cannot write x.nescio: File too large.\n"
    assert sorted(here.iterdir()) == before


def test_a_combination_is_written_in_brackets(here, nescio):
    name = "combined(detectors=[joint_energy, top_k_joint_energy(k=3)], weights=[1, 2])"
    code, out, err = nescio("calibrate", "val.npy", "-d", name, "-o", "x.nescio")
    assert code == 0, err
    assert "combined(detectors=[joint_energy, top_k_joint_energy(k=3)], rule=harmonic" in out
    assert "With 250 calibration samples" in out  # half of them
    code, out, err = nescio(
        *("calibrate", "held.safetensors", "--train", "train.safetensors"),
        *("-d", "combined(rule=fisher, weights=[3, 1, 1])", "-o", "y.nescio", "--json"),
    )
    assert code == 0, err
    assert json.loads(out)["parameters"] == {
        "detectors": ["joint_energy", "label_neighbours", "linear_probe"],
        "rule": "fisher",
        "weights": [3, 1, 1],
    }
    code, out, err = nescio("info", "y.nescio")
    assert code == 0, err
    assert "detectors=joint_energy, label_neighbours, linear_probe" in out
    code, _, err = nescio("calibrate", "held.safetensors", "-d", "combined", "-o", "z.nescio")
    assert code == 1
    assert "combined learns from data: pass training outputs with --train" in err
    code, _, err = nescio("score", "y.nescio", "far.safetensors")
    assert code == 0, err


def test_the_default_is_chosen_by_what_is_there(here, nescio):
    code, out, err = nescio("calibrate", "val.npy", "-o", "x.nescio")
    assert code == 0, err
    assert "Chosen: joint energy" in out
    assert "--train" in out
    train = ("--train", "train.safetensors", "--force", "--json")
    code, out, err = nescio("calibrate", "held.safetensors", "-o", "x.nescio", *train)
    assert code == 0, err
    saved = json.loads(out)
    expected = ns.detectors.default.default_detector(
        ns.Outputs.load("train.safetensors"), ns.Outputs.load("held.safetensors")
    )
    assert (saved["detector"], saved["reason"]) == (expected.detector.name, expected.reason)
