import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.detectors import Mahalanobis
from nescio.errors import DatasetError, FileError, ParameterError
from nescio.lab.data import load_coco, load_folder, split as split_module
from nescio.lab.extraction import extract
from nescio.lab.extraction.extract import cached_features, read_features
from nescio.lab.extraction.image_batches import Reader
from nescio.lab.extraction.perturb import Setting, TuneSettings, Tuning, find_directions, step
from nescio.lab.networks import checkpoint as checkpoint_module
from nescio.lab.networks.checkpoint import load_checkpoint
from nescio.lab.networks.runner import CheckpointRunner
from nescio.lab.training import train, tune
from nescio.models import base, make_runner
from nescio.models.images import Preprocessing
from nescio.outputs import Outputs


@pytest.fixture(autouse=True)
def run_by_torch(monkeypatch):
    """Export no copies of networks, which takes seconds; test_runtimes.py does."""
    monkeypatch.setattr("nescio.lab.extraction.runtimes._MIN_BATCHES", 1000)


@pytest.fixture
def many(coco_tree):
    """75 images: five parts with a batch size of 1."""
    return load_coco(coco_tree("many", sizes=(("val", 75),)), "val")


def test_outputs_are_what_the_network_gives(checkpoint, coco_tree, tmp_path):
    made, split = checkpoint(), load_coco(coco_tree(), "val")
    seen = []
    done = extract(made, split, tmp_path / "val.safetensors", batch_size=4, on_images=seen.append)
    outputs = Outputs.load(done.path)
    assert (done.n_images, done.n_computed, done.skipped) == (14, 14, ())
    assert sum(seen) == 14
    (batch,) = Reader(split, made.preprocessing).batches([range(14)])
    inputs = made.preprocessing.inputs(torch.from_numpy(batch.pixels), torch.device("cpu"))
    with torch.inference_mode():
        logits, pooled = made.network(inputs), made.network.backbone(inputs)
    np.testing.assert_allclose(outputs.logits, logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs.features, pooled, rtol=1e-4, atol=1e-5)
    assert np.array_equal(outputs.labels, split.labels)
    assert tuple(outputs.ids) == split.files
    assert outputs.label_names == made.label_names
    assert outputs.manifest["model_hash"] == made.content_hash()
    assert outputs.manifest["dataset"] == "coco"
    # The last layer and its input come along, for detectors that read them.
    head, hidden = outputs.head, outputs.get("penultimate")
    assert hidden.shape == (14, 16)
    np.testing.assert_allclose(hidden @ head.weight.T + head.bias, logits, rtol=1e-4, atol=1e-5)
    assert outputs.manifest["layers"] == ["pooled", "penultimate"]
    assert not list(tmp_path.glob("*.parts"))


def test_labels_of_another_set_are_left_out(checkpoint, class_tree, coco_tree, tmp_path):
    done = extract(checkpoint(), load_folder(class_tree(), ""), tmp_path / "ood.safetensors")
    assert Outputs.load(done.path).labels is None
    shuffled = checkpoint(label_names=("blue", "red", "green"))
    split = load_coco(coco_tree(), "val")
    done = extract(shuffled, split, tmp_path / "val.safetensors")
    assert np.array_equal(Outputs.load(done.path).labels, split.labels[:, [2, 0, 1]])


def test_a_result_is_made_once_and_replaced_only_with_force(checkpoint, coco_tree, tmp_path):
    made, split, path = checkpoint(), load_coco(coco_tree(), "val"), tmp_path / "val.safetensors"
    extract(made, split, path)
    content, left = path.read_bytes(), tmp_path / "val.safetensors.parts"
    left.mkdir()  # as after a crash
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


