from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.detectors import Mahalanobis
from nescio.errors import DatasetError, FileError, ParameterError
from nescio.lab.data import find_damaged, load_coco, load_folder
from nescio.lab.data.split import Reader
from nescio.lab.extraction import cached_features, extract
from nescio.lab.networks.network import CheckpointRunner, load_checkpoint
from nescio.lab.perturbation import Setting, Tuning, find_directions, step
from nescio.lab.training import train
from nescio.models import base
from nescio.models.base import make_runner
from nescio.models.images import Preprocessing
from nescio.outputs import Outputs


@pytest.fixture(autouse=True)
def run_by_torch(monkeypatch):
    """Export no copies of networks, which takes seconds; test_runtimes.py does."""
    monkeypatch.setattr("nescio.lab.extraction._MIN_BATCHES", 1000)


@pytest.fixture
def val(coco_tree):
    """14 images with labels."""
    return load_coco(coco_tree(), "val")


@pytest.fixture
def many(coco_tree):
    """75 images: five parts with a batch size of 1."""
    return load_coco(coco_tree("many", sizes=(("val", 75),)), "val")


def test_outputs_are_what_the_network_gives(checkpoint, val, tmp_path):
    made, seen = checkpoint(), []
    done = extract(made, val, tmp_path / "val.safetensors", batch_size=4, on_images=seen.append)
    outputs = Outputs.load(done.path)
    assert (done.n_images, done.n_computed, done.skipped) == (14, 14, ())
    assert sum(seen) == 14
    (pixels,) = Reader(val, made.preprocessing).batches([range(14)])
    inputs = made.preprocessing.inputs(pixels, torch.device("cpu"))
    with torch.inference_mode():
        logits, pooled = made.network(inputs), made.network.backbone(inputs)
    np.testing.assert_allclose(outputs.logits, logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs.features, pooled, rtol=1e-4, atol=1e-5)
    assert np.array_equal(outputs.labels, val.labels)
    assert tuple(outputs.ids) == val.files
    assert outputs.label_names == made.label_names
    assert outputs.manifest["model_hash"] == made.content_hash()
    assert outputs.manifest["dataset"] == "coco"
    # The last layer and its input come along, for detectors that read them.
    head, hidden = outputs.head, outputs.get("penultimate")
    assert hidden.shape == (14, 16)
    np.testing.assert_allclose(hidden @ head.weight.T + head.bias, logits, rtol=1e-4, atol=1e-5)
    assert outputs.manifest["layers"] == ["pooled", "penultimate"]
    assert not list(tmp_path.glob("*.parts"))
    # Labels are in the order of the network; those of another set are left out.
    for names, expected in (
        (("blue", "red", "green"), val.labels[:, [2, 0, 1]].tolist()),
        (("blue", "red", "grey"), None),
    ):
        done = extract(checkpoint(label_names=names), val, tmp_path / f"{names[2]}.safetensors")
        labels = Outputs.load(done.path).labels
        assert (labels if labels is None else labels.tolist()) == expected


