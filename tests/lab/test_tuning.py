import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.errors import FileFormatError, ParameterError
from nescio.lab.data import SYNTHETIC_SETS, load_coco
from nescio.lab.extraction import extract
from nescio.lab.perturbation import Setting, Tuning, synthetic_sets, tune
from nescio.lab.settings import OdinSettings, TuneSettings
from nescio.models.images import Preprocessing
from nescio.outputs import Outputs


@pytest.fixture
def tuned(checkpoint, coco_tree, tmp_path):
    made = checkpoint()
    root = coco_tree(sizes=(("train", 60), ("val", 20)))
    path = tmp_path / "train.safetensors"
    extract(made, load_coco(root, "train"), path)
    train = Outputs.load(path)
    val = load_coco(root, "val")

    def run(**options):
        return tune(made, val, train, **{"aggregates": ("max",), "batch_size": 8, **options})

    run.val = val
    return run


def test_the_lowest_fpr_over_the_five_sets_is_chosen(tuned, checkpoint, tmp_path):
    seen = []
    tuning = tuned(settings=TuneSettings(images=10), on_images=seen.append)
    assert sum(seen) == 6 * 10
    assert len(tuning.grid) == 84 + 6
    assert tuning.model_hash == checkpoint().content_hash()
    assert [(best.method, best.aggregate) for best in tuning.best] == [
        ("mahalanobis", "max"),
        ("odin", "max"),
    ]
    for best in tuning.best:
        rivals = [one.fpr95 for one in tuning.grid if one.method == best.method]
        assert best.fpr95 == min(rivals)
    assert tuning.data["n_images"] == 10
    assert tuning.data["synthetic"] == list(SYNTHETIC_SETS)
    tuning.save(tmp_path / "tuned.json")
    assert Tuning.load(tmp_path / "tuned.json") == tuning
    assert json.loads((tmp_path / "tuned.json").read_text())["best"] == tuning.chosen()


def test_the_same_seed_gives_the_same_settings_in_any_batches(tuned):
    settings = TuneSettings(images=12, odin=OdinSettings("predicted", (0.0, 0.004)))
    first = tuned(settings=settings, batch_size=12)
    directions = {(setting.method, setting.direction) for setting in first.grid}
    assert directions == {("odin", "predicted_max"), ("mahalanobis", "max")}
    assert tuned(settings=settings, batch_size=12) == first
    assert tuned(settings=settings, batch_size=12, seed=1) != first
    other = tuned(settings=settings, batch_size=5)
    close = [abs(a.fpr95 - b.fpr95) for a, b in zip(first.grid, other.grid, strict=True)]
    assert np.mean(close) < 0.02  # but for rounding


def test_of_equals_the_smallest_step_is_taken():
    grid = (
        Setting("odin", "max", 0.002, 1.0, 0.25),
        Setting("odin", "max", 0.001, 10.0, 0.25),
        Setting("odin", "max", 0.001, 1.0, 0.25),
        Setting("odin", "max", 0.0, 1.0, 0.5),
    )
    assert Tuning("", "pooled", grid, {}).best == (grid[2],)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kind": "nescio.tuning", "schema": 1}'])
def test_another_file_is_refused(content, tmp_path):
    path = tmp_path / "tuned.json"
    path.write_text(content)
    with pytest.raises(FileFormatError, match=r"tuned\.json is not a file written by nescio tune"):
        Tuning.load(path)


def test_outputs_of_another_network_are_refused(checkpoint, coco_tree, tmp_path):
    root = coco_tree()
    path = tmp_path / "train.safetensors"
    extract(checkpoint(seed=1), load_coco(root, "train"), path)
    with pytest.raises(ParameterError, match="not extracted from this network"):
        tune(checkpoint(), load_coco(root, "val"), Outputs.load(path))


def test_synthetic_sets_are_made_from_the_images(coco_tree):
    split = load_coco(coco_tree(sizes=(("val", 12),)), "val")
    preprocessing = Preprocessing(16)
    found = {
        name: torch.cat(list(batches)).numpy()
        for name, batches in synthetic_sets(split, preprocessing, 3, 5, SYNTHETIC_SETS)
    }
    images = found.pop("in-distribution")
    assert list(found) == list(SYNTHETIC_SETS)
    assert all(pixels.shape == (12, 3, 16, 16) for pixels in found.values())
    # A jigsaw has the pixels of its image; a mean lies between two images, never one of itself.
    jigsaw = next(pixels for name, pixels in found.items() if "jigsaw" in name)
    np.testing.assert_allclose(np.sort(jigsaw.reshape(12, -1)), np.sort(images.reshape(12, -1)))
    assert not (jigsaw == images).all((1, 2, 3)).any()
    mean = next(pixels for name, pixels in found.items() if "arithmetic" in name)
    partners = 2 * mean - images
    for at, partner in enumerate(partners):
        nearest = np.abs(images - partner).max((1, 2, 3)).argmin()
        assert nearest != at
        np.testing.assert_allclose(images[nearest], partner, atol=1e-5)


def test_a_setting_keeps_95_percent_of_the_images_and_lets_its_fpr_through(tuned, checkpoint):
    # By hand, without perturbation: the largest logit ranks as ODIN's score does.
    tuning = tuned(settings=TuneSettings(images=20))
    made, split = checkpoint(), tuned.val
    top = {}
    for name, batches in synthetic_sets(split, made.preprocessing, 0, 8, SYNTHETIC_SETS):
        inputs = [made.preprocessing.normalise(pixels) for pixels in batches]
        with torch.inference_mode():
            top[name] = torch.cat([made.network(batch).amax(1) for batch in inputs]).numpy()
    id_scores = np.sort(top.pop("in-distribution"))
    threshold = id_scores[1]  # 19 of 20 are at least this
    let_through = np.concatenate([scores >= threshold for scores in top.values()])
    plain = [one for one in tuning.grid if one.method == "odin" and one.epsilon == 0]
    assert len(plain) == 4
    for setting in plain:
        assert setting.fpr95 == pytest.approx(let_through.mean(), abs=0.011)
