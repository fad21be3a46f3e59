"""Training from beginning to end: seeds, frozen backbones, interruptions, and what is rejected."""

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
    ParameterError,
)
from nescio.lab.data import load_coco, without_damaged
from nescio.lab.extraction.image_batches import Reader, in_batches
from nescio.lab.networks.checkpoint import load_checkpoint
from nescio.lab.training import train
from nescio.metrics import mean_average_precision


def files_of(folder):
    return {name: (folder / name).read_bytes() for name in ("best.safetensors", "metrics.jsonl")}


def test_a_network_learns_and_the_best_epoch_is_kept(settings, train_and_val, tmp_path):
    seen, epochs = [], []
    chosen = settings(epochs=12)
    run = train(
        *(chosen, *train_and_val, tmp_path / "run"), on_images=seen.append, on_epoch=epochs.append
    )
    assert tuple(epochs) == run.history
    assert [epoch.epoch for epoch in run.history] == list(range(1, 13))
    assert max(seen) == 8
    assert sum(seen) == 12 * len(train_and_val[0])  # with those of the batch that is left out
    assert run.best.val_loss == min(epoch.val_loss for epoch in run.history)
    assert run.best.val_map > 0.85
    # What was saved is what was measured.
    best = load_checkpoint(run.checkpoint)
    reader = Reader(train_and_val[1], best.preprocessing)
    with torch.inference_mode():
        logits = torch.cat(
            [
                best.network(best.preprocessing.inputs(pixels, torch.device("cpu")))
                for pixels in reader.batches(in_batches(14, 8))
            ]
        )
    assert mean_average_precision(train_and_val[1].labels, logits) == pytest.approx(
        run.best.val_map
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["val_map"] for line in lines] == [e.val_map for e in run.history]
    facts = best.training
    assert facts["epoch"] == run.best.epoch
    assert facts["settings"]["training"]["lr_head"] == 0.01
    assert facts["train"]["n_images"] == 36


def test_seeds_decide_everything(settings, train_and_val, tmp_path):
    torch.manual_seed(1)
    first = train(settings(epochs=2), *train_and_val, tmp_path / "a")
    drawn = torch.rand(1)
    torch.manual_seed(2)
    train(settings(epochs=2), *train_and_val, tmp_path / "b")
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    other = train(settings(epochs=2, seed=1), *train_and_val, tmp_path / "c")
    assert other.history[0].train_loss != first.history[0].train_loss
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn), "the caller's random numbers were touched"


