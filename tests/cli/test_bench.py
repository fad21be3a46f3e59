"""bench, tables, report and demo, as a user types them."""

import csv
import io
import json
import shlex
import shutil

import numpy as np
import pytest

from nescio.benchmark.spec import shipped_specs
from nescio.cli.bench import stages

pytest.importorskip("torchvision")


@pytest.fixture
def bench_folder(small_run, tmp_path):
    """A copy of what the small benchmark left."""
    return shutil.copytree(small_run.folder.parent, tmp_path / "bench")


@pytest.fixture
def spec_file(spec_text, small_spec, tmp_path):
    """The small benchmark as a file, and the folder that its data is in already."""
    path = tmp_path / "small.toml"
    path.write_text(spec_text, "utf-8")
    data = small_spec.sets[0].data.removeprefix("digits:").removesuffix("/digits")
    return path, data


def test_bench_prints_writes_and_does_nothing_twice(nescio, spec_file, bench_folder):
    spec, data = spec_file
    shutil.rmtree(bench_folder / "small")
    code, out, err = nescio("bench", spec, "--data", data, "-o", bench_folder)
    assert code == 0, err
    assert "digits, seed 1: evaluating" in err
    assert "digits against unseen digits" in out
    assert "mean ± standard deviation over 2 seeds" in out
    assert f"nescio report {bench_folder / 'small'}" in out
    tables = {path.name for path in (bench_folder / "small" / "tables").iterdir()}
    assert tables == {
        f"{name}.{suffix}"
        for name in ("networks", "digits-vs-unseen_digits", "digits-vs-noise")
        for suffix in ("md", "tex", "csv")
    }
    code, again, err = nescio("bench", spec, "--data", data, "-o", bench_folder, "--json")
    assert code == 0, err
    assert err == ""
    assert len(json.loads(again)) == 20


def test_a_long_stage_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr("nescio.cli.bench._SECONDS_BETWEEN_LINES", 0)
    with stages() as watch, watch("training [x]", 4) as advance:
        advance(1)
        advance(2)
        advance(1)
    said = capsys.readouterr().err.splitlines()
    assert said == ["training [x]", "training [x]: 25%", "training [x]: 75%"]
    monkeypatch.undo()
    with stages() as watch, watch("training", 4) as advance:
        advance(1)
    assert capsys.readouterr().err == "training\n"


def test_one_seed_of_it(nescio, spec_file, bench_folder):
    spec, data = spec_file
    code, out, err = nescio(
        *("bench", spec, "--data", data, "-o", bench_folder, "--seed", 1, "--json")
    )
    assert code == 0, err
    assert {line["seed"] for line in json.loads(out)} == {1}


def test_the_shipped_ones_are_listed_and_shown(nescio, tmp_path):
    code, out, _ = nescio("bench")
    assert code == 0
    for name, text in shipped_specs().items():
        assert name in out
        assert nescio("bench", name, "--show") == (0, text, "")
    listed = json.loads(nescio("bench", "--json")[1])
    assert [spec["name"] for spec in listed] == list(shipped_specs())


WRONG = {
    "unknown": (("bench", "papre-main"), "there is no benchmark 'papre-main'"),
    "unknown to show": (("bench", "papre-main", "--show"), "no shipped benchmark 'papre-main'"),
    "no data": (("bench", "paper-main"), "paper-main needs data"),
    "data not there": (("bench", "paper-main", "--data", "nowhere"), "nowhere/coco"),
    "no set": (("bench", "paper-main", "--data", ".", "--set", "X"), "has no set 'X'"),
    "no such paper table": (("tables", "--paper", "9"), "the paper has no table '9'"),
    "no such format": (("tables", "-f", "pdf"), "--format must be"),
    "no such results": (("tables", "nothing.jsonl"), "there is no file nothing.jsonl"),
    "no results at all": (("tables", "empty.jsonl"), "empty.jsonl has no results"),
    "other lines": (("tables", "other.jsonl"), "line 1 of other.jsonl is not a result"),
    "not text": (("tables", "logits.npy"), "logits.npy is not a file of results"),
    "a folder without results": (("tables", "."), "holds no results.jsonl. Name the folder"),
    "one file on both sides": (
        ("report", "--id", "logits.npy", "--ood", "./logits.npy", "-o", "r.html"),
        "is given as --id and as --ood",
    ),
    "report of nothing": (("report", "-o", "r.html"), "pass either the results of a benchmark"),
    "report of both": (
        ("report", "empty.jsonl", "--id", "a.npy", "-o", "r.html"),
        "pass either the results of a benchmark",
    ),
    "report of half": (
        ("report", "--id", "a.npy", "-o", "r.html"),
        "--id and --ood must be used together",
    ),
    "report of an empty file": (("report", "empty.jsonl", "-o", "r.html"), "has no results"),
    "report of an empty folder": (("report", ".", "-o", "r.html"), "holds no results.jsonl"),
    "report over its input": (
        ("report", "empty.jsonl", "-o", "empty.jsonl", "--force"),
        "is an input",
    ),
    "images of a benchmark": (
        ("report", "empty.jsonl", "--images", "a=b", "-o", "r.html"),
        "--images can only be used with --id",
    ),
}


