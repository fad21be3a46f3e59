"""What the tests of networks share."""

import sys

import pytest

TINY = "shufflenet_v2_x0_5"


@pytest.fixture(autouse=True)
def _same_rounding_everywhere():
    """One thread: sums come in one order, and parallel tests do not fight for the processors."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def settings():
    """The settings of a run that takes a second an epoch at most."""
    from nescio.models import TrainSettings

    def make(**training):
        return TrainSettings().updated(
            {
                "model": {"name": TINY, "weights": "none", "n_hidden": 16},
                "images": {"size": 32},
                "training": {"epochs": 3, "batch_size": 8, "lr_head": 0.01, "lr_backbone": 0.003}
                | training,
            }
        )

    return make


@pytest.fixture
def checkpoint():
    """A small network with random weights, in eval mode; its features are not all the same."""
    import torch

    from nescio.models import Architecture, Checkpoint, Preprocessing

    def make(seed=0, label_names=("red", "green", "blue"), size=32):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            architecture = Architecture(TINY, n_hidden=16)
            network = architecture.build(len(label_names))
            network.train()
            for _ in range(3):  # batch statistics other than 0 and 1
                network(torch.randn(8, 3, size, size))
        return Checkpoint(network.eval(), architecture, tuple(label_names), Preprocessing(size))

    return make


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """The name of a factory of a network of the user's own, and where it lies."""
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n\n\n"
        "def make():\n"
        "    return nn.Sequential(\n"
        "        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),\n"
        "        nn.Linear(4, 3),\n"
        "    )\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_nets:make"
    sys.modules.pop("my_nets", None)