def test_two_extractions_to_one_file(checkpoint, coco_tree, tmp_path):
    split = load_coco(coco_tree(), "val")
    path = tmp_path / "val.safetensors"

    def again(_):
        with pytest.raises(FileError, match=r"another process is using .*another output file"):
            extract(checkpoint(), split, path)

    assert extract(checkpoint(), split, path, on_images=again).n_computed == 14


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
    with pytest.raises(FileError, match=r"unfinished work.*force=True"):
        extract(checkpoint(seed=1), many, path, batch_size=1)
    content = bytearray(parts[1].read_bytes())
    content[-100] ^= 1
    parts[1].write_bytes(content)  # a damaged part is computed again
    assert extract(made, many, path, batch_size=1).n_computed == 75 - 32
    assert path.read_bytes() == whole.read_bytes()
    stop(made, many, tmp_path / "other.safetensors")
    other = extract(
        checkpoint(seed=1), many, tmp_path / "other.safetensors", batch_size=1, force=True
    )
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


# From within: from without, a busy machine may come too late.
KILLS_ITSELF = """
import os, signal, sys
from pathlib import Path
from nescio.lab.data import load_coco
from nescio.lab.extraction import extract
from nescio.lab.networks.checkpoint import load_checkpoint

def count(n_images, seen=[]):
    seen.append(n_images)
    if sum(seen) > 50:
        os.kill(os.getpid(), signal.SIGKILL)

network, root, path = sys.argv[1:]
Path(path).parent.mkdir()
network, split = load_checkpoint(network), load_coco(root, "val")
extract(network, split, path, batch_size=1, runtime="torch", on_images=count)
"""


@pytest.mark.slow
def test_killed_work_goes_on_and_gives_the_same_bytes(checkpoint, coco_tree, tmp_path, nescio):
    root = coco_tree(sizes=(("val", 75),))
    checkpoint().save(tmp_path / "net.safetensors")
    command = ["extract", tmp_path / "net.safetensors", f"coco@val:{root}", "--batch-size", "1"]
    code, _, err = nescio(*command, "-o", tmp_path / "whole")
    assert code == 0, err
    cut = tmp_path / "cut"
    arguments = tmp_path / "net.safetensors", root, cut / "coco-val.safetensors"
    done = subprocess.run([sys.executable, "-c", KILLS_ITSELF, *map(str, arguments)])
    assert done.returncode == -signal.SIGKILL
    assert (cut / "coco-val.safetensors.parts" / "part-00001.safetensors").exists()
    assert not (cut / "coco-val.safetensors").exists()
    code, out, _ = nescio(*command, "-o", cut, "--json")
    assert code == 0
    assert '"n_computed": 27' in out
    whole = tmp_path / "whole" / "coco-val.safetensors"
    assert (cut / "coco-val.safetensors").read_bytes() == whole.read_bytes()


def test_bad_images_are_left_out_and_recorded(checkpoint, class_tree, tmp_path):
    root = class_tree(n_images=4)
    for name in ("anchor/0001.jpg", "lobster/0003.jpg"):
        (root / name).write_bytes(b"\xff\xd8 no image")
    split = load_folder(root, "")
    path = tmp_path / "ood.safetensors"
    with pytest.raises(DatasetError, match=r"0001\.jpg"):
        extract(checkpoint(), split, path)
    done = extract(checkpoint(), split, path, skip_bad=True, batch_size=1)
    assert (done.n_images, done.n_computed) == (6, 6)
    outputs = Outputs.load(path)
    assert len(outputs) == 6
    assert "anchor/0001.jpg" not in outputs.ids
    skipped = [item["file"] for item in outputs.manifest["skipped"]]
    assert skipped == ["anchor/0001.jpg", "lobster/0003.jpg"]
    again = extract(checkpoint(), split, path, skip_bad=True, batch_size=1)
    assert (again.n_computed, len(again.skipped)) == (0, 2)
    # What was made with leave to skip does not serve those who have not given it.
    with pytest.raises(DatasetError, match=r"made without 2 images.*anchor/0001\.jpg"):
        extract(checkpoint(), split, path, batch_size=1)


def test_parts_that_lack_images_do_not_serve_those_who_want_all(checkpoint, class_tree, tmp_path):
    root = class_tree(n_images=40)
    (root / "anchor" / "0001.jpg").write_bytes(b"\xff\xd8 no image")
    split, path = load_folder(root, ""), tmp_path / "ood.safetensors"
    stop(checkpoint(), split, path, skip_bad=True)
    with pytest.raises(DatasetError, match=r"0001\.jpg"):
        extract(checkpoint(), split, path, batch_size=1)


