"""The page of `nescio choose`."""

import re

import pytest

import nescio as ns
from fixtures.labelled import labelled
from nescio.errors import FileError
from nescio.report import draw_choice

HOSTILE = ["<script>alert(1)</script>", *map(str, range(7))]


def test_the_page_shows_the_ranking_near_and_far_and_the_folds(tmp_path):
    train, held_out = (labelled(seed=seed, label_names=HOSTILE) for seed in (0, 1))
    choice = ns.choose(train, held_out, detectors=["joint_energy", "knn", "max_logit"], n_folds=3)
    draw_choice(choice, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text("utf-8")
    assert "<script" not in text
    assert "&lt;script" in text
    [chosen] = re.findall('<tr class="chosen"><td>(.*?)</td>', text)
    assert chosen == choice.pick
    for row in choice.rows():
        assert all(cell in text for cell in row)
    assert text.count("<circle") == 3
    assert text.count("<tr") == 1 + 3 + 1 + 3
    assert "nan" not in text.lower()
    with pytest.raises(FileError, match="exists already"):
        draw_choice(choice, tmp_path / "a.html")


def test_without_far_data_there_is_no_chart(tmp_path):
    train, held_out = (labelled(seed=seed, features=False) for seed in (0, 1))
    choice = ns.choose(train, held_out, detectors=["joint_energy"], n_folds=8)
    draw_choice(choice, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text("utf-8")
    assert "<svg" not in text
    assert "weaker estimate" in text
