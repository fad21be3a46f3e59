"""nescio eval."""

import json
import re

import numpy as np

from fixtures.commands import in_a_process
from nescio import DETECTORS


def test_masked_labels_leave_out_only_the_detectors_that_cannot_take_them(here, nescio):
    masked = np.load("textures.npy")
    masked[:, 0] = -np.inf
    np.save("masked.npy", masked)
    _, out, _ = nescio(
        "eval", "--id", "test.npy", "--ood", "masked.npy", "--train", "val.npy", "--json"
    )
    found = json.loads(out)
    assert {"lof", "isolation_forest"} <= set(found["skipped"])
    assert "masked labels" in found["skipped"]["lof"]
    able = {
        name
        for name, kind in DETECTORS.items()
        if kind.accepts_masked and {*kind().scores_from, *kind().learns_from} == {"logits"}
    }
    assert {line["detector"] for line in found["results"]} == able > {"joint_energy", "msp"}


def test_eval_does_as_it_is_told(here, nescio):
    def run(*options):
        files = ("--id", "test.npy", "--ood", "objects.npy", "-d", "msp", "--json")
        return json.loads(nescio("eval", *files, *options)[1])["results"][0]

    assert run("--tpr", "0.8")["tpr"] == 0.8
    assert run("--tpr", "0.8")["fpr"]["value"] < run()["fpr"]["value"]
    assert run("--seed", "1")["auroc"]["low"] != run()["auroc"]["low"]
    assert run("--bootstrap", "0")["auroc"]["low"] is None


def test_ood_files_of_one_name_are_told_apart(here, nescio):
    (here / "other").mkdir()
    np.save("other/objects.npy", np.load("textures.npy"))
    _, out, _ = nescio(
        "eval", "--id", "test.npy", "--ood", "objects.npy", "--ood", "other/objects.npy",
        "-d", "msp", "--bootstrap", "0", "--json",
    )  # fmt: skip
    assert [row["ood"] for row in json.loads(out)["results"]] == [
        "objects.npy",
        "other/objects.npy",
    ]


def test_a_terminal_without_arrows_is_no_reason_to_fail(here):
    import os

    files = ("--id", "test.npy", "--ood", "objects.npy", "-d", "msp", "--bootstrap", "0")
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    finished = in_a_process("eval", *files, env=ascii_only)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "FPR95 ?" in finished.stdout


def test_the_table_is_sorted_and_marks_the_best_in_plain_text(here, nescio):
    files = ("--id", "test.npy", "--ood", "objects.npy", "--bootstrap", "0")
    names = ("msp", "max_logit", "joint_energy", "sum_logit")
    _, out, _ = nescio("eval", *files, *(part for name in names for part in ("-d", name)))
    assert "sorted by AUROC" in " ".join(out.split())
    rows = [line.strip("│ ").split("│") for line in out.splitlines() if line.startswith("│")]
    columns = list(zip(*rows, strict=True))[1:]
    for column, better in zip(columns, (min, max, max), strict=True):
        values = [float(cell.strip(" *")) for cell in column]
        marked = ["*" in cell for cell in column]
        assert marked == [value == better(values) for value in values]
    areas = [float(cell.strip(" *")) for cell in columns[1]]
    assert areas == sorted(areas, reverse=True)
    _, out, _ = nescio("eval", *files, "-d", "msp")
    assert "*" not in out


def test_a_detector_with_parameters_is_added_to_all(here, nescio):
    files = ("--id", "test.npy", "--ood", "objects.npy", "--bootstrap", "0", "--json")
    added = ("-d", "all", "-d", "top_k_joint_energy(k=2)", "-d", "msp")
    rows = [json.loads(nescio("eval", *files, *more)[1])["results"] for more in ((), added)]
    everything, found = ([row["detector"] for row in of] for of in rows)
    assert sorted(found) == sorted([*everything, "top_k_joint_energy(k=2)"])


def test_swapped_files_are_said(here, nescio):
    swapped = ("--id", "textures.npy", "--ood", "test.npy", "--bootstrap", "50")
    detectors = ("-d", "joint_energy", "-d", "max_logit")
    _, out, _ = nescio("eval", *swapped, *detectors)
    assert "Worse than chance (AUROC below 50): all 2 detectors" in out
    found = json.loads(nescio("eval", *swapped, *detectors, "--json")[1])
    assert [row["worse_than_chance"] for row in found["results"]] == [True, True]
    assert "swapped" in found["notes"]["test"]
    right = ("--id", "test.npy", "--ood", "textures.npy", "--bootstrap", "50")
    assert "chance" not in nescio("eval", *right, *detectors)[1]


def test_held_out_data_is_for_the_detectors_that_learn_from_it(here, nescio):
    files = ("eval", "--id", "test.npy", "--ood", "textures.npy", "--bootstrap", "0", "--json")
    name = "combined(detectors=[joint_energy, max_logit])"
    code, out, err = nescio(*files, "-d", "msp", "-d", name)
    assert code == 0, err
    assert "pass such outputs (--held-out)" in json.loads(out)["skipped"][name]
    code, out, err = nescio(*files, "-d", "msp", "-d", name, "--held-out", "val.npy")
    assert code == 0, err
    found = json.loads(out)
    assert found["skipped"] == {}
    assert {row["detector"] for row in found["results"]} == {"msp", name}
    for option, twice in (("--id", "test.npy"), ("--train", "val.npy")):
        more = ("--train", "val.npy", "--held-out", twice)
        code, _, err = nescio(*files, "-d", name, *more)
        assert code == 1
        assert re.search(rf"{twice} is given as \w+ data \({option}\) and as held-out data", err)
