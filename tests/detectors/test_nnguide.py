import numpy as np
import pytest

import nescio as ns
from nescio.errors import TooFewSamplesError
from nescio.outputs import Outputs


def some(n, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return Outputs(
        rng.normal(-1, 3, (n, 4)).astype(dtype), features=rng.normal(1, 2, (n, 7)).astype(dtype)
    )


def plainly(train, new, k):
    """The paper's formula: every similarity times the energy of its training sample, sorted."""

    def energy(outputs):
        return np.log1p(np.exp(outputs.logits.astype(np.float64))).sum(1)

    def unit(outputs):
        rows = outputs.features.astype(np.float64)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    guides = unit(new) @ unit(train).T * energy(train)
    return np.sort(guides, axis=1)[:, -k:].mean(1) * energy(new)


@pytest.mark.parametrize("k", [1, 50, 200])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_energy_guided_by_neighbours(k, dtype):
    train, new = some(200, 0, dtype), some(60, 1, dtype)
    detector = ns.NNGuide(k=k).fit(train)
    assert detector.bank_.dtype == dtype
    tolerance = 1e-9 if dtype == np.float64 else 1e-5
    expected = plainly(train, new, k)
    np.testing.assert_allclose(
        detector.score_samples(new), expected, rtol=tolerance, atol=tolerance
    )


def test_rows_of_zeros_score_0():
    detector = ns.NNGuide().fit(some(200, 0))
    new = some(3, 1)
    zeros = Outputs(new.logits, features=np.zeros((3, 7)))
    assert (detector.score_samples(zeros) == 0).all()


def test_a_bank_is_the_same_choice_as_that_of_knn():
    train, new = some(200, 0), some(20, 1)
    rows = ns.NearestNeighbours(bank=80).fit(train).rows_
    np.testing.assert_allclose(
        ns.NNGuide(bank=80).fit(train).score_samples(new), plainly(train[rows], new, 50), rtol=1e-9
    )
    for enough in (0, 200):
        assert len(ns.NNGuide(bank=enough).fit(train).bank_) == 200


def test_too_few_training_samples():
    train = some(40, 0)
    with pytest.raises(TooFewSamplesError, match=r"nnguide with k = 50 .*, got n_samples = 40"):
        ns.NNGuide().fit(train)
    with pytest.raises(TooFewSamplesError, match="n_samples = 40"):
        ns.NNGuide(k=3).fit(train).set_params(k=41).score_samples(train)
