"""Running a benchmark: its lines and manifest; each network and file of outputs is made once."""

import json
import os
import shutil
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from safetensors.torch import save_file

from nescio._io.files import locked
from nescio.errors import BenchmarkError, DatasetError, FileError, NonFiniteError, ParameterError
from nescio.lab.benchmark import run as runs
from nescio.lab.benchmark.results import BenchmarkRun, lines_file
from nescio.lab.benchmark.run import make_pipelines, run_benchmark, unwatched
from nescio.lab.benchmark.spec import parse_benchmark
from nescio.lab.benchmark.tables import network_table
from nescio.lab.networks.network import _build_small
from nescio.outputs import Outputs


def watching(stages):
    def watch(stage, total):
        stages.append((stage, total))
        return unwatched(stage, total)

    return watch


def test_a_line_for_every_seed_set_and_detector(small_spec, small_run):
    lines = [(line.seed, line.ood, line.detector) for line in small_run.lines]
    assert lines == [
        (seed, ood, detector)
        for seed in small_spec.seeds
        for ood in small_spec.sets[0].ood
        for detector in small_spec.detectors
    ]
    assert all(line.evaluation is not None for line in small_run.lines)


def test_the_manifest_says_what_it_was_made_from(small_run):
    first, last = small_run.lines[0].manifest, small_run.lines[-1].manifest
    assert first["model_hash"] != last["model_hash"]
    assert first["data"] == last["data"]
    assert first["data"]["train"]["n_images"] == 160
    assert set(first["data"]["ood"]) == {"unseen digits", "noise"}
    assert first["training"]["settings"]["training"]["seed"] == 0
    assert 0 < first["training"]["best"]["val_map"] <= 1
    methods = {(setting["method"], setting["aggregate"]) for setting in first["tuning"]["best"]}
    assert methods >= {("odin", "max"), ("mahalanobis", "sum")}
    assert set(first["versions"]) == {"nescio", "torch", "numpy", "python"}


def test_a_second_run_does_nothing(small_spec, small_run, bench_folder, counted):
    before = (bench_folder / "small" / "results.jsonl").read_bytes()
    stages = []
    again = run_benchmark(small_spec, bench_folder, watch=watching(stages))
    assert counted == []
    assert not any("evaluating" in stage for stage, _ in stages)
    assert again.lines == small_run.lines
    assert (bench_folder / "small" / "results.jsonl").read_bytes() == before


def test_a_second_run_waits_for_the_first(small_spec, small_run, bench_folder, counted):
    """Two at once would write the same lines and evidence."""
    stages = []

    def watch(stage, total):
        stages.append(stage.rpartition(": ")[2])
        if stages[-1] == "waiting for another process":
            held.close()
        return unwatched(stage, total)

    held = ExitStack()
    folder, name = bench_folder / "small", small_spec.sets[0].name
    held.enter_context(locked(lines_file(folder, name, small_spec.seeds[0])))
    run_benchmark(small_spec, bench_folder, watch=watch)
    assert stages.count("waiting for another process") == 1
    assert counted == []


@pytest.mark.parametrize("freeze", [False, True])
def test_every_stage_reports_all_of_its_steps(small_spec, tmp_path, freeze):
    """Or its time left would be wrong."""
    spec = replace(
        small_spec,
        detectors=("joint_energy", "odin"),
        seeds=(0,),
        train=small_spec.train.updated({"model": {"freeze": freeze}}),
    )
    totals, done = {}, Counter()

    @contextmanager
    def watch(stage, total):
        name = stage.rpartition(": ")[2]
        totals[name] = total
        yield lambda steps: done.update({name: steps})

    run_benchmark(spec, tmp_path / "bench", watch=watch)
    assert totals == {
        "reading the data sets": 1,
        "checking images": 160 + 4 * 48,
        "training": 160 + (160 + 48 if freeze else 0),
        **({"computing features of digits-train": 160} if freeze else {}),
        "extracting digits-train": 160,
        **({"computing features of digits-val": 48} if freeze else {}),
        "extracting digits-val": 48,
        "tuning ODIN and Mahalanobis": 6 * 6,
        **{f"extracting digits-{name}": 48 for name in ("test", "unseen", "noise")},
        "evaluating": 2 * 2,
    }
    assert done == totals


