"""Pipelines: each network, tuning and file of outputs is computed once."""

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
from safetensors.torch import save_file  # noqa: E402

from nescio._io.locks import locked  # noqa: E402
from nescio.benchmark import pipeline as pipelines, run as runs  # noqa: E402
from nescio.benchmark.pipeline import LoadedSet, make_pipelines  # noqa: E402
from nescio.benchmark.progress import unwatched  # noqa: E402
from nescio.benchmark.run import run_benchmark  # noqa: E402
from nescio.data import split as splits  # noqa: E402
from nescio.errors import DatasetError, FileError, ParameterError  # noqa: E402
from nescio.networks import checkpoint as checkpoints  # noqa: E402
from nescio.networks.backbones import _build_small  # noqa: E402
from nescio.outputs import Outputs  # noqa: E402
from nescio.training import TrainSettings  # noqa: E402


def test_another_benchmark_finds_networks_and_outputs(small_spec, bench_folder, counted):
    """Other detectors on the same networks: nothing is trained, tuned or extracted again."""
    other = replace(small_spec, name="other", detectors=(*small_spec.detectors, "msp"))
    found = run_benchmark(other, bench_folder)
    assert counted == []
    assert len(found.lines) == 24


def test_other_settings_are_another_network(small_spec, bench_folder, counted):
    changed = json.loads(json.dumps(small_spec.train))
    changed["training"]["lr_head"] = 2e-3
    run_benchmark(replace(small_spec, train=changed, seeds=(0,)), bench_folder)
    assert counted == ["train", "extract", "tune", *["extract"] * 3]


def test_more_tuning_images_leave_the_network_alone(small_spec, bench_folder, counted):
    more = replace(small_spec, tune=replace(small_spec.tune, images=8), seeds=(0,))
    run_benchmark(more, bench_folder)
    assert "tune" in counted
    assert "train" not in counted


def test_an_upgrade_evaluates_again_and_trains_nothing(
    small_spec, small_run, bench_folder, counted, monkeypatch
):
    """Evaluation is cheap; training, tuning and extraction are not."""
    monkeypatch.setattr(runs, "__version__", "99.0")
    monkeypatch.setattr(torch, "__version__", "99.0")
    found = run_benchmark(small_spec, bench_folder)
    assert counted == []
    manifest = found.lines[0].manifest
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
    monkeypatch.setattr(pipelines, constant, 99)
    run_benchmark(small_spec.only([], [0]), bench_folder)
    assert set(counted) == again


def test_a_new_setting_with_its_default_does_not_train_again(small_spec):
    """The key has only the settings that differ from the defaults."""
    settings = TrainSettings().updated(small_spec.train).as_dict()
    found = pipelines._changed(settings, TrainSettings().as_dict())
    assert found["model.name"] == "small-cnn"
    assert "training.batch_size" not in found
    assert "images.mean" not in found


def tuning_file(pipeline):
    """Return the name of the file that a tuning is kept in, which contains its key."""
    checkpoint, _ = pipeline.network()
    with pytest.MonkeyPatch.context() as patch:
        found = SimpleNamespace(data={})
        patch.setattr(pipelines.Tuning, "load", lambda path: setattr(found, "path", path) or found)
        patch.setattr(pipelines.Pipeline, "_make", lambda *_: None)
        return pipeline.tuning(checkpoint, None).path.name


def test_the_key_of_a_tuning(small_spec, bench_folder, monkeypatch):
    """A new setting with its default tunes nothing again; another device does."""
    pipeline = make_pipelines(small_spec, bench_folder / "cache")[0]
    key = tuning_file(pipeline)
    assert (pipeline._outputs_folder(pipeline.network()[0]) / key).exists()
    assert tuning_file(replace(pipeline, device=torch.device("meta"))) != key
    odin = replace(small_spec.tune.odin, label="predicted")
    changed = replace(small_spec, tune=replace(small_spec.tune, odin=odin))
    assert tuning_file(replace(pipeline, spec=changed)) != key
    monkeypatch.setattr(pipelines, "asdict", lambda settings: asdict(settings) | {"new": 1})
    assert tuning_file(pipeline) == key


def test_an_unknown_network_is_reported_before_any_work(small_spec, tmp_path, counted):
    train = {**small_spec.train, "model": {"name": "small-cm", "weights": "none"}}
    with pytest.raises(ParameterError, match="no classification model 'small-cm'"):
        run_benchmark(replace(small_spec, train=train), tmp_path / "bench")
    part = replace(small_spec.sets[0], network=str(tmp_path / "gone.safetensors"))
    with pytest.raises(FileError, match=r"gone\.safetensors"):
        run_benchmark(replace(small_spec, sets=(part,), seeds=(0,)), tmp_path / "bench")
    assert counted == []


def test_a_process_waits_for_another_that_makes_the_same(small_spec, tmp_path):
    """Two threads stand for two commands: a lock is of the opened file, not of the process."""
    spec = replace(small_spec, detectors=("joint_energy",), seeds=(0,))
    [pipeline] = make_pipelines(spec, tmp_path / "cache")
    best, stages = pipeline._best_file(), []

    def watch(stage, total):
        stages.append(stage.rpartition(": ")[2])
        best.write_text("{}")
        held.close()
        return unwatched(stage, total)

    held = ExitStack()
    held.enter_context(locked(best))
    replace(pipeline, watch=watch)._make(best, lambda: pytest.fail("made twice"))
    assert stages == ["waiting for another process"]


