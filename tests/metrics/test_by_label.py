"""False alarms and the FPR by label."""

import numpy as np
import pytest
from scipy.stats import binomtest

import nescio as ns
from nescio.errors import InputError, ShapeError
from nescio.metrics import fpr_at_tpr, label_rates
from nescio.metrics.by_label import sample_labels, share


@pytest.fixture
def scored():
    rng = np.random.default_rng(3)
    labels = rng.random((3000, 6)) < [0.5, 0.4, 0.3, 0.2, 0.03, 0.0]
    scores = rng.normal(size=3000) - 2.5 * labels[:, 4]
    return scores, labels, rng.normal(-2, 1, 800)


def test_each_label_has_its_own_false_alarms_and_fpr(scored):
    scores, labels, ood = scored
    rates = label_rates(scores, labels, ood, tpr=0.9)
    threshold = np.sort(scores)[300]
    assert rates.overall.n_flagged == 300
    for rate in rates.labels:
        own = scores[labels[:, int(rate.name.removeprefix("label "))]]
        assert (rate.n_samples, rate.n_flagged) == (len(own), np.count_nonzero(own < threshold))
        assert rate.false_alarms.value == rate.n_flagged / rate.n_samples
        assert rate.fpr.value == fpr_at_tpr(own, ood, tpr=0.9)
        assert rate.fpr.low < rate.fpr.value < rate.fpr.high
    shares = [rate.false_alarms.value for rate in rates.labels]
    assert shares == sorted(shares, reverse=True)
    assert rates.fpr_name == "FPR90"


def test_the_label_that_suffers_is_named_and_a_label_without_samples_is_left_out(scored):
    scores, labels, _ = scored
    rates = label_rates(scores, labels, label_names=[*"abcd", "tie", "unseen"])
    assert rates.suffering == ["tie"]
    assert "beyond chance: tie (" in rates.summary()
    assert "unseen" not in rates.columns()["label"]
    even = label_rates(np.random.default_rng(0).normal(size=3000), labels)
    assert even.suffering == []
    assert even.summary().startswith("No label is flagged more often")


def test_labels_without_a_false_alarm_are_not_among_those_with_most():
    scores, labels = np.array([0.0, 1, 1, 1]), np.eye(4)[[0, 1, 2, 2]]
    rates = label_rates(scores, labels, threshold=0.5)
    assert [rate.name for rate in rates.rows()][-2:] == ["frequent", "label 0"]
    assert "label 1" not in str(rates)
    assert rates.columns()["flagged"] == [1, 0, 0]


def test_samples_are_grouped_by_the_frequency_of_their_labels(scored):
    scores, labels, _ = scored
    rates = label_rates(scores, labels)
    sizes = {rate.name: rate.n_samples for rate in rates.by_frequency}
    assert sizes == {
        "rare": labels[:, [3, 4]].any(axis=1).sum(),
        "medium": labels[:, [1, 2]].any(axis=1).sum(),
        "frequent": labels[:, 0].sum(),
        "no label": (~labels.any(axis=1)).sum(),
    }
    of_label = dict(zip(rates.columns()["label"], rates.columns()["frequency"], strict=True))
    assert (of_label["label 4"], of_label["label 0"]) == ("rare", "frequent")


def test_a_threshold_is_that_of_the_detector(scored):
    scores, labels, _ = scored
    assert label_rates(scores, labels, threshold=-9.0).overall.n_flagged == 0
    assert label_rates(scores, labels, threshold=0.0).overall.n_flagged == (scores < 0).sum()


@pytest.mark.parametrize(("count", "n"), [(0, 20), (3, 20), (20, 20), (50, 1000)])
def test_the_interval_of_a_share_is_that_of_clopper_and_pearson(count, n):
    exact = binomtest(count, n).proportion_ci(method="exact")
    assert share(count, n).low == pytest.approx(exact.low)
    assert share(count, n).high == pytest.approx(exact.high)


@pytest.mark.slow
@pytest.mark.parametrize("n", [15, 60, 400])
def test_the_interval_of_the_fpr_by_label_holds(n):
    """True scores are uniform, so the FPR at the true 5 % quantile is known."""
    rng, inside = np.random.default_rng(n), 0
    for _ in range(400):
        ood = rng.random(300) - 0.5  # uniform: 45 % lie above 0.05
        rate = label_rates(rng.random(n), np.ones((n, 1)), ood).labels[0]
        inside += rate.fpr.low <= 0.45 <= rate.fpr.high
    assert inside >= 0.95 * 400


def test_without_truth_a_sample_counts_for_its_most_likely_label():
    logits = np.array([[-3.0, -1.0], [2.0, 1.0], [np.nan, -4.0]])
    has, kind = sample_labels(ns.Outputs(logits))
    assert kind == "most likely"
    assert has.tolist() == [[False, True], [True, False], [False, True]]
    has, kind = sample_labels(ns.Outputs(logits, labels=[[1, 1], [0, 0], [1, 0]]))
    assert (kind, has.sum()) == ("true", 3)


def test_labels_that_do_not_fit_are_errors(scored):
    scores, labels, _ = scored
    with pytest.raises(ShapeError, match="one row for each of the 3,000 scores"):
        label_rates(scores, labels[:10])
    with pytest.raises(ShapeError, match="2 label_names were passed for 6 labels"):
        label_rates(scores, labels, label_names=["a", "b"])
    with pytest.raises(InputError, match="multi-hot"):
        label_rates(scores, labels + 1.0)


def test_a_comparison_has_the_rates_of_each_detector():
    rng = np.random.default_rng(0)
    labels = rng.random((500, 5)) < 0.3
    logits = np.where(labels, rng.normal(3, 1, labels.shape), rng.normal(-3, 1, labels.shape))
    known = ns.Outputs(logits, labels=labels.astype(np.uint8), label_names=list("abcde"))
    far = rng.normal(-4, 1, (200, 5))
    compared = ns.compare(known, {"far": far}, ["joint_energy", "max_logit"], n_bootstrap=0)
    rates = compared.by_label("max_logit", "far")
    assert rates.overall.fpr.value == compared.results["far"]["max_logit"].fpr.value
    assert compared.as_dict()["by_label"]["far"]["max_logit"] == rates.as_dict()
    assert compared.by_label("joint_energy").overall.fpr is None
    assert compared.best in ("joint_energy", "max_logit")
