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

# Runs several commands in each process: starting processes is the slow part.
SCRIPT = """
import json, sys
from nescio.cli import main

for command in sys.argv[1:]:
    assert main(json.loads(command)) == 0
"""
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


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_processes(train_and_val, config, tmp_path, monkeypatch):
    """Without batch norm they train as one; with it, the saved network is the measured one."""
    (tmp_path / "plain_net.py").write_text(NO_BATCH_NORM)
    monkeypatch.syspath_prepend(tmp_path)
    with_norm, plain = tmp_path / "frozen.toml", tmp_path / "plain.toml"
    with_norm.write_text(config(epochs=3))
    of_plain = config(epochs=3).replace("shufflenet_v2_x0_5", "module:plain_net:make")
    plain.write_text(of_plain.replace("n_hidden = 16", 'features = "3"'))
    data = ("train", f"coco:{train_and_val[0].root}", "--device", "cpu")
    commands = [
        [*data, "--config", str(plain), "-o", str(tmp_path / "plain")],
        [*data, "--config", str(with_norm), "-o", str(tmp_path / "frozen"), "--freeze"],
    ]
    (tmp_path / "both.py").write_text(SCRIPT)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", tmp_path / "both.py", *map(json.dumps, commands)),
        ],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
        },
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("best epoch") == 2, "one process prints, once per command"

    one = train(TrainSettings.from_toml(plain), *train_and_val, tmp_path / "one")
    for name in ("train_loss", "val_loss"):
        np.testing.assert_allclose(
            [epoch[name] for epoch in metrics_of(tmp_path / "plain")],
            [getattr(epoch, name) for epoch in one.history],
            rtol=1e-4,
        )

    last = load_checkpoint(tmp_path / "frozen" / "last.safetensors")
    assert len(list((tmp_path / "frozen").glob("features-*.safetensors"))) == 2
    network, val = prepared(last.network, torch.device("cpu")), train_and_val[1]
    with torch.inference_mode():
        batches = Reader(val, last.preprocessing).batches(in_batches(len(val), 8))
        inputs = [last.preprocessing.inputs(one.pixels, torch.device("cpu")) for one in batches]
        logits = torch.cat([network(one).logits for one in inputs])
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, torch.from_numpy(val.labels.astype(np.float32))
    )
    assert float(loss) == pytest.approx(metrics_of(tmp_path / "frozen")[-1]["val_loss"], rel=1e-4)
