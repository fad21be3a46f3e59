"""`compare`: data of any kind, detectors of any kind, and the same results as the command line."""

import numpy as np
import pytest

import nescio as ns
from nescio.errors import LabelMismatchError, MissingInputError, ParameterError
from nescio.outputs import large

NAMES = ["joint_energy", "max_logit"]


@pytest.fixture
def logits(rng):
    return {"known": rng.normal(0, 3, (80, 4)), "far": rng.normal(-3, 2, (60, 4))}


def compared(*data, **options):
    return ns.compare(*data, **{"detectors": NAMES, "n_bootstrap": 0} | options)


def test_data_of_any_kind_gives_the_same(logits, tmp_path):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    known, far = logits.values()
    names = ["cat", "dog", "cow", "hen"]
    expected = compared(known, {"far": far}).as_dict()
    assert compared(known, far).as_dict()["results"][0]["ood"] == "ood"
    paths = {name: tmp_path / f"{name}.npy" for name in logits}
    for name, array in logits.items():
        np.save(paths[name], array)
    turned = pandas.DataFrame(far, columns=names)[names[::-1]]  # columns are matched by name
    for given in (
        (known.tolist(), {"far": far}),
        (ns.Outputs(known), {"far": ns.Outputs(far)}),
        (pandas.DataFrame(known, columns=names), {"far": turned}),
        (polars.DataFrame(known, names), {"far": far}),
        (paths["known"], paths["far"]),
        (str(paths["known"]), [str(paths["far"])]),
        (known, {"far": paths["far"]}),
    ):
        assert compared(*given).as_dict() == expected


def test_it_is_what_the_command_line_prints(logits, tmp_path, monkeypatch):
    import json

    from typer.testing import CliRunner

    from nescio.cli import app

    monkeypatch.chdir(tmp_path)
    for name, array in logits.items():
        np.save(f"{name}.npy", array)
    shell = ["eval", "--id", "known.npy", "--ood", "far.npy", "-d", NAMES[0], "-d", NAMES[1]]
    printed = CliRunner().invoke(app, [*shell, "--bootstrap", "20", "--json"]).output
    found = compared("known.npy", ["far.npy"], n_bootstrap=20)
    assert json.loads(printed) == json.loads(json.dumps(found.as_dict()))


def test_large_files_are_read_in_blocks(logits, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    paths = {}
    for name, array in logits.items():
        paths[name] = tmp_path / f"{name}.safetensors"
        ns.Outputs(array).save(paths[name])
    whole = compared(paths["known"], paths["far"])
    monkeypatch.setattr(large, "LARGE", 100)
    steps = []

    class Progress:
        def __enter__(self):
            return steps.append

        def __exit__(self, *error):
            steps.append("end")

    given = []
    found = compared(
        paths["known"], paths["far"], progress=lambda *x: given.append(x) or Progress()
    )
    assert found.as_dict() == whole.as_dict()
    assert given == [(140, "rows")]
    assert sum(steps[:-1]) == 140


def test_detectors_are_named_as_they_are_written(logits):
    known, far = logits.values()

    def names(detectors, **options):
        found = compared(known, far, detectors=detectors, **options)
        return [*found.results["ood"]], found.skipped

    assert names("msp")[0] == ["msp"]
    assert names(ns.MSP)[0] == ["msp"]
    several = [ns.TopKJointEnergy(k=2), "top_k_joint_energy(k=3)", ns.GEN()]
    shown = ["top_k_joint_energy(k=2)", "top_k_joint_energy(k=3)", "gen"]
    assert names(several)[0] == shown
    assert names({"mine": ns.MSP(), "yours": "gen"})[0] == ["mine", "yours"]
    every, skipped = names("all")
    assert {*every, *skipped} == set(ns.DETECTORS)
    assert "pass training outputs" in skipped["lof"]
    assert "isolation_forest" in names("all", train=known.copy())[0]


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"detectors": "mahalanobis"}, MissingInputError, "mahalanobis cannot be evaluated"),
        ({"detectors": []}, ParameterError, "no detector to compare"),
        ({"detectors": [ns.MSP(), ns.MSP()]}, ParameterError, "two detectors are named msp"),
        ({"ood_data": {}}, ParameterError, "no OOD data"),
        ({"ood_data": [np.zeros((2, 4)), np.zeros((2, 4))]}, ParameterError, "sets need names"),
    ],
)
def test_mistakes_are_explained(logits, change, error, reason):
    given = {"ood_data": logits["far"], **change}
    with pytest.raises(error, match=reason):
        compared(logits["known"], **given)


def test_a_file_is_not_compared_with_itself(logits, tmp_path):
    path = tmp_path / "known.npy"
    np.save(path, logits["known"])
    with pytest.raises(ParameterError, match="is given as ID data"):
        compared(path, path)
    with pytest.raises(ParameterError, match=r"\(--id\) and as training data \(--train\)"):
        compared(path, logits["far"], train=path)


def test_an_object_is_not_compared_with_itself(logits):
    known, far = ns.Outputs(logits["known"]), logits["far"]
    for given, message in (
        ({"ood_data": {"far": known}}, r"same Outputs is given as ID data .* OOD data"),
        ({"train": known}, r"given as ID data .* training data"),
        ({"held_out": known}, r"given as ID data .* held-out data"),
        ({"train": far, "held_out": far}, r"ndarray is given as training data .* held-out data"),
    ):
        with pytest.raises(ParameterError, match=message):
            compared(known, **{"ood_data": far, **given})


def test_other_labels_are_an_error(logits):
    pandas = pytest.importorskip("pandas")
    known, far = (pandas.DataFrame(one, columns=list("abcd")) for one in logits.values())
    with pytest.raises(LabelMismatchError, match=r"^far: "):
        compared(known, {"far": far.rename(columns={"d": "e"})})


def test_probabilities_are_converted(logits):
    known, far = (1 / (1 + np.exp(-one)) for one in logits.values())
    found = compared(known, far, from_probs=True)
    expected = compared(*logits.values())
    for name in NAMES:
        ours, theirs = found.results["ood"][name], expected.results["ood"][name]
        assert ours.auroc.value == pytest.approx(theirs.auroc.value, abs=1e-3)
