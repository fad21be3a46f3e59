"""Features of a frozen backbone are computed once, and hashes too."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.data import load_coco, split as split_module  # noqa: E402
from nescio.errors import FileError  # noqa: E402
from nescio.networks import checkpoint as checkpoint_module  # noqa: E402
from nescio.outputs import Outputs  # noqa: E402
from nescio.runners import extract  # noqa: E402
from nescio.runners.feature_cache import cached_features, read_features  # noqa: E402
from nescio.training import (  # noqa: E402
    Setting,
    TuneSettings,
    Tuning,
    load_checkpoint,
    train,
    tune,
)


@pytest.fixture
def frozen(settings, coco_tree, tmp_path):
    """A network with a frozen backbone, trained on features that are kept in a cache."""
    root = coco_tree(sizes=(("train", 24), ("val", 14), ("test", 7)))
    splits = {name: load_coco(root, name) for name in ("train", "val", "test")}
    chosen = settings(epochs=1).updated({"model": {"freeze": True}})
    run = train(chosen, splits["train"], splits["val"], tmp_path / "run", cache=tmp_path / "cache")
    return load_checkpoint(run.checkpoint), splits, tmp_path / "cache"


def count_passes(module):
    passes = []
    module.register_forward_hook(lambda *_: passes.append(1))
    return passes


@pytest.mark.parametrize("features", ["pooled", "penultimate", None, "penultimate,pooled"])
def test_cached_features_spare_the_backbone(frozen, features, tmp_path):
    made, splits, cache = frozen
    passes = count_passes(made.network.backbone)
    direct = extract(made, splits["val"], tmp_path / "direct.safetensors", features=features)
    assert len(passes) == 1
    cached = extract(
        made, splits["val"], tmp_path / "cached.safetensors", features=features, cache=cache
    )
    assert len(passes) == 1
    one, other = Outputs.load(direct.path), Outputs.load(cached.path)
    np.testing.assert_allclose(one.logits, other.logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.features, other.features, rtol=1e-5, atol=1e-6)
    assert one.arrays.keys() == other.arrays.keys()
    for name in one.arrays:
        np.testing.assert_allclose(one.arrays[name], other.arrays[name], rtol=1e-5, atol=1e-6)
    assert one.manifest == other.manifest
    assert np.array_equal(one.ids, other.ids)
    assert (one.head is None) == (other.head is None) == (features == "pooled")
    # Data that was not trained on is not in the cache, and other layers are not either.
    extract(made, splits["test"], tmp_path / "test.safetensors", cache=cache)
    assert len(passes) == 2
    extract(made, splits["val"], tmp_path / "x.safetensors", features="input", cache=cache)
    assert len(passes) == 3


def test_the_key_is_backbone_preprocessing_and_data(frozen, checkpoint, tmp_path):
    made, splits, cache = frozen
    features = read_features(made, splits["val"], cache)
    assert len(features) == 14
    assert read_features(checkpoint(), splits["val"], cache) is None
    assert read_features(made, splits["val"].subset(range(5)), cache) is None
    assert read_features(made, splits["val"], tmp_path) is None
    before = sorted(cache.iterdir())
    again = cached_features(made.network.backbone, made, splits["val"], cache, torch.device("cpu"))
    assert np.array_equal(again, features)
    assert sorted(cache.iterdir()) == before


def test_features_of_images_that_have_changed_are_refused(frozen):
    made, splits, cache = frozen
    image = splits["val"].path(0)
    image.write_bytes(image.read_bytes()[::-1])
    with pytest.raises(FileError, match=r"features-.* cannot be used for .* images have changed"):
        read_features(made, replace(splits["val"]), cache)


def test_perturbed_outputs_need_the_backbone(frozen, tmp_path):
    made, splits, cache = frozen
    passes = count_passes(made.network.backbone)
    tuning = Tuning(made.content_hash(), "pooled", (Setting("odin", "max", 0.0, 1.0, 0.5),), {})
    done = extract(made, splits["val"], tmp_path / "v.safetensors", tuning=tuning, cache=cache)
    assert passes
    assert set(Outputs.load(done.path).arrays) == {"penultimate", "odin_max"}


def test_a_run_hashes_weights_and_data_once(frozen, tmp_path, monkeypatch):
    _, splits, cache = frozen
    hashed = {"weights": 0, "data": 0}

    def counting(kind, function):
        def counted(*arguments):
            hashed[kind] += 1
            return function(*arguments)

        return counted

    weights_hash = checkpoint_module.weights_hash
    monkeypatch.setattr(checkpoint_module, "weights_hash", counting("weights", weights_hash))
    fingerprint = split_module._fingerprint
    monkeypatch.setattr(split_module, "_fingerprint", counting("data", fingerprint))
    fresh = load_checkpoint(tmp_path / "run" / "best.safetensors")
    splits = {name: split.subset(range(len(split))) for name, split in splits.items()}
    for name, split in splits.items():
        extract(fresh, split, tmp_path / f"{name}.safetensors", cache=cache)
    outputs = Outputs.load(tmp_path / "train.safetensors")
    tuning = tune(fresh, splits["val"], outputs, TuneSettings(images=14))
    for name, split in splits.items():
        extract(fresh, split, tmp_path / f"{name}-tuned.safetensors", tuning=tuning, cache=cache)
        extract(fresh, split, tmp_path / f"{name}-tuned.safetensors", tuning=tuning, cache=cache)
    # The whole network, and its backbone; each of the three splits.
    assert hashed == {"weights": 2, "data": 3}