def test_a_result_is_made_once_and_replaced_only_with_force(checkpoint, val, tmp_path):
    made, split, path = checkpoint(), val, tmp_path / "val.safetensors"
    extract(made, split, path)
    content, left = path.read_bytes(), tmp_path / "val.safetensors.parts"
    left.mkdir()  # as after a crash

    def again(_):
        with pytest.raises(FileError, match=r"another process is using .*another output file"):
            extract(made, split, tmp_path / "two.safetensors")

    assert extract(made, split, tmp_path / "two.safetensors", on_images=again).n_computed == 14
    assert extract(made, split, path).n_computed == 0
    assert not left.exists()
    tuning = tuning_for(made, Setting("odin", "max", 0.0, 1.0, 0.5))
    with pytest.raises(FileError, match=r"something else: it was made by another network"):
        extract(checkpoint(seed=1), split, path)
    with pytest.raises(FileError, match=r"its n_images is 14"):
        extract(made, split.subset(range(5)), path)
    with pytest.raises(FileError, match="other settings of ODIN and Mahalanobis"):
        extract(made, split, path, tuning=tuning)
    assert path.read_bytes() == content
    extract(made, split, path, tuning=tuning, force=True)
    with pytest.raises(FileError, match="other settings of ODIN and Mahalanobis"):
        extract(made, split, path)
    assert extract(checkpoint(seed=1), split, path, force=True).n_computed == 14
    # Images are replaced by others of equal size.
    split.path(3).write_bytes(split.path(3).read_bytes()[::-1])
    with pytest.raises(FileError, match=r"images have changed since then.*force=True to replace"):
        extract(checkpoint(seed=1), replace(split), path)
    path.write_bytes(b"something else entirely")
    with pytest.raises(FileError, match="made from something else"):
        extract(made, split, path)
    assert path.read_bytes() == b"something else entirely"


class StopError(Exception):
    pass


def stop(made, split, path, n_images=50, **options):
    """Stop the work as a crash would."""
    total = 0

    def on_images(count):
        nonlocal total
        total += count
        if total >= n_images:
            raise StopError

    with pytest.raises(StopError):
        extract(made, split, path, batch_size=1, on_images=on_images, **options)


def test_interrupted_work_goes_on_and_gives_the_same_bytes(checkpoint, many, tmp_path):
    made, whole, path = checkpoint(), tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    extract(made, many, whole, batch_size=1)
    stop(made, many, path)
    assert not path.exists()
    parts = sorted((tmp_path / "cut.safetensors.parts").iterdir())
    assert len(parts) == 3
    content = bytearray(parts[1].read_bytes())
    content[-100] ^= 1
    parts[1].write_bytes(content)  # a damaged part is computed again
    assert extract(made, many, path, batch_size=1).n_computed == 75 - 32
    assert path.read_bytes() == whole.read_bytes()
    # The parts of another network are computed again.
    stop(made, many, tmp_path / "other.safetensors")
    other = extract(checkpoint(seed=1), many, tmp_path / "other.safetensors", batch_size=1)
    assert other.n_computed == 75


def test_an_upgrade_goes_on_with_what_was_extracted(checkpoint, many, tmp_path, monkeypatch):
    """The version of the extraction decides, and not that of nescio and torch."""
    made, path = checkpoint(), tmp_path / "val.safetensors"
    stop(made, many, path)
    monkeypatch.setattr(base, "__version__", "99.0")
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert extract(made, many, path, batch_size=1).n_computed == 75 - 48
    manifest = Outputs.load(path).manifest
    assert manifest["nescio_version"] == manifest["torch_version"] == "99.0"
    monkeypatch.undo()
    assert extract(made, many, path, batch_size=1).n_computed == 0
    monkeypatch.setitem(extract.__globals__, "EXTRACTION_VERSION", 99)
    with pytest.raises(FileError, match=r"its extraction_version is \d, not 99\..*force=True"):
        extract(made, many, path, batch_size=1)


def test_a_damaged_image_is_an_error_unless_it_was_left_out(checkpoint, class_tree, tmp_path):
    root = class_tree(n_images=4)
    (root / "anchor" / "0001.jpg").write_bytes(b"\xff\xd8 no image")
    split, path = load_folder(root), tmp_path / "ood.safetensors"
    with pytest.raises(DatasetError, match=r"0001\.jpg.*--skip-bad"):
        extract(checkpoint(), split, path)
    done = extract(checkpoint(), split.without(find_damaged(split)), path)
    outputs = Outputs.load(path)
    assert done.n_images == done.n_computed == len(outputs) == 7
    assert [bad.file for bad in done.skipped] == ["anchor/0001.jpg"]
    assert [item["file"] for item in outputs.manifest["skipped"]] == ["anchor/0001.jpg"]
    # What was made without an image does not serve those who want all.
    with pytest.raises(FileError, match="its n_images is 7, not 8"):
        extract(checkpoint(), split, path)


