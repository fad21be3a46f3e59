"""What runs a model: each runtime gives what the model itself gives, or is not used."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from nescio.data import load_coco  # noqa: E402
from nescio.data.preprocessing import Preprocessing  # noqa: E402
from nescio.detectors import JointEnergy, Mahalanobis  # noqa: E402
from nescio.errors import ExportError, FileError, ParameterError  # noqa: E402
from nescio.outputs import Outputs  # noqa: E402
from nescio.runners import extract, make_runner, parts, runtimes  # noqa: E402
from nescio.runners.checkpoints import CheckpointRunner  # noqa: E402
from nescio.runners.feature_cache import cached_features  # noqa: E402
from nescio.runners.runtimes import RuntimeChoice, Runtimes, checked_run  # noqa: E402
from nescio.runners.torch_models import TorchRunner  # noqa: E402
from nescio.runners.tune_settings import OdinSettings, TuneSettings  # noqa: E402
from nescio.training.tuning import grid_scores  # noqa: E402


def graph_runtime(name):
    for package in ("onnxscript", name):
        pytest.importorskip(package)
    return name


@pytest.fixture
def split(coco_tree):
    return load_coco(coco_tree(sizes=(("train", 2), ("val", 18))), "val")


@pytest.fixture
def images():
    """Two batches of different sizes, the second one darker."""
    rng = np.random.default_rng(0)
    bright = rng.integers(0, 256, (4, 3, 16, 16), np.uint8)
    return [bright, bright[:3] // 8]


def stop_after(n_images):
    """Return what stops the work when so many images are done."""
    seen = []

    def on_images(count):
        seen.append(count)
        if sum(seen) == n_images:
            raise KeyboardInterrupt

    return on_images


def runner_of(module, **settings):
    return make_runner(module, preprocessing=Preprocessing(16), **settings)


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


@pytest.mark.parametrize("name", ["eager", "channels-last", "onnxruntime", "openvino"])
def test_every_runtime_gives_what_the_model_gives(name, checkpoint, split, tmp_path):
    graph_runtime(name) if name in ("onnxruntime", "openvino") else None
    made = checkpoint()
    expected, found = (
        extract(made, split, tmp_path / f"{at}.safetensors", crops=True, batch_size=4, runtime=one)
        for at, one in enumerate(("auto", name))
    )
    assert (expected.runtime.runtime, found.runtime.runtime) == ("channels-last", name)
    one, other = Outputs.load(expected.path), Outputs.load(found.path)
    assert {"penultimate", "crops_logits", "crops_penultimate"} <= set(one.arrays)
    for array in ("logits", "features", *one.arrays):
        np.testing.assert_allclose(other.get(array), one.get(array), rtol=1e-4, atol=1e-4)
    detector = JointEnergy(tpr=0.8).calibrate(one)
    assert np.array_equal(detector.predict(one), detector.predict(other))
    assert (other.manifest["runtime"], other.label_names) == (name, made.label_names)
    assert ("runtime_version" in other.manifest) == (name in ("onnxruntime", "openvino"))
    assert other.head is not None


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_layers_of_a_users_own_module(name, images):
    own = runner_of(Plain(), features="pooled,conv,penultimate,input")
    expected = [own.arrays(batch) for batch in images]
    fast, choice = Runtimes(graph_runtime(name)).choose(own, lambda: images, 1)
    assert (fast.runtime, choice.why, own.forward) == (name, "as asked for", None)
    assert list(expected[0]) == ["logits", "features", "conv", "penultimate", "input"]
    for batch, arrays in zip(images, expected, strict=True):
        found = fast.arrays(batch)
        for array, values in arrays.items():
            np.testing.assert_allclose(found[array], values, rtol=1e-5, atol=1e-5)


def test_a_model_that_cannot_be_exported(images, in_a_contest):
    own = runner_of(Branching())
    graph_runtime("onnxruntime")
    with pytest.raises(ParameterError, match=r"onnxruntime cannot be used: torch cannot export"):
        Runtimes("onnxruntime").choose(own, lambda: images, 1)
    fast, choice = in_a_contest(own, {"eager": 4.0, "channels-last": 3.0})
    assert (fast.runtime, choice.runtime) == ("channels-last", "channels-last")
    assert "torch cannot export the model" in choice.not_used["onnxruntime"]
    assert "was not used" in str(choice)


@pytest.mark.parametrize("kind", [Dropping, Frozen])
def test_a_runtime_whose_numbers_are_off_is_not_used(kind, images, in_a_contest):
    own = runner_of(kind())
    graph_runtime("onnxruntime")
    # The frozen branch is the right one for the first batch, and wrong for the second.
    with pytest.raises(ParameterError, match="its logits differ from those of the model"):
        Runtimes("onnxruntime").choose(own, lambda: images, 1)
    _, choice = in_a_contest(own, {"eager": 4.0, "channels-last": 4.0})
    assert "its logits differ" in choice.not_used["onnxruntime"]


def test_a_runtime_must_mask_the_same_labels():
    masked = {"logits": np.array([[1.0, -np.inf, np.nan]], np.float32)}
    assert not runtimes._problem(masked, masked)
    for value in (-3e38, np.inf, np.nan):
        unmasked = {"logits": np.array([[1.0, value, np.nan]], np.float32)}
        assert "its logits differ" in runtimes._problem(unmasked, masked)


def test_a_later_batch_that_is_off_stops_the_work(images):
    own = runner_of(Frozen())
    bright, dark = images
    fast, _ = Runtimes(graph_runtime("onnxruntime")).choose(own, lambda: [bright], 1)
    run = checked_run(fast, own)
    run(bright)
    with pytest.raises(ExportError, match=r"wrong in a later batch.*--runtime eager "):
        run(dark)
    assert checked_run(own, own)(dark).keys() == {"logits"}


class WrongInOneLayout(Plain):
    """By the runtime channels-last, it is wrong for bright images."""

    def change(self, images, logits):
        other = not images.is_contiguous() and images.mean() > 1.3
        return -logits if other else logits


def test_what_a_wrong_runtime_has_done_is_not_continued(coco_tree, tmp_path):
    split = load_coco(coco_tree(sizes=(("train", 2), ("val", 34))), "val")
    bright, thirty_second = (split.root / split.files[at] for at in (6, 31))
    thirty_second.write_bytes(bright.read_bytes())
    own, path = runner_of(WrongInOneLayout()), tmp_path / "val.safetensors"
    n_done = []
    with pytest.raises(ExportError, match="wrong in a later batch"):
        extract(own, split, path, batch_size=1, runtime="channels-last", on_images=n_done.append)
    assert sum(n_done) == 31  # so one part was written
    assert extract(own, split, path, batch_size=1).n_computed == 34


@pytest.fixture
def in_a_contest(monkeypatch, images):
    """Choose by seconds per batch that the test sets, for work that takes long."""

    def choose(own, seconds, n_batches=60):
        monkeypatch.setattr(
            runtimes._Contest, "_measured", lambda contest, runner: seconds[runner.runtime]
        )
        return Runtimes().choose(own, lambda: images, n_batches)

    return choose


def test_the_fastest_is_chosen_and_kept(images, in_a_contest, monkeypatch):
    graph_runtime("onnxruntime")
    graph_runtime("openvino")
    own = runner_of(Plain())
    seconds = {"eager": 4.0, "channels-last": 3.0, "onnxruntime": 1.0, "openvino": 0.95}
    fast, choice = in_a_contest(own, seconds)
    assert fast.runtime == "onnxruntime"  # openvino is not faster by 10 %, compile is not tried
    assert choice.images_per_second == {name: 4 / value for name, value in seconds.items()}
    assert choice.why == "measured, 4.0 times as fast as eager"
    kept = Runtimes("onnxruntime")
    first, _ = kept.choose(own, lambda: images, 1)
    assert kept.choose(own, lambda: pytest.fail("measured again"), 1)[0] is first
    with torch.no_grad():
        own.model.labels.bias += 1  # a runtime has the weights as they were
    assert kept.choose(own, lambda: images, 1)[0] is not first


def test_a_kept_choice_of_the_model_itself_runs_the_model_that_is_passed(images, monkeypatch):
    monkeypatch.setattr(TorchRunner, "runtimes", ("eager", "channels-last"))
    seconds = {"eager": 4.0, "channels-last": 5.0}
    monkeypatch.setattr(
        runtimes._Contest, "_measured", lambda contest, runner: seconds[runner.runtime]
    )
    kept, first, second = Runtimes(), runner_of(Plain()), runner_of(Plain())
    assert kept.choose(first, lambda: images, 60)[0] is first
    with torch.no_grad():
        first.model.labels.bias += 1  # trained further; the second is as the first one was
    assert kept.choose(second, lambda: pytest.fail("measured again"), 60)[0] is second


def test_little_work_is_not_measured(images, in_a_contest):
    own = runner_of(Plain())
    few = Runtimes().choose(own, lambda: pytest.fail("read images"), 20)
    assert few == (own, RuntimeChoice("eager", "there is too little work for a choice to pay"))
    quick = in_a_contest(own, {"eager": 0.001})
    assert (quick[0], quick[1].images_per_second) == (own, {"eager": 4000.0})
    empty = Runtimes().choose(own, list, 1000)
    assert (empty[0], empty[1].why) == (own, "there are no images to measure it on")


def test_unknown_runtimes_are_refused(images, onnx_file):
    with pytest.raises(ParameterError, match=r"runtime must be .*got 'tensorrt'"):
        Runtimes("tensorrt")
    with pytest.raises(ParameterError, match=r"of the kind onnx \(onnxruntime, openvino\), got"):
        Runtimes("compile").choose(make_runner(onnx_file()), lambda: images, 1)


def test_openvino_runs_onnx_files(onnx_file, rng):
    graph_runtime("openvino")
    own = make_runner(onnx_file(), features="h")  # h is not an output of the file
    inputs = [rng.normal(size=(n, 6)).astype(np.float32) for n in (5, 2)]
    fast, choice = Runtimes("openvino").choose(own, lambda: inputs, 1)
    assert (fast.runtime, choice.runtime, own.runtime) == ("openvino", "openvino", "onnxruntime")
    first, second = map(fast.run, inputs)
    np.testing.assert_allclose(first["logits"], onnx_file.compute(inputs[0]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(second["features"], np.maximum(inputs[1], 0), rtol=1e-6)


def test_work_is_continued_by_its_own_runtime(checkpoint, split, tmp_path):
    made, path = checkpoint(), tmp_path / "val.safetensors"
    with pytest.raises(KeyboardInterrupt):
        extract(made, split, path, batch_size=1, runtime="eager", on_images=stop_after(17))
    with pytest.raises(FileError, match="unfinished work by the runtime eager, not channels-last"):
        extract(made, split, path, batch_size=1, runtime="channels-last")
    done = extract(made, split, path, batch_size=1)
    assert (done.runtime.runtime, done.runtime.why) == ("eager", "continued")
    assert (done.n_computed, done.n_images) == (2, 18)
    # A finished file is up to date for any runtime.
    again = extract(made, split, path, batch_size=1, runtime="channels-last")
    assert (again.n_computed, again.runtime.runtime) == (0, "eager")


def test_parts_of_an_older_version_are_continued_by_the_models_own(
    checkpoint, coco_tree, tmp_path, monkeypatch
):
    monkeypatch.setattr(CheckpointRunner, "runtimes", ("eager", "channels-last"))
    seconds = {"channels-last": 40.0, "eager": 1.0}
    monkeypatch.setattr(
        runtimes._Contest, "_measured", lambda contest, runner: seconds[runner.runtime]
    )
    split = load_coco(coco_tree(sizes=(("train", 2), ("val", 40))), "val")
    made, path = checkpoint(), tmp_path / "val.safetensors"
    own = {"batch_size": 1, "runtime": "channels-last", "on_images": stop_after(17)}
    with pytest.raises(KeyboardInterrupt):
        extract(made, split, path, **own)
    (file,) = tmp_path.glob("val.safetensors.parts/*.safetensors")
    tensors, metadata = parts._KIND.read(file)
    older = {name: metadata[name] for name in ("key", "skipped")}
    parts._KIND.write(
        file, {name: np.array(one) for name, one in tensors.items()}, older, force=True
    )
    done = extract(made, split, path, batch_size=1)
    assert (done.runtime.runtime, done.runtime.why) == ("channels-last", "continued")
    other = extract(made, split, tmp_path / "other.safetensors", batch_size=1)
    assert other.runtime.runtime == "eager"  # what is chosen without earlier parts


def test_unfinished_features_by_another_runtime_are_computed_again(
    checkpoint, split, tmp_path, monkeypatch
):
    monkeypatch.setattr(parts, "_BATCHES_PER_PART", 1)
    made = checkpoint()
    given = (made.network.backbone, made, split, tmp_path, torch.device("cpu"))
    with pytest.raises(KeyboardInterrupt):
        cached_features(*given, stop_after(18), runtime="eager")
    assert list(tmp_path.glob("*.parts/*.safetensors"))
    assert len(cached_features(*given, runtime="channels-last")) == 18


def test_cached_features(checkpoint, split, tmp_path):
    made, cpu = checkpoint(), torch.device("cpu")
    backbone = made.network.backbone
    expected, found = (
        cached_features(backbone, made, split, tmp_path / str(at), cpu, runtime=name)
        for at, name in enumerate(("auto", graph_runtime("onnxruntime")))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert (found.dtype, found.shape) == (np.float32, expected.shape)


def test_steps_of_tuning(checkpoint, images, tmp_path):
    made = checkpoint(size=16)
    runner = CheckpointRunner(made, features="pooled")
    fast, _ = Runtimes(graph_runtime("onnxruntime")).choose(runner, lambda: images, 1)
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


@pytest.mark.slow
def test_compile(images):
    own = runner_of(Plain(), features="pooled")
    fast, _ = Runtimes("compile").choose(own, lambda: images, 1)
    expected, found = own.arrays(images[0]), fast.arrays(images[0])
    np.testing.assert_allclose(found["features"], expected["features"], rtol=1e-4, atol=1e-5)
