"""The user's own networks, by the name of a function. Tests nescio.networks.network too."""

import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torch import nn  # noqa: E402

from nescio.errors import FileFormatError, ParameterError, ShapeError  # noqa: E402
from nescio.networks.backbones import build_network  # noqa: E402
from nescio.networks.network import checked_logits  # noqa: E402


def images(n=2, size=64, seed=0):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


class Small(nn.Module):
    """A user's network: a convolution, a hidden layer, in-place ReLUs, an unused layer."""

    def __init__(self, n_labels=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True))
        self.hidden = nn.Linear(6, 5)
        self.relu = nn.ReLU(inplace=True)
        self.labels = nn.Linear(5, n_labels)
        self.unused = nn.Linear(5, 5)
        self.tokens = nn.Unflatten(1, (5, 1))
        self.pair = Pair()

    def forward(self, images):
        pooled = self.stem(images).mean((2, 3))
        hidden = self.hidden(pooled)
        self.tokens(hidden)
        self.pair(hidden)
        return self.labels(self.relu(hidden))


class Pair(nn.Module):
    def forward(self, x):
        return x, x


def not_a_module():
    return "a string"


@pytest.fixture
def own_module(monkeypatch):
    """The name under which build_network finds this file's classes."""
    monkeypatch.setitem(sys.modules, "users_networks", sys.modules[__name__])
    return "module:users_networks"


def test_a_network_of_ones_own(own_module):
    network = build_network(f"{own_module}:Small", 4, features="relu").eval()
    with torch.no_grad():
        assert network(images()).shape == (2, 4)
    assert type(network).__name__ == "Small"  # used as it is


def test_weights_of_ones_own(own_module, tmp_path):
    state = Small().state_dict()
    torch.save(state, tmp_path / "own.pth")
    name = f"{own_module}:Small"
    network = build_network(name, 4, features="relu", weights=tmp_path / "own.pth")
    assert torch.equal(network.labels.weight, state["labels.weight"])
    del state["labels.bias"]
    torch.save(state, tmp_path / "own.pth")
    with pytest.raises(FileFormatError, match=r"own\.pth does not fit: 1 missing \('labels.bias"):
        build_network(name, 4, features="relu", weights=tmp_path / "own.pth")
    with pytest.raises(ParameterError, match="no ImageNet weights for users_networks:Small"):
        build_network(name, 4, features="relu", weights="imagenet")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("module:users_networks", "module:package.module:factory, got 'module:users_networks'"),
        ("module::Small", "module:package.module:factory, got"),
        ("module:users_nets.deep:Small", "no module 'users_nets.deep'.*PYTHONPATH"),
        ("module:users_networks:Smal", "no function 'Smal'. Nearest: Small"),
        ("module:users_networks:not_a_module", r"must return a torch module, got str"),
        ("module:users_networks:Pair.forward", "no function"),
        ("module:math:sin", r"math:sin\(\) failed: TypeError"),
    ],
)
def test_factories_that_cannot_be_used(own_module, target, message):
    with pytest.raises(ParameterError, match=message):
        build_network(target, 4, features="relu")


def test_an_import_that_fails_within_the_users_module_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "needs_another.py").write_text("import certainly_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="certainly_not_installed"):
        build_network("module:needs_another:factory", 4, features="relu")


def test_the_features_must_be_named(own_module):
    with pytest.raises(ParameterError, match=r"features must name the layer.*labels, unused"):
        build_network(f"{own_module}:Small", 4)
    with pytest.raises(ParameterError, match=r"no layer 'hiden'. Nearest: hidden"):
        build_network(f"{own_module}:Small", 4, features="hiden")


def test_logits_are_checked():
    assert checked_logits(torch.zeros(2, 4), 4).shape == (2, 4)
    with pytest.raises(ShapeError, match=r"must return logits .* got shape \(2, 6, 3, 3\)"):
        checked_logits(torch.zeros(2, 6, 3, 3), 4)
    with pytest.raises(ShapeError, match=r"must return logits .* got tuple"):
        checked_logits((torch.zeros(2, 4),), 4)
    with pytest.raises(ShapeError, match="returns 4 logits per image, but there are 3 labels"):
        checked_logits(torch.zeros(2, 4), 3)
