"""A split: its images and labels, how it is addressed, and how its images are read."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from nescio.errors import DatasetError, LabelMismatchError, ParameterError
from nescio.lab.data import DataAddress, Split, load, load_coco, parse_address
from nescio.lab.data.split import Augmentation, Reader, checked_presence, in_batches
from nescio.models.images import Preprocessing

LABELS = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], dtype=np.uint8)


@pytest.fixture
def split(tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.jpg").write_text(name)
    files = tuple(f"{name}.jpg" for name in "abcd")
    return Split("set", "val", tmp_path, files, LABELS, ("cat", "dog"))


def test_parts_of_a_split(split, tmp_path):
    some = split.subset([2, 0])
    assert some.files == ("c.jpg", "a.jpg")
    np.testing.assert_array_equal(some.labels, [[1, 1], [1, 0]])
    assert split.path(1) == tmp_path / "b.jpg"
    assert repr(split) == "Split(set-val: 4 images, 2 labels)"
    assert split.sample(4, seed=0) is split
    chosen = split.sample(2, seed=0)
    assert chosen.files == split.sample(2, seed=0).files
    assert list(chosen.files) == sorted(chosen.files)
    assert len(chosen) == 2


def test_labels_in_another_order(split):
    np.testing.assert_array_equal(split.require_labels(["dog", "cat"]), LABELS[:, ::-1])
    assert split.labels_for(["dog", "cow"]) is None
    with pytest.raises(LabelMismatchError, match="Missing: 'cow'"):
        split.require_labels(["dog", "cow"])
    with pytest.raises(DatasetError, match=r"set-val in .* has no labels"):
        replace(split, labels=None).require_labels()


def test_a_split_that_makes_no_sense(split):
    with pytest.raises(DatasetError, match="set-val has no images"):
        replace(split, files=())
    with pytest.raises(DatasetError, match=r"have shape \(4, 2\), but there are 4 images and 3"):
        replace(split, label_names=("a", "b", "c"))


def test_the_fingerprint_tells_files_and_labels_apart(split, tmp_path):
    before = split.fingerprint
    assert split.manifest()["data_fingerprint"] == before
    assert split.subset([0, 1, 3, 2]).fingerprint != before
    assert replace(split, labels=1 - LABELS).fingerprint != before
    (tmp_path / "a.jpg").write_text("longer")
    assert split.fingerprint == before, "it is computed once"
    assert replace(split).fingerprint != before


def test_only_the_first_missing_files_are_named(tmp_path):
    split = Split("set", "", tmp_path, tuple(f"{number}.jpg" for number in range(5)), None, None)
    with pytest.raises(DatasetError, match=r"5 images .*/0.jpg, .*/1.jpg, .*/2.jpg and 2 more\."):
        checked_presence(split, skip_bad=False)


def test_the_content_tells_images_of_equal_size_apart(tmp_path):
    """In the first, middle or last bytes of a file."""
    size = 40_000
    file = tmp_path / "a.jpg"
    file.write_bytes(bytes(size))
    split = Split("set", "", tmp_path, ("a.jpg", "gone.jpg"), None, None)
    before = split.manifest()
    for place in (0, size // 2, size - 1):
        content = bytearray(size)
        content[place] = 1
        file.write_bytes(content)
        after = replace(split).manifest()
        assert after["data_fingerprint"] == before["data_fingerprint"]
        assert after["data_sample"] != before["data_sample"]


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
    with pytest.raises(
        ParameterError, match=r"expected KIND:PATH or KIND@SPLIT:PATH.*coco, coco2017"
    ):
        parse_address(text)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("coco@dev:x", "coco has no split 'dev'. Choose from: train, val"),
        ("coco:x", "coco has no split ''. Choose from: train, val"),
        ("textures@train:x", "textures has no split 'train'. It has no splits"),
        ("cifar@train:x", "no kind of data set 'cifar' .*: coco, coco2017, voc, voc-t"),
    ],
)
def test_kinds_and_splits_that_are_unknown_missing_or_too_many(address, message):
    with pytest.raises(ParameterError, match=message):
        load(address)


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
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "[]"


def test_pixels_are_squashed_to_a_square_and_normalised(coco_tree):
    torch = pytest.importorskip("torch")
    split = load_coco(coco_tree(pixels=20), "val")
    preprocessing = Preprocessing(12, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    (pixels,) = Reader(split, preprocessing).batches([[0, 3]])
    assert (pixels.shape, pixels.dtype) == ((2, 3, 12, 12), np.uint8)
    inputs = preprocessing.inputs(torch.from_numpy(pixels), torch.device("cpu"))
    expected = (pixels.astype(np.float64) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(inputs.numpy(), expected, rtol=1e-5, atol=1e-6)
    # Image 0 is red only: bright there, dark elsewhere.
    bright = pixels[0].mean((1, 2))
    assert bright[0] > 180 > 80 > bright[1:].max()


def test_batches_come_in_order_for_any_number_of_threads(coco_tree, monkeypatch):
    split = load_coco(coco_tree(sizes=(("train", 30),)), "train")
    reader = Reader(split, Preprocessing(16), Augmentation(), (1, 2))
    alone = [reader.pixels(index) for index in range(30)]
    for n_threads in (1, 5):
        monkeypatch.setattr("nescio.lab.data.split.available_cpus", lambda: n_threads)  # noqa: B023
        assert np.array_equal(np.concatenate([*reader.batches(in_batches(30, 4))]), alone)


def test_a_crop_depends_on_seed_and_index_alone(coco_tree):
    reader = Reader(load_coco(coco_tree(), "train"), Preprocessing(16), Augmentation(), (0, 1))
    (alone,), (among,) = reader.batches([[5]]), reader.batches([[2, 5, 7]])
    assert np.array_equal(alone[0], among[1])
    later_epochs = [replace(reader, seed=(0, epoch)).pixels(5) for epoch in range(2, 6)]
    assert any(not np.array_equal(other, alone[0]) for other in later_epochs)


def test_crops_keep_within_the_image_and_the_share(rng):
    augmentation = Augmentation((0.4, 0.6))
    shares, flat = [], Augmentation((0.9, 1.0))
    for _ in range(300):
        left, top, right, bottom = augmentation.box(60, 40, rng)
        assert 0 <= left < right <= 60
        assert 0 <= top < bottom <= 40
        shares.append((right - left) * (bottom - top) / 2400)
        # No crop of nearly all of it has a ratio within bounds: its middle is taken.
        left, top, right, bottom = flat.box(200, 10, rng)
        assert (bottom - top, right - left) == (10, 13)
    assert 0.37 < min(shares) < max(shares) < 0.63
    assert np.std(shares) > 0.03


def test_a_share_above_1_often_keeps_the_whole_image(rng):
    """As the authors' code asks for crops of up to twice the area, and torchvision answers."""
    boxes = [Augmentation((0.5, 2.0)).box(60, 50, rng) for _ in range(200)]
    whole = boxes.count((0, 0, 60, 50))
    assert 0 < whole < 200


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Preprocessing(4), "image size"),
        (lambda: Preprocessing((16, 32)), r"of a square; normalise other images yourself.*16, 32"),
        (lambda: Preprocessing(32, mean=(0.5, 0.5)), "mean must be three"),
        (lambda: Preprocessing(32, std=(1.0, 0.0, 1.0)), "std must be greater than 0"),
        (lambda: Augmentation((1.5, 2.0)), "crop_scale"),
        (lambda: Augmentation((0.5, float("inf"))), "crop_scale"),
    ],
)
def test_bad_settings_are_refused(make, words):
    with pytest.raises(ParameterError, match=words):
        make()
