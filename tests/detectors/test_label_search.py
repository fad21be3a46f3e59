import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from nescio.detectors import features as rows_of, label_search
from nescio.detectors.label_index import LabelIndex
from nescio.detectors.label_search import EXACT, rest_bound, search
from nescio.errors import InputError
from nescio.outputs import Head
from nescio.scores import joint_energy, label_energy, top_k_joint_energy

KINDS = ("random", "topics", "equal", "zeros", "lengths", "one direction")


def some_head(kind, n_labels, dtype, seed, n_units=5):
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(n_labels, n_units))
    if kind in ("topics", "equal"):
        weight = weight[rng.integers(0, max(1, n_labels // 30), n_labels)]
    if kind == "topics":
        weight = 4 * weight + 0.2 * rng.normal(size=weight.shape)
    if kind == "zeros":
        weight[:] = 0.0
    if kind == "lengths":
        weight *= np.exp(2 * rng.normal(size=(n_labels, 1)))
    if kind == "one direction":
        weight[:, 1:] = 0.0
    return Head(weight.astype(dtype), rng.normal(-6, 2, n_labels).astype(dtype))


def some_features(head, n, dtype, seed, scale=2.0):
    rng = np.random.default_rng(seed + 1)
    near = head.weight[rng.integers(0, len(head.weight), n)].astype(float)
    features = scale * (near + rng.normal(size=near.shape)) * (rng.random((n, 1)) < 0.9)
    return features.astype(dtype)


def all_logits(head, features):
    return features.astype(float) @ head.weight.astype(float).T + head.bias


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([1, 3, 40, 700]),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([1, 4, 60, 5000]),
    st.sampled_from([EXACT, 1, 3, 1000]),
    st.sampled_from([1e-3, 1.0, 30.0]),
    st.integers(0, 99),
)
def test_the_joint_energy_is_between_the_score_and_the_score_plus_the_bound(
    kind, n_labels, dtype, k, probes, scale, seed
):
    head = some_head(kind, n_labels, dtype, seed)
    features = some_features(head, 9, dtype, seed, scale)
    index = LabelIndex.of(head)
    found = search(index, features, k, probes)
    logits = all_logits(head, features)
    energy = joint_energy(logits)
    score, bound = label_energy(found.logits).sum(1), rest_bound(index, features, found)
    assert (score <= energy * (1 + 1e-12)).all()
    assert (energy <= (score + bound) * (1 + 1e-12) + 1e-200).all()
    if probes in (EXACT, 1000):
        rounded = 1e-12 if dtype == np.float64 else 1e-4
        np.testing.assert_allclose(score, top_k_joint_energy(logits, k), rtol=rounded)
    found_by_label = np.take_along_axis(logits, index.labels[found.places], axis=1)
    known = found.places >= 0
    np.testing.assert_allclose(found.logits[known], found_by_label[known], rtol=1e-9, atol=1e-9)
    assert (np.diff(found.logits, axis=1)[known[:, 1:]] <= 0).all()
    np.put_along_axis(logits, np.where(known, index.labels[found.places], 0), -np.inf, axis=1)
    assert (found.limits >= logits.max(1)).all() or len(index) <= k


def test_few_probes_miss_labels_and_the_bound_says_so(monkeypatch):
    monkeypatch.setattr(label_search, "_LABELS_PER_FOUND", 1)
    head = some_head("random", 3000, np.float64, 0, n_units=16)
    features = some_features(head, 50, np.float64, 0, scale=0.1)
    index = LabelIndex.of(head)
    found = search(index, features, 16, 1)
    energy = joint_energy(all_logits(head, features))
    score, bound = label_energy(found.logits).sum(1), rest_bound(index, features, found)
    # The energy of the k-th logit bounds that of other labels only if the k largest were found.
    naive = (len(index) - 16) * label_energy(found.logits[:, -1])
    assert (score + naive < energy).mean() > 0.5
    assert (score + bound >= energy).all()


def test_an_exact_search_leaves_cells_out(monkeypatch):
    head = some_head("topics", 3000, np.float64, 0)
    features = some_features(head, 20, np.float64, 0)
    index = LabelIndex.of(head)
    visited = []
    monkeypatch.setattr(label_search, "_FIRST_PROBES", 1)
    plain = label_search._logits
    monkeypatch.setattr(
        label_search, "_logits", lambda *given: visited.append(len(given[1])) or plain(*given)
    )
    score = label_energy(search(index, features, 5, EXACT).logits).sum(1)
    np.testing.assert_allclose(score, top_k_joint_energy(all_logits(head, features), 5), rtol=1e-9)
    assert 0 < sum(visited) < 0.5 * 20 * len(index.sizes)


def test_an_exact_search_drops_candidates_that_others_have_overtaken(monkeypatch):
    head = some_head("random", 2000, np.float64, 3, n_units=12)
    features = some_features(head, 10, np.float64, 3)
    monkeypatch.setattr(label_search, "_MOST_CANDIDATES", 0)
    monkeypatch.setattr(label_search, "_FIRST_PROBES", 1)
    score = label_energy(search(LabelIndex.of(head), features, 7, EXACT).logits).sum(1)
    np.testing.assert_allclose(score, top_k_joint_energy(all_logits(head, features), 7), rtol=1e-9)


def test_blocks_of_any_size_give_the_same(monkeypatch):
    head = some_head("topics", 1000, np.float64, 1)
    features = some_features(head, 30, np.float64, 1)
    index = LabelIndex.of(head)
    expected = search(index, features, 5, 3)
    monkeypatch.setattr(rows_of, "_LARGEST_BLOCK", 1000)
    for ours, theirs in zip(search(index, features, 5, 3), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_a_search_for_many_labels_visits_more_cells():
    head = some_head("random", 2000, np.float64, 2)
    found = search(LabelIndex.of(head), some_features(head, 8, np.float64, 2), 500, 1)
    assert (found.places >= 0).all()


def test_features_too_large_for_float32_are_searched_in_float64():
    head = some_head("random", 500, np.float32, 4)
    features = np.array([[3e38, -1e38, 2e38, 1e38, 5e37], [1.0, 0, 0, 0, 0]], np.float32)
    index = LabelIndex.of(head)
    found = search(index, features, 4, EXACT)
    expected = np.sort(all_logits(head, features), axis=1)[:, ::-1][:, :4]
    np.testing.assert_allclose(found.logits, expected, rtol=1e-6)
    assert np.isfinite(rest_bound(index, features, found)).all()


def test_features_too_large_for_any_number_are_an_error():
    index = LabelIndex.of(some_head("random", 50, np.float64, 5))
    with pytest.raises(InputError, match="too large for the head"):
        search(index, np.full((1, 5), 1e308), 4, 1)


def test_the_mean_and_the_variance_of_all_logits_are_known():
    head = some_head("lengths", 3000, np.float32, 6)
    features = some_features(head, 4, np.float64, 6)
    mean, covariance = LabelIndex.of(head).moments
    rows = np.column_stack([features, np.ones(4)])
    logits = all_logits(head, features)
    np.testing.assert_allclose(rows @ mean, logits.mean(1), rtol=1e-6)
    variance = np.einsum("ij,jk,ik->i", rows, covariance, rows)
    np.testing.assert_allclose(variance, logits.var(1), rtol=1e-4)


def test_weights_whose_squares_are_no_float32():
    rng = np.random.default_rng(7)
    topics = rng.normal(size=(60, 16))[rng.integers(0, 60, 3000)]
    weight = 1e-24 * (topics + 0.1 * rng.normal(size=topics.shape))
    head = Head(weight.astype(np.float32), np.full(3000, -6.0, np.float32))
    features = (2e48 * head.weight[:20].astype(float)).astype(np.float32)
    index, logits = LabelIndex.of(head), all_logits(head, features)
    for probes in (EXACT, 1):
        found = search(index, features, 10, probes)
        if probes == EXACT:
            expected = np.sort(logits, axis=1)[:, ::-1][:, :10]
            np.testing.assert_allclose(found.logits, expected, rtol=1e-6)
        score, bound = label_energy(found.logits).sum(1), rest_bound(index, features, found)
        assert (joint_energy(logits) <= score + bound).all()
