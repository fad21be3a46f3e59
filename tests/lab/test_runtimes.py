"""What runs a network: onnxruntime gives what the network itself gives, or is not used."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from torch import nn
from torch.nn import functional

from nescio.detectors import JointEnergy, Mahalanobis
from nescio.errors import ExportError, ParameterError
from nescio.lab.data import load_coco
from nescio.lab.extraction import RuntimeChoice, Runtimes, checked_run, difference, extract
from nescio.lab.networks.network import CheckpointRunner
from nescio.lab.perturbation import grid_scores
from nescio.lab.settings import OdinSettings, TuneSettings
from nescio.models.base import make_runner
from nescio.models.images import Preprocessing
from nescio.outputs import Outputs


@pytest.fixture
def split(coco_tree):
    return load_coco(coco_tree(sizes=(("train", 2), ("val", 18))), "val")


@pytest.fixture
def images():
    """Two batches of different sizes, the second one darker."""
    rng = np.random.default_rng(0)
    bright = rng.integers(0, 256, (4, 3, 16, 16), np.uint8)
    return [bright, bright[:3] // 8]


def runner_of(module, **settings):
    return make_runner(module, preprocessing=Preprocessing(16), **settings)


def chosen(name, own, images, n_batches=21):
    return Runtimes(name).choose(own, lambda: images, n_batches)


class Plain(nn.Module):
    """Convolution, pooling, two linear layers; `change` is what a test does to its logits."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 8, 3, stride=2)
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.hidden = nn.Linear(8, 6)
            self.labels = nn.Linear(6, 4)

    def forward(self, images):
        maps = functional.relu(self.conv(images))
        logits = self.labels(functional.relu(self.hidden(self.pool(maps).flatten(1))))
        return self.change(images, logits)

    def change(self, images, logits):
        return logits


class Dropping(Plain):
    """Drops activations in eval mode too, so no two runtimes agree."""

    def change(self, images, logits):
        return functional.dropout(logits, 0.5, training=True)


class Branching(Plain):
    """Its code depends on the values of the images, which cannot be exported."""

    def change(self, images, logits):
        return logits if images.mean() > -1 else -logits


class Frozen(Plain):
    """As Branching, but it hides that from the exporter, which keeps one of the branches."""

    def change(self, images, logits):
        try:
            bright = bool(images.mean() > -1)
        except Exception:
            bright = True
        return logits if bright else -logits


def test_both_runtimes_give_the_same(checkpoint, split, tmp_path):
    made = checkpoint()
    results = {
        name: extract(made, split, tmp_path / f"{name}.safetensors", batch_size=4, runtime=name)
        for name in ("torch", "onnxruntime")
    }
    assert all(result.runtime.runtime == name for name, result in results.items())
    plain, graph = (Outputs.load(result.path) for result in results.values())
    for array in ("logits", "features", "penultimate"):
        np.testing.assert_allclose(graph.get(array), plain.get(array), rtol=1e-4, atol=1e-4)
    detector = JointEnergy(tpr=0.8).calibrate(plain)
    assert np.array_equal(detector.predict(plain), detector.predict(graph))
    assert (graph.manifest["runtime"], graph.label_names) == ("onnxruntime", made.label_names)
    assert "runtime_version" in graph.manifest
    assert graph.head is not None
    # A finished file is up to date for any runtime.
    again = extract(
        made, split, tmp_path / "torch.safetensors", batch_size=4, runtime="onnxruntime"
    )
    assert (again.n_computed, again.runtime.runtime) == (0, "torch")


def test_layers_of_a_users_own_module(images):
    own = runner_of(Plain(), features="pooled,conv,penultimate,input")
    expected = [own.run(batch) for batch in images]
    fast, _ = chosen("onnxruntime", own, images[0])
    assert own.forward is None
    assert list(expected[0]) == ["logits", "features", "conv", "penultimate", "input"]
    for batch, arrays in zip(images, expected, strict=True):
        for name, values in fast.run(batch).items():
            np.testing.assert_allclose(values, arrays[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Branching, "torch cannot export the model"), (Dropping, "its logits differ from those")],
)
def test_a_copy_that_cannot_be_made_or_is_off_is_not_used(kind, why, images):
    own = runner_of(kind())
    with pytest.raises(ParameterError, match=f"onnxruntime cannot be used: {why}"):
        chosen("onnxruntime", own, images[0])
    runner, choice = chosen("auto", own, images[0])
    assert (runner, choice.runtime) == (own, "torch")
    assert why in choice.why


