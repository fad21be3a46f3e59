"""The contract holds for detectors of a user's own: features, features and head, a combination."""

import json

import numpy as np
import pytest

import nescio as ns
from fixtures.own_detectors import Neighbours, ReAct, Together
from nescio.checks import check_detector, make_outputs
from nescio.detectors import DETECTORS
from nescio.errors import MissingInputError

OWN = (Neighbours, ReAct, Together)
MODULE = "fixtures.own_detectors"

own = pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)


@pytest.fixture
def registered():
    """Register the detectors for one test."""
    for kind in OWN:
        ns.register(kind)
    yield
    for kind in OWN:
        DETECTORS.pop(kind.name, None)


@own
def test_it_passes_the_common_checks(kind, registered):
    check_detector(kind())


@own
def test_it_works_on_the_command_line(kind, files, nescio):
    name = f"{MODULE}:{kind.__name__}"
    file, new = files / "own.nescio", files / "new.safetensors"
    code, _, err = nescio(
        *("calibrate", files / "val.safetensors", "--train", files / "train.safetensors"),
        *("--detector", name, "-o", file),
    )
    assert code == 0, err
    DETECTORS.pop(kind.name)  # another process would not have it
    code, _, err = nescio("score", file, new)
    assert code == 1
    assert "nescio --use package.module:Class" in err
    code, out, err = nescio("--use", name, "score", file, new, "--json")
    assert code == 0, err
    assert json.loads(out)["n_samples"] == 400
    code, out, err = nescio(
        *("eval", "--id", new, "--ood", files / "ood.safetensors"),
        *("--train", files / "train.safetensors", "--detector", name, "--bootstrap", 0, "--json"),
    )
    assert code == 0, err
    assert [line["detector"] for line in json.loads(out)["results"]] == [name]


def test_parts_of_a_combination_may_have_parameters_and_own_parts(registered, tmp_path):
    inner = Together([ns.TopKJointEnergy(k=2), Neighbours(k=3)])
    detector = Together([inner, ns.MaxLogit()]).fit(make_outputs(200))
    detector.calibrate(make_outputs(200, seed=1)).save(tmp_path / "x.nescio")
    loaded = ns.load(tmp_path / "x.nescio")
    assert loaded.detectors[0].detectors[1].k == 3
    assert [part.name for part in loaded.detectors_[0].detectors_] == [
        "top_k_joint_energy",
        "neighbours",
    ]
    new = make_outputs(30, seed=2)
    np.testing.assert_array_equal(loaded.score_samples(new), detector.score_samples(new))


def test_an_array_of_a_users_own_name():
    class Embedding(Neighbours):
        """Neighbours in an embedding of the user's."""

        name = "embedding"
        learns_from = scores_from = ("my embedding",)

        def _learn(self, arrays):
            self.bank_ = arrays["my embedding"]

        def _score(self, arrays):
            return -np.abs(arrays["my embedding"] - self.bank_.mean(0)).sum(1)

    rng = np.random.default_rng(0)
    outputs = ns.Outputs(
        rng.normal(size=(50, 3)), arrays={"my embedding": rng.normal(size=(50, 2))}
    )
    assert Embedding().fit(outputs).score_samples(outputs).shape == (50,)
    with pytest.raises(MissingInputError, match=r"Outputs\(\.\.\., arrays=\{'my embedding'"):
        Embedding().fit(ns.Outputs(outputs.logits))
