"""nescio eval, choose and report."""

import json
import os
import re

import numpy as np
import pytest

from fixtures.commands import in_a_process
from fixtures.labelled import labelled

FEW = ("-d", "joint_energy", "-d", "knn(k=3)")


def test_eval_does_as_it_is_told(here, nescio):
    def run(*options):
        files = ("--id", "test.npy", "--ood", "objects.npy", "-d", "msp", "--json")
        return json.loads(nescio("eval", *files, *options)[1])["results"][0]

    assert run("--tpr", "0.8")["tpr"] == 0.8
    assert run("--tpr", "0.8")["fpr"]["value"] < run()["fpr"]["value"]
    assert run("--bootstrap", "0")["auroc"]["low"] is None


def test_a_terminal_without_arrows_is_no_reason_to_fail(here):
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
    out, by_label = out.split("by most likely label", 1)
    assert "false alarms" in by_label
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


def test_the_detector_that_is_named_first_is_described(here, succeeds):
    files = ("--id", "test.npy", "--ood", "objects.npy", "--bootstrap", "0")
    for names in (("msp", "joint_energy"), ("joint_energy", "msp")):
        out = succeeds("eval", *files, "-d", names[0], "-d", names[1])
        assert f"{names[0]} by most likely label" in " ".join(out.split())
        assert "points, DeLong's p" in out
        assert "chosen by their results" not in out
    out = succeeds("eval", *files)
    assert "chosen by their results" in out
    assert "default of calibrate for logits alone has no row: it learns from held-out data" in out
    [said] = [line for line in out.splitlines() if line.startswith("left out ")]
    assert said.endswith("--json has the reasons. Pass --train for more of them.")


def test_a_detector_with_parameters_is_added_to_all(here, nescio):
    files = ("--id", "test.npy", "--ood", "objects.npy", "--bootstrap", "0", "--json")
    added = ("-d", "all", "-d", "top_k_joint_energy(k=2)", "-d", "msp")
    rows = [json.loads(nescio("eval", *files, *more)[1])["results"] for more in ((), added)]
    everything, with_added = ([row["detector"] for row in of] for of in rows)
    assert sorted(with_added) == sorted([*everything, "top_k_joint_energy(k=2)"])


def test_what_calibrate_chooses_is_compared_with_all(here, succeeds):
    files = ("eval", "--id", "test.npy", "--ood", "textures.npy", "--bootstrap", "0")
    fit = ("calibrate", "val.npy", "-o", "mine.nescio", "--no-self-check")
    succeeds(*fit)
    held_out = ("--held-out", "val.npy")
    everything = json.loads(succeeds(*files, *held_out, "--json"))["results"]
    default = next(row for row in everything if row["detector"] == "default")
    (mine,) = json.loads(succeeds(*files, "-d", "mine.nescio", "--json"))["results"]
    assert (mine["detector"], mine["auroc"]) == ("mine", default["auroc"])
    assert "default by most likely label" in succeeds(*files, *held_out)


def test_held_out_data_is_for_the_detectors_that_learn_from_it(here, succeeds, fails):
    files = ("eval", "--id", "test.npy", "--ood", "textures.npy", "--bootstrap", "0", "--json")
    name = "combined(detectors=[joint_energy, max_logit])"
    out = succeeds(*files, "-d", "msp", "-d", name)
    assert "pass such outputs (--held-out)" in json.loads(out)["skipped"][name]
    result = json.loads(succeeds(*files, "-d", "msp", "-d", name, "--held-out", "val.npy"))
    assert result["skipped"] == {}
    assert {row["detector"] for row in result["results"]} == {"msp", name}
    for role, twice in (("ID", "test.npy"), ("training", "val.npy")):
        more = ("--train", "val.npy", "--held-out", twice)
        err = fails(*files, "-d", name, *more)
        assert f"the {role} data and the held-out data have the same rows" in err


@pytest.mark.filterwarnings("default::nescio.errors.NescioWarning")
def test_eval_takes_auto_and_says_that_groups_do_not_count(here, nescio, succeeds):
    files = ("eval", "--id", "test.npy", "--ood", "textures.npy", "--bootstrap", "0")
    out = succeeds(*files, "--held-out", "val.npy", "-d", "auto", "-d", "msp")
    assert "default by most likely label" in " ".join(out.split())
    succeeds("calibrate", "val.npy", "--by", "label_count", "-o", "by.nescio")
    code, _, err = nescio(*files, "-d", "by.nescio")
    assert (code, "warning: by: scores are compared, without its thresholds" in err) == (0, True)
    assert "exactly those of calibration inputs" in nescio(
        "eval", "--id", "val.npy", *files[3:], "-d", "by.nescio"
    )[2]  # fmt: skip