def test_a_network_that_fails_is_named_and_the_others_are_kept(
    small_spec, small_run, bench_folder, monkeypatch
):
    real = runs._network_lines

    def failing(pipeline, folder):
        if pipeline.seed == 0:
            raise NonFiniteError("the training loss is nan.")
        return real(pipeline, folder)

    monkeypatch.setattr(runs, "_network_lines", failing)
    with pytest.raises(BenchmarkError) as raised:
        run_benchmark(small_spec, bench_folder)
    assert "1 of 2 networks failed:\n  digits, seed 0: the training loss" in str(raised.value)
    assert {line.seed for line in BenchmarkRun.load(bench_folder / "small").lines} == {1}
    with pytest.raises(NonFiniteError):  # the only one
        run_benchmark(small_spec.only([], [0]), bench_folder)
    monkeypatch.undo()
    assert run_benchmark(small_spec, bench_folder).lines == small_run.lines


def test_detectors_of_your_own(small_spec, bench_folder, own_detectors, counted):
    kinds = ("Neighbours(k=3)", "ReAct", "Together")
    names = tuple(f"fixtures.own_detectors:{kind}" for kind in kinds)
    # The features before the last layer, so that ReAct has a head to read.
    spec = replace(small_spec, name="own", detectors=names, seeds=(0,), features="penultimate")
    run = run_benchmark(spec, bench_folder)
    assert {line.detector for line in run.lines} == set(names)
    assert all(line.evaluation is not None for line in run.lines)
    assert "train" not in counted


def test_names_that_are_no_file_names(small_spec, bench_folder):
    part = replace(small_spec.sets[0], name="a/b [c]")
    spec = replace(small_spec, name="odd", detectors=("joint_energy",), seeds=(0,), sets=(part,))
    run = run_benchmark(spec, bench_folder)
    assert {line.id for line in run.lines} == {"a/b [c]"}
    assert (bench_folder / "odd" / "runs" / "a_b__c_-seed-0.jsonl").is_file()
    assert len(run.evidence()) == 1


def test_images_that_have_moved_are_found_again(spec_text, small_run, bench_folder, tmp_path):
    data = small_run.evidence()[0].image_roots["noise"].parent
    shutil.copytree(data / "digits", tmp_path / "moved" / "digits")
    moved = parse_benchmark("small", spec_text).with_data(tmp_path / "moved")
    run = run_benchmark(moved, bench_folder)
    assert run.lines == small_run.lines
    roots = run.evidence()[0].image_roots
    assert roots["noise"] == (tmp_path / "moved" / "digits").resolve()


# --- networks, tunings and outputs are made once --------------------------------------------------


def test_another_benchmark_finds_networks_and_outputs(small_spec, bench_folder, counted):
    """Other detectors or seeds of the same networks: nothing is made again."""
    run_benchmark(small_spec.only([], [0]), bench_folder)
    assert {line.seed for line in BenchmarkRun.load(bench_folder / "small").lines} == {0}
    other = replace(small_spec, name="other", detectors=(*small_spec.detectors, "msp"))
    run = run_benchmark(other, bench_folder)
    assert counted == []
    assert len(run.lines) == 24


def test_other_settings_are_another_network(small_spec, bench_folder, counted):
    changed = small_spec.train.updated({"training": {"lr_head": 2e-3}})
    run_benchmark(replace(small_spec, train=changed, seeds=(0,)), bench_folder)
    assert counted == ["train", "extract", "tune", *["extract"] * 4]


def test_an_upgrade_evaluates_again_and_trains_nothing(
    small_spec, small_run, bench_folder, counted, monkeypatch
):
    """Evaluation is cheap; training, tuning and extraction are not."""
    monkeypatch.setattr(runs, "__version__", "99.0")
    monkeypatch.setattr(torch, "__version__", "99.0")
    run = run_benchmark(small_spec, bench_folder)
    assert counted == []
    manifest = run.lines[0].manifest
    assert manifest["versions"]["nescio"] == manifest["versions"]["torch"] == "99.0"
    old = small_run.lines[0].manifest
    assert manifest["training"]["versions"] == old["training"]["versions"]
    assert old["training"]["versions"]["nescio"] == old["versions"]["nescio"]


@pytest.mark.parametrize(
    ("constant", "again"),
    [
        ("TRAINING_VERSION", {"train"}),  # on the CPU to the same network, which has its outputs
        ("TUNING_VERSION", {"tune"}),
        ("EXTRACTION_VERSION", {"extract"}),
    ],
)
def test_a_new_version_of_a_stage_repeats_that_stage(
    small_spec, bench_folder, counted, monkeypatch, constant, again
):
    monkeypatch.setattr(runs, constant, 99)
    run_benchmark(small_spec.only([], [0]), bench_folder)
    assert set(counted) == again


