"""Training: seeds, epochs, frozen backbones, interruptions, and what is rejected."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.errors import (
    DatasetError,
    FileError,
    LabelMismatchError,
    NonFiniteError,
    ParameterError,
)
from nescio.lab.data import find_damaged, load_coco
from nescio.lab.data.split import Reader
from nescio.lab.extraction import extract
from nescio.lab.networks.network import Architecture, Checkpoint, load_checkpoint
from nescio.lab.training import Trainer, initial_checkpoint, train
from nescio.metrics import mean_average_precision


@pytest.fixture
def fit(settings, train_and_val, tmp_path):
    """Train in a folder, with settings of the sections [training] and [model]."""

    def run(folder="run", *, data=train_and_val, model=None, options=None, **training):
        chosen = settings(**training).updated({"model": model or {}})
        return train(chosen, *data, tmp_path / folder, **options or {})

    return run


RESUME = {"resume": True}


def files_of(folder):
    names = ("best.safetensors", "last.safetensors", "metrics.jsonl")
    return {name: (folder / name).read_bytes() for name in names}


def fresh_network(settings):
    """The network as it was before the first epoch."""
    torch.manual_seed(0)
    return initial_checkpoint(settings(), ("a", "b", "c")).network


def test_a_network_learns_and_the_best_epoch_is_kept(fit, train_and_val):
    seen, epochs = [], []
    run = fit(epochs=12, options={"on_images": seen.append, "on_epoch": epochs.append})
    assert tuple(epochs) == run.history
    assert [epoch.epoch for epoch in run.history] == list(range(1, 13))
    assert max(seen) == 8
    assert sum(seen) == 12 * len(train_and_val[0])  # with those of the batch that is left out
    assert run.best.val_loss == min(epoch.val_loss for epoch in run.history)
    assert run.best.val_map > 0.85
    # What was saved is what was measured.
    best = load_checkpoint(run.checkpoint)
    pixels = np.concatenate([*Reader(train_and_val[1], best.preprocessing).batches([range(14)])])
    with torch.inference_mode():
        logits = best.network(best.preprocessing.inputs(pixels, torch.device("cpu")))
    val_map = mean_average_precision(train_and_val[1].labels, logits)
    assert val_map == pytest.approx(run.best.val_map)
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["val_map"] for line in lines] == [e.val_map for e in run.history]
    facts = best.training
    assert facts["epoch"] == run.best.epoch
    assert facts["settings"]["training"]["lr_head"] == 0.01
    assert facts["train"]["n_images"] == 36


def test_seeds_decide_everything(fit):
    torch.manual_seed(1)
    first = fit("a", epochs=2)
    drawn = torch.rand(1)
    torch.manual_seed(2)
    assert files_of(first.folder) == files_of(fit("b", epochs=2).folder)
    other = fit("c", epochs=2, seed=1)
    assert other.history[0].train_loss != first.history[0].train_loss
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn), "the caller's random numbers were touched"


def test_the_epoch_of_the_highest_map_or_the_last_one_can_be_taken(fit):
    run = fit("map", epochs=5, select="val_map")
    assert run.best.val_map == max(epoch.val_map for epoch in run.history)
    run = fit(epochs=3, select="last")
    assert run.best == run.history[-1]
    best, last = (load_checkpoint(run.folder / f"{name}.safetensors") for name in ("best", "last"))
    assert best.content_hash() == last.content_hash()
    assert fit(epochs=4, select="last", options=RESUME).best.epoch == 4


EVERY, FIRST, NEVER = [4, 8, 12], [4, 4, 4], [0, 0, 0]


@pytest.mark.parametrize(
    ("batch_norm", "backbone", "head"),
    [
        ("trained", EVERY, EVERY),
        ("first_epoch", FIRST, FIRST),  # validation leaves eval mode on, at the authors' HEAD
        ("fixed_weights", EVERY, EVERY),  # their 9342b35
        ("fixed", NEVER, FIRST),  # their b0bc0cd
    ],
)
def test_batch_norm_moves_in_every_epoch_in_the_first_or_never(
    batch_norm, backbone, head, fit, settings, monkeypatch
):
    tracked, validate = [], Trainer.validate

    def spy(trainer):
        norms = trainer.trained.backbone[1], trainer.trained.head.hidden[1]
        tracked.append(tuple(int(norm.num_batches_tracked) for norm in norms))
        result = validate(trainer)
        assert all(part.training for part in trainer.trained.modules())
        return result

    monkeypatch.setattr(Trainer, "validate", spy)
    for epochs in (2, 3):  # a resumed run does the same
        run = fit(epochs=epochs, batch_norm=batch_norm, select="last", options=RESUME)
    assert tracked == list(zip(backbone, head, strict=True))
    before, after = (
        network.state_dict()
        for network in (fresh_network(settings), load_checkpoint(run.checkpoint).network)
    )
    for part in ("weight", "bias", "running_mean", "running_var"):
        names = (*(f"backbone.{place}.{part}" for place in (1, 5, 9)), f"head.hidden.1.{part}")
        fixed = {"fixed": True, "fixed_weights": not part.startswith("running")}
        same = [torch.equal(before[name], after[name]) for name in names]
        assert same == [*[fixed.get(batch_norm, False)] * 3, False], part


@pytest.mark.parametrize(("batch_norm", "same"), [("fixed", True), ("trained", False)])
def test_the_passes_of_a_batch_have_its_result_if_batch_statistics_are_fixed(
    batch_norm, same, fit, own_module
):
    own, seen, losses = {"name": f"module:{own_module}", "features": "4"}, {}, []
    for micro_batch in (None, 4):
        sizes = seen.setdefault(micro_batch, set())
        hook = torch.nn.modules.module.register_module_forward_hook(
            lambda module, inputs, _, sizes=sizes: sizes.add(len(inputs[0]))
        )
        options = {"batch_size": 10, "batch_norm": batch_norm, "micro_batch": micro_batch}
        with hook:
            run = fit(str(micro_batch), epochs=2, model=own, **options)
        losses.append([(epoch.train_loss, epoch.val_loss) for epoch in run.history])
    assert seen == {None: {10, 4}, 4: {3, 4, 2}}  # 36 images to train on, and 14 for validation
    assert np.allclose(*losses, rtol=1e-4) == same


def test_what_to_set_if_the_memory_is_too_small(fit, train_and_val, tmp_path, monkeypatch):
    (tmp_path / "huge.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "class Huge(nn.Linear):\n"
        "    def forward(self, inputs):\n"
        "        return super().forward(inputs) * torch.empty(2**50).sum()\n\n"
        "def make():\n"
        "    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), Huge(3, 3))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = {"name": "module:huge:make", "features": "1"}
    with pytest.raises(ParameterError, match=r"memory.* Set micro_batch in .* to less than 8"):
        fit(model=own)
    kind = Architecture(own["name"], features="1")
    checkpoint = Checkpoint(kind.build(3), kind, ("red", "green", "blue"))
    with pytest.raises(ParameterError, match=r"memory.* Take .*\(--batch-size\) of less than 16"):
        extract(checkpoint, train_and_val[0], tmp_path / "outputs.safetensors")


def test_backbone_and_head_have_separate_learning_rates(fit, settings):
    trained = load_checkpoint(fit(epochs=1, lr_backbone=0.0).checkpoint).network
    for name, parameter in fresh_network(settings).named_parameters():
        same = torch.equal(parameter, trained.get_parameter(name))
        assert same == name.startswith("backbone"), name


def test_a_frozen_backbone_stays_and_its_features_are_cached(fit, settings, tmp_path):
    cache, frozen = tmp_path / "cache", {"freeze": True}
    run = fit(epochs=4, model=frozen, options={"cache": cache})
    fresh, trained = fresh_network(settings), load_checkpoint(run.checkpoint).network
    for name, value in fresh.backbone.state_dict().items():
        assert torch.equal(value, trained.backbone.state_dict()[name]), name
    assert not torch.equal(fresh.head.labels.weight, trained.head.labels.weight)
    cached = sorted(cache.glob("features-*"))
    names = [path.name.rsplit("-", 1)[0] for path in cached]
    assert names == ["features-coco-train", "features-coco-val"]
    stamps = [path.stat().st_mtime_ns for path in cached]
    assert fit("again", epochs=4, model=frozen, options={"cache": cache}).history == run.history
    assert [path.stat().st_mtime_ns for path in cached] == stamps
    # Another backbone has features of its own.
    fit("other", epochs=1, seed=1, model=frozen, options={"cache": cache})
    assert len(list(cache.glob("features-*"))) == 4


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("spectral_norm", [False, True])
def test_a_resumed_run_ends_with_the_same_bytes(freeze, spectral_norm, fit):
    model = {"freeze": freeze, "spectral_norm": spectral_norm}
    whole = fit("whole", epochs=3, model=model)
    fit("cut", epochs=1, model=model)
    cut = fit("cut", epochs=3, model=model, options=RESUME)
    assert files_of(whole.folder) == files_of(cut.folder)
    metrics = cut.folder / "metrics.jsonl"  # a crash before these were written loses nothing
    metrics.write_bytes(metrics.read_bytes().splitlines(keepends=True)[0])
    fit("cut", epochs=3, model=model, options=RESUME)
    assert files_of(whole.folder) == files_of(cut.folder)
    with pytest.raises(ParameterError, match="already has 3 epochs, more than 1"):
        fit("cut", epochs=1, model=model, options=RESUME)


# From within, in the middle of the third epoch: from without, a busy machine may come too late.
KILLS_ITSELF = """
import os, signal, sys
from nescio.lab.data import load_coco
from nescio.lab.settings import TrainSettings
from nescio.lab.training import train