# --- choose ---------------------------------------------------------------------------------------


@pytest.fixture
def outputs(tmp_path):
    """Training and held-out outputs, as files."""
    for name, seed in (("train", 0), ("val", 1)):
        labelled(seed=seed).save(f"{name}.safetensors")
    return ("--train", "train.safetensors", "--held-out", "val.safetensors")


def test_choose_prints_the_ranking(outputs, nescio):
    code, out, err = nescio("choose", *outputs, *FEW, "-d", "odin")
    assert (code, err) == (0, "leaving labels out\n")
    result = json.loads(nescio("choose", *outputs, *FEW, "-d", "odin", "--json")[1])
    assert {item["name"] for item in result["ranking"]} == {"joint_energy", "knn(k=3)"}
    assert f"{result['pick']} *" in out
    assert result["summary"] in out.replace("\n\n", "\n")
    assert "left out odin: it reads odin_max, but" in out


def test_choose_ignores_a_column_of_the_held_out_table_alone(tmp_path, monkeypatch, succeeds):
    """As calibrate, eval and report do."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, n in (("train", 300), ("val", 200)):
        site = {"site": 1.5} if name == "val" else {}
        rows = [
            dict(zip("abcdef", row, strict=True))
            | {"labels": (row > 0).astype(int).tolist()}
            | site
            for row in rng.normal(0, 2, (n, 6))
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = ("--train", "train.jsonl", "--held-out", "val.jsonl", "--ignore", "site")
    assert "joint_energy" in succeeds("choose", *files, "-d", "joint_energy", "-d", "msp")


def test_choose_does_as_it_is_told(outputs, succeeds):
    def run(*options):
        return json.loads(succeeds("choose", *outputs, *FEW, "--json", *options))

    plain = run()
    assert (plain["refit"], plain["tpr"], len(plain["folds"])) == ("head", 0.95, 5)
    told = run("--folds", "3", "--tpr", "0.8", "--refit", "none")
    assert (told["refit"], told["tpr"], len(told["folds"])) == ("none", 0.8, 3)
    labelled(seed=1, ids=[f"image {i}" for i in range(400)]).save("jigsaw.safetensors")
    far = run("--far", "jigsaw=jigsaw.safetensors")
    assert list(far["ranking"][0]["far"]) == ["shuffled", "jigsaw"]


def test_mistakes_say_what_to_do(outputs, fails):
    train = outputs[1]
    twice = fails("choose", "--train", train, "--held-out", train)
    assert "400 of 400 held-out samples are also in the training data" in twice
    assert "expected CORRUPTION=FILE" in fails("choose", *outputs, "--far", "jigsaw")
    for seed in (0, 1):
        labelled(seed=seed, per_sample=6).save(f"crowded{seed}.safetensors")
    files = ("--train", "crowded0.safetensors", "--held-out", "crowded1.safetensors")
    assert "(--folds 2)" in fails("choose", *files, *FEW, "--folds", "8")


# --- report ---------------------------------------------------------------------------------------


def test_a_report_of_a_benchmark(succeeds, fails, bench_folder, tmp_path):
    target = tmp_path / "report.html"
    out = succeeds("report", bench_folder / "small", "-o", target)
    assert f"saved {target}" in out
    page = target.read_text("utf-8")
    assert "unseen digits" in page
    assert "<title>Small scenes</title>" in page
    assert "exists already" in fails("report", bench_folder / "small", "-o", target)


def test_pictures_from_outside_the_results_are_shown_only_if_asked_for(
    nescio, bench_folder, tmp_path
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


def test_a_report_of_ones_own_outputs(succeeds, fails, small_run, tmp_path):
    first = small_run.evidence()[0]
    sets = {"mine": first.id_outputs, "other": first.ood_outputs["noise"]}
    for name, outputs in sets.items():
        outputs.save(tmp_path / f"{name}.safetensors")
    inputs = (
        *("--id", tmp_path / "mine.safetensors", "--ood", tmp_path / "other.safetensors"),
        *("--images", f"other={first.image_roots['noise']}"),
    )
    target = tmp_path / "report.html"
    succeeds("report", *inputs, "-o", target, "--title", "Of my own")
    page = target.read_text("utf-8")
    assert "<title>Of my own" in page
    assert re.search(r"<li>\d+ detectors \(.*\): each learns from data: pass training", page)
    assert "On mine against other: default (joint_energy) lets" in page  # of few inputs
    assert "NAME must be one of mine, other" in fails(
        *("report", *inputs, "--images", "third=.", "-o", target, "--force"),
    )


@pytest.mark.filterwarnings("default::nescio.errors.NescioWarning")
def test_a_report_without_ood_data(nescio, succeeds, fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, n, shift in (("earlier", 400, 0), ("new", 300, -3), ("few", 20, 0)):
        lines = [",".join(f"{x:.4f}" for x in row) for row in rng.normal(shift, 3, (n, 4))]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,c,d", *lines]))
    page = tmp_path / "report.html"
    report = ("report", "-o", page, "--force")
    succeeds(*report, "--id", "earlier.csv")
    text = page.read_text("utf-8")
    assert "<title>Report on earlier</title>" in text
    assert "The other half (200) calibrated the detector" in text
    assert "some verdicts will differ from those of this page" in text
    assert "This is as promised: about 5" in text
    succeeds(*report, "--id", "new.csv", "--held-out", "earlier.csv")
    text = page.read_text("utf-8")
    assert "default (combined)" in text
    assert "This is more than promised: about 5" in text
    assert "The other half" not in text
    assert "nescio calibrate earlier.csv -o detector.nescio" in re.sub("</?span>", "", text)
    assert "some verdicts will differ" not in text
    succeeds("calibrate", "earlier.csv", "-d", "max_logit", "-o", "tagger.nescio")
    out = succeeds(*report, "--id", "new.csv", "--detector", "tagger.nescio")
    assert "% of 300 inputs flagged: more than promised" in out
    assert "Like the calibration data? No." in out
    text = page.read_text("utf-8")
    assert "tagger (max_logit)" in text
    assert "These inputs do not look like the calibration data" in text
    assert "files.detector</th><td>tagger.nescio<" in text
    assert "pass more rows, or a calibrated detector (--detector)" in fails(
        *report, "--id", "few.csv"
    )
    assert "there is no file" in fails(*report, "--id", "new.csv", "--detector", "none.nescio")
    rows = ["a,b,c,d", *40 * ["1.5,-2.5,0.5,0.5"], *20 * ["1.5,,0.5,0.5"]]
    (tmp_path / "bad.csv").write_text("\n".join(rows))
    for more in (("--detector", "tagger.nescio"), ("--held-out", "earlier.csv"), ()):
        assert "bad.csv: logits hold NaN" in fails(*report, "--id", "bad.csv", *more)
    unused = ("--detector", "tagger.nescio", "--held-out", "earlier.csv")
    assert "--held-out are not used" in nescio(*report, "--id", "new.csv", *unused)[2]
    compared = (*report, "--id", "new.csv", "--ood", "few.csv", *unused)
    assert "not used" not in nescio(*compared)[2]


@pytest.mark.filterwarnings("default::nescio.errors.GroupWarning")
def test_a_report_by_groups(nescio, succeeds, fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, n in (("earlier", 600), ("new", 200)):
        rows = [f"{'ab'[row % 2]},text {row}," + ",".join(f"{x:.4f}" for x in values)
                for row, values in enumerate(rng.normal(0, 3, (n, 4)))]  # fmt: skip
        (tmp_path / f"{name}.csv").write_text("\n".join(["site,review,p,q,r,s", *rows]))
    columns = ("--labels", "p,q,r,s", "--group-column", "site")
    succeeds("calibrate", "earlier.csv", *columns, "-o", "sites.nescio")
    report = ("report", "--id", "new.csv", "-o", "r.html", "--labels", "p,q,r,s")
    by_site = ("--detector", "sites.nescio", "--group-column", "site", "--text-column", "review")
    succeeds(*report, *by_site)
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "of 200 inputs" in page
    assert re.search(r"<th[^>]*>\s*(<[^>]*>\s*)*Group", page)  # who is flagged, by site
    assert re.search(r", group [ab]<", page)  # of the most suspicious inputs
    [command] = re.findall(r"<code>nescio (score .*) </code>", re.sub("</?span>", "", page))
    assert command == (
        "score sites.nescio new.csv -o verdicts.csv --labels p,q,r,s --group-column site"
    )
    assert "<td>--labels p,q,r,s --group-column site</td>" in page.replace("&#34;", "")
    succeeds(*command.split())
    missing = fails(*report, "--force", "--detector", "sites.nescio")
    assert "by group: pass --group-column site" in missing
    text = (tmp_path / "new.csv").read_text()
    (tmp_path / "new.csv").write_text(text.replace("\na,", "\nc,"))
    err = nescio(*report, "--force", *by_site)[2]
    assert err.startswith("warning: no threshold was calibrated for 1 group: 'c', with 100 rows")
    assert err.count("warning") == 1
    (tmp_path / "new.csv").write_text(re.sub(r"\n[ab],", "\nc,", text))
    assert "no row is in a group that was calibrated" in fails(*report, "--force", *by_site)
    assert "needs a detector calibrated by it" in fails(*report, "--force", *by_site[2:])
    succeeds("calibrate", "earlier.csv", *columns[:2], "-o", "one.nescio")
    other = ("--detector", "one.nescio", *by_site[2:])
    assert "needs a detector calibrated by it" in fails(*report, "--force", *other)


def test_a_saved_detector_is_compared_as_it_is(succeeds, outputs, tmp_path):
    """It has learned already, and needs no training data again."""
    files = dict(zip(outputs[::2], outputs[1::2], strict=True))
    train, held_out = files["--train"], files["--held-out"]
    succeeds("calibrate", held_out, "--train", train, "-d", "knn(k=3)", "-o", "knn.nescio")
    labelled(seed=5).save("test.safetensors")
    labelled(seed=6).save("other.safetensors")
    sets = ("--id", "test.safetensors", "--ood", "other.safetensors")
    succeeds("report", *sets, "--detector", "knn.nescio", "-o", "r.html")
    page = (tmp_path / "r.html").read_text("utf-8")
    assert re.search(r"knn \(knn\) lets \S+ % through \(place \d+\), joint_energy lets", page)
    assert "knn with standard settings" in page


WRONG = {
    "one file on both sides": (
        ("--id", "logits.npy", "--ood", "./logits.npy"),
        "the ID data and the OOD data 'logits' have the same rows",
    ),
    "nothing": ((), "pass your own outputs with --id new.csv."),
    "both": (("empty.jsonl", "--id", "a.npy"), "own outputs with --id empty.jsonl."),
    "no page": (("empty.jsonl", "-o", "r.pdf"), "the name must end in .html"),
    "an empty file": (("empty.jsonl",), "has no results"),
    "an empty folder": ((".",), "there is no results.jsonl in"),
    "over its input": (("empty.jsonl", "-o", "empty.jsonl", "--force"), "is an input"),
    "images of a benchmark": (
        ("empty.jsonl", "--images", "a=b"),
        "--images a=b: the folder b does not exist",
    ),
}


@pytest.mark.parametrize(("arguments", "reason"), WRONG.values(), ids=WRONG)
def test_mistakes_are_explained(mistake, arguments, reason):
    mistake(("report", "-o", "r.html", *arguments), reason)


def test_the_texts_of_a_table_are_shown(succeeds, fails, tmp_path):
    rng = np.random.default_rng(0)
    for name, shift in (("mine", 0.0), ("other", -1.0)):
        rows = [f"{name} text {index}," + ",".join(f"{x:.4f}" for x in rng.normal(shift, 3, 4))
                for index in range(60)]  # fmt: skip
        (tmp_path / f"{name}.csv").write_text("\n".join(["review,a,b,c,d", *rows]))
    report = ("report", "--id", tmp_path / "mine.csv", "--ood", tmp_path / "other.csv")
    target = tmp_path / "report.html"
    succeeds(*report, "--text-column", "review", "-o", target)
    assert '<p class="text" dir="auto">other text ' in target.read_text("utf-8")
    err = fails(*report, "--text-column", "reviews", "-o", target, "--force")
    assert "there is no column 'reviews'. Did you mean" in err
    err = fails("report", tmp_path, "--text-column", "review", "-o", tmp_path / "r.html")
    assert f"pass your own outputs with --id {tmp_path}" in err


def test_a_narrow_terminal_still_shows_the_names(here, nescio, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = nescio("eval", "--id", "test.npy", "--ood", "objects.npy", "--bootstrap", "0")
    assert "top_k_joint_energy" in out
    assert max(map(len, out.splitlines()[:10])) <= 60
