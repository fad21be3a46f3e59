"""The index of knn: exact within the cells that are searched, and saved as plain arrays."""

import numpy as np
import pytest

import nescio as ns
from nescio.detectors import nearest as searching
from nescio.errors import FileFormatError, ParameterError, TooFewSamplesError
from nescio.metrics import auroc


@pytest.fixture
def data(rng):
    themes = rng.normal(size=(30, 16)) @ rng.normal(size=(16, 24))
    train = themes[rng.integers(0, 30, 3000)] + 2 * rng.normal(size=(3000, 24))
    new = themes[rng.integers(0, 30, 200)] + 2 * rng.normal(size=(200, 24))
    return train.astype(np.float32), new.astype(np.float32)


def recall(found, truth):
    return np.mean(
        [np.isin(ours, theirs).mean() for ours, theirs in zip(found, truth, strict=True)]
    )


def test_all_cells_are_the_exact_search_and_fewer_find_most(data):
    train, new = data
    exact = ns.NearestNeighbours().fit(train)
    index = ns.NearestNeighbours(cells=40, probes=40).fit(train)
    np.testing.assert_array_equal(index.nearest(new, 10), exact.nearest(new, 10))
    np.testing.assert_array_equal(index.score_samples(new), exact.score_samples(new))
    truth = exact.nearest(new, 10)
    recalls = [recall(index.set_params(probes=n).nearest(new, 10), truth) for n in (1, 5, 20)]
    assert recalls == sorted(recalls)
    assert recalls[1] > 0.8
    # A distance that is found is real, so it cannot be smaller than the smallest.
    assert (index.set_params(probes=1).score_samples(new) <= exact.score_samples(new)).all()


def test_only_probed_cells_are_multiplied(data, monkeypatch):
    train, new = data
    index = ns.NearestNeighbours(cells=40, probes=2).fit(train)
    seen = []
    see = searching._Choice.see

    def counted(self, inside, samples, *others):
        seen.append(len(inside) * len(samples))
        return see(self, inside, samples, *others)

    monkeypatch.setattr(searching._Choice, "see", counted)
    index.score_samples(new)
    assert sum(seen) < len(new) * len(train) / 5


def test_a_row_with_too_few_samples_in_its_cells_is_compared_with_all(data):
    train, new = data
    index = ns.NearestNeighbours(k=200, cells=40, probes=1).fit(train)
    sizes = np.diff(index.starts_)
    assert sizes.min() < 200
    exact = ns.NearestNeighbours(k=200).fit(train)
    found, expected = index.score_samples(new), exact.score_samples(new)
    cell = (new @ index.centers_.T).argmax(1)
    few = sizes[cell] < 200
    assert few.any()
    np.testing.assert_array_equal(found[few], expected[few])


def test_an_index_is_saved_and_a_damaged_one_refused(data, tmp_path):
    train, new = data
    index = ns.NearestNeighbours(cells=40, probes=3).fit(train)
    index.save(tmp_path / "index.nescio")
    loaded = ns.load(tmp_path / "index.nescio")
    np.testing.assert_array_equal(loaded.score_samples(new), index.score_samples(new))
    np.testing.assert_array_equal(
        ns.NearestNeighbours(cells=40).fit(train).centers_, index.centers_
    )  # the same seed
    for starts in (index.starts_[:-1], index.starts_[::-1], index.starts_ + 1, index.starts_ * 2):
        index.starts_ = np.ascontiguousarray(starts)
        index.save(tmp_path / "damaged.nescio", force=True)
        with pytest.raises(FileFormatError, match="not consistent"):
            ns.load(tmp_path / "damaged.nescio")


def test_zeros_are_no_part_of_an_index(data):
    train, new = data
    train[::10] = 0
    index = ns.NearestNeighbours(cells=10, probes=10).fit(train)
    assert len(index.bank_) == 2700
    assert index.score_samples(np.zeros((1, 24), np.float32)) == -np.sqrt(2)
    exact = ns.NearestNeighbours().fit(train)
    np.testing.assert_array_equal(index.score_samples(new), exact.score_samples(new))


def test_centers_stand_for_all_samples(data):
    train, new = data
    train[5] = 0
    far = -new
    reduced = ns.NearestNeighbours(k=1, bank=30, reduce="centers").fit(train)
    assert reduced.bank_.shape == (30, 24)
    assert reduced.bank_.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(reduced.bank_, axis=1), 1, atol=1e-6)
    drawn = ns.NearestNeighbours(k=1, bank=30).fit(train)
    aurocs = [auroc(d.score_samples(new), d.score_samples(far)) for d in (reduced, drawn)]
    assert aurocs[0] > aurocs[1]
    # Each centre is named by the sample nearest to it.
    unit = train / np.maximum(np.linalg.norm(train, axis=1, keepdims=True), 1e-9)
    similarity = unit @ reduced.bank_.T
    np.testing.assert_allclose(similarity[reduced.rows_, range(30)], similarity.max(0), atol=1e-6)
    whole = ns.NearestNeighbours(reduce="centers").fit(train)
    np.testing.assert_array_equal(whole.bank_, ns.NearestNeighbours().fit(train).bank_)


def test_what_is_not_allowed(data):
    train, new = data
    with pytest.raises(ParameterError, match="probes must be at most the number of cells, 4, got"):
        ns.NearestNeighbours(cells=4, probes=5).fit(train)
    with pytest.raises(ParameterError, match="Choose one of them"):
        ns.NearestNeighbours(cells=40, reduce="centers").fit(train)
    with pytest.raises(ParameterError, match="reduce must be"):
        ns.NearestNeighbours(reduce="all").fit(train)
    with pytest.raises(TooFewSamplesError, match="got n_samples = 30"):
        ns.NearestNeighbours(cells=40).fit(train[:30])
    with pytest.raises(ns.NotCalibratedError):
        ns.NearestNeighbours().fit(train).set_params(cells=20).score_samples(new)
