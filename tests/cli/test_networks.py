"""nescio train, tune, extract and convert: from images to a table, as a user types it."""

import json
import shutil
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torch import nn

from nescio.lab.networks.network import load_checkpoint, load_paper_checkpoint
from nescio.outputs import Outputs


@pytest.fixture
def few_images(tmp_path):
    """Options of `tune` that take few images."""
    (tmp_path / "few.toml").write_text("images = 4\n")
    return "--config", tmp_path / "few.toml"


def test_from_nothing_to_a_table_in_four_commands(
    nescio, succeeds, coco_tree, class_tree, tmp_path, config, few_images
):
    coco = f"coco:{coco_tree(sizes=(('train', 48), ('val', 21), ('test', 30)))}"
    objects = f"folder:{class_tree(n_images=10)}"
    (tmp_path / "train.toml").write_text(config())
    run, out = tmp_path / "run", tmp_path / "outputs"
    network = run / "best.safetensors"
    out.mkdir()
    code, said, err = nescio(
        *("train", coco, "-o", run, "--config", tmp_path / "train.toml", "--epochs", 3)
    )
    assert code == 0, err
    assert f"checkpoint           {network}" in said
    assert "epoch   3 of 3: train loss" in err
    said = succeeds("tune", network, coco, "-o", out / "tuned.json", *few_images)
    assert said.count("odin") == 2
    said = succeeds(
        *("extract", network, coco.replace("coco:", "coco@test:"), objects),
        *("--tuned", out / "tuned.json", "-o", out),
    )
    assert "30 images (30 computed" in said
    assert "images per second" in said
    evaluate = ("eval", "--id", out / "coco-test.safetensors")
    evaluate += ("--ood", out / "objects.safetensors", "--bootstrap", 0)
    report = json.loads(succeeds(*evaluate, "--train", out / "coco-train.safetensors", "--json"))
    # No held-out outputs are passed, and there are 48 training images.
    assert set(report["skipped"]) == {"combined", "default", "nnguide"}
    assert {line["detector"] for line in report["results"]} >= {"odin", "mahalanobis_perturbed"}
    succeeds(*evaluate, "--detector", "odin(aggregate=sum)")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "-o", "x"), "name the data"),
        (("train", "coco@train:/nowhere", "-o", "x"), "single split"),
        (("train", "folder:/nowhere", "-o", "x"), "folder has no split 'train'"),
        (("train", "coco:/nowhere", "-o", "x", "--resume", "--force"), "choose one"),
        (("train", "coco:/nowhere", "-o", "x"), "not found"),
        (("extract", "missing.safetensors", "folder:/x", "-o", "x"), "no file missing"),
        (("tune", "missing.safetensors", "coco:/x", "-o", "x.json"), "no file missing"),
        (("train", "coco:/nowhere", "-o", "x", "--device", "tpu"), "device"),
    ],
)
def test_mistakes_are_explained_and_write_nothing(fails, tmp_path, arguments, words):
    err = fails(*arguments)
    assert words in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_training_data_of_ones_own_needs_no_split(succeeds, coco_tree, tmp_path, config):
    root = coco_tree()
    for part in ("train", "val"):
        files = sorted((root / f"{part}2014").iterdir())
        rows = [
            f"coco/{part}2014/{file.name},{'red' if index % 2 else 'blue;green'}"
            for index, file in enumerate(files)
        ]
        (tmp_path / f"{part}.csv").write_text("\n".join(["path,labels", *rows]) + "\n")
    (tmp_path / "train.toml").write_text(config())
    succeeds(
        *("train", "--train", "table:train.csv", "--val", "table:val.csv", "-o", "run"),
        *("--config", "train.toml", "--epochs", 1),
    )
    assert load_checkpoint("run/best.safetensors").label_names == ("blue", "green", "red")


@pytest.fixture
def two_networks(checkpoint, tmp_path):
    """Two networks of one kind, 0.safetensors and 1.safetensors."""
    for seed in (0, 1):
        checkpoint(seed=seed).save(tmp_path / f"{seed}.safetensors")


