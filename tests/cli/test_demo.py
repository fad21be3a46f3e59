"""nescio demo."""

import json
import re
import shlex

import pytest

from nescio.benchmark.spec import load_spec

pytest.importorskip("torchvision")


def test_the_demo_leaves_a_report_a_detector_and_what_to_try(
    nescio, few_scenes, monkeypatch, tmp_path
):
    from nescio.data import digits

    # As many held-out scenes as the default detector needs.
    monkeypatch.setitem(digits.N_SCENES, "val", 400)
    folder = tmp_path / "demo"
    code, out, err = nescio("demo", "-o", folder)
    assert code == 0, err
    assert "network 1 of 1, digits, seed 0: training" in err
    assert "writing the report" in err
    assert "one seed" in out
    assert "Chosen: joint energy, the similarity" in out
    assert "combined lets through " in out
    assert out.count("in hindsight") in (1, 2)
    assert f"Report, with pictures: {folder / 'report.html'}" in out
    page = (folder / "report.html").read_text("utf-8")
    assert page.count("data:image/jpeg;base64,") >= 4 * 6
    assert page.index("combined lets through ") < page.index('id="summary"')
    tries = [line for line in out.splitlines() if line[:2] == "  " and "nescio " in line]
    commands = [line.split("nescio ", 1)[1] for line in tries]
    for command in commands[:2]:
        code, _, err = nescio(*shlex.split(command))
        assert code == 0, err
    assert commands[2].startswith("calibrate ")
    code, _, err = nescio("demo", "-o", folder)
    assert code == 1
    assert "exists already" in err
    code, out, err = nescio("demo", "-o", folder, "--force", "--json", "-d", "all")
    assert code == 0, err
    assert "evaluating" not in err
    found = json.loads(out)
    assert found["report"] == str(folder / "report.html")
    assert {line["ood"] for line in found["results"]} == set(found["flagged"])
    assert set(found["flagged"]) == {"unseen digits", "photos", "noise"}
    every = (folder / "report.html").read_text("utf-8")
    assert len(rows_of(page)) <= 5
    assert len(rows_of(every)) > 20


def rows_of(page):
    """Return the detectors of the table against unseen digits."""
    section = page.partition('id="id0-ood0"')[2].partition("</table>")[0]
    return re.findall(r'<th scope="row"[^>]*>([^<]+)<', section)


def test_the_full_demo_is_the_benchmark_digits(nescio, few_scenes, tmp_path):
    folder = tmp_path / "demo"
    code, out, err = nescio("demo", "-o", folder, "--full", "--seeds", 1, "-d", "knn(k=2)")
    assert code == 0, err
    assert "joint_energy, calibrated on validation scenes" in out
    assert "the default" not in out
    page = (folder / "report.html").read_text("utf-8")
    assert {*rows_of(page)} == {*load_spec("digits").detectors, "knn(k=2)"}


def test_an_unknown_detector_is_rejected_before_the_work_begins(nescio, tmp_path):
    code, _, err = nescio("demo", "-o", tmp_path / "demo", "-d", "joint")
    assert code == 1
    assert "there is no detector 'joint'" in err
    assert not (tmp_path / "demo").exists()
