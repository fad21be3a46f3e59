"""A detector by its name, or as package.module:Class."""

import pytest

import nescio as ns
from fixtures.own_detectors import Neighbours
from nescio.detectors import as_detector, build_detector
from nescio.errors import NescioError, ParameterError

MODULE = "fixtures.own_detectors"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at:All", "cannot import 'nowhere.at'"),
        (f"{MODULE}:Nothing", "has no 'Nothing'"),
        (f"{MODULE}:clone", "expected a class that derives from nescio.Detector"),
        ("max_logits", "Did you mean max_logit?"),
        ("JointEnergy", "Did you mean joint_energy?"),
        ("maxlogit", "Did you mean max_logit?"),
        ("joint-energy", "Did you mean joint_energy?"),
        ("Max Logit", "Did you mean max_logit?"),
        ("LocalOutlierFactor(n_neighbors=3)", "Did you mean lof?"),
        ("my_detectors.py:Mine", "Name the module instead: my_detectors:Mine."),
        ("code/my_detectors.py:Mine", "Name the module instead: code.my_detectors:Mine."),
        ("my.detectors", "Did you mean my.detectors:Class?"),
        ("joint_energy(", "cannot read the detector"),
        ("combined(detectors=[joint_energy)", "cannot read the detector"),
        ("combined(detectors=[a](b])", "cannot read the detector"),
        ("combined(x)y(z)", "cannot read the detector"),
    ],
)
def test_a_name_that_leads_nowhere(name, message, nescio, files):
    code, _, err = nescio("calibrate", files / "val.safetensors", "-d", name, "-o", files / "x.n")
    assert code == 1
    assert message in err


def test_parameters_may_follow_in_brackets(nescio, files):
    assert build_detector("top_k_joint_energy(k=3)").k == 3
    name, path = "top_k_joint_energy(k=3)", files / "x.nescio"
    code, _, err = nescio("calibrate", files / "val.safetensors", "-d", name, "-o", path)
    assert code == 0, err
    assert ns.load(path).k == 3
    assert build_detector("joint_energy(nonfinite=out)").nonfinite == "out"
    for given in ("nonfinite=out", "tpr=0.9"):
        with pytest.raises(ParameterError, match=f"--{given.split('=')[0]}"):
            build_detector(f"msp({given})", tpr=0.9, nonfinite="out")


def test_a_class_or_a_name_serves_as_a_detector():
    detector = ns.JointEnergy(tpr=0.9)
    assert as_detector(detector) is detector
    assert isinstance(as_detector(ns.JointEnergy), ns.JointEnergy)
    assert as_detector("top_k_logit(k=2)").k == 2
    for other in (3, None, int, ns.Detector.calibrate):
        with pytest.raises(ParameterError, match=r"expected a detector, such as JointEnergy\(\)"):
            as_detector(other)


def test_a_class_instead_of_a_detector_is_accepted_or_named():
    from nescio.checks import check_says_what_it_is, make_outputs

    check_says_what_it_is(as_detector(ns.JointEnergy))
    sets = {"shifted": make_outputs(50, seed=1, shift=4.0)}
    comparison = ns.compare(make_outputs(50), sets, {"it": ns.JointEnergy}, n_bootstrap=0)
    assert list(comparison.results["shifted"]) == ["it"]
    with pytest.raises(NescioError, match="this JointEnergy has no threshold"):
        ns.Monitor(ns.JointEnergy)


def test_a_name_is_given_once():
    class Impostor(Neighbours):
        """Has the name of another."""

        name = "joint_energy"

    with pytest.raises(ParameterError, match="the name 'joint_energy' is taken by JointEnergy"):
        ns.register(Impostor)