@pytest.mark.parametrize(("arguments", "reason"), WRONG.values(), ids=WRONG)
def test_mistakes_are_explained(nescio, tmp_path, monkeypatch, arguments, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "other.jsonl").write_text("{}\n")
    np.save(tmp_path / "logits.npy", np.full((3, 2), -7.5))
    before = sorted(tmp_path.iterdir())
    code, out, err = nescio(*arguments)
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")
    assert reason in err
    assert sorted(tmp_path.iterdir()) == before


def test_tables_of_results_in_every_format(nescio, small_run):
    results = small_run.folder / "results.jsonl"
    code, text, _ = nescio("tables", results)
    assert code == 0
    assert "digits against noise" in text
    assert nescio("tables", small_run.folder)[1] == text
    _, markdown, _ = nescio("tables", results, "-f", "markdown")
    assert markdown.count("| detector | FPR95 ↓ | AUROC ↑ | AUPR ↑ |") == 2
    _, latex, _ = nescio("tables", results, "-f", "latex")
    assert latex.count(r"\begin{tabular}") == 3
    _, table, _ = nescio("tables", results, "-f", "csv")
    networks, first, _ = table.split("\n\n")
    assert [row["seed"] for row in csv.DictReader(io.StringIO(networks))] == ["0", "1"]
    assert 0 <= float(next(csv.DictReader(io.StringIO(first)))["FPR95"]) <= 100


def test_the_papers_tables_and_ours_beside_them(nescio, small_run):
    code, out, _ = nescio("tables", "--paper", "topk", "-f", "markdown")
    assert code == 0
    assert "33.48" in out
    assert nescio("tables", "-f", "latex")[1].count(r"\begin{tabular}") == 8
    _, beside, _ = nescio("tables", small_run.folder, "--paper", "main", "-f", "markdown")
    assert "not run / " in beside
    assert "None of the results is of a set" in beside


def test_a_report_of_a_benchmark(nescio, bench_folder, tmp_path):
    target = tmp_path / "report.html"
    code, out, err = nescio("report", bench_folder / "small", "-o", target)
    assert code == 0, err
    assert f"saved {target}" in out
    page = target.read_text("utf-8")
    assert "unseen digits" in page
    assert "data:image/jpeg;base64," in page
    code, _, err = nescio("report", bench_folder / "small", "-o", target)
    assert code == 1
    assert "exists already" in err


def test_a_report_of_lines_alone_has_tables(nescio, small_run, tmp_path):
    code, _, err = nescio("report", small_run.folder / "results.jsonl", "-o", tmp_path / "r.html")
    assert code == 0, err
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "top_k_joint_energy(k=mean_labels)" in page
    assert "data:image/jpeg" not in page


def test_a_report_of_ones_own_outputs(nescio, small_run, tmp_path):
    first = small_run.evidence()[0]
    sets = {"mine": first.id_outputs, "other": first.ood_outputs["noise"]}
    for name, outputs in sets.items():
        outputs.save(tmp_path / f"{name}.safetensors")
    given = (
        *("--id", tmp_path / "mine.safetensors", "--ood", tmp_path / "other.safetensors"),
        *("--images", f"other={first.image_roots['noise']}"),
    )
    target = tmp_path / "report.html"
    code, _, err = nescio("report", *given, "-o", target, "--title", "Of my own")
    assert code == 0, err
    page = target.read_text("utf-8")
    assert "<title>Of my own" in page
    assert "it learns from data: pass training outputs" in page
    code, _, err = nescio(
        *("report", *given, "--images", "third=.", "-o", target, "--force"),
    )
    assert code == 1
    assert "NAME one of mine, other" in err


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
    assert commands[2].startswith("fit ")
    code, _, err = nescio("demo", "-o", folder)
    assert code == 1
    assert "exists already" in err
    code, out, err = nescio("demo", "-o", folder, "--seeds", 1, "--force", "--json")
    assert code == 0, err
    assert "evaluating" not in err
    found = json.loads(out)
    assert found["report"] == str(folder / "report.html")
    assert {line["ood"] for line in found["results"]} == {"unseen digits", "photos", "noise"}
