"""The gap: the numbers of the definition, one sample at a time."""

import numpy as np

import nescio as ns


def plainly(row):
    known = [logit for logit in row if logit > -np.inf]
    predicted = [logit for logit in known if logit > 0] or [max(known)]
    others = [logit for logit in known if logit <= 0 and logit not in predicted] or [min(known)]
    return np.mean(predicted) - np.mean(others)


def test_the_predicted_labels_minus_the_others(rng):
    logits = np.concatenate([rng.normal(mean, 2, (30, 6)) for mean in (-9, -1, 9)])
    counts = (logits > 0).sum(1)
    assert {0, 3, 6} <= set(counts)  # none, some and all of the labels are predicted
    masked = logits.copy()
    masked[rng.random(masked.shape) < 0.2] = -np.inf
    masked[:, 3] = logits[:, 3]  # one label is left everywhere
    for rows in (logits, masked):
        scores = ns.LabelGap().score_samples(rows)
        np.testing.assert_allclose(scores, [plainly(row) for row in rows], atol=1e-12)
        assert (scores >= 0).all()


def test_a_single_label_has_no_gap_and_no_label_is_out():
    assert ns.LabelGap().score_samples(np.array([[3.0], [-3.0]])).tolist() == [0, 0]
    assert ns.LabelGap().score_samples(np.full((1, 4), -np.inf)).tolist() == [-np.inf]