@pytest.mark.usefixtures("two_networks")
def test_tuning_is_for_its_own_network(succeeds, fails, coco_tree, tmp_path, few_images):
    coco = coco_tree(sizes=(("train", 30), ("val", 14)))
    command = ("tune", tmp_path / "0.safetensors", f"coco:{coco}", *few_images)
    said = succeeds(*command, "-o", "tuned.json", "--aggregate", "max", "--json")
    assert [best["method"] for best in json.loads(said)["best"]] == ["mahalanobis", "odin"]
    assert "tuned for another network" in fails(
        *("extract", tmp_path / "1.safetensors", f"coco@val:{coco}", "-o", "out"),
        *("--tuned", "tuned.json"),
    )


@pytest.mark.usefixtures("two_networks")
def test_tune_makes_its_folder_and_leaves_out_bad_images(succeeds, fails, coco_tree, tmp_path):
    coco = coco_tree(sizes=(("train", 30), ("val", 14)))
    bad = sorted((coco / "val2014").iterdir())[0]
    bad.write_bytes(b"no image")
    target = tmp_path / "new" / "folder" / "tuned.json"
    command = ("--aggregate", "max", "-o", target)
    assert bad.name in fails("tune", tmp_path / "0.safetensors", f"coco:{coco}", *command)
    succeeds("tune", tmp_path / "0.safetensors", f"coco:{coco}", *command, "--skip-bad")
    assert json.loads(target.read_text())["data"]["n_images"] == 13
    # Another network: the training outputs beside the settings are replaced with them.
    again = ("tune", tmp_path / "1.safetensors", f"coco:{coco}", *command, "--skip-bad")
    fails(*again)
    succeeds(*again, "--force")


@pytest.mark.usefixtures("two_networks")
def test_extract_again_is_up_to_date_and_refuses_another_network(
    succeeds, fails, coco_tree, tmp_path
):
    data = f"coco@val:{coco_tree()}"
    command = ("extract", tmp_path / "0.safetensors", data, "-o", tmp_path / "out")
    succeeds(*command)
    assert "up to date" in succeeds(*command)
    assert "made by another network" in fails("extract", tmp_path / "1.safetensors", *command[2:])


def test_bad_images_end_the_command_or_are_counted(
    succeeds, fails, checkpoint, class_tree, tmp_path
):
    root = class_tree()
    (root / "anchor" / "0000.jpg").write_bytes(b"")
    checkpoint().save(tmp_path / "net.safetensors")
    command = ("extract", tmp_path / "net.safetensors", f"folder:{root}", "-o", tmp_path / "out")
    assert "0000.jpg" in fails(*command)
    assert not (tmp_path / "out" / "objects.safetensors").exists()
    said = succeeds(*command, "--skip-bad", "--json")
    (report,) = json.loads(said)
    assert (report["n_images"], len(report["skipped"])) == (5, 1)


def test_the_runtime_is_reported(nescio, succeeds, fails, checkpoint, class_tree, tmp_path):
    checkpoint().save(tmp_path / "net.safetensors")
    command = ("extract", tmp_path / "net.safetensors", f"folder:{class_tree()}", "-o", tmp_path)
    code, said, _ = nescio(*command, "--runtime", "torch", "--json")
    (result,) = json.loads(said)
    assert (code, result["runtime"]["runtime"]) == (0, "torch")
    assert Outputs.load(tmp_path / "objects.safetensors").manifest["runtime"] == "torch"
    assert "there are few batches" in succeeds(*command, "--force", "--batch-size", "3")
    assert "runtime must be 'auto' or 'torch' or 'onnxruntime'" in fails(
        *command, "--runtime", "fast"
    )


def paper_files(folder, n_labels):
    """A checkpoint as the paper's repository writes it, and the network that it holds."""
    import torchvision

    torch.manual_seed(0)
    backbone = nn.Sequential(*torchvision.models.densenet121(weights=None).features, nn.ReLU())
    head = nn.Module()
    head.way1 = nn.Sequential(nn.Linear(1024, 1000), nn.BatchNorm1d(1000), nn.ReLU())
    head.cls = nn.Linear(1000, n_labels)
    files = folder / "densenet.pth", folder / "densenetclsfier.pth"
    for module, file in zip((backbone, head), files, strict=True):
        state = {f"module.{name}": value for name, value in module.state_dict().items()}
        torch.save(state, file)
    return files


