import numpy as np
import pytest

from nescio.detectors.label_cells import divide


def in_topics(n_labels, n_topics, n_units=6, seed=0):
    """Labels of topics that are far apart, and the topic of each."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, n_topics, n_labels)
    return rng.normal(0, 10, (n_topics, n_units))[topic] + rng.normal(
        0, 0.1, (n_labels, n_units)
    ), topic


@pytest.mark.parametrize("n_labels", [1, 2, 31, 32, 33, 1000, 5000])
def test_every_label_is_in_one_cell(n_labels):
    weight = np.random.default_rng(0).normal(size=(n_labels, 4))
    order, starts = divide(weight)
    assert np.array_equal(np.sort(order), np.arange(n_labels))
    sizes = np.diff(starts)
    assert (starts[0], starts[-1]) == (0, n_labels)
    assert (sizes > 0).all()
    assert sizes.max() <= max(31, 2 * 17)  # twice the average of 16 and a fraction


def test_labels_of_one_topic_are_together():
    weight, topic = in_topics(4000, 40)
    order, starts = divide(weight)
    together = np.split(topic[order], starts[1:-1])
    assert np.mean([len(np.unique(cell)) == 1 for cell in together]) > 0.9


def test_the_same_weights_give_the_same_cells():
    weight, _ = in_topics(2000, 20)
    for first, second in zip(divide(weight), divide(weight.copy()), strict=True):
        assert np.array_equal(first, second)


@pytest.mark.parametrize("distinct", [1, 3])
def test_equal_weights_are_divided_into_cells_of_a_limited_size(distinct):
    weight = np.repeat(np.eye(3)[:distinct], 1000, axis=0)
    order, starts = divide(weight)
    assert np.array_equal(np.sort(order), np.arange(len(weight)))
    assert np.diff(starts).max() <= 34
