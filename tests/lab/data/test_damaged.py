"""Images that cannot be read are found and left out; the kinds of data sets are listed."""

import json

import numpy as np
import pytest

image = pytest.importorskip("PIL.Image")

from nescio.errors import DatasetError
from nescio.lab.data import find_damaged, load_folder


def test_the_list_of_kinds(nescio):
    code, out, _ = nescio("datasets")
    assert code == 0
    assert "imagenet22k" in out
    code, out, _ = nescio("datasets", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows["coco"]["splits"] == ["train", "val", "test"]
    assert rows["table"]["splits"] is None


def test_empty_foreign_and_missing_files_are_found_and_left_out(tmp_path, rng):
    photos, picture = tmp_path, image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8))
    for kind in ("jpg", "png", "gif"):
        picture.save(photos / f"whole.{kind}")
    (photos / "empty.jpg").touch()
    (photos / "page.jpg").write_text("<html>429 Too Many Requests</html>")
    (photos / "gone.jpg").touch()
    split = load_folder(photos)
    (photos / "gone.jpg").unlink()
    counts = []
    bad = {image.file: image.reason for image in find_damaged(split, counts.append)}
    assert sum(counts) == 6
    assert set(bad) == {"empty.jpg", "page.jpg", "gone.jpg"}
    assert "does not exist" in bad["gone.jpg"]
    assert "not an image" in bad["page.jpg"]
    good = split.without(find_damaged(split))
    assert len(good) == len(good.skipped) == 3
    assert good.without(()) is good
    for path in photos.iterdir():
        path.write_bytes(b"")
    damaged = load_folder(photos)
    bad = find_damaged(damaged)
    with pytest.raises(DatasetError, match=r"none of its images in .* can be used: .*empty"):
        damaged.without(bad)