def test_a_checkpoint_of_the_paper_is_converted(succeeds, fails, coco_tree, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "empty"))
    backbone, head = paper_files(tmp_path, 3)
    coco = f"coco:{coco_tree()}"
    target = tmp_path / "coco.safetensors"
    command = ("convert", "densenet121", "--weights", backbone, "--head", head, "--labels")
    said = succeeds(*command, coco, "-o", target, "--json")
    assert json.loads(said)["label_names"] == ["red", "green", "blue"]
    assert json.loads(said)["training code"].startswith("unknown without ImageNet's weights")
    loaded = load_checkpoint(target)
    assert loaded.label_names == ("red", "green", "blue")
    assert loaded.preprocessing.size == 256
    images = torch.randn(1, 3, 64, 64)
    expected = load_paper_checkpoint("densenet121", backbone, head).eval()(images)
    assert torch.equal(loaded.network(images), expected)
    assert "not a text file" in fails(*command, backbone, "-o", tmp_path / "x.safetensors")
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\n")
    assert "has 3 labels" in fails(*command, names, "-o", tmp_path / "x.safetensors")


@pytest.mark.filterwarnings("ignore:ImageNet has:nescio.errors.ImplausibleValuesWarning")
def test_from_the_authors_files_to_the_tables(nescio, succeeds, paper_data, tmp_path):
    """The shortest route of docs/how-to/reproduce-the-paper.md, with the names of their code."""
    backbone, head = paper_files(tmp_path, 20)
    head = head.rename(tmp_path / "densenetclssegsimp.pth")
    target = tmp_path / "voc.safetensors"
    succeeds(
        *("convert", "densenet121", "--weights", backbone, "--head", head),
        *("--labels", f"voc:{paper_data}", "--image-size", 32, "-o", target),
    )
    spec = tmp_path / "theirs.toml"
    spec.write_text(
        'title = "The authors\' networks"\nbootstrap = 0\npaper_tables = ["main"]\n'
        'detectors = ["max_logit", "lof", "joint_energy"]\n'
        '[[sets]]\nname = "PASCAL-VOC"\ndata = "voc:{data}"\n'
        f'ood = {{ ImageNet = "folder:{{data}}/imagenet22k" }}\nnetwork = "{target}"\n'
    )
    command = ("bench", spec, "--data", paper_data, "-o", tmp_path / "bench")
    out = succeeds(*command, "--protocol", "authors")
    assert "nescio beside Table 1" in out
    assert "Protocol: authors." in succeeds(
        "tables", tmp_path / "bench" / "theirs-authors", "--paper", "main"
    )


def test_label_names_need_no_complete_set_of_photographs(succeeds, paper_data, tmp_path):
    """Most copies of NUS-WIDE lack some."""
    lists = shutil.copytree(paper_data / "nus-wide", tmp_path / "nus-wide")
    for photo in (lists / "Flickr" / "test").glob("000*"):
        photo.unlink()
    backbone, head = paper_files(tmp_path, 81)
    out = succeeds(
        *("convert", "densenet121", "--weights", backbone, "--head", head, "--json"),
        *("--labels", f"nus-wide:{lists}", "-o", tmp_path / "nus-wide.safetensors"),
    )
    assert len(json.loads(out)["label_names"]) == 81


def test_a_network_of_ones_own_is_converted_and_extracted(
    nescio, succeeds, fails, own_module, coco_tree, tmp_path
):
    name = f"module:{own_module}"
    torch.save(sys.modules.get("my_nets", __import__("my_nets")).make().state_dict(), "w.pth")
    data, target = f"coco@val:{coco_tree()}", tmp_path / "own.safetensors"
    succeeds(
        *("convert", name, "--weights", "w.pth", "--features", "4", "--labels", data),
        *("--image-size", 32, "--std", "0.5,0.5,0.5", "-o", target),
    )
    extract = ("extract", target, data, "-o", tmp_path / "out")
    assert "--module" in fails(*extract)
    succeeds(*extract, "--module", own_module)
    assert Outputs.load(tmp_path / "out" / "coco-val.safetensors").features.shape == (14, 4)
    layers = ("--image-size", "32", "--features", "pooled,0,penultimate", "--force")
    assert nescio("extract", name, data, "-o", tmp_path / "out", *layers)[0] == 0
    outputs = Outputs.load(tmp_path / "out" / "coco-val.safetensors")
    assert (outputs.features.shape[1], set(outputs.arrays)) == (4, {"0", "penultimate"})
