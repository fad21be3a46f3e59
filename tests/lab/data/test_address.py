import subprocess
import sys

import pytest

from nescio.errors import ParameterError
from nescio.lab.data import DataAddress, load, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("coco@val:/data/coco", DataAddress("coco", "val", "/data/coco")),
        ("textures:/data/dtd", DataAddress("textures", "", "/data/dtd")),
        ("imagenet22k@nus-wide:x", DataAddress("imagenet22k", "nus-wide", "x")),
        (r"folder:C:\my photos@home", DataAddress("folder", "", r"C:\my photos@home")),
    ],
)
def test_an_address_is_parsed_and_written(text, address):
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["/data/coco", "coco", "coco:", "coco@:/data", "", "coco@val"])
def test_an_invalid_address(text):
    with pytest.raises(ParameterError, match=r"expected KIND:PATH or KIND@SPLIT:PATH.*coco, voc"):
        parse_address(text)
    with pytest.raises(ParameterError, match=r"no kind of data set 'cifar' .*: coco, voc, voc-t"):
        load("cifar@train:/data")


def test_splits_that_are_unknown_missing_or_too_many(tmp_path):
    with pytest.raises(ParameterError, match=r"coco has no split 'dev'. Choose from: train, val"):
        load(f"coco@dev:{tmp_path}")
    with pytest.raises(ParameterError, match=r"coco has no split ''. Choose from: train, val"):
        load(f"coco:{tmp_path}")
    with pytest.raises(ParameterError, match=r"textures has no split 'train'\. It has no splits"):
        load(f"textures@train:{tmp_path}")


def test_loading_by_address(coco_tree, class_tree, tmp_path, monkeypatch):
    root = coco_tree()
    assert load(f"coco@val:{root}").title == "coco-val"
    assert load(f"coco@val:{root}", split="train").title == "coco-train"
    (root / "val2014" / "COCO_val2014_000000000003.jpg").unlink()
    assert len(load(f"coco@val:{root}", skip_bad=True).skipped) == 1
    monkeypatch.setenv("HOME", str(tmp_path))
    class_tree("things")
    assert load("folder:~/things").title == "things"
    (tmp_path / "own.csv").write_text("path,labels,split\nthings/anchor/0000.jpg,anchor,val\n")
    assert load(f"table@val:{tmp_path / 'own.csv'}").title == "own-val"


def test_data_needs_neither_torch_nor_pillow_to_be_imported():
    code = "import sys, nescio.lab.data; print([m for m in ('torch', 'PIL') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
