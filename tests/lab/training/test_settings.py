"""Settings of training, from TOML and from Python."""

import pytest

pytest.importorskip("torchvision")

from nescio.errors import ParameterError
from nescio.lab.training import TrainSettings


def test_the_defaults_are_the_papers(tmp_path, config):
    settings = TrainSettings()
    assert (settings.model.name, settings.model.n_hidden) == ("densenet121", 1000)
    assert settings.preprocessing.size == 256
    assert settings.preprocessing.mean == (0.485, 0.456, 0.406)
    chosen = settings.training
    assert (chosen.lr_head, chosen.lr_backbone, chosen.epochs) == (1e-4, 1e-5, 50)
    assert chosen.betas == (0.9, 0.999)
    path = tmp_path / "train.toml"
    path.write_text(config(epochs=7, lr=0.01))
    assert TrainSettings.from_toml(path).training.epochs == 7
    lite = settings.updated({"model": {"name": "efficientnet-lite0"}})
    assert lite.preprocessing.std == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[training]\nepoch = 3",
            r"\[training\]: there is no key 'epoch'. Did you mean 'epochs'\? .* batch_size, betas",
        ),
        ("[optimizer]\nlr = 1", "there is no key 'optimizer'. The keys are augmentation"),
        ("epochs = 3", "there is no key 'epochs'"),
        (
            "[training]\nepochs = 0",
            r"\[training\]: epochs must be a whole number of at least 1, got 0",
        ),
        ("[training]\nlr_head = -1", "lr_head must be"),
        (
            "[training]\nselect = 'test_map'",
            "select must be 'val_loss' or 'val_map' or 'last', got",
        ),
        ("[training]\nbetas = [0.9, 1.5]", "betas must be at least 0 and less than 1"),
        ("[model]\nfreeze = 'no'", "freeze must be true or false, got 'no'"),
        ("[images]\nsize = 2", "image size must be a whole number of at least 8"),
        ("[augmentation]\ncrop_scale = [1.5, 2.0]", "crop_scale"),
    ],
)
def test_invalid_settings(text, words, tmp_path):
    path = tmp_path / "train.toml"
    path.write_text(text)
    with pytest.raises(ParameterError, match=rf"train\.toml: .*{words}"):
        TrainSettings.from_toml(path)


def test_changes_keep_all_other_values():
    settings = TrainSettings().updated({"training": {"epochs": 3, "betas": [0.5, 0.9]}})
    again = settings.updated({"training": {"seed": 4}, "model": {}})
    assert (again.training.epochs, again.training.seed) == (3, 4)
    assert again.training.betas == (0.5, 0.9)
    assert again.model == settings.model
