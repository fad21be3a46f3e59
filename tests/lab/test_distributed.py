"""Several processes that train one network; on CPUs, as torchrun starts them."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.errors import ParameterError
from nescio.lab.data import load_coco
from nescio.lab.data.split import Reader, in_batches
from nescio.lab.networks.network import load_checkpoint, prepared
from nescio.lab.settings import TrainSettings
from nescio.lab.training import World, train

# Starting processes is slower than training: the same ones do all runs, each on its own port.
SCRIPT = """
import json, os, sys
from nescio.cli import main

os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
for command, port in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = str(port)
    if main(command):
        sys.exit(1)
"""
NO_BATCH_NORM = """
from torch import nn


def make():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
"""


def test_what_torchrun_says(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    world, module = World.from_environment(), torch.nn.Linear(2, 2)
    assert (world, world.leads) == (World(rank=0, size=1, local_rank=0), True)
    assert world.gather(3) == [3]
    with world.joined(torch.device("cpu")):
        world.wait()
    assert world.parallel(module, torch.device("cpu")) is module
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    world = World.from_environment()
    assert (world, world.leads) == (World(rank=5, size=8, local_rank=1), False)
    assert world.device(torch.device("cuda")) == torch.device("cuda", 1)
    assert world.device(torch.device("cpu")) == torch.device("cpu")


def test_every_process_has_the_same_share_of_a_batch(settings, coco_tree, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    splits = [load_coco(coco_tree(), name) for name in ("train", "val")]
    with pytest.raises(ParameterError, match="divisible by the number of processes, 3, got 8"):
        train(settings(), *splits, tmp_path / "run")


@pytest.mark.slow
def test_two_processes(train_and_val, config, tmp_path, monkeypatch):
    """Without batch norm they train as one; with it, the saved network is the measured one."""
    (tmp_path / "plain_net.py").write_text(NO_BATCH_NORM)
    monkeypatch.syspath_prepend(tmp_path)
    plain = config(epochs=3).replace("small-cnn", "module:plain_net:make")
    plain = plain.replace("n_hidden = 16", 'features = "3"')
    plain = plain.replace("[model]", "[model]\nspectral_norm = true")
    frozen = config(epochs=2).replace("n_hidden", "freeze = true\nn_hidden")
    files = {name: tmp_path / f"{name}.toml" for name in ("plain", "frozen")}
    for file, text in zip(files.values(), (plain, frozen), strict=True):
        file.write_text(text)
    measured = run_two_processes(train_and_val[0].root, files, tmp_path)

    alone = train(TrainSettings.from_toml(files["plain"]), *train_and_val, tmp_path / "alone")
    for epoch, expected in zip(measured["plain"], alone.history, strict=True):
        assert epoch == pytest.approx(asdict(expected), rel=1e-4)

    assert len(list((tmp_path / "frozen").glob("features-*.safetensors"))) == 2
    last, val = load_checkpoint(tmp_path / "frozen" / "last.safetensors"), train_and_val[1]
    network, cpu = prepared(last.network, "cpu"), torch.device("cpu")
    with torch.inference_mode():
        batches = Reader(val, last.preprocessing).batches(in_batches(len(val), 8))
        logits = [network(last.preprocessing.inputs(pixels, cpu)) for pixels in batches]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.cat(logits), torch.from_numpy(val.labels.astype(np.float32))
    )
    assert float(loss) == pytest.approx(measured["frozen"][-1]["val_loss"], rel=1e-4)


def run_two_processes(data, configs, folder):
    """Run nescio train for each config in two processes; return the metrics of the epochs."""
    commands = []
    for name, config in configs.items():
        command = ["train", f"coco:{data}", "--device", "cpu", "--config", config]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        commands.append(([*map(str, command), "-o", str(folder / name)], port))
    (folder / "all.py").write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, str(folder / "all.py"), json.dumps(commands)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("checkpoint ") == len(configs), "only one process prints"
    texts = {name: (folder / name / "metrics.jsonl").read_text() for name in configs}
    return {name: [*map(json.loads, text.splitlines())] for name, text in texts.items()}
