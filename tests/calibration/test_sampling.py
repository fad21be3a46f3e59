import numpy as np
from hypothesis import given, strategies as st

from nescio.calibration import ScoreSample, Threshold


def sampled(parts, max_samples):
    sample = ScoreSample(max_samples)
    for part in parts:
        sample.add(part, (part * 10).astype(int))
    return sample


@given(st.lists(st.integers(0, 200), max_size=8), st.integers(1, 150))
def test_the_split_does_not_change_the_sample(cuts, max_samples):
    scores = np.arange(200.0)
    whole = sampled([scores], max_samples)
    split = sampled(np.split(scores, sorted(cuts)), max_samples)
    assert split.n_rows == whole.n_rows == 200
    assert np.array_equal(split.scores, whole.scores)
    assert np.array_equal(split.label_counts, whole.scores * 10)
    assert len(whole.scores) == max_samples
    assert (np.diff(whole.scores) > 0).all()  # in the order of the rows, each row once


def test_few_scores_are_all_kept_in_their_order(rng):
    parts = [rng.normal(size=n) for n in (5, 0, 7)]
    assert np.array_equal(sampled(parts, 12).scores, np.concatenate(parts))


def test_the_sample_of_sorted_rows_is_spread_over_them():
    kept = sampled(np.split(np.arange(100_000.0), 10), 2_000).scores
    shares = np.histogram(kept, bins=20, range=(0, 100_000))[0]
    assert shares.min() > 60  # 100 expected, with a standard deviation of 10
    assert shares.max() < 140


def test_the_promised_share_is_kept_by_the_threshold_of_a_sample():
    """The mean over draws is exactly that of as many samples that were drawn alone."""
    kept = []
    for seed in range(400):
        scores = np.random.default_rng(seed).random(400)
        sample = sampled(np.split(scores, 4), 99).scores
        kept.append(1 - Threshold.from_scores(sample, tpr=0.9).value)
    assert abs(np.mean(kept) - 0.9) < 4 * np.std(kept) / 20
    assert np.mean(kept) > 0.895