def test_what_was_made_from_other_images_is_not_used(small_spec, bench_folder):
    """The images have the same names and sizes."""
    pipeline = make_pipelines(small_spec, bench_folder)[0]
    changed = replace(pipeline.data.train)
    changed.__dict__["content"] = "another"
    other = replace(pipeline, data=replace(pipeline.data, train=changed))
    assert other.best_file() != pipeline.best_file()


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"model": {"name": "small-cm"}}, ParameterError, "no classification model 'small-cm'"),
        ({"network": "gone.safetensors"}, FileError, r"gone\.safetensors"),
        ({"ood": {"gone": "folder:gone-images"}}, DatasetError, "gone-images"),
    ],
)
def test_mistakes_are_reported_before_any_work(
    small_spec, tmp_path, counted, change, error, reason
):
    train = small_spec.train.updated({"model": change.pop("model", {})})
    spec = replace(
        small_spec, seeds=(0,), train=train, sets=(replace(small_spec.sets[0], **change),)
    )
    with pytest.raises(error, match=reason):
        run_benchmark(spec, tmp_path / "bench")
    assert counted == []


def test_a_network_from_a_file(small_spec, small_run, bench_folder, counted):
    [best, *_] = sorted((bench_folder / "cache" / "networks").glob("*/best.safetensors"))
    part = replace(small_spec.sets[0], network=str(best))
    spec = replace(small_spec, name="mine", sets=(part,), seeds=(0,))
    run = run_benchmark(spec, bench_folder)
    assert "train" not in counted
    # Its mAP is measured on validation data: that of the epoch that it was saved in.
    training = run.lines[0].manifest["training"]
    assert training["network"] == str(best)
    maps = {line.manifest["training"]["best"]["val_map"] for line in small_run.lines}
    assert any(training["best"]["val_map"] == pytest.approx(val_map, abs=1e-6) for val_map in maps)
    [row] = network_table(run.lines).rows
    assert f"{training['best']['val_map']:.4f}" in [cell[0].text for cell in row]
    hashes = {line.manifest["model_hash"] for line in small_run.lines}
    assert run.lines[0].manifest["model_hash"] in hashes


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
    train = small_spec.train.updated({"model": model})
    spec = replace(small_spec, train=train, seeds=(0,), detectors=("joint_energy",))
    trained = run_benchmark(spec, tmp_path / "bench")
    [best] = (tmp_path / "bench" / "cache" / "networks").glob("*/best.safetensors")
    part = replace(spec.sets[0], network=str(best))
    from_file = run_benchmark(replace(spec, sets=(part,)), tmp_path / "bench")
    values = [[line.evaluation for line in run.lines] for run in (trained, from_file)]
    assert values[0] == values[1]
    with pytest.raises(ParameterError, match="a file does not choose code to run"):
        run_benchmark(replace(small_spec, sets=(part,), seeds=(0,)), tmp_path / "bench")


def test_the_mean_number_of_labels_is_rounded_unless_the_set_states_it(small_spec, tmp_path):
    loaded = make_pipelines(small_spec, tmp_path)[0].data
    for n_labels, mean in ((2, 1.6), (1, 1.4), (2, 1.5), (1, 0.2)):
        labels = np.zeros((10, 7), np.uint8)
        labels.flat[: round(10 * mean)] = 1
        counted_set = replace(loaded, train=replace(loaded.train.subset(range(10)), labels=labels))
        assert counted_set.mean_labels == n_labels
    stated = replace(loaded, source=replace(loaded.source, mean_labels=5))
    assert stated.mean_labels == 5


