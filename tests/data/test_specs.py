import subprocess
import sys

import pytest

import nescio.data
from nescio.data import DATASETS, Spec, load, parse_spec, split_spec
from nescio.errors import ParameterError


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("coco@val:/data/coco", Spec("coco", "val", "/data/coco")),
        ("textures:/data/dtd", Spec("textures", "", "/data/dtd")),
        ("imagenet22k@nus-wide:x", Spec("imagenet22k", "nus-wide", "x")),
        (r"folder:C:\my photos@home", Spec("folder", "", r"C:\my photos@home")),
    ],
)
def test_a_spec_is_read_and_written(text, spec):
    assert parse_spec(text) == spec
    assert str(spec) == text


@pytest.mark.parametrize("text", ["/data/coco", "coco", "coco:", "coco@:/data", "", "coco@val"])
def test_a_spec_that_cannot_be_read(text):
    with pytest.raises(ParameterError, match=r"expected KIND:PATH or KIND@SPLIT:PATH.*coco, voc"):
        parse_spec(text)


def test_an_unknown_kind():
    with pytest.raises(
        ParameterError, match=r"no kind of data set 'cifar' .*: coco, voc, nus-wide"
    ):
        load("cifar@train:/data")


def test_splits_that_are_unknown_missing_or_too_many(tmp_path):
    with pytest.raises(ParameterError, match=r"coco has no split 'dev'. Choose from: train, val"):
        load(f"coco@dev:{tmp_path}")
    with pytest.raises(ParameterError, match=r"coco needs a split: coco@SPLIT:PATH .* train, val"):
        load(f"coco:{tmp_path}")
    with pytest.raises(ParameterError, match="textures has no splits, got 'train'"):
        load(f"textures@train:{tmp_path}")


def test_another_split_of_the_same_data():
    assert split_spec("coco:/data", "train") == "coco@train:/data"
    assert split_spec("coco@val:/data", "train") == "coco@train:/data"
    assert split_spec("table:own.csv", "dev") == "table@dev:own.csv"
    assert split_spec("folder:x", "") == "folder:x"
    with pytest.raises(ParameterError, match="no split 'dev'"):
        split_spec("coco:/data", "dev")
    with pytest.raises(ParameterError, match="no splits"):
        split_spec("folder:x", "train")


def test_loading_by_spec(coco_tree, class_tree, tmp_path, monkeypatch):
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


def test_the_registry_says_what_each_kind_is():
    assert list(DATASETS) == [
        "coco", "voc", "nus-wide", "imagenet22k", "textures", "folder", "table", "digits",
    ]  # fmt: skip
    for name, source in DATASETS.items():
        assert source.name == name
        assert source.what
        assert source.root_help


def test_every_public_name_is_there():
    assert all(hasattr(nescio.data, name) for name in nescio.data.__all__)


def test_data_needs_neither_torch_nor_pillow_to_be_imported():
    code = "import sys, nescio.data; print([m for m in ('torch', 'PIL') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
