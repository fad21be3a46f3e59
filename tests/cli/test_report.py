"""nescio report."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torchvision")


def test_a_report_of_a_benchmark(nescio, bench_folder, tmp_path):
    target = tmp_path / "report.html"
    code, out, err = nescio("report", bench_folder / "small", "-o", target)
    assert code == 0, err
    assert f"saved {target}" in out
    page = target.read_text("utf-8")
    assert "unseen digits" in page
    assert "<title>Small scenes</title>" in page
    code, _, err = nescio("report", bench_folder / "small", "-o", target)
    assert code == 1
    assert "exists already" in err


def test_pictures_from_outside_the_results_are_shown_only_if_asked_for(
    nescio, bench_folder, small_run, tmp_path
):
    """The folder of the results may be someone else's, and names any folder of this computer."""
    target = tmp_path / "report.html"
    command = ("report", bench_folder / "small", "-o", target, "--force")
    picture = "data:image/jpeg;base64,"
    assert nescio(*command)[0] == 0
    assert picture not in target.read_text("utf-8")
    assert "--images recorded" in target.read_text("utf-8")
    assert nescio(*command, "--images", "recorded")[0] == 0
    assert picture in target.read_text("utf-8")
    roots = small_run.evidence()[0].image_roots
    named = (f"--images={name}={root}" for name, root in roots.items())
    assert nescio(*command, *named)[0] == 0
    assert picture in target.read_text("utf-8")


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


def test_a_report_of_rows_with_nan(nescio, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (60, 2))
    logits[:8, 0] = np.nan
    np.save("mine.npy", logits)
    np.save("other.npy", np.array([[np.nan, 3.0]]))
    given = ("report", "--id", "mine.npy", "--ood", "other.npy", "--nonfinite", "out")
    code, _, err = nescio(*given, "-o", "report.html")
    assert code == 0, err
    page = Path("report.html").read_text("utf-8")
    assert "60 ID and 1 OOD inputs" in page
    assert "No threshold keeps 95 % of ID inputs" in page


WRONG = {
    "one file on both sides": (
        ("report", "--id", "logits.npy", "--ood", "./logits.npy", "-o", "r.html"),
        "is given as ID data (--id) and as OOD data (--ood)",
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
    "report of an empty folder": (("report", ".", "-o", "r.html"), "there is no results.jsonl in"),
    "report over its input": (
        ("report", "empty.jsonl", "-o", "empty.jsonl", "--force"),
        "is an input",
    ),
    "images of a benchmark": (
        ("report", "empty.jsonl", "--images", "a=b", "-o", "r.html"),
        "--images a=b: the folder b does not exist",
    ),
}


@pytest.mark.parametrize(("arguments", "reason"), WRONG.values(), ids=WRONG)
def test_mistakes_are_explained(mistake, arguments, reason):
    mistake(arguments, reason)


def test_the_texts_of_a_table_are_shown(nescio, tmp_path):
    pytest.importorskip("jinja2")
    rng = np.random.default_rng(0)
    for name, shift in (("mine", 0.0), ("other", -1.0)):
        rows = [f"{name} text {at}," + ",".join(f"{x:.4f}" for x in rng.normal(shift, 3, 4))
                for at in range(60)]  # fmt: skip
        (tmp_path / f"{name}.csv").write_text("\n".join(["review,a,b,c,d", *rows]))
    given = ("report", "--id", tmp_path / "mine.csv", "--ood", tmp_path / "other.csv")
    target = tmp_path / "report.html"
    code, _, err = nescio(*given, "--text-column", "review", "-o", target)
    assert code == 0, err
    assert '<p class="text" dir="auto">other text ' in target.read_text("utf-8")
    code, _, err = nescio(*given, "--text-column", "reviews", "-o", target, "--force")
    assert code != 0
    assert "reviews" in err
    np.save(tmp_path / "plain.npy", np.random.default_rng(0).normal(size=(40, 4)))
    no_texts = ("--ood", tmp_path / "plain.npy", "--text-column", "review")
    code, _, err = nescio(*given, *no_texts, "-o", target, "--force")
    assert code != 0
    assert "the OOD data 'plain' has no column 'review' (--text-column)" in " ".join(err.split())
    code, _, err = nescio("report", tmp_path, "--text-column", "review", "-o", tmp_path / "r.html")
    assert "--text-column can only be used with --id and --ood" in err