def count(n_images, seen=[]):
    seen.append(n_images)
    if sum(seen) > 80:
        os.kill(os.getpid(), signal.SIGKILL)

root, config, folder = sys.argv[1:]
splits = load_coco(root, "train"), load_coco(root, "val")
train(TrainSettings.from_toml(config), *splits, folder, on_images=count)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(train_and_val, tmp_path, nescio, config):
    root, config_file, cut = train_and_val[0].root, tmp_path / "train.toml", tmp_path / "cut"
    config_file.write_text(config(epochs=4, lr=0.01))
    command = ("train", f"coco:{root}", "--config", config_file, "--device", "cpu", "-o")
    assert nescio(*command, tmp_path / "whole")[0] == 0
    arguments = map(str, (root, config_file, cut))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", KILLS_ITSELF, *arguments], env=environment)
    assert done.returncode == -signal.SIGKILL
    assert len((cut / "metrics.jsonl").read_text().splitlines()) == 2
    code, _, err = nescio(*command, cut)
    assert (code, "--resume" in err) == (1, True)
    code, _, err = nescio(*command, cut, "--resume")
    assert code == 0, err
    assert files_of(cut) == files_of(tmp_path / "whole")


def test_a_run_goes_on_only_with_its_own_settings_and_data(fit, train_and_val):
    fit(epochs=1)
    with pytest.raises(ParameterError, match=r"a different \[training\] lr_head: 0\.01, not 0\.02"):
        fit(epochs=2, lr_head=0.02, options=RESUME)
    with pytest.raises(ParameterError, match=r"a different \[training\] select: 'val_loss', not"):
        fit(epochs=2, select="last", options=RESUME)
    trained, val = train_and_val
    trained.path(0).write_bytes(trained.path(0).read_bytes()[::-1])  # of the same name and size
    for data in (trained.subset(range(20)), replace(trained)):
        with pytest.raises(ParameterError, match="a different train data"):
            fit(epochs=2, data=(data, val), options=RESUME)


