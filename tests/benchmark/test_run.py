"""A benchmark from nothing to lines, and that nothing is done twice."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torchvision")

from nescio._io.tensors import read_tensors, write_tensors
from nescio.benchmark import pipeline as pipelines
from nescio.benchmark.evidence import load_evidence
from nescio.benchmark.folder import BenchmarkRun
from nescio.benchmark.run import run_benchmark
from nescio.benchmark.spec import parse_benchmark
from nescio.detectors import JointEnergy
from nescio.errors import DatasetError, FileError, FileFormatError, ParameterError
from nescio.metrics import auroc


@pytest.fixture
def folder(small_run, tmp_path):
    """A copy of what the benchmark left, to change."""
    return shutil.copytree(small_run.folder.parent, tmp_path / "bench")


@pytest.fixture
def counted(monkeypatch):
    """Which expensive steps are taken."""
    taken = []
    for name in ("train", "tune"):
        real = getattr(pipelines, name)
        monkeypatch.setattr(
            pipelines, name, lambda *a, _n=name, _f=real, **k: taken.append(_n) or _f(*a, **k)
        )
    extract = pipelines.extract

    def extracting(*arguments, **options):
        done = extract(*arguments, **options)
        taken.extend(["extract"] * bool(done.n_computed))
        return done

    monkeypatch.setattr(pipelines, "extract", extracting)
    return taken


def test_a_line_for_every_seed_set_and_detector(small_spec, small_run):
    found = [(line.seed, line.ood, line.detector) for line in small_run.lines]
    assert found == [
        (seed, ood, detector)
        for seed in small_spec.seeds
        for ood in small_spec.sets[0].ood
        for detector in small_spec.detectors
    ]
    assert all(line.evaluation is not None for line in small_run.lines)


def test_the_lines_are_of_the_evidence(small_run):
    """The numbers are those of the scores, and the scores those of the outputs."""
    evidence = small_run.evidence()
    assert [one.seed for one in evidence] == [0, 1]
    for line in small_run.lines:
        [of_seed] = [one for one in evidence if one.seed == line.seed]
        scored = of_seed.scores[line.detector]
        area = auroc(scored.id_scores, scored.ood_scores[line.ood])
        assert line.evaluation.auroc.value == pytest.approx(area)
    first = evidence[0]
    np.testing.assert_allclose(
        first.scores["joint_energy"].ood_scores["noise"],
        JointEnergy().score_samples(first.ood_outputs["noise"]),
    )
    assert (first.image_roots["noise"] / first.ood_outputs["noise"].ids[0]).is_file()


def test_the_manifest_says_what_it_was_made_from(small_run):
    first, last = small_run.lines[0].manifest, small_run.lines[-1].manifest
    assert first["model_hash"] != last["model_hash"]
    assert first["data"] == last["data"]
    assert first["data"]["train"]["n_images"] == 160
    assert set(first["data"]["ood"]) == {"unseen digits", "noise"}
    assert first["training"]["settings"]["training"]["seed"] == 0
    assert 0 < first["training"]["best"]["val_map"] <= 1
    methods = {(one["method"], one["aggregate"]) for one in first["tuning"]["best"]}
    assert methods >= {("odin", "max"), ("mahalanobis", "sum")}
    assert set(first["versions"]) == {"nescio", "torch", "numpy", "python"}


def test_the_lines_are_on_disk(small_run):
    assert BenchmarkRun.load(small_run.folder).lines == small_run.lines


def test_a_second_run_does_nothing(small_spec, small_run, folder, counted):
    before = (folder / "small" / "results.jsonl").read_bytes()
    stages = []

    def watch(stage, total):
        stages.append(stage)
        return pipelines.unwatched(stage, total)

    again = run_benchmark(small_spec, folder, watch=watch)
    assert counted == []
    assert not any("evaluating" in stage for stage in stages)
    assert again.lines == small_run.lines
    assert (folder / "small" / "results.jsonl").read_bytes() == before


def test_another_benchmark_finds_networks_and_outputs(small_spec, folder, counted):
    """Other detectors on the same networks: nothing is trained, tuned or extracted again."""
    other = replace(small_spec, name="other", detectors=(*small_spec.detectors, "msp"))
    found = run_benchmark(other, folder)
    assert counted == []
    assert len(found.lines) == 24


def test_an_interrupted_run_goes_on(small_spec, small_run, folder, counted):
    """As if it had crashed in the evaluation of the second seed."""
    for path in (folder / "small" / "runs").glob("*seed-1*"):
        path.unlink()
    (folder / "small" / "results.jsonl").unlink()
    assert run_benchmark(small_spec, folder).lines == small_run.lines
    assert counted == []


def test_other_settings_are_another_network(small_spec, folder, counted):
    changed = json.loads(json.dumps(small_spec.train))
    changed["training"]["lr_head"] = 2e-3
    run_benchmark(replace(small_spec, train=changed, seeds=(0,)), folder)
    assert counted == ["train", "extract", "tune", *["extract"] * 3]


def test_more_tuning_images_leave_the_network_alone(small_spec, folder, counted):
    more = replace(small_spec, tune=replace(small_spec.tune, images=8), seeds=(0,))
    run_benchmark(more, folder)
    assert "tune" in counted
    assert "train" not in counted


def test_a_network_from_a_file(small_spec, small_run, folder, counted):
    [best, *_] = sorted((folder / "cache" / "networks").glob("*/best.safetensors"))
    part = replace(small_spec.sets[0], network=str(best))
    spec = replace(small_spec, name="mine", sets=(part,), seeds=(0,))
    found = run_benchmark(spec, folder)
    assert "train" not in counted
    assert found.lines[0].manifest["training"] == {"network": str(best)}
    hashes = {line.manifest["model_hash"] for line in small_run.lines}
    assert found.lines[0].manifest["model_hash"] in hashes


def test_names_that_are_no_file_names(small_spec, folder):
    part = replace(small_spec.sets[0], name="a/b [c]")
    spec = replace(small_spec, name="odd", detectors=("joint_energy",), seeds=(0,), sets=(part,))
    found = run_benchmark(spec, folder)
    assert {line.id for line in found.lines} == {"a/b [c]"}
    assert (folder / "odd" / "runs" / "a_b__c_-seed-0.jsonl").is_file()
    assert len(found.evidence()) == 1


def test_the_results_are_of_what_was_run_last_and_the_whole_is_gathered(
    small_spec, small_run, folder, counted
):
    run_benchmark(small_spec.only([], [0]), folder)
    assert {line.seed for line in BenchmarkRun.load(folder / "small").lines} == {0}
    assert run_benchmark(small_spec, folder).lines == small_run.lines
    assert counted == []


def test_evidence_of_another_run_is_not_taken(small_spec, small_run, folder):
    """As if another spec of that name had been stopped after its first seed."""
    evidence = load_evidence(folder / "small" / "runs" / "digits-seed-0.safetensors")
    path = folder / "small" / "runs" / "digits-seed-1.safetensors"
    shutil.copy(folder / "small" / "runs" / "digits-seed-0.safetensors", path)
    assert evidence.of_lines
    with pytest.raises(FileError, match=r"is of another run than .*results.jsonl"):
        BenchmarkRun.load(folder / "small").evidence()
    run_benchmark(small_spec, folder)  # as the message says
    assert len(BenchmarkRun.load(folder / "small").evidence()) == 2


def test_images_that_have_moved_are_found_again(spec_text, small_run, folder, tmp_path):
    data = small_run.evidence()[0].image_roots["noise"].parent
    shutil.copytree(data / "digits", tmp_path / "moved" / "digits")
    moved = parse_benchmark("small", spec_text).with_data(tmp_path / "moved")
    run = run_benchmark(moved, folder)
    assert run.lines == small_run.lines
    roots = run.evidence()[0].image_roots
    assert roots["noise"] == (tmp_path / "moved" / "digits").resolve()


@pytest.mark.parametrize(
    "damage", [{"outputs": {}}, {"detectors": 3}, {"schema": 2}, {"kind": "x"}]
)
def test_damaged_evidence_is_said(small_run, tmp_path, damage):
    source = small_run.folder / "runs" / "digits-seed-0.safetensors"
    tensors, metadata = read_tensors(source)
    write_tensors(tmp_path / "x.safetensors", tensors, metadata | damage)
    with pytest.raises(FileFormatError):
        load_evidence(tmp_path / "x.safetensors")


def test_a_network_of_ones_own(small_spec, tmp_path, monkeypatch):
    """The spec names the module; both to train it and to take one from a file."""
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(),\n"
        "                         nn.Linear(16, 7))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = {"name": "module:own_net:build", "weights": "none", "features": "2"}
    train = {**small_spec.train, "model": model}
    spec = replace(small_spec, train=train, seeds=(0,), detectors=("joint_energy",))
    trained = run_benchmark(spec, tmp_path / "bench")
    [best] = (tmp_path / "bench" / "cache" / "networks").glob("*/best.safetensors")
    part = replace(spec.sets[0], network=str(best), module="own_net:build")
    given = run_benchmark(replace(spec, sets=(part,)), tmp_path / "bench")
    values = [[line.evaluation for line in run.lines] for run in (trained, given)]
    assert values[0] == values[1]
    unnamed = replace(spec.sets[0], network=str(best))
    with pytest.raises(ParameterError, match="a file does not choose code to run"):
        run_benchmark(replace(spec, sets=(unnamed,)), tmp_path / "bench")


def test_data_that_is_missing_is_said_before_any_work(small_spec, tmp_path, counted):
    part = replace(small_spec.sets[0], ood={"gone": f"folder:{tmp_path / 'gone'}"})
    with pytest.raises(DatasetError, match="gone"):
        run_benchmark(replace(small_spec, sets=(part,)), tmp_path / "bench")
    assert counted == []
    assert not (tmp_path / "bench").exists()


def test_bad_training_settings_are_said_before_any_work(small_spec, tmp_path, counted):
    with pytest.raises(ParameterError, match=r"small: \[train\]: there is no section \[modle\]"):
        run_benchmark(replace(small_spec, train={"modle": {}}), tmp_path / "bench")
    assert counted == []


def test_evidence_survives_a_move_and_says_when_outputs_are_gone(small_run, folder):
    moved = BenchmarkRun.load(folder / "small")
    assert len(moved.evidence()) == 2
    shutil.rmtree(folder / "cache")
    with pytest.raises(FileError, match=r"there is no file.*Run the benchmark again"):
        moved.evidence()


def test_a_folder_without_results(tmp_path):
    with pytest.raises(FileError, match=r"holds no results.jsonl"):
        BenchmarkRun.load(tmp_path)
