"""The loaders on real images, if available. See ../shared/data/README.md."""

from pathlib import Path

import pytest

from nescio.lab.data import load
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
