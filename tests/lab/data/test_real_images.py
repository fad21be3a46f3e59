"""The loaders on real images, if available. See ../shared/data/README.md."""

from pathlib import Path

import pytest

from nescio.lab.data import check_protocol, load
from nescio.models.images import read_image

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"there is no {DATA}")


@pytest.mark.parametrize(
    ("address", "n_images", "n_labels"),
    [
        ("coco@train:{}/coco70", 4800, 70),
        ("coco@val:{}/coco70", 1200, 70),
        ("coco@test:{}/coco70", 1600, 70),
        ("voc-trainval@train:{}/voc20", 3000, 20),
        ("voc-trainval@val:{}/voc20", 1500, 20),
        ("voc-trainval@test:{}/voc20", 1500, 20),
        ("textures:{}/textures10", 1200, 10),
        ("folder:{}/objects54", 1620, 54),
    ],
)
def test_counts(address, n_images, n_labels):
    split = load(address.format(DATA))
    assert len(split) == n_images
    assert len(split.label_names) == n_labels
    assert (split.labels is None) == (split.title == "coco-test")
    image = read_image(split.path(n_images // 2))
    assert (image.mode, image.size) == ("RGB", (256, 256))


def test_the_protocol_is_sound():
    coco = [load(f"coco@{split}:{DATA}/coco70") for split in ("train", "val", "test")]
    report = check_protocol(
        coco, [load(f"textures:{DATA}/textures10"), load(f"folder:{DATA}/objects54")]
    )
    assert report.ok
    warnings = [finding for finding in report.findings if finding.severity == "warning"]
    assert [finding.examples for finding in warnings] == [("sea_horse ~ horse",)]