def test_no_image_at_all_is_an_error(checkpoint, class_tree, tmp_path):
    root = class_tree(n_images=1)
    for path in root.rglob("*.jpg"):
        path.write_bytes(b"")
    with pytest.raises(DatasetError, match="none of the 2 images"):
        extract(checkpoint(), load_folder(root, ""), tmp_path / "x.safetensors", skip_bad=True)


def tuning_for(made, *settings):
    return Tuning(made.content_hash(), "pooled", settings, {})


def test_tuned_settings_add_what_odin_and_mahalanobis_read(checkpoint, coco_tree, tmp_path):
    made, split = checkpoint(), load_coco(coco_tree(), "val")
    settings = (
        Setting("odin", "max", 0.002, 10.0, 0.5),
        Setting("mahalanobis", "sum", 0.0, None, 0.5),
    )
    done = extract(made, split, tmp_path / "v.safetensors", tuning=tuning_for(made, *settings))
    plain = Outputs.load(extract(made, split, tmp_path / "p.safetensors").path)
    outputs = Outputs.load(done.path)
    assert set(outputs.arrays) == {"penultimate", "odin_max", "mahalanobis_sum"}
    np.testing.assert_allclose(outputs.logits, plain.logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs.arrays["mahalanobis_sum"], plain.features, rtol=1e-5)
    (batch,) = Reader(split, made.preprocessing).batches([range(14)])
    inputs = made.preprocessing.inputs(torch.from_numpy(batch.pixels), torch.device("cpu"))
    module = CheckpointRunner(made).module()
    found = find_directions(module, inputs, made.preprocessing, ("max", "sum"))
    moved = step(module, inputs, found, "max", 0.002)
    np.testing.assert_allclose(outputs.arrays["odin_max"], moved.logits / 10, rtol=1e-5)
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
    with pytest.raises(ParameterError, match="not extracted from this network"):
        extract(made, split, path, tuning=tuning, train=Outputs.load(other.path))
    outputs = Outputs.load(extract(made, split, path, tuning=tuning, train=train).path)
    assert outputs.manifest["train_data"] == train.manifest["data_fingerprint"]
    detector = Mahalanobis().fit(train)
    moved = detector.score_samples(outputs.arrays["mahalanobis_max"])
    assert (moved > detector.score_samples(outputs.features)).mean() > 0.9
    # Without a step, nothing is needed.
    still = tuning_for(made, Setting("mahalanobis", "max", 0.0, None, 0.5, "gaussian"))
    assert extract(made, split, path, tuning=still, force=True).n_computed == len(split)


