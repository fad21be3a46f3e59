"""The settings of tuning: their defaults, and what is rejected (see also test_protocols)."""

import re
from pathlib import Path

import numpy as np

from nescio.runners.tune_settings import MahalanobisSettings, OdinSettings, TuneSettings

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "input-perturbation.md"


def test_the_page_shows_the_defaults(tmp_path):
    [shown] = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    path = tmp_path / "tune.toml"
    path.write_text(shown, "utf-8")
    assert TuneSettings.from_toml(path) == TuneSettings()


def test_the_steps_of_odin_are_the_papers():
    np.testing.assert_allclose(OdinSettings().epsilons, np.linspace(0, 0.004, 21), atol=1e-12)


def test_the_number_of_images_to_run():
    assert TuneSettings(images=10).n_steps(30) == 6 * 10
    assert TuneSettings(images=50, synthetic=("jigsaw",)).n_steps(30) == 2 * 30


def test_each_setting_changes_the_direction_of_its_own_method():
    def directions(**settings):
        found = TuneSettings(**settings)
        methods = [(name, how) for name in ("odin", "mahalanobis") for how in ("max", "sum")]
        return [found.direction(*method) for method in methods]

    assert directions() == ["max", "sum", "max", "sum"]
    predicted = directions(odin=OdinSettings("predicted"))
    assert predicted == ["predicted_max", "sum", "max", "sum"]
    gaussian = directions(mahalanobis=MahalanobisSettings("gaussian"))
    assert gaussian == ["max", "sum", "gaussian", "gaussian"]
