import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.data import load_coco, load_folder  # noqa: E402
from nescio.detectors import Mahalanobis  # noqa: E402
from nescio.errors import DatasetError, FileError, FileFormatError, ParameterError  # noqa: E402
from nescio.outputs import Outputs  # noqa: E402
from nescio.runners import base, make_runner  # noqa: E402
from nescio.runners.checkpoints import CheckpointRunner  # noqa: E402
from nescio.runners.images import Reader  # noqa: E402
from nescio.runners.perturb import find_directions, step  # noqa: E402
from nescio.training import Preprocessing, Setting, Tuning, extract  # noqa: E402


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


def test_penultimate_features(checkpoint, coco_tree, tmp_path):
    made, split = checkpoint(), load_coco(coco_tree(), "val")
    done = extract(made, split, tmp_path / "val.safetensors", features="penultimate")
    assert Outputs.load(done.path).features.shape == (14, 16)
    with pytest.raises(ParameterError, match="no layer 'last'"):
        extract(made, split, tmp_path / "x.safetensors", features="last")


def test_labels_of_another_set_are_left_out(checkpoint, class_tree, coco_tree, tmp_path):
    made = checkpoint()
    done = extract(made, load_folder(class_tree(), ""), tmp_path / "ood.safetensors")
    assert Outputs.load(done.path).labels is None
    shuffled = checkpoint(label_names=("blue", "red", "green"))
    split = load_coco(coco_tree(), "val")
    done = extract(shuffled, split, tmp_path / "val.safetensors")
    assert np.array_equal(Outputs.load(done.path).labels, split.labels[:, [2, 0, 1]])


def test_work_that_is_done_is_not_done_again(checkpoint, coco_tree, tmp_path):
    made, split = checkpoint(), load_coco(coco_tree(), "val")
    path = tmp_path / "val.safetensors"
    extract(made, split, path)
    before = path.stat()
    assert extract(made, split, path).n_computed == 0
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_outputs_of_another_network_or_data_are_refused(checkpoint, coco_tree, tmp_path):
    split = load_coco(coco_tree(), "val")
    path = tmp_path / "val.safetensors"
    extract(checkpoint(), split, path)
    content = path.read_bytes()
    with pytest.raises(
        FileError, match=r"made from something else: it was made by another network"
    ):
        extract(checkpoint(seed=1), split, path)
    with pytest.raises(FileError, match=r"its n_images is 14"):
        extract(checkpoint(), split.subset(range(5)), path)
    assert path.read_bytes() == content
    assert extract(checkpoint(seed=1), split, path, force=True).n_computed == 14
    assert path.read_bytes() != content


def test_images_replaced_by_others_of_equal_size_are_noticed(checkpoint, coco_tree, tmp_path):
    made, split = checkpoint(), load_coco(coco_tree(), "val")
    path, older = tmp_path / "val.safetensors", tmp_path / "older.safetensors"
    extract(made, split, path)
    outputs = Outputs.load(path)
    without = {name: outputs.manifest[name] for name in outputs.manifest if name != "data_sample"}
    replace(outputs, manifest=without).save(older)
    split.path(3).write_bytes(split.path(3).read_bytes()[::-1])
    changed = replace(split)
    with pytest.raises(FileError, match=r"images have changed since then.*force=True to replace"):
        extract(made, changed, path)
    assert extract(made, changed, older).n_computed == 0, "as before, for files of older versions"
    with pytest.raises(FileError, match="made without --verify"):
        extract(made, replace(split, hash_images=True), older)


def test_a_file_of_another_kind_is_not_replaced(checkpoint, coco_tree, tmp_path):
    path = tmp_path / "val.safetensors"
    path.write_bytes(b"something else entirely")
    with pytest.raises((FileError, FileFormatError)):
        extract(checkpoint(), load_coco(coco_tree(), "val"), path)
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


def stopping_after(n_images):
    """An on_images that stops the work as a crash would."""
    total = 0

    def on_images(count):
        nonlocal total
        total += count
        if total >= n_images:
            raise StopError

    return on_images


def test_interrupted_work_goes_on_and_gives_the_same_bytes(checkpoint, coco_tree, tmp_path):
    made = checkpoint()
    split = load_coco(coco_tree(sizes=(("val", 75),)), "val")
    whole, path = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    extract(made, split, whole, batch_size=1)
    with pytest.raises(StopError):
        extract(made, split, path, batch_size=1, on_images=stopping_after(50))
    assert not path.exists()
    assert len(list((tmp_path / "cut.safetensors.parts").iterdir())) == 3
    done = extract(made, split, path, batch_size=1)
    assert done.n_computed == 75 - 48
    assert path.read_bytes() == whole.read_bytes()


def test_a_damaged_part_is_computed_again(checkpoint, coco_tree, tmp_path):
    made = checkpoint()
    split = load_coco(coco_tree(sizes=(("val", 40),)), "val")
    whole, path = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    extract(made, split, whole, batch_size=1)
    with pytest.raises(StopError):
        extract(made, split, path, batch_size=1, on_images=stopping_after(40))
    part = tmp_path / "cut.safetensors.parts" / "part-00001.safetensors"
    content = bytearray(part.read_bytes())
    content[-100] ^= 1
    part.write_bytes(content)
    assert extract(made, split, path, batch_size=1).n_computed == 40 - 16
    assert path.read_bytes() == whole.read_bytes()