def test_a_run_in_the_way_is_not_replaced(fit):
    folder = fit(epochs=1).folder
    before = files_of(folder)
    with pytest.raises(FileError, match=r"already contains a run.*resume=True.*force=True"):
        fit(epochs=1, seed=1)
    # With --force too, it is lost only when all else is in order.
    with pytest.raises(FileError, match=r"nowhere\.pth"):
        fit(epochs=1, model={"weights": "nowhere.pth"}, options={"force": True})
    assert files_of(folder) == before
    fit(epochs=1, seed=1, options={"force": True})
    assert files_of(folder) != before


def test_bad_images_are_left_out_and_recorded(fit, train_and_val):
    bad = train_and_val[0].path(3)
    bad.write_bytes(b"no image")
    with pytest.raises(DatasetError, match=bad.name):
        fit("a", epochs=1)
    run = fit("b", epochs=1, data=[split.without(find_damaged(split)) for split in train_and_val])
    (skipped,) = load_checkpoint(run.checkpoint).training["train"]["skipped"]
    assert skipped["file"].endswith(bad.name)


def test_a_network_of_ones_own_is_trained_whole(fit, own_module):
    own = {"name": f"module:{own_module}", "features": "4"}
    fit(epochs=2, model=own)
    assert len(fit(epochs=3, model=own, options=RESUME).history) == 3
    with pytest.raises(ParameterError, match="no separate head"):
        fit("frozen", model={**own, "freeze": True})


def test_what_cannot_be_trained_is_refused(fit, train_and_val, coco_tree, tmp_path):
    trained, val = train_and_val
    unlabelled = load_coco(coco_tree("more", sizes=(("test", 7),)), "test")
    other = replace(val, label_names=("red", "green", "grey"))
    blank = replace(val, labels=np.zeros_like(val.labels))
    for data, error, reason in (
        ((unlabelled, val), DatasetError, "has no labels"),
        ((trained, other), LabelMismatchError, "does not have the labels"),
        ((trained.subset([0]), val), DatasetError, "one image, but training needs at least two"),
        ((trained, blank), DatasetError, "coco-val has no image with a label"),
    ):
        with pytest.raises(error, match=reason):
            fit(data=data)
    assert not (tmp_path / "run").exists()
    with pytest.raises(NonFiniteError, match="Lower the learning rates"):
        fit(epochs=4, lr_head=1e36, lr_backbone=1e36)
