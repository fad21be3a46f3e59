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
def config():
    """The same as `settings`, as the text of a TOML file."""

    def make(*, epochs=3, lr=0.01):
        return (
            f'[model]\nname = "{TINY}"\nweights = "none"\nn_hidden = 16\n'
            "[images]\nsize = 32\n"
            f"[training]\nepochs = {epochs}\nbatch_size = 8\nlr_head = {lr}\nlr_backbone = {lr}\n"
        )

    return make


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
            # Statistics of real activations: with those of a new network, all images look alike.
            norms = [part for part in network.modules() if hasattr(part, "running_mean")]
            for norm in norms:
                norm.momentum = None
            network.train()
            for _ in range(2):
                network(torch.randn(16, 3, size, size))
            for norm in norms:
                norm.momentum = 0.1
        return Checkpoint(network.eval(), architecture, tuple(label_names), Preprocessing(size))

    return make


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """The name of a factory of a network of the user's own, and where it lies."""
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n\n\n"
        "def make():\n"
        "    return nn.Sequential(\n"
        "        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),\n"
        "        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),\n"
        "    )\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_nets:make"
    sys.modules.pop("my_nets", None)