def test_an_upgrade_goes_on_with_what_was_extracted(checkpoint, coco_tree, tmp_path, monkeypatch):
    """The version of the extraction decides, and not that of nescio and torch."""
    made, split = checkpoint(), load_coco(coco_tree(sizes=(("val", 75),)), "val")
    path = tmp_path / "val.safetensors"
    with pytest.raises(StopError):
        extract(made, split, path, batch_size=1, on_images=stopping_after(50))
    monkeypatch.setattr(base, "__version__", "99.0")
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert extract(made, split, path, batch_size=1).n_computed == 75 - 48
    manifest = Outputs.load(path).manifest
    assert manifest["nescio_version"] == manifest["torch_version"] == "99.0"
    monkeypatch.undo()
    assert extract(made, split, path, batch_size=1).n_computed == 0
    monkeypatch.setitem(extract.__globals__, "EXTRACTION_VERSION", 99)
    with pytest.raises(FileError, match=r"its extraction_version is \d, not 99\..*force=True"):
        extract(made, split, path, batch_size=1)


def test_unfinished_work_of_another_network_is_refused(checkpoint, coco_tree, tmp_path):
    split = load_coco(coco_tree(sizes=(("val", 75),)), "val")
    path = tmp_path / "val.safetensors"
    with pytest.raises(StopError):
        extract(checkpoint(), split, path, batch_size=1, on_images=stopping_after(50))
    with pytest.raises(FileError, match=r"unfinished work.*force=True"):
        extract(checkpoint(seed=1), split, path, batch_size=1)
    done = extract(checkpoint(seed=1), split, path, batch_size=1, force=True)
    assert done.n_computed == 75


# From within: from without, a busy machine may come too late.
KILLS_ITSELF = """
import os, signal, sys
from pathlib import Path
from nescio.data import load_coco
from nescio.training import extract, load_checkpoint

def count(n_images, seen=[]):
    seen.append(n_images)
    if sum(seen) > 50:
        os.kill(os.getpid(), signal.SIGKILL)

network, root, path = sys.argv[1:]
Path(path).parent.mkdir()
extract(load_checkpoint(network), load_coco(root, "val"), path, batch_size=1, on_images=count)
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
    with pytest.raises(StopError):
        extract(
            *(checkpoint(), split, path),
            batch_size=1,
            skip_bad=True,
            on_images=stopping_after(50),
        )
    with pytest.raises(DatasetError, match=r"0001\.jpg"):
        extract(checkpoint(), split, path, batch_size=1)


def test_what_a_crash_left_behind_a_finished_file_is_removed(checkpoint, coco_tree, tmp_path):
    split, path = load_coco(coco_tree(), "val"), tmp_path / "val.safetensors"
    extract(checkpoint(), split, path)
    left = tmp_path / "val.safetensors.parts"
    left.mkdir()
    assert extract(checkpoint(), split, path).n_computed == 0
    assert not left.exists()


def test_outputs_with_other_settings_are_refused(checkpoint, coco_tree, tmp_path):
    made, split, path = checkpoint(), load_coco(coco_tree(), "val"), tmp_path / "v.safetensors"
    extract(made, split, path)
    tuning = tuning_for(made, Setting("odin", "max", 0.0, 1.0, 0.5))
    with pytest.raises(FileError, match="other settings of ODIN and Mahalanobis"):
        extract(made, split, path, tuning=tuning)
    extract(made, split, path, tuning=tuning, force=True)
    with pytest.raises(FileError, match="other settings of ODIN and Mahalanobis"):
        extract(made, split, path)


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
    split = load_coco(coco_tree(), "val")
    with pytest.raises(ParameterError, match="tuned for another network"):
        extract(checkpoint(), split, tmp_path / "x.safetensors", tuning=tuning)
    with pytest.raises(ParameterError, match="on pooled features, not penultimate"):
        extract(
            checkpoint(seed=1),
            split,
            tmp_path / "x.safetensors",
            tuning=tuning,
            features="penultimate",
        )


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


def test_the_input_size_is_the_networks(checkpoint, coco_tree, tmp_path):
    made = checkpoint(size=64)
    assert made.preprocessing == Preprocessing(64)
    done = extract(made, load_coco(coco_tree(), "val"), tmp_path / "v.safetensors")
    assert Outputs.load(done.path).manifest["preprocessing"]["size"] == 64


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


def test_a_timm_model(coco_tree, tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=3)
    runner = make_runner(
        model,
        features="penultimate",
        label_names=("red", "green", "blue"),
        preprocessing=Preprocessing(32),
    )
    done = extract(runner, load_coco(coco_tree(), "val"), tmp_path / "v.safetensors")
    outputs = Outputs.load(done.path)
    np.testing.assert_allclose(
        outputs.features @ outputs.head.weight.T + outputs.head.bias, outputs.logits, atol=1e-4
    )
    assert outputs.labels.shape == (14, 3)
