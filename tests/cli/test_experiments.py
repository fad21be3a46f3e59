"""nescio bench, tables and demo."""

import csv
import glob
import io
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from nescio.lab.benchmark.spec import shipped_specs

pytest.importorskip("torchvision")


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
    assert "network 2 of 2, digits, seed 1: evaluating" in err
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
    assert err == "reading the data sets\n"
    assert len(json.loads(again)) == 20


def test_the_authors_protocol_has_a_folder_of_its_own(nescio, succeeds, spec_file, bench_folder):
    spec, data = spec_file
    command = ("bench", spec, "--data", data, "-o", bench_folder, "--seed", 0)
    out = succeeds(*command, "--protocol", "authors")
    assert "Protocol: authors." in out
    assert (bench_folder / "small-authors" / "results.jsonl").is_file()
    assert "Protocol: authors." in succeeds("tables", bench_folder / "small-authors")
    page = bench_folder / "report.html"
    succeeds("report", bench_folder / "small-authors", "-o", page)
    assert '<th scope="row">protocol</th><td>authors</td>' in page.read_text("utf-8")


def test_a_rehearsal_runs_everything_and_is_never_shown_as_a_result(
    nescio, succeeds, fails, spec_file, bench_folder, small_run, counted
):
    spec, data = spec_file
    before = sorted(bench_folder.rglob("*"))
    command = ("bench", spec, "--data", data, "-o", bench_folder)
    out = succeeds(*command, "--limit", 20, "--epochs", 2)
    work = ["train", "extract", "tune", *["extract"] * 4]
    assert counted == work  # of one seed; nothing of the real run is used
    folder = bench_folder / "rehearsal" / "small"
    assert f"Rehearsed small: 10 lines, marked as no results, in {folder / 'results.jsonl'}" in out
    assert "FPR95" not in out
    assert not (folder / "tables").exists()
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len(lines) == 10
    for line in lines:
        assert line["rehearsal"] is True
        assert (line["n_id"], line["manifest"]["training"]["settings"]["training"]["epochs"]) == (
            20,
            2,
        )
    for path in (folder, folder / "results.jsonl"):
        for command_of_results in (("tables", path), ("report", path, "-o", folder / "x.html")):
            assert "its numbers are no results" in fails(*command_of_results)
    succeeds(*command, "--limit", 20, "--epochs", 2)
    assert counted == work
    # The real run, and what is left of it, is as it was.
    assert [
        path for path in sorted(bench_folder.rglob("*")) if "rehearsal" not in path.parts
    ] == before
    shutil.rmtree(bench_folder / "cache")
    shutil.rmtree(bench_folder / "small")
    counted.clear()
    code, out, _ = nescio(*command, "--json")
    assert (code, counted) == (0, 2 * work)  # nothing of the rehearsal is used
    assert json.loads(out) == [line.as_dict() for line in small_run.lines]


def test_the_shipped_ones_are_listed_and_shown(nescio, succeeds, tmp_path):
    out = succeeds("bench")
    for name, text in shipped_specs().items():
        assert name in out
        assert nescio("bench", name, "--show") == (0, text, "")
    listed = json.loads(nescio("bench", "--json")[1])
    assert [spec["name"] for spec in listed] == list(shipped_specs())


def test_tables_of_results_in_every_format(nescio, succeeds, small_run):
    results = small_run.folder / "results.jsonl"
    text = succeeds("tables", results)
    assert "digits against noise" in text
    assert nescio("tables", small_run.folder)[1] == text
    _, markdown, _ = nescio("tables", results, "-f", "markdown")
    assert markdown.count("| detector | FPR95 ↓ | AUROC ↑ | AUPR ↑ |") == 2
    _, latex, _ = nescio("tables", results, "-f", "latex")
    assert latex.count(r"\begin{tabular}") == 3
    _, table, _ = nescio("tables", results, "-f", "csv")
    networks, first, _ = table.split("\n\n")
    assert [row["seed"] for row in csv.DictReader(io.StringIO(networks))] == ["0", "1"]
    fpr = next(csv.DictReader(io.StringIO(first)))["FPR95 ↓"]
    assert 0 <= float(fpr.partition(" ± ")[0]) <= 100


def test_the_papers_tables_and_ours_beside_them(nescio, succeeds, small_run):
    out = succeeds("tables", "--paper", "topk", "-f", "markdown")
    assert "33.48" in out
    assert nescio("tables", "-f", "latex")[1].count(r"\begin{tabular}") == 8
    _, beside, _ = nescio("tables", small_run.folder, "--paper", "main", "-f", "markdown")
    assert "not run / " in beside
    assert "None of the results is of a set" in beside


