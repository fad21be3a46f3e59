"""nescio convert."""

import json
import shutil
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torch import nn  # noqa: E402

from nescio.networks.checkpoint import load_checkpoint  # noqa: E402
from nescio.networks.paper import load_paper_checkpoint  # noqa: E402
from nescio.outputs import Outputs  # noqa: E402


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


def test_a_checkpoint_of_the_paper_is_converted(nescio, coco_tree, tmp_path):
    backbone, head = paper_files(tmp_path, 3)
    coco = f"coco:{coco_tree()}"
    target = tmp_path / "coco.safetensors"
    command = ("convert", "densenet121", "--weights", backbone, "--head", head, "--labels")
    code, said, err = nescio(*command, coco, "-o", target, "--json")
    assert code == 0, err
    assert json.loads(said)["label_names"] == ["red", "green", "blue"]
    loaded = load_checkpoint(target)
    assert loaded.label_names == ("red", "green", "blue")
    assert loaded.preprocessing.size == 256
    images = torch.randn(1, 3, 64, 64)
    expected = load_paper_checkpoint("densenet121", backbone, head).eval()(images)
    assert torch.equal(loaded.network(images), expected)
    code, _, err = nescio(*command, backbone, "-o", tmp_path / "x.safetensors")
    assert (code, "not a text file" in err) == (1, True)
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\n")
    code, _, err = nescio(*command, names, "-o", tmp_path / "x.safetensors")
    assert code == 1
    assert "has 3 labels" in err


def test_from_the_authors_files_to_the_tables(nescio, paper_data, tmp_path):
    """The shortest route of docs/how-to/reproduce-the-paper.md, with the names of their code."""
    backbone, head = paper_files(tmp_path, 20)
    head = head.rename(tmp_path / "densenetclssegsimp.pth")
    names = {name.removeprefix("module.") for name in torch.load(backbone)}
    assert names >= {"0.weight", "1.running_mean", "4.denselayer1.norm1.weight", "11.bias"}
    assert {name.removeprefix("module.") for name in torch.load(head)} == {
        *(f"way1.0.{name}" for name in ("weight", "bias")),
        *(f"way1.1.{name}" for name in ("weight", "bias", "running_mean", "running_var")),
        *("way1.1.num_batches_tracked", "cls.weight", "cls.bias"),
    }
    target = tmp_path / "voc.safetensors"
    code, _, err = nescio(
        *("convert", "densenet121", "--weights", backbone, "--head", head),
        *("--labels", f"voc:{paper_data}", "--image-size", 32, "-o", target),
    )
    assert code == 0, err
    spec = tmp_path / "theirs.toml"
    spec.write_text(
        'title = "The authors\' networks"\nbootstrap = 0\npaper_tables = ["main"]\n'
        'detectors = ["max_logit", "lof", "joint_energy"]\n'
        '[[sets]]\nname = "PASCAL-VOC"\ndata = "voc:{data}"\n'
        f'ood = {{ ImageNet = "folder:{{data}}/imagenet22k" }}\nnetwork = "{target}"\n'
    )
    command = ("bench", spec, "--data", paper_data, "-o", tmp_path / "bench")
    code, out, err = nescio(*command, "--protocol", "authors")
    assert code == 0, err
    assert "nescio beside Table 1" in out
    code, out, err = nescio("tables", tmp_path / "bench" / "theirs-authors", "--paper", "main")
    assert (code, "Protocol: authors." in out) == (0, True), err


def test_label_names_need_no_complete_set_of_photographs(nescio, paper_data, tmp_path):
    """Most copies of NUS-WIDE lack some."""
    lists = shutil.copytree(paper_data / "nus-wide", tmp_path / "nus-wide")
    for photo in (lists / "Flickr" / "test").glob("000*"):
        photo.unlink()
    backbone, head = paper_files(tmp_path, 81)
    code, out, err = nescio(
        *("convert", "densenet121", "--weights", backbone, "--head", head, "--json"),
        *("--labels", f"nus-wide:{lists}", "-o", tmp_path / "nus-wide.safetensors"),
    )
    assert code == 0, err
    assert len(json.loads(out)["label_names"]) == 81


def test_a_network_of_ones_own_is_converted_and_extracted(nescio, own_module, coco_tree, tmp_path):
    name = f"module:{own_module}"
    torch.save(sys.modules.get("my_nets", __import__("my_nets")).make().state_dict(), "w.pth")
    data, target = f"coco@val:{coco_tree()}", tmp_path / "own.safetensors"
    code, _, err = nescio(
        *("convert", name, "--weights", "w.pth", "--features", "4", "--labels", data),
        *("--image-size", 32, "--std", "0.5,0.5,0.5", "-o", target),
    )
    assert code == 0, err
    extract = ("extract", target, data, "-o", tmp_path / "out")
    code, _, err = nescio(*extract)
    assert (code, "--module" in err) == (1, True)
    code, _, err = nescio(*extract, "--module", own_module)
    assert code == 0, err
    assert Outputs.load(tmp_path / "out" / "coco-val.safetensors").features.shape == (14, 4)
