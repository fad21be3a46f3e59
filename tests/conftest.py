"""What several tests share."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from browser import chromium, launched
from nescio.cli import main

pytest_plugins = [
    "fixtures.benchmark",
    "fixtures.export",
    "fixtures.models",
    "fixtures.networks",
    "fixtures.paper_data",
    "fixtures.serving",
]

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items):
    """Begin with the files that take long: at the end, one of them would keep one process busy."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def nescio(capsys):
    """Run a command line; gives (exit code, standard output, standard error)."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def succeeds(nescio):
    """Run a command line that succeeds; gives its standard output."""

    def run(*arguments):
        code, out, err = nescio(*arguments)
        assert code == 0, err
        return out

    return run


@pytest.fixture
def fails(nescio):
    """Run a command line that fails with one error; gives its standard error."""

    def run(*arguments):
        code, out, err = nescio(*arguments)
        assert (code, out) == (1, ""), err
        assert err.count("error: ") == 1
        return err

    return run


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium."""
    program = chromium()
    if program is None:
        pytest.skip("chromium is not installed")
    with launched(program, tmp_path_factory.mktemp("profile")) as driven:
        yield driven


def tiny_image(path: Path, colour, *, noise, size=16) -> None:
    """A small JPEG of one colour with a little noise, so that no two files are the same."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.clip(np.asarray(colour) + noise.normal(0, 12, size=(size, size, 3)), 0, 255)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(pixels.astype(np.uint8)).save(path, quality=95)


@pytest.fixture
def coco_tree(tmp_path):
    """Make a tiny data set in the layout of MS-COCO 2014 whose colours tell the labels.

    Each label is one channel (red, green, blue), bright where an image has it: a network can
    learn that in seconds. Gives the folder. Image i of a split has the labels that are the bits
    of i modulo 7, plus one, so every image has at least one.
    """

    def make(name="coco", *, sizes=(("train", 21), ("val", 14), ("test", 7)), pixels=16, seed=0):
        root, noise = tmp_path / name, np.random.default_rng(seed)
        names = ("red", "green", "blue")
        categories = [{"id": 3 * index + 1, "name": label} for index, label in enumerate(names)]
        for split, n_images in sizes:
            images, annotations = [], []
            for index in range(n_images):
                has = [index % 7 + 1 >> bit & 1 for bit in range(3)]
                file = f"COCO_{split}2014_{index:012}.jpg"
                colour = [220 if positive else 30 for positive in has]
                tiny_image(root / f"{split}2014" / file, colour, noise=noise, size=pixels)
                images.append({"id": index, "file_name": file})
                annotations += [
                    {"image_id": index, "category_id": category["id"], "iscrowd": 0}
                    for category, positive in zip(categories, has, strict=True)
                    if positive
                ]
            content = {"images": images, "categories": categories}
            kind = "image_info" if split == "test" else "instances"
            if split != "test":
                content["annotations"] = annotations
            target = root / "annotations" / f"{kind}_{split}2014.json"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(content))
        return root

    return make


@pytest.fixture
def class_tree(tmp_path):
    """Make a folder of class folders with tiny grey images, each class of its own brightness."""

    def make(name="objects", *, classes=("anchor", "lobster"), n_images=3, pixels=16, seed=1):
        root, noise = tmp_path / name, np.random.default_rng(seed)
        for index, label in enumerate(classes):
            grey = [100 + 10 * index] * 3
            for number in range(n_images):
                tiny_image(root / label / f"{number:04}.jpg", grey, noise=noise, size=pixels)
        return root

    return make
