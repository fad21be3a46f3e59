"""A detector by its name, or as package.module:Class."""

import pytest

MODULE = "fixtures.own_detectors"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at:All", "cannot import 'nowhere.at'"),
        (f"{MODULE}:Nothing", "has no class 'Nothing'"),
        (f"{MODULE}:clone", "expected a class that derives from nescio.Detector"),
        ("max_logits", "Did you mean max_logit"),
    ],
)
def test_a_name_that_leads_nowhere(name, message, nescio, files):
    code, _, err = nescio("calibrate", files / "val.safetensors", "-d", name, "-o", files / "x.n")
    assert code == 1
    assert message in err
