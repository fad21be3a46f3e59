"""nescio eval."""

import json

import numpy as np

from fixtures.commands import in_a_process


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
    assert len(found["results"]) == 10


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