def test_settings_of_another_network_are_refused(checkpoint, coco_tree, tmp_path):
    tuning = tuning_for(checkpoint(seed=1), Setting("odin", "max", 0.0, 1.0, 0.5))
    split, path = load_coco(coco_tree(), "val"), tmp_path / "x.safetensors"
    with pytest.raises(ParameterError, match="tuned for another network"):
        extract(checkpoint(), split, path, tuning=tuning)
    with pytest.raises(ParameterError, match="on pooled features, not penultimate"):
        extract(checkpoint(seed=1), split, path, tuning=tuning, features="penultimate")


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
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    draw = np.random.default_rng(0)
    constants = {
        "kernel": draw.normal(size=(5, 3, 3, 3)).astype("f4"),
        "weight": draw.normal(size=(5, 3)).astype("f4"),
        "bias": draw.normal(size=3).astype("f4"),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "kernel"], ["maps"]),
            helper.make_node("Relu", ["maps"], ["active"]),
            helper.make_node("GlobalAveragePool", ["active"], ["pool"]),
            helper.make_node("Flatten", ["pool"], ["hidden"]),
            helper.make_node("Gemm", ["hidden", "weight", "bias"], ["logits"]),
        ],
        "small",
        [helper.make_tensor_value_info("image", floats, ["n", 3, 24, 24])],
        [
            helper.make_tensor_value_info("logits", floats, ["n", 3]),
            helper.make_tensor_value_info("hidden", floats, ["n", 5]),
        ],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
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
    (batch,) = Reader(split, preprocessing).batches([range(14)])
    expected = runner.run(preprocessing.normalise(batch.pixels))
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
    with pytest.raises(ParameterError, match="has no content hash"):
        extract(make_runner(runner.session), split, tmp_path / "x.safetensors")


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
    passes = count_passes(made.network.backbone)
    direct = extract(made, splits["val"], tmp_path / "direct.safetensors", features=features)
    assert len(passes) == 1
    cached = extract(
        made, splits["val"], tmp_path / "cached.safetensors", features=features, cache=cache
    )
    assert len(passes) == 1
    one, other = Outputs.load(direct.path), Outputs.load(cached.path)
    np.testing.assert_allclose(one.logits, other.logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.features, other.features, rtol=1e-5, atol=1e-6)
    assert one.arrays.keys() == other.arrays.keys()
    for name in one.arrays:
        np.testing.assert_allclose(one.arrays[name], other.arrays[name], rtol=1e-5, atol=1e-6)
    assert one.manifest == other.manifest
    assert np.array_equal(one.ids, other.ids)
    assert (one.head is None) == (other.head is None) == (features == "pooled")
    # Data that was not trained on is not in the cache, and other layers are not either.
    extract(made, splits["test"], tmp_path / "test.safetensors", cache=cache)
    assert len(passes) == 2
    extract(made, splits["val"], tmp_path / "x.safetensors", features="input", cache=cache)
    assert len(passes) == 3


def test_the_key_is_backbone_preprocessing_and_data(frozen, checkpoint, tmp_path):
    made, splits, cache = frozen
    features = read_features(made, splits["val"], cache)
    assert len(features) == 14
    assert read_features(checkpoint(), splits["val"], cache) is None
    assert read_features(made, splits["val"].subset(range(5)), cache) is None
    assert read_features(made, splits["val"], tmp_path) is None
    before = sorted(cache.iterdir())
    again = cached_features(made.network.backbone, made, splits["val"], cache)
    assert np.array_equal(again, features)
    assert sorted(cache.iterdir()) == before
    # Perturbed outputs need the backbone.
    passes = count_passes(made.network.backbone)
    tuning = tuning_for(made, Setting("odin", "max", 0.0, 1.0, 0.5))
    extract(made, splits["val"], tmp_path / "v.safetensors", tuning=tuning, cache=cache)
    assert passes
    image = splits["val"].path(0)
    image.write_bytes(image.read_bytes()[::-1])
    assert read_features(made, replace(splits["val"]), cache) is None


def test_a_run_hashes_weights_and_data_once(frozen, tmp_path, monkeypatch):
    _, splits, cache = frozen
    hashed = {"weights": 0, "data": 0}

    def counting(kind, function):
        def counted(*arguments):
            hashed[kind] += 1
            return function(*arguments)

        return counted

    weights_hash = checkpoint_module.weights_hash
    monkeypatch.setattr(checkpoint_module, "weights_hash", counting("weights", weights_hash))
    content = split_module.Split.__dict__["content"]  # computed once per object
    monkeypatch.setattr(content, "func", counting("data", content.func))
    fresh = load_checkpoint(tmp_path / "run" / "best.safetensors")
    splits = {name: split.subset(range(len(split))) for name, split in splits.items()}
    for name, split in splits.items():
        extract(fresh, split, tmp_path / f"{name}.safetensors", cache=cache)
    outputs = Outputs.load(tmp_path / "train.safetensors")
    tuning = tune(fresh, splits["val"], outputs, TuneSettings(images=14))
    for name, split in splits.items():
        extract(fresh, split, tmp_path / f"{name}-tuned.safetensors", tuning=tuning, cache=cache)
        extract(fresh, split, tmp_path / f"{name}-tuned.safetensors", tuning=tuning, cache=cache)
    # The whole network, and its backbone; each of the three splits.
    assert hashed == {"weights": 2, "data": 3}
