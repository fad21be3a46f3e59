"""Damaged images are found, and whole ones are never taken for damaged."""

import numpy as np
import pytest

from nescio.data import find_damaged, images as reading, load_folder, read_image
from nescio.data.damage import without, without_damaged
from nescio.errors import DatasetError

image = pytest.importorskip("PIL.Image")

KINDS = ("jpg", "png", "gif", "webp", "bmp", "tif")


@pytest.fixture
def photos(tmp_path, rng):
    """A folder with one image of each kind, and the split of it."""
    picture = image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8))
    for kind in KINDS:
        picture.save(tmp_path / f"whole.{kind}")
    return tmp_path


@pytest.mark.parametrize("how", ["fast", "full"])
def test_whole_images_are_whole(photos, how):
    counts = []
    assert find_damaged(load_folder(photos), how, on_images=counts.append) == ()
    assert sum(counts) == len(KINDS)


@pytest.mark.parametrize("how", ["fast", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_of_any_kind_is_found(photos, how, kind):
    """Its header is intact."""
    path = photos / f"whole.{kind}"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    [bad] = find_damaged(load_folder(photos), how)
    assert bad.file == path.name
    assert str(path) in bad.reason


@pytest.mark.parametrize("how", ["fast", "full"])
def test_empty_foreign_and_missing_files_are_found(photos, how):
    (photos / "empty.jpg").touch()
    (photos / "page.jpg").write_text("<html>429 Too Many Requests</html>")
    (photos / "gone.jpg").touch()
    split = load_folder(photos)
    (photos / "gone.jpg").unlink()
    bad = {one.file: one.reason for one in find_damaged(split, how)}
    assert set(bad) == {"empty.jpg", "page.jpg", "gone.jpg"}
    assert "does not exist" in bad["gone.jpg"]
    assert "not an image" in bad["page.jpg"]


@pytest.mark.parametrize("kind", ["jpg", "png", "gif"])
def test_bytes_after_the_end_do_no_harm(photos, kind):
    """Cameras and web servers add some."""
    path = photos / f"whole.{kind}"
    path.write_bytes(path.read_bytes() + b"\0" * 20)
    read_image(path)
    assert find_damaged(load_folder(photos)) == ()


def test_only_a_full_check_finds_damage_in_the_middle(photos):
    path = photos / "whole.png"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 200] = bytes(200)
    path.write_bytes(content)
    assert find_damaged(load_folder(photos), "fast") == ()
    assert [bad.file for bad in find_damaged(load_folder(photos), "full")] == ["whole.png"]


def test_a_fast_check_decodes_no_usual_photograph(photos, monkeypatch):
    for kind in ("webp", "bmp", "tif"):
        (photos / f"whole.{kind}").unlink()
    monkeypatch.setattr(reading, "_rgb", lambda image: pytest.fail("decoded"))
    assert find_damaged(load_folder(photos), "fast") == ()


def test_damaged_images_are_left_out(class_tree):
    root = class_tree(n_images=3)
    bad = root / "anchor" / "0001.jpg"
    bad.write_bytes(bad.read_bytes()[:100])
    good = without_damaged(load_folder(root, ""))
    assert len(good) == 5
    assert [item.file for item in good.skipped] == ["anchor/0001.jpg"]
    assert good.labels.sum(0).tolist() == [2, 3]
    whole = load_folder(class_tree("others"))
    assert without(whole, ()) is whole


def test_a_split_without_any_whole_image(class_tree):
    root = class_tree(classes=("anchor",), n_images=2)
    for path in (root / "anchor").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DatasetError, match=r"none of the images of objects can be read: .*0000"):
        without_damaged(load_folder(root))