def test_the_seeds_share_the_features_of_a_frozen_backbone(small_spec, tmp_path):
    """The backbone sees each image once; each head gives the logits of the same features."""
    weights, seen = tmp_path / "backbone.safetensors", []
    backbone, _ = _build_small(None)
    save_file(backbone.state_dict(), weights)
    spec = replace(
        small_spec,
        train=small_spec.train.updated({"model": {"freeze": True, "weights": str(weights)}}),
        detectors=("joint_energy", "mahalanobis"),
    )
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, inputs, _: seen.append(len(inputs[0])) if is_first(module) else None
    )
    with hook:
        run_benchmark(spec, tmp_path / "bench")
    assert sum(seen) == 160 + 48 + 3 * 48  # not once for each of the two seeds
    hidden = []
    for pipeline in make_pipelines(spec, tmp_path / "bench"):
        checkpoint, _ = pipeline.network()
        outputs = Outputs.load(pipeline.outputs(checkpoint, pipeline.data.test))
        with torch.no_grad():
            logits = checkpoint.network.head(torch.tensor(outputs.features))
        np.testing.assert_allclose(outputs.logits, logits, rtol=1e-4, atol=1e-5)
        hidden.append(outputs.get("penultimate"))
        assert outputs.head is not None
    assert not np.allclose(*hidden)  # the heads are those of two seeds


def is_first(module):
    """Whether this is the first convolution of the network."""
    return isinstance(module, torch.nn.Conv2d) and module.in_channels == 3


@pytest.fixture
def own_data(small_spec, spec_text, tmp_path):
    """The small benchmark on its own copy of the data, and the folder of the scenes."""
    load = make_pipelines(small_spec, tmp_path / "unused")[0].data
    scenes = shutil.copytree(load.test.root, tmp_path / "data" / "digits")
    spec = parse_benchmark("small", spec_text).with_data(tmp_path / "data").only([], [0])
    return replace(spec, detectors=("joint_energy", "odin")), scenes


def truncate(path):
    path.write_bytes(path.read_bytes()[:-30])


def test_damaged_images_of_every_split_are_left_out(own_data, tmp_path):
    spec, scenes = own_data
    for split in ("train", "val", "test", "unseen"):
        truncate(scenes / split / "00003.png")
    # Only decoding finds this one: the header and the end of the file are intact.
    path = scenes / "train" / "00004.png"
    content = bytearray(path.read_bytes())
    content[500:700] = bytes(200)
    path.write_bytes(content)
    spec = replace(spec, sets=(replace(spec.sets[0], skip_bad=True),))
    run = run_benchmark(spec, tmp_path / "bench")
    data = run.lines[0].manifest["data"]
    assert (data["train"]["n_images"], data["train"]["n_skipped"]) == (158, 2)
    assert (data["id"]["n_images"], data["id"]["n_skipped"]) == (47, 1)
    assert data["ood"]["unseen digits"]["n_skipped"] == 1
    assert data["ood"]["noise"]["n_skipped"] == 0
    evidence = run.evidence()[0]
    assert len(evidence.id_outputs) == 47
    assert "test/00003.png" not in evidence.id_outputs.ids


def test_images_are_checked_once_until_one_changes(own_data, tmp_path):
    spec, scenes = own_data
    stages = []
    make_pipelines(spec, tmp_path, watch=watching(stages))
    assert ("checking images", 160 + 4 * 48) in stages
    stages.clear()
    make_pipelines(spec, tmp_path, watch=watching(stages))
    assert not any("checking" in stage for stage, _ in stages)
    os.utime(scenes / "noise" / "00000.png", (1, 1))
    make_pipelines(spec, tmp_path, watch=watching(stages))
    assert ("checking images", 48) in stages


def test_damaged_images_are_named_by_the_command(nescio, own_data, spec_text, tmp_path, counted):
    _, scenes = own_data
    file = tmp_path / "small.toml"
    file.write_text(spec_text.replace('"odin",\n', "").replace(
        '  "mahalanobis_perturbed(aggregate=sum)",\n', ""), "utf-8")  # fmt: skip
    for number in range(7):
        truncate(scenes / "noise" / f"{number:05d}.png")
    command = ("bench", file, "--data", scenes.parent, "-o", tmp_path / "bench", "--seed", 0)
    code, _, err = nescio(*command)
    assert (code, counted) == (1, [])
    assert "the benchmark cannot use 7 images:\n" in err
    assert str(scenes / "noise" / "00000.png") in err
    assert "and 2 more\n" in err
    code, out, err = nescio(*command, "--skip-bad", "--json")
    assert code == 0, err
    assert json.loads(out)[-1]["n_ood"] == 41
    code, out, _ = nescio(*command, "--skip-bad")
    [said] = [line for line in out.splitlines() if line.startswith("left out")]
    files = ", ".join(f"noise/0000{number}.png" for number in range(5))
    assert said == f"left out 7 of 48 images of digits-noise in {scenes}: {files} and 2 more"
