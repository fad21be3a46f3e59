"""A change of what a stage gives needs a new version of it, or old results would be used for new.

If a test fails: if the change is intended, raise the version of the stage and freeze the new values
under it. The tolerances are far above what processors and libraries round differently.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
image = pytest.importorskip("PIL.Image")

from nescio.data.split import Split  # noqa: E402
from nescio.networks.checkpoint import Architecture, Checkpoint  # noqa: E402
from nescio.outputs import Outputs  # noqa: E402
from nescio.runners.extract import EXTRACTION_VERSION, extract  # noqa: E402
from nescio.runners.feature_cache import FEATURES_VERSION, cached_features  # noqa: E402
from nescio.training import TrainSettings, train, tune  # noqa: E402
from nescio.training.train import TRAINING_VERSION  # noqa: E402
from nescio.training.tuning import TUNING_VERSION  # noqa: E402

# version -> training and validation loss of two epochs
TRAINING = {1: [0.6240, 0.6177, 0.4829, 0.4680]}
# version -> mean and standard deviation of logits and features
EXTRACTION = {1: [0.77693, 0.062141, 0.15111, 0.18290]}
FEATURES = {1: [0.15111, 0.18290]}
# version -> the number of settings, and their mean FPR on the synthetic sets
TUNING = {1: [180, 0.956]}
# The key of a network has only settings that differ from these. A new setting may be added; if a
# default changes, raise TRAINING_VERSION.
DEFAULTS = {
    1: {
        "model": {
            "name": "densenet121",
            "weights": "imagenet",
            "n_hidden": 1000,
            "features": None,
            "freeze": False,
        },
        "images": {"size": 256, "mean": None, "std": None},
        "augmentation": {"crop_scale": (0.5, 1.0), "flip": True},
        "training": {
            "epochs": 50,
            "batch_size": 64,
            "seed": 0,
            "lr_head": 1e-4,
            "lr_backbone": 1e-5,
            "betas": (0.9, 0.999),
            "weight_decay": 0.0,
            "select": "val_loss",
            "precision": "auto",
        },
    }
}


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Stripes whose direction and colour are the labels; all numbers are whole."""
    root = tmp_path_factory.mktemp("stripes")
    labels = np.array([[at % 2, at % 3 == 0] for at in range(24)], np.uint8)
    rows, columns = np.mgrid[0:20, 0:24]
    for at, (upright, red) in enumerate(labels):
        grey = (columns if upright else rows) * (5 + at % 4) % 200
        pixels = np.stack([grey + 50 * red, grey, (grey + 3 * at) % 256], axis=2)
        image.fromarray(pixels.astype(np.uint8)).save(root / f"{at:02}.png")
    files = tuple(f"{at:02}.png" for at in range(24))
    return Split("stripes", "all", root, files, labels, ("upright", "red"))


@pytest.fixture
def checkpoint(settings):
    """A network whose weights are given by a formula, and not by a random number generator."""
    architecture = Architecture("small-cnn", 8)
    network = architecture.build(2)
    with torch.no_grad():
        for parameter in network.parameters():
            count = torch.arange(parameter.numel(), dtype=torch.float64)
            parameter.copy_((torch.sin(count * 1.7 + 1) * 0.4).reshape(parameter.shape))
    return Checkpoint(network.eval(), architecture, ("upright", "red"), settings.preprocessing)


@pytest.fixture
def settings():
    return TrainSettings().updated(
        {
            "model": {"name": "small-cnn", "weights": "none", "n_hidden": 8},
            "images": {"size": 16},
            "training": {"epochs": 2, "batch_size": 8, "lr_head": 1e-2, "lr_backbone": 1e-2},
        }
    )


def test_training(settings, split, tmp_path):
    run = train(settings, split, split, tmp_path)
    found = [loss for epoch in run.history for loss in (epoch.train_loss, epoch.val_loss)]
    assert found == pytest.approx(TRAINING[TRAINING_VERSION], rel=1e-2)


def test_the_defaults_of_training():
    now = TrainSettings().as_dict()
    for section, values in DEFAULTS[TRAINING_VERSION].items():
        assert {name: now[section][name] for name in values} == values


def test_extraction(checkpoint, split, tmp_path):
    extract(checkpoint, split, tmp_path / "outputs.safetensors")
    outputs = Outputs.load(tmp_path / "outputs.safetensors")
    arrays = np.asarray(outputs.logits), np.asarray(outputs.features)
    found = [value for array in arrays for value in (array.mean(), array.std())]
    assert found == pytest.approx(EXTRACTION[EXTRACTION_VERSION], rel=2e-3)


def test_features(checkpoint, split, tmp_path):
    backbone = checkpoint.network.backbone.eval()
    found = cached_features(backbone, checkpoint, split, tmp_path, torch.device("cpu"))
    assert [found.mean(), found.std()] == pytest.approx(FEATURES[FEATURES_VERSION], rel=2e-3)


def test_tuning(checkpoint, split, tmp_path):
    extract(checkpoint, split, tmp_path / "outputs.safetensors")
    outputs = Outputs.load(tmp_path / "outputs.safetensors")
    tuning = tune(checkpoint, split, outputs)
    rates = [setting.fpr95 for setting in tuning.grid]
    assert [len(rates), np.mean(rates)] == pytest.approx(TUNING[TUNING_VERSION], abs=0.02)
