"""The figures of a report."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fixtures.reports import Page
from nescio.lab.report import build_report
from nescio.lab.report.figures import density, visible_range
from nescio.outputs import Outputs


def test_many_labels_stay_small_and_the_rare_are_left_out(make_evidence, make_lines):
    evidence = make_evidence(oods=("a", "b", "c"), n_labels=2000, n_samples=60)
    truth = np.zeros((60, 2000), dtype=np.uint8)
    truth[:, 1000:1100] = 1
    truth[:2, 1100:] = 1
    logits = evidence.id_outputs.logits
    evidence = replace(evidence, id_outputs=Outputs(logits, labels=truth))
    lines = make_lines(evidence, n_bootstrap=0)
    page = build_report(lines, [evidence], title="Large")
    assert len(page.encode()) < 5_000_000
    drawn = re.findall(r"Densities of the energy of label (\d+), ID against OOD", page)
    assert drawn == [str(label) for label in range(1000, 1100)]
    said = "The 100 most frequent of the 2,000 labels are drawn."
    assert said in Page(page).text
    few = make_evidence(n_labels=100)
    assert "most frequent of the" not in build_report(make_lines(few), [few], title="Few")


def test_density_is_that_of_a_normal(rng):
    grid, heights = density(rng.normal(0, 1, 50_000), -4, 4)
    expected = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    assert np.abs(heights - expected).max() < 0.02
    _, heights = density(np.array([-np.inf, -np.inf]), 0, 1)  # rows out are not drawn
    assert not heights.any()
    grid, heights = density(np.array([-np.inf, 0.5, 0.5]), 0, 1)
    assert np.trapezoid(heights, grid) == pytest.approx(1, abs=0.05)


def test_an_outlier_does_not_stretch_the_axis(rng):
    values = np.append(rng.normal(0, 1, 10_000), 1e9)
    low, high = visible_range(values)
    assert -6 < low < -2
    assert 2 < high < 6
    low, high = visible_range(np.ones(3), np.array([-np.inf]))
    assert low < 1 < high  # the axis of equal scores has a width
    assert visible_range(np.array([-np.inf])) is None
    ordinary = -1 / rng.uniform(0, 1, 10_000)  # like the scores of the default
    low, high = visible_range(ordinary, np.full(100, -2e5))
    assert (-90 < low < -60, -1 < high < 2) == (True, True)
    assert visible_range(np.zeros(9), -ordinary)[1] > 100  # nothing to compare with


def test_without_true_labels_of_the_test_data_those_of_the_validation_data_are_drawn(
    make_evidence, make_outputs, make_lines
):
    """The test labels of COCO and VOC are not published."""
    evidence = make_evidence(labels=False)
    page = Page(build_report(make_lines(evidence), [evidence], title="Without")).text
    assert "The outputs have no true labels." in page
    evidence = replace(evidence, val=make_outputs(n_samples=50, seed=5))
    page = Page(build_report(make_lines(evidence), [evidence], title="With")).text
    assert "The ID density is over the validation inputs that have the label." in page
    count = evidence.val.labels[:, 3].sum()
    assert f"{count} ID inputs with this label" in page
    labelled = make_evidence()
    assert replace(labelled, val=evidence.val).labelled is labelled.id_outputs
