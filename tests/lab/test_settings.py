"""Settings: TOML into dataclasses, errors that name file, table and key, and the defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from nescio._validation import from_table
from nescio.errors import FileError, FileFormatError, ParameterError
from nescio.lab.settings import TrainSettings, from_toml, read_toml


@dataclass(frozen=True)
class Wheel:
    size: float
    spokes: int = 36

    def __post_init__(self):
        if self.spokes < 3:
            raise ParameterError(f"spokes must be at least 3, got {self.spokes}.")


@dataclass(frozen=True)
class Bike:
    name: str
    maker: str
    wheels: tuple[Wheel, ...] = ()
    front: Wheel = field(default_factory=lambda: Wheel(28.0))
    gears: tuple[int, ...] = ()
    range_: tuple[float, float] | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)
    fast: bool = False


TEXT = """
maker = "Anna"
gears = [1, 2]
range_ = [1, 2.5]
parts = { bell = "brass" }
other = { anything = [1, "a"] }

[front]
size = 26

[[wheels]]
size = 28.5
spokes = 32
"""


def test_a_table_becomes_a_dataclass():
    bike = from_toml(Bike, TEXT, "bike.toml", name="bike")
    assert bike == Bike(
        name="bike",
        maker="Anna",
        wheels=(Wheel(28.5, 32),),
        front=Wheel(26),
        gears=(1, 2),
        range_=(1, 2.5),
        parts={"bell": "brass"},
        other={"anything": [1, "a"]},
    )


def test_a_base_gives_what_the_table_leaves_out():
    bike = Bike("bike", "Anna", front=Wheel(26, 30), fast=True)
    changed = from_table(Bike, {"front": {"spokes": 40}}, base=bike)
    assert changed == Bike("bike", "Anna", front=Wheel(26, 40), fast=True)


WRONG = {
    "an unknown key": ("makr = 'x'", r"there is no key 'makr'. Did you mean 'maker'\? The keys"),
    "a key without likeness": ("xyz = 1", "there is no key 'xyz'. The keys are fast, front,"),
    "a key that is not for the file": ("name = 'x'", "there is no key 'name'"),
    "a missing key": ("fast = true", "the key 'maker' is missing"),
    "a missing key in a list": ("maker = 'x'\n[[wheels]]", r"\[\[wheels\]\]: the key 'size' is"),
    "a number for a string": ("maker = 3", "maker must be a string, got 3"),
    "a number for true or false": ("fast = 1", "fast must be true or false, got 1"),
    "true for a number": ("[front]\nsize = true", r"\[front\]: size must be a number, got True"),
    "a fraction": ("[front]\nspokes = 3.5", r"\[front\]: spokes must be a whole number, got 3.5"),
    "a value in a list": ("gears = [1, 'a']", "gears must be a list of whole numbers, got"),
    "a list of another length": ("range_ = [1.0]", "range_ must be a list of 2 numbers, got"),
    "a value in a table": ("parts = { bell = 3 }", "parts must be a table of strings, got"),
    "no table": ("front = 3", r"front must be a table, written as \[front\], got 3"),
    "one table for a list": ("[wheels]\nsize = 3", r"wheels must be a list of tables, written as"),
    "a value of a wrong range": ("[front]\nsize = 1\nspokes = 2", r"\[front\]: spokes must be at"),
}


@pytest.mark.parametrize(("text", "reason"), WRONG.values(), ids=WRONG)
def test_an_error_names_file_table_and_key(text, reason):
    with pytest.raises(ParameterError, match=f"^bike.toml: {reason}"):
        from_toml(Bike, text, "bike.toml", name="bike")


def test_files_that_are_not_toml(tmp_path):
    with pytest.raises(FileFormatError, match=r"bike\.toml is not TOML: "):
        from_toml(Bike, "maker =", "bike.toml", name="bike")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FileFormatError, match=r"bytes.toml is not TOML: it is not text in UTF-8"):
        read_toml(tmp_path / "bytes.toml")
    with pytest.raises(FileError, match="there is no file"):
        read_toml(tmp_path / "none.toml")


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
        ("[training]\nepoch = 3", r"\[training\]: there is no key 'epoch'. Did you mean 'epochs'"),
        (
            "[training]\nepochs = 0",
            r"\[training\]: epochs must be a whole number of at least 1, got 0",
        ),
        ("[training]\nlr_head = -1", "lr_head must be"),
        (
            "[training]\nselect = 'test_map'",
            "select must be 'val_loss' or 'val_map' or 'last', got",
        ),
        ("[training]\nbetas = [0.9, 1.5]", "betas must lie within"),
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
