"""nescio score."""

import json
from pathlib import Path

import numpy as np
import pytest

import nescio as ns


def test_scoring_and_evaluating_can_count_bad_rows_as_out_too(here, nescio):
    nescio("calibrate", "val.npy", "-o", "x.nescio")
    spoiled = np.load("test.npy")
    spoiled[7, 2] = np.nan
    np.save("spoiled.npy", spoiled)
    code, _, err = nescio("score", "x.nescio", "spoiled.npy")
    assert code == 1
    assert err.startswith("error: spoiled.npy: logits hold NaN")
    code, _, err = nescio("score", "x.nescio", "spoiled.npy", "--nonfinite", "out")
    assert (code, err) == (0, "")
    evaluate = ("eval", "--id", "test.npy", "--ood", "spoiled.npy", "-d", "msp")
    code, _, err = nescio(*evaluate)
    assert code == 1
    assert err.startswith("error: spoiled: logits hold NaN")
    assert nescio(*evaluate, "--nonfinite", "out")[0] == 0


def test_a_detector_of_custom_groups_needs_python(here, nescio):
    groups = np.repeat(["a", "b"], 250)
    ns.JointEnergy().calibrate(np.load("val.npy"), groups=groups).save("x.nescio")
    code, _, err = nescio("score", "x.nescio", "new.parquet")
    assert code == 1
    assert "groups=..." in err


def test_brackets_in_names_are_nothing_special(here, nescio):
    (here / "x[").mkdir()
    code, out, _ = nescio("calibrate", "val.npy", "-o", "x[/b].nescio")
    assert (code, "saved x[/b].nescio" in out) == (0, True)
    np.save("far[v2].npy", np.load("objects.npy"))
    _, out, _ = nescio("eval", "--id", "test.npy", "--ood", "far[v2].npy", "-d", "msp")
    assert "far[v2]: 300 ID" in out
    groups = np.repeat(["[day]", "[/night]"], 250)
    ns.JointEnergy().calibrate(np.load("val.npy"), groups=groups).save("y.nescio")
    code, out, _ = nescio("info", "y.nescio")
    assert (code, "group [/night]: With" in out) == (0, True)


@pytest.fixture
def folder(here, rng):
    """A detector, and a folder of Parquet files whose rows are those of x.npy."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    names = ["cat", "dog", "bus"]
    ns.JointEnergy().calibrate(ns.Outputs(rng.normal(-1, 3, (200, 3)), label_names=names)).save(
        "x.nescio"
    )
    logits = rng.normal(-3, 3, (90, 3))
    np.save("x.npy", logits)
    for at in range(3):
        place = Path("data", f"day={at + 9}")
        place.mkdir(parents=True)
        frame = pandas.DataFrame(logits[30 * at : 30 * at + 30], columns=names)
        frame.assign(text="x").to_parquet(place / "part.parquet")


@pytest.mark.parametrize("data", ["data", "data/*/*.parquet", "data/**/part.parquet"])
def test_a_folder_or_a_pattern_is_one_input(folder, nescio, data):
    code, out, err = nescio("score", "x.nescio", data, "-o", "y.csv")
    assert (code, err) == (0, "")
    assert "90 rows x 3 labels (cat, dog, bus); copied columns: text, day\n" in out
    nescio("score", "x.nescio", "x.npy", "-o", "clean.csv")
    rows, clean = (Path(name).read_text().splitlines() for name in ("y.csv", "clean.csv"))
    days = ["day", *(str(9 + at // 30) for at in range(90))]
    texts = ["text", *["x"] * 90]
    assert rows == [",".join(row) for row in zip(clean, texts, days, strict=True)]
    found = json.loads(nescio("score", "x.nescio", data, "--json", "--keep", "day")[1])
    assert found["kept_columns"] == ["day"]
    assert found["ignored_columns"] == ["text"]
    assert found["rows"][31]["day"] == 10
    found = json.loads(nescio("score", "x.nescio", data, "--json", "--keep", "")[1])
    assert (found["kept_columns"], sorted(found["ignored_columns"])) == ([], ["day", "text"])