def tuning_for(made, *settings):
    return Tuning(made.content_hash(), "pooled", settings, {})


def test_tuned_settings_add_what_odin_and_mahalanobis_read(checkpoint, val, tmp_path):
    made, path = checkpoint(), tmp_path / "v.safetensors"
    settings = (
        Setting("odin", "max", 0.002, 10.0, 0.5),
        Setting("mahalanobis", "sum", 0.0, None, 0.5),
    )
    tuning = tuning_for(made, *settings)
    with pytest.raises(ParameterError, match="tuned for another network"):
        extract(checkpoint(seed=1), val, path, tuning=tuning)
    with pytest.raises(ParameterError, match="for pooled features, not penultimate"):
        extract(made, val, path, tuning=tuning, features="penultimate")
    done = extract(made, val, path, tuning=tuning)
    plain = Outputs.load(extract(made, val, tmp_path / "p.safetensors").path)
    outputs = Outputs.load(done.path)
    assert set(outputs.arrays) == {"penultimate", "odin_max", "mahalanobis_sum"}
    np.testing.assert_allclose(outputs.logits, plain.logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs.arrays["mahalanobis_sum"], plain.features, rtol=1e-5)
    (pixels,) = Reader(val, made.preprocessing).batches([range(14)])
    inputs = made.preprocessing.inputs(pixels, torch.device("cpu"))
    module = CheckpointRunner(made).module()
    perturbation = find_directions(module, inputs, made.preprocessing, ("max", "sum"))
    moved = step(module, inputs, perturbation, "max", 0.002)
    np.testing.assert_allclose(outputs.arrays["odin_max"], moved[0] / 10, rtol=1e-5)
    assert outputs.manifest["tuning"][1]["temperature"] == 10.0


def test_a_step_towards_the_nearest_mean_needs_the_training_outputs(
    checkpoint, coco_tree, tmp_path
):
    made, root = checkpoint(), coco_tree()
    split, path = load_coco(root, "val"), tmp_path / "v.safetensors"
    train = Outputs.load(
        extract(made, load_coco(root, "train"), tmp_path / "train.safetensors").path
    )
    tuning = tuning_for(made, Setting("mahalanobis", "max", 1e-5, None, 0.5, "gaussian"))
    with pytest.raises(ParameterError, match=r"pass train= \(--train\), the training outputs"):
        extract(made, split, path, tuning=tuning)
    other = extract(checkpoint(seed=1), load_coco(root, "train"), tmp_path / "other.safetensors")
    with pytest.raises(ParameterError, match="extracted for another network"):
        extract(made, split, path, tuning=tuning, train=Outputs.load(other.path))
    outputs = Outputs.load(extract(made, split, path, tuning=tuning, train=train).path)
    assert outputs.manifest["train_data"] == train.manifest["data_fingerprint"]
    detector = Mahalanobis().fit(train)
    moved = detector.score_samples(outputs.arrays["mahalanobis_max"])
    assert (moved > detector.score_samples(outputs.features)).mean() > 0.9
    # Without a step, nothing is needed.
    still = tuning_for(made, Setting("mahalanobis", "max", 0.0, None, 0.5, "gaussian"))
    assert extract(made, split, path, tuning=still, force=True).n_computed == len(split)


