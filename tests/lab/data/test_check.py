"""The data of a benchmark is checked: damaged images, labels, duplicates, gaps."""

import json

import numpy as np
import pytest

image = pytest.importorskip("PIL.Image")

from nescio.errors import DatasetError
from nescio.lab.data import (
    BadFile,
    Split,
    check_protocol,
    find_damaged,
    load_folder,
    without_damaged,
)


@pytest.fixture
def split(tmp_path):
    """Make a split of files with the contents given; every file is of its own unless told."""

    def make(title, label_names=("cat", "dog"), *, contents=None, labels="one each", skipped=()):
        if contents is None:
            contents = [f"{title} {name}" for name in label_names or "ab"]
        files = [f"{title}/{number}.jpg" for number in range(len(contents))]
        for file, content in zip(files, contents, strict=True):
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text(content)
        if isinstance(labels, str):
            labels = np.eye(len(files), len(label_names), dtype=np.uint8)
        dataset, _, name = title.partition("-")
        return Split(dataset, name, tmp_path, tuple(files), labels, label_names, skipped)

    return make


def examples_of(report, severity=None):
    """Which checks found something, and examples of it."""
    return {
        finding.check: finding.examples
        for finding in report.findings
        if severity in (None, finding.severity)
    }


def test_a_sound_protocol(split):
    report = check_protocol([split("set-train"), split("set-val")], [split("ood", ("ant", "emu"))])
    assert report.ok
    assert examples_of(report) == {}
    assert [tuple(split.values()) for split in report.splits] == [
        ("set-train", "id", 2, 2),
        ("set-val", "id", 2, 2),
        ("ood", "ood", 2, 2),
    ]


@pytest.mark.parametrize(
    ("label", "ood_class", "severity"),
    [
        ("dog", "Dog", "error"),
        ("wine glass", "wine_glasses", "error"),
        ("pottedplant", "potted-plant", "error"),
        ("skis", "ski", "error"),
        ("bus", "buses", "error"),
        ("butterfly", "butterflies", "error"),
        ("toothbrush", "toothbrushes", "error"),
        ("guitar", "electric_guitar", "warning"),
        ("hot dog", "dog", "warning"),
        ("teddy bear", "polar bears", "warning"),
        ("car", "carpet", None),
        ("glass", "glas ware", None),
        ("bus", "bu", None),
        ("x", "_", None),
    ],
)
def test_a_class_that_is_a_label_or_a_kind_of_one(split, label, ood_class, severity):
    report = check_protocol([split("set", (label, "a"))], [split("ood", (ood_class, "b"))])
    assert report.ok == (severity != "error")
    pairs = {"label overlap": (f"{ood_class} ~ {label}",)} if severity else {}
    assert examples_of(report) == examples_of(report, severity) == pairs


def test_the_same_image_in_two_parts_is_an_error(split, tmp_path):
    train = split("set-train", contents=["one", "two"])
    val = split("set-val", contents=["six", "one"])
    ood = split("ood", ("ant", "emu"), contents=["ten", "six"])
    report = check_protocol([train, val], [ood])
    duplicates = [f for f in report.findings if f.check == "duplicate images"]
    assert [(f.severity, f.examples) for f in duplicates] == [
        ("error", (f"{tmp_path}/set-train/0.jpg = {tmp_path}/set-val/1.jpg",)),
        ("error", (f"{tmp_path}/set-val/0.jpg = {tmp_path}/ood/1.jpg",)),
    ]


def test_the_same_image_in_one_part_or_in_two_ood_sets_does_no_harm(split):
    ood = [split(f"ood-{name}", ("ant", "emu"), contents=["one", "two"]) for name in "ab"]
    assert check_protocol([split("set", contents=["six", "six"])], ood).ok


def test_label_sets_that_differ(split):
    other = check_protocol([split("set-train"), split("set-val", ("cat", "cow"))])
    assert examples_of(other, "error") == {"label sets": ("cow", "dog")}
    order = check_protocol([split("set-train"), split("set-val", ("dog", "cat"))])
    assert examples_of(order, "warning") == {"label sets": ()}
    assert order.ok


def test_gaps(split):
    labels = np.array([[1, 0], [0, 0], [1, 0]], dtype=np.uint8)
    bad = BadFile("z.jpg", "missing")
    gappy = split("set", contents=["a", "b", "c"], labels=labels, skipped=(bad,))
    report = check_protocol([gappy])
    assert report.ok
    assert examples_of(report, "warning") == {
        "images without labels": ("set/1.jpg",),
        "labels without images": ("dog",),
        "skipped files": ("z.jpg: missing",),
    }


def test_errors_come_first_and_all_of_it_is_json(split):
    unlabelled = check_protocol([split("set-test", labels=None)], [split("ood", None, labels=None)])
    assert [split["n_labels"] for split in unlabelled.splits] == [2, None]
    report = check_protocol([split("set")], [split("ood", ("dog", "hot cat"))])
    assert [finding.severity for finding in report.findings][:2] == ["error", "warning"]
    read = json.loads(json.dumps(report.as_dict()))
    assert read["ok"] is False
    assert read["findings"][0]["examples"] == ["dog ~ dog"]
    assert read["splits"][1]["title"] == "ood"


# --- the command line ---------------------------------------------------------------------------


def test_the_command_for_one_that_is_not(nescio, coco_tree, class_tree):
    coco, ood = coco_tree(), class_tree(classes=("Reds", "green_lobster"))
    image = next((coco / "val2014").iterdir())
    (ood / "Reds" / "copy.jpg").write_bytes(image.read_bytes())
    command = ["data", "check", "--id", f"coco@val:{coco}", "--ood", f"folder:{ood}"]
    code, out, _ = nescio(*command)
    assert code == 1
    assert "error: objects has 1 class of the in-distribution label set: Reds ~ red" in out
    assert "warning: objects may have 1 class in-distribution" in out
    assert "error: coco-val and objects have 1 image in common" in out
    assert "No errors" not in out


def test_the_command_finds_damaged_images(nescio, coco_tree):
    coco = coco_tree()
    image = coco / "val2014" / "COCO_val2014_000000000003.jpg"
    image.write_bytes(image.read_bytes()[:-20])
    command = ["data", "check", "--id", f"coco@val:{coco}"]
    code, out, _ = nescio(*command)
    assert code == 1
    assert f"error: coco-val has 1 image that cannot be read: cannot read the image {image}" in out
    code, out, _ = nescio(*command, "--skip-bad")
    assert code == 0
    assert "warning: coco-val was read without 1 file: val2014/COCO_val2014_0" in out


def test_the_list_of_kinds(nescio):
    code, out, _ = nescio("data", "list")
    assert code == 0
    assert "imagenet22k" in out
    code, out, _ = nescio("data", "list", "--json")
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
    good = without_damaged(split)
    assert len(good) == len(good.skipped) == 3
    assert good.without(()) is good
    for path in photos.iterdir():
        path.write_bytes(b"")
    with pytest.raises(DatasetError, match=r"none of its images in .* can be used: .*empty"):
        without_damaged(load_folder(photos))
