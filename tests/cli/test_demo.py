"""nescio demo."""

import json
import shlex

import pytest

pytest.importorskip("torchvision")


def test_the_demo_leaves_a_report_a_detector_and_what_to_try(nescio, few_scenes, tmp_path):
    folder = tmp_path / "demo"
    code, out, err = nescio("demo", "-o", folder, "--seeds", 1)
    assert code == 0, err
    assert "one seed" in out
    assert f"Report: {folder / 'report.html'}" in out
    assert "data:image/jpeg;base64," in (folder / "report.html").read_text("utf-8")
    tries = [line for line in out.splitlines() if line[:2] == "  " and "nescio " in line]
    commands = [line.split("nescio ", 1)[1] for line in tries]
    for command in commands[:2]:
        code, _, err = nescio(*shlex.split(command))
        assert code == 0, err
    assert commands[2].startswith("calibrate ")
    code, _, err = nescio("demo", "-o", folder)
    assert code == 1
    assert "exists already" in err
    code, out, err = nescio("demo", "-o", folder, "--seeds", 1, "--force", "--json")
    assert code == 0, err
    assert "evaluating" not in err
    found = json.loads(out)
    assert found["report"] == str(folder / "report.html")
    assert {line["ood"] for line in found["results"]} == {"unseen digits", "photos", "noise"}