def test_what_was_made_from_other_images_is_refused(small_spec, small_run, bench_folder):
    """The images have the same names and sizes, so the key is the same."""
    [pipeline, *_] = pipelines.make_pipelines(small_spec, bench_folder / "cache")
    checkpoint, _ = pipeline.network()
    train = Outputs.load(pipeline.outputs(checkpoint, pipeline.data.train))

    def changed(name):
        split = replace(getattr(pipeline.data, name))
        split.__dict__["content"] = {"data_sample": "another"}
        return replace(pipeline, data=replace(pipeline.data, **{name: split}))

    for name in ("train", "val"):
        with pytest.raises(FileError, match=r"cache/networks/\w+ cannot be used .* have changed"):
            changed(name).network()
    with pytest.raises(FileError, match=r"cache/outputs/.* cannot be used for digits-train"):
        pipeline.outputs(checkpoint, changed("train").data.train)
    assert pipeline.tuning(checkpoint, train).data["data_sample"]
    val = replace(pipeline.data.val, hash_images=True)
    verified = replace(pipeline, data=replace(pipeline.data, val=val))
    with pytest.raises(FileError, match="made without --verify"):
        verified.tuning(checkpoint, train)


def test_a_network_from_a_file(small_spec, small_run, bench_folder, counted):
    [best, *_] = sorted((bench_folder / "cache" / "networks").glob("*/best.safetensors"))
    part = replace(small_spec.sets[0], network=str(best))
    spec = replace(small_spec, name="mine", sets=(part,), seeds=(0,))
    found = run_benchmark(spec, bench_folder)
    assert "train" not in counted
    assert found.lines[0].manifest["training"] == {"network": str(best)}
    hashes = {line.manifest["model_hash"] for line in small_run.lines}
    assert found.lines[0].manifest["model_hash"] in hashes


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


def test_missing_data_is_reported_before_any_work(small_spec, tmp_path, counted):
    part = replace(small_spec.sets[0], ood={"gone": f"folder:{tmp_path / 'gone'}"})
    with pytest.raises(DatasetError, match="gone"):
        run_benchmark(replace(small_spec, sets=(part,)), tmp_path / "bench")
    assert counted == []
    assert not (tmp_path / "bench").exists()


def test_invalid_training_settings_are_reported_before_any_work(small_spec, tmp_path, counted):
    with pytest.raises(
        ParameterError, match=r"small: \[train\]: there is no key 'modle'. Did you mean 'model'"
    ):
        run_benchmark(replace(small_spec, train={"modle": {}}), tmp_path / "bench")
    assert counted == []


def test_the_mean_number_of_labels_is_rounded_unless_the_set_states_it(small_spec):
    loaded = LoadedSet.of(small_spec.sets[0], small_spec)
    for n_labels, mean in ((2, 1.6), (1, 1.4), (2, 1.5), (1, 0.2)):
        labels = np.zeros((10, 7), np.uint8)
        labels.flat[: round(10 * mean)] = 1
        found = replace(loaded, train=replace(loaded.train.subset(range(10)), labels=labels))
        assert found.mean_labels == n_labels
    stated = replace(loaded, source=replace(loaded.source, mean_labels=5))
    assert stated.mean_labels == 5


def test_each_hash_is_computed_once(small_spec, tmp_path, monkeypatch):
    """In a run from nothing, with two seeds that share their data."""
    computed, hashed = Counter(), []
    fingerprint, weights_hash = splits._fingerprint, checkpoints.weights_hash

    def counting(split):
        computed[split.title, len(split)] += 1
        return fingerprint(split)

    monkeypatch.setattr(splits, "_fingerprint", counting)
    monkeypatch.setattr(
        checkpoints, "weights_hash", lambda *args: hashed.append(args) or weights_hash(*args)
    )
    run_benchmark(small_spec, tmp_path / "bench")
    assert len([args for args in hashed if len(args) == 2]) == len(small_spec.seeds)
    images = {"train": 160, "val": 48, "test": 48, "unseen": 48, "noise": 48}
    expected = {(f"digits-{name}", n_images): 1 for name, n_images in images.items()}
    expected["digits-val", 6] = 2  # the images that each seed is tuned on
    assert computed == expected


def test_a_frozen_backbone_sees_training_images_once(small_spec, tmp_path):
    """Training computes their features, and extraction takes them from the cache."""
    seen = []
    train = {**small_spec.train, "model": {**small_spec.train["model"], "freeze": True}}
    spec = replace(small_spec, train=train, seeds=(0,), detectors=("joint_energy",))
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, inputs, _: seen.append(len(inputs[0])) if is_first(module) else None
    )
    with hook:
        run_benchmark(spec, tmp_path / "bench")
    assert sum(seen) == 160 + 48 + 3 * 48  # train, val, and the three test sets


def test_the_seeds_share_the_features_of_a_frozen_backbone(small_spec, tmp_path):
    """The backbone sees each image once; each head gives the logits of the same features."""
    weights, seen = tmp_path / "backbone.safetensors", []
    backbone, _ = _build_small(None)
    save_file(backbone.state_dict(), weights)
    model = {**small_spec.train["model"], "freeze": True, "weights": str(weights)}
    spec = replace(
        small_spec,
        train={**small_spec.train, "model": model},
        detectors=("joint_energy", "mahalanobis"),
    )
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, inputs, _: seen.append(len(inputs[0])) if is_first(module) else None
    )
    with hook:
        run_benchmark(spec, tmp_path / "bench")
    assert sum(seen) == 160 + 48 + 3 * 48  # not once for each of the two seeds
    hidden = []
    for pipeline in make_pipelines(spec, tmp_path / "bench" / "cache"):
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
