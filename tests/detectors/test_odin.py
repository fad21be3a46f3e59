"""The detectors that read what the network gave for perturbed inputs."""

import numpy as np
import pytest

import nescio as ns
from nescio.checks import make_outputs
from nescio.errors import MissingInputError, ParameterError
from nescio.outputs import Outputs


@pytest.mark.parametrize("aggregate", ["max", "sum"])
def test_odin_is_the_probability_of_the_perturbed_logits(aggregate, rng):
    arrays = {name: rng.normal(size=(40, 3)) for name in ("odin_max", "odin_sum")}
    outputs = Outputs(rng.normal(size=(40, 3)), arrays=arrays)
    probabilities = 1 / (1 + np.exp(-arrays[f"odin_{aggregate}"]))
    expected = getattr(probabilities, aggregate)(1)
    found = ns.ODIN(aggregate).score_samples(outputs)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("detector", "reads"),
    [(ns.ODIN(), "odin_max"), (ns.PerturbedMahalanobis("sum"), "mahalanobis_sum")],
)
def test_outputs_without_perturbed_arrays_are_refused(detector, reads):
    full = make_outputs(100)
    plain = Outputs(full.logits, features=full.features, labels=full.labels)
    if detector.learned:
        detector.fit(plain)
    with pytest.raises(MissingInputError, match=f"reads {reads}, which these outputs do not have"):
        detector.calibrate(plain)


def test_other_aggregates_are_refused():
    with pytest.raises(ParameterError, match="aggregate must be 'max' or 'sum'"):
        ns.ODIN("mean").calibrate(make_outputs(50))


def test_calibrate_and_score_on_the_command_line(nescio, tmp_path):
    for name, seed in (("train", 0), ("val", 1), ("new", 2)):
        make_outputs(200, seed=seed).save(tmp_path / f"{name}.safetensors")
    for detector in ("odin", "mahalanobis_perturbed"):
        file = tmp_path / f"{detector}.nescio"
        learn = ["--train", tmp_path / "train.safetensors"] if "maha" in detector else []
        code, _, err = nescio(
            *("calibrate", tmp_path / "val.safetensors", "--detector", detector, "-o", file), *learn
        )
        assert code == 0, err
        code, out, err = nescio("score", file, tmp_path / "new.safetensors")
        assert code == 0, err
        assert "200" in out
        assert nescio("info", file)[0] == 0