WRONG = {
    "unknown": (("bench", "papre-main"), "there is no benchmark 'papre-main'"),
    "unknown to show": (("bench", "papre-main", "--show"), "no shipped benchmark 'papre-main'"),
    "no data": (("bench", "paper-densenet"), "paper-densenet needs to know where its data is"),
    "data not there": (("bench", "paper-densenet", "--data", "nowhere"), "nowhere/coco"),
    "no protocol": (
        ("bench", "paper-densenet", "--protocol", "x"),
        "must be 'paper' or 'authors' or",
    ),
    "epochs": (
        ("bench", "digits", "--data", ".", "--epochs", "1"),
        "--epochs is for a rehearsal: pass --limit",
    ),
    "no set": (("bench", "paper-densenet", "--data", ".", "--set", "X"), "has no set 'X'"),
    "no such paper table": (("tables", "--paper", "9"), "a table of the paper must be 'main' or"),
    "no such format": (("tables", "-f", "pdf"), "--format must be"),
    "no such results": (("tables", "nothing.jsonl"), "there is no file nothing.jsonl"),
    "no results at all": (("tables", "empty.jsonl"), "empty.jsonl contains no results"),
    "other lines": (("tables", "other.jsonl"), "line 1 of other.jsonl is not a result"),
    "not text": (("tables", "logits.npy"), "line 1 of logits.npy is not a result line"),
    "a folder without results": (
        ("tables", "."),
        "there is no results.jsonl in .. Name the folder",
    ),
}


@pytest.mark.parametrize(("arguments", "reason"), WRONG.values(), ids=WRONG)
def test_mistakes_are_explained(mistake, arguments, reason):
    mistake(arguments, reason)


def test_the_demo_leaves_a_report_a_detector_and_what_to_try(
    nescio, succeeds, fails, few_scenes, monkeypatch, tmp_path
):
    from nescio.lab.data import digits

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
    assert "of ordinary inputs are flagged although nothing is wrong" in out
    assert "in hindsight" in out
    assert f"Report, with pictures: {folder / 'report.html'}" in out
    page = (folder / "report.html").read_text("utf-8")
    assert page.count("data:image/jpeg;base64,") >= 4 * 3
    assert "unseen digits (should be flagged)" in page.partition('id="summary"')[0]
    # The chosen detector leads, then joint energy.
    assert re.search(r"combined lets \S+ % through \(place \d+\), joint_energy lets", page)
    assert re.search(r'class="is-first"[^>]*>\s*<th scope="row" data-value="combined"', page)
    tries = [line for line in out.splitlines() if line[:2] == "  " and "nescio " in line]
    commands = [line.split("nescio ", 1)[1] for line in tries]
    assert [command.partition(" ")[0] for command in commands] == ["score", "explain"]
    for command in commands:
        succeeds(*shlex.split(command))
    monkeypatch.chdir(folder)
    [command] = re.findall(r"<code>nescio (score .*)</code>", re.sub("</?span>", "", page))
    succeeds(*command.split())
    n_flagged = (folder / "verdicts.csv").read_text("utf-8").count(",False")
    assert re.search(rf"\b{n_flagged} of [\d,]+ inputs\.\s+This is ", page)
    for command, *arguments in commands_of_the_readme():
        code, _, err = nescio(command, *arguments)
        assert code == 0 or (command, code) == ("monitor", 3), err
    assert "exists already" in fails("demo", "-o", folder)
    code, out, err = nescio("demo", "-o", folder, "--force")
    assert code == 0, err
    assert "evaluating" not in err
    assert len(rows_of(page)) <= 5


def test_the_first_commands_of_the_readme_run_on_csv_files(succeeds, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("val", "new"):
        rows = [
            f"t{row},acme,{a:.3f},{b:.3f}" for row, (a, b) in enumerate(rng.normal(-2, 3, (400, 2)))
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,customer,cat,dog", *rows]))
    text = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    block, _ = re.findall("^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for line in block.splitlines():
        succeeds(*shlex.split(line)[1:])
    assert (tmp_path / "report.html").is_file()


def commands_of_the_readme():
    """Yield the words of each command, with the names of files as a shell gives them."""
    text = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    _, block = re.findall("^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = re.findall("^nescio (?!serve).*", block, re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        yield [name for word in words for name in sorted(glob.glob(word)) or [word]]


def rows_of(page):
    """Return the detectors of the table against unseen digits."""
    section = page.partition('id="id0-ood0"')[2].partition("</table>")[0]
    return re.findall(r'<th scope="row"[^>]*>([^<]+)<', section)
