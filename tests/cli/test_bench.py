"""nescio bench."""

import json
import shutil
import time

import pytest

from nescio.benchmark.spec import shipped_specs
from nescio.cli.bench import _duration, stages

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
    assert err == ""
    assert len(json.loads(again)) == 20


def test_a_long_stage_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr("nescio.cli.bench._SECONDS_BETWEEN_LINES", 0)
    with stages() as watch, watch("training [x]", 4) as advance:
        advance(1)
        advance(2)
        advance(1)
    said = capsys.readouterr().err.splitlines()
    assert said == ["training [x]", "training [x]: 25%", "training [x]: 75%, 0 s left"]
    monkeypatch.undo()
    with stages() as watch, watch("training", 4) as advance:
        advance(1)
    assert capsys.readouterr().err == "training\n"


def test_the_time_left_is_that_of_the_work_of_this_run(monkeypatch, capsys):
    """The first report is of the 50 steps that an earlier run has done."""
    clock = iter([0, 1, 41, 81])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with stages() as watch, watch("training", 100) as advance:
        advance(50)
        advance(1)
        advance(1)
    said = capsys.readouterr().err.splitlines()
    assert said[1:] == ["training: 51%, 33 min left", "training: 52%, 32 min left"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (3570, "1 h 00 min"), (7500, "2 h 05 min"),
     (86400 * 2 + 3600 * 4, "2 d 4 h")],
)  # fmt: skip
def test_durations(seconds, text):
    assert _duration(seconds) == text


def test_a_stage_of_unknown_length(capsys):
    with stages() as watch, watch("waiting", 0) as advance:
        advance(1)
    assert capsys.readouterr().err == "waiting\n"


def test_one_seed_of_it(nescio, spec_file, bench_folder):
    spec, data = spec_file
    code, out, err = nescio(
        *("bench", spec, "--data", data, "-o", bench_folder, "--seed", 1, "--json")
    )
    assert code == 0, err
    assert {line["seed"] for line in json.loads(out)} == {1}


def test_the_authors_protocol_has_a_folder_of_its_own(nescio, spec_file, bench_folder):
    spec, data = spec_file
    command = ("bench", spec, "--data", data, "-o", bench_folder, "--seed", 0)
    code, out, err = nescio(*command, "--protocol", "authors")
    assert code == 0, err
    assert "Protocol: authors." in out
    assert (bench_folder / "small-authors" / "results.jsonl").is_file()
    code, out, err = nescio("tables", bench_folder / "small-authors")
    assert (code, "Protocol: authors." in out) == (0, True)
    page = bench_folder / "report.html"
    code, _, err = nescio("report", bench_folder / "small-authors", "-o", page)
    assert code == 0, err
    assert '<th scope="row">protocol</th><td>authors</td>' in page.read_text("utf-8")


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
    "no data": (
        ("bench", "paper-main"),
        "the benchmark paper-main needs to know where its data is",
    ),
    "data not there": (("bench", "paper-main", "--data", "nowhere"), "nowhere/coco"),
    "no protocol": (
        ("bench", "paper-main", "--protocol", "x"),
        "protocol must be 'paper' or 'authors'",
    ),
    "no set": (("bench", "paper-main", "--data", ".", "--set", "X"), "has no set 'X'"),
}


@pytest.mark.parametrize(("arguments", "reason"), WRONG.values(), ids=WRONG)
def test_mistakes_are_explained(mistake, arguments, reason):
    mistake(arguments, reason)