def test_a_frozen_backbone_stays_and_its_features_are_cached(settings, train_and_val, tmp_path):
    chosen = settings(epochs=4).updated({"model": {"freeze": True}})
    run = train(chosen, *train_and_val, tmp_path / "run", cache=tmp_path / "cache")
    torch.manual_seed(0)
    fresh = chosen.model.architecture.build(3)
    trained = load_checkpoint(run.checkpoint).network
    for name, value in fresh.backbone.state_dict().items():
        assert torch.equal(value, trained.backbone.state_dict()[name]), name
    assert not torch.equal(fresh.head.labels.weight, trained.head.labels.weight)
    cached = sorted((tmp_path / "cache").glob("features-*"))
    assert [path.name.rsplit("-", 1)[0] for path in cached] == [
        "features-coco-train",
        "features-coco-val",
    ]
    stamps = [path.stat().st_mtime_ns for path in cached]
    again = train(chosen, *train_and_val, tmp_path / "again", cache=tmp_path / "cache")
    assert [path.stat().st_mtime_ns for path in cached] == stamps
    assert again.history == run.history
    # Another backbone has features of its own.
    other = chosen.updated({"training": {"seed": 1}})
    train(other, *train_and_val, tmp_path / "other", cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").glob("features-*"))) == 4


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("spectral_norm", [False, True])
def test_a_resumed_run_ends_with_the_same_bytes(
    freeze, spectral_norm, settings, train_and_val, tmp_path
):
    model = {"freeze": freeze, "spectral_norm": spectral_norm}

    def run(folder, epochs, **options):
        chosen = settings(epochs=epochs).updated({"model": model})
        train(chosen, *train_and_val, tmp_path / folder, **options)

    run("whole", 3)
    run("cut", 1)
    run("cut", 3, resume=True)
    for name in ("best.safetensors", "last.safetensors", "metrics.jsonl"):
        whole, cut = ((tmp_path / folder / name).read_bytes() for folder in ("whole", "cut"))
        assert whole == cut, name


def command_line(root, config, folder):
    command = ["train", f"coco:{root}", "--config", config, "-o", folder, "--device", "cpu"]
    return [str(word) for word in command]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


# From within, in the middle of the third epoch: from without, a busy machine may come too late.
KILLS_ITSELF = """
import os, signal, sys
from nescio.lab.data import load_coco, without_damaged
from nescio.lab.training import TrainSettings, train

def count(n_images, seen=[]):
    seen.append(n_images)
    if sum(seen) > 80:
        os.kill(os.getpid(), signal.SIGKILL)

root, config, folder = sys.argv[1:]
splits = load_coco(root, "train"), load_coco(root, "val")
train(TrainSettings.from_toml(config), *splits, folder, on_images=count)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(coco_tree, tmp_path, nescio, config):
    root = coco_tree(sizes=(("train", 36), ("val", 14)))
    config_file = tmp_path / "train.toml"
    config_file.write_text(config(epochs=5, lr=0.01))
    assert nescio(*command_line(root, config_file, tmp_path / "whole"))[0] == 0
    cut = tmp_path / "cut"
    arguments = map(str, (root, config_file, cut))
    done = subprocess.run([sys.executable, "-c", KILLS_ITSELF, *arguments], env=environment())
    assert done.returncode == -signal.SIGKILL
    assert len((cut / "metrics.jsonl").read_text().splitlines()) == 2
    code, _, err = nescio(*command_line(root, config_file, cut))
    assert (code, "--resume" in err) == (1, True)
    code, _, err = nescio(*command_line(root, config_file, cut), "--resume")
    assert code == 0, err
    assert files_of(cut) == files_of(tmp_path / "whole")
    last = [(folder / "last.safetensors").read_bytes() for folder in (cut, tmp_path / "whole")]
    assert last[0] == last[1]


def test_a_run_in_the_way_is_not_replaced(settings, train_and_val, tmp_path):
    train(settings(epochs=1), *train_and_val, tmp_path / "run")
    before = files_of(tmp_path / "run")
    with pytest.raises(FileError, match=r"already contains a run.*resume=True.*force=True"):
        train(settings(epochs=1, seed=1), *train_and_val, tmp_path / "run")
    assert files_of(tmp_path / "run") == before
    # With --force too, it is lost only when all else is in order.
    nowhere = settings(epochs=1, seed=1).updated({"model": {"weights": "nowhere.pth"}})
    with pytest.raises(FileError, match=r"nowhere\.pth"):
        train(nowhere, *train_and_val, tmp_path / "run", force=True)
    assert files_of(tmp_path / "run") == before
    train(settings(epochs=1, seed=1), *train_and_val, tmp_path / "run", force=True)
    assert files_of(tmp_path / "run") != before


def test_bad_images_are_left_out_and_recorded(settings, coco_tree, tmp_path):
    root = coco_tree(sizes=(("train", 36), ("val", 14)))
    bad = sorted((root / "train2014").iterdir())[3]
    bad.write_bytes(b"no image")
    data = load_coco(root, "train"), load_coco(root, "val")
    with pytest.raises(DatasetError, match=bad.name):
        train(settings(epochs=1), *data, tmp_path / "a")
    run = train(settings(epochs=1), *map(without_damaged, data), tmp_path / "b")
    (skipped,) = load_checkpoint(run.checkpoint).training["train"]["skipped"]
    assert skipped["file"].endswith(bad.name)


def test_a_network_of_ones_own_is_trained_whole(settings, train_and_val, own_module, tmp_path):
    chosen = settings(epochs=2).updated(
        {"model": {"name": f"module:{own_module}", "features": "4"}}
    )
    run = train(chosen, *train_and_val, tmp_path / "run")
    again = train(
        chosen.updated({"training": {"epochs": 3}}), *train_and_val, run.folder, resume=True
    )
    assert len(again.history) == 3
    frozen = chosen.updated({"model": {"freeze": True}})
    with pytest.raises(ParameterError, match="no separate head"):
        train(frozen, *train_and_val, tmp_path / "frozen")


def test_data_that_cannot_be_trained_on_is_refused(settings, train_and_val, coco_tree, tmp_path):
    trained, val = train_and_val
    unlabelled = load_coco(coco_tree("more", sizes=(("test", 7),)), "test")
    other = replace(val, label_names=("red", "green", "grey"))
    blank = replace(val, labels=np.zeros_like(val.labels))
    for splits, error, reason in (
        ((unlabelled, val), DatasetError, "has no labels"),
        ((trained, other), LabelMismatchError, "does not have the labels"),
        ((trained.subset([0]), val), DatasetError, "1 images, but training needs at least 2"),
        ((trained, blank), DatasetError, "coco-val has no image with a label"),
    ):
        with pytest.raises(error, match=reason):
            train(settings(), *splits, tmp_path / "run")
    assert not (tmp_path / "run").exists()