def test_a_runtime_must_mask_the_same_labels():
    masked = {"logits": np.array([[1.0, -np.inf, np.nan]], np.float32)}
    assert not difference(masked, masked)
    for value in (-3e38, np.inf, np.nan):
        unmasked = {"logits": np.array([[1.0, value, np.nan]], np.float32)}
        assert "its logits differ" in difference(unmasked, masked)


def test_a_later_batch_that_is_wrong_stops_the_work(images):
    own = runner_of(Frozen())
    bright, dark = images
    fast, _ = chosen("onnxruntime", own, bright)
    run = checked_run(fast, own)
    run(bright)
    with pytest.raises(ExportError, match=r"wrong later on.*--runtime torch"):
        run(dark)
    assert checked_run(own, own)(dark).keys() == {"logits"}


def test_what_auto_chooses(images, onnx_file, monkeypatch):
    own = runner_of(Plain())
    few = Runtimes().choose(own, lambda: pytest.fail("read images"), 20)
    assert few == (own, RuntimeChoice("torch", "there are few batches"))
    assert chosen("auto", own, images[0])[1].runtime == "onnxruntime"
    graph = make_runner(onnx_file())
    assert chosen("auto", graph, images[0])[1].runtime == "onnxruntime"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert chosen("auto", own, images[0])[1].why.endswith("onnxruntime not installed")
    with pytest.raises(ParameterError, match=r"runtime must be .*got 'tensorrt'"):
        Runtimes("tensorrt")
    with pytest.raises(ParameterError, match="an ONNX file is run by onnxruntime"):
        chosen("torch", graph, images[0])


def test_the_copy_is_kept_until_the_weights_change(images):
    own, runtimes = runner_of(Plain()), Runtimes("onnxruntime")
    first, _ = runtimes.choose(own, lambda: images[0], 1)
    assert runtimes.choose(own, lambda: pytest.fail("exported again"), 1)[0] is first
    with torch.no_grad():
        own.model.labels.bias += 1  # a copy has the weights as they were
    assert runtimes.choose(own, lambda: images[0], 1)[0] is not first


def test_parts_of_another_runtime_are_computed_again(checkpoint, split, tmp_path):
    made, path, seen = checkpoint(), tmp_path / "val.safetensors", []

    def stop(count):
        seen.append(count)
        if sum(seen) == 17:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(made, split, path, batch_size=1, runtime="torch", on_images=stop)
    assert extract(made, split, path, batch_size=1, runtime="onnxruntime").n_computed == 18


def test_steps_of_tuning(checkpoint, images, tmp_path):
    made = checkpoint(size=16)
    runner = CheckpointRunner(made, features="pooled")
    fast, _ = chosen("onnxruntime", runner, images[0])
    inputs = made.preprocessing.inputs(torch.from_numpy(images[0]), torch.device("cpu"))
    features = np.random.default_rng(0).normal(size=(60, 64))
    truth = np.arange(60)[:, None] % 3 == np.arange(3)

    learned = {
        "max": Mahalanobis().fit(Outputs(np.zeros((60, 3)), features=features, labels=truth))
    }
    settings = TuneSettings(odin=OdinSettings(epsilons=(0.0, 0.004)))
    with runner.running() as module:
        plain, by_graph = (
            grid_scores(module, inputs, made.preprocessing, learned, settings, forward=forward)
            for forward in (None, fast.forward)
        )
    assert plain.keys() == by_graph.keys()
    for point, values in plain.items():
        np.testing.assert_allclose(by_graph[point], values, rtol=1e-3, err_msg=str(point))