def test_memory_does_not_grow_with_the_data(checkpoint, coco_tree, tmp_path):
    # Parts are written and let go of: at no time are there more than a part's arrays.
    import tracemalloc

    made = checkpoint(n_hidden=1024)
    peaks = []
    for n_images in (64, 256):
        split = load_coco(coco_tree(f"coco{n_images}", sizes=(("val", n_images),)), "val")
        tracemalloc.start()
        path = tmp_path / f"{n_images}.safetensors"
        extract(made, split, path, features="penultimate", batch_size=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    size = (tmp_path / "256.safetensors").stat().st_size
    assert peaks[1] - peaks[0] < size / 3


# --- any other model takes the same road ------------------------------------------------------


@pytest.fixture(scope="session")
def image_graph(tmp_path_factory):
    """An ONNX file of a small convolutional network, with its features as an output."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    graph = onnx.parser.parse_graph(
        """small (float[n, 3, 24, 24] image) => (float[n, 3] logits, float[n, 5] hidden) {
            maps = Conv(image, kernel)
            active = Relu(maps)
            pool = GlobalAveragePool(active)
            hidden = Flatten(pool)
            logits = Gemm(hidden, weight, bias)
        }"""
    )
    draw = np.random.default_rng(0)
    for name, shape in {"kernel": (5, 3, 3, 3), "weight": (5, 3), "bias": 3}.items():
        values = draw.normal(size=shape).astype("f4")
        graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    opset = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
    path = tmp_path_factory.mktemp("graph") / "small.onnx"
    onnx.save(model, path)
    return path


def test_an_onnx_file(image_graph, coco_tree, tmp_path, nescio):
    preprocessing = Preprocessing(24, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    root = coco_tree()
    split, names = load_coco(root, "val"), ("red", "green", "blue")
    runner = make_runner(
        image_graph, features="hidden", label_names=names, preprocessing=preprocessing
    )
    outputs = Outputs.load(extract(runner, split, tmp_path / "v.safetensors", batch_size=4).path)
    (pixels,) = Reader(split, preprocessing).batches([range(14)])
    expected = runner.run(preprocessing.normalise(pixels))
    np.testing.assert_allclose(outputs.logits, expected["logits"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs.features, expected["features"], rtol=1e-4, atol=1e-5)
    assert np.array_equal(outputs.labels, split.labels)
    assert outputs.manifest["model_hash"] == runner.content_hash()
    assert outputs.manifest["kind"] == "onnx"
    assert outputs.head.weight.shape == (3, 5)
    assert extract(runner, split, tmp_path / "v.safetensors", batch_size=4).n_computed == 0
    # The command does the same, from the options.
    data = f"coco@val:{root}"
    command = ("extract", image_graph, data, "-o", tmp_path / "out", "--batch-size", 4)
    code, _, err = nescio(*command)
    assert (code, "--image-size" in err) == (1, True)
    colours = ("--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25")
    code, _, err = nescio(*command, *colours, "--features", "hidden", "--labels", data)
    assert code == 0, err
    again = (tmp_path / "out" / "coco-val.safetensors").read_bytes()
    assert again == (tmp_path / "v.safetensors").read_bytes()


def test_the_preprocessing_in_a_file_and_what_it_cannot_do(image_graph, coco_tree, tmp_path):
    onnx = pytest.importorskip("onnx")
    split = load_coco(coco_tree(), "val")
    with pytest.raises(ParameterError, match="how an image becomes the input"):
        extract(image_graph, split, tmp_path / "x.safetensors")
    model = onnx.load(image_graph)
    model.metadata_props.add(key="nescio.preprocessing", value='{"size": 24}')
    onnx.save(model, tmp_path / "known.onnx")
    runner = make_runner(tmp_path / "known.onnx")
    assert runner.preprocessing == Preprocessing(24)
    assert extract(runner, split, tmp_path / "v.safetensors").n_computed == 14
    tuning = Tuning("", "None", (Setting("odin", "max", 0.0, 1.0, 0.5),), {})
    with pytest.raises(ParameterError, match=r"need the gradient of a torch module.*of kind onnx"):
        extract(runner, split, tmp_path / "x.safetensors", tuning=tuning)


def test_a_module_and_a_factory(own_module, coco_tree, tmp_path, nescio):
    root = coco_tree()
    split, preprocessing = load_coco(root, "val"), Preprocessing(24)
    torch.manual_seed(0)
    module = __import__("my_nets").make()
    runner = make_runner(module, features="penultimate", preprocessing=preprocessing)
    module.train()
    outputs = Outputs.load(extract(runner, split, tmp_path / "v.safetensors").path)
    assert module.training
    assert outputs.features.shape == (14, 4)
    assert outputs.head.weight.shape == (3, 4)
    assert outputs.labels is None  # the module does not say what its labels are
    # ODIN takes any torch module.
    tuning = Tuning(
        runner.content_hash(), "penultimate", (Setting("odin", "sum", 0.01, 10.0, 0.5),), {}
    )
    done = extract(runner, split, tmp_path / "t.safetensors", tuning=tuning)
    assert Outputs.load(done.path).arrays["odin_sum"].shape == (14, 3)
    with torch.no_grad():
        module[5].bias += 1
    with pytest.raises(FileError, match="made by another network"):
        extract(runner, split, tmp_path / "v.safetensors")
    code, _, err = nescio(
        *("extract", f"module:{own_module}", f"coco@val:{root}", "--image-size", 24),
        *("--features", "4", "--labels", f"coco:{root}", "-o", tmp_path / "out"),
    )
    assert code == 0, err
    assert Outputs.load(tmp_path / "out" / "coco-val.safetensors").labels.shape == (14, 3)


# --- features of a frozen backbone --------------------------------------------------------------


@pytest.fixture
def frozen(settings, coco_tree, tmp_path):
    """A network with a frozen backbone, trained on features that are kept in a cache."""
    root = coco_tree(sizes=(("train", 24), ("val", 14), ("test", 7)))
    splits = {name: load_coco(root, name) for name in ("train", "val", "test")}
    chosen = settings(epochs=1).updated({"model": {"freeze": True}})
    run = train(chosen, splits["train"], splits["val"], tmp_path / "run", cache=tmp_path / "cache")
    return load_checkpoint(run.checkpoint), splits, tmp_path / "cache"


def count_passes(module):
    passes = []
    module.register_forward_hook(lambda *_: passes.append(1))
    return passes


@pytest.mark.parametrize("features", ["pooled", "penultimate", None, "penultimate,pooled"])
def test_cached_features_spare_the_backbone(frozen, features, tmp_path):
    made, splits, cache = frozen
    val = splits["val"]
    direct = extract(made, val, tmp_path / "direct.safetensors", features=features)
    passes = count_passes(made.network.backbone)
    pooled = cached_features(made, val, cache)
    cached = extract(made, val, tmp_path / "c.safetensors", features=features, pooled=pooled)
    assert not passes
    whole, other = Outputs.load(direct.path), Outputs.load(cached.path)
    assert whole.arrays.keys() == other.arrays.keys()
    for name in ("logits", "features", *whole.arrays):
        np.testing.assert_allclose(whole.get(name), other.get(name), rtol=1e-5, atol=1e-6)
    assert whole.manifest == other.manifest
    assert np.array_equal(whole.ids, other.ids)
    assert (whole.head is None) == (other.head is None) == (features == "pooled")


def test_the_key_is_backbone_preprocessing_and_data(frozen, checkpoint, tmp_path):
    made, splits, cache = frozen
    val = splits["val"]
    before = sorted(cache.iterdir())
    features = cached_features(made, val, cache)
    assert (len(features), sorted(cache.iterdir())) == (14, before)
    variants = [(checkpoint(), val), (made, val.subset(range(5))), (made, splits["test"])]
    for number, (network, split) in enumerate(variants, 1):
        assert len(cached_features(network, split, cache)) == len(split)
        assert len(list(cache.glob("*.safetensors"))) == 2 + number
    val.path(0).write_bytes(val.path(1).read_bytes())
    assert not np.array_equal(cached_features(made, replace(val), cache), features)
