"""The monitor as a whole: what it finds, in which groups, over any blocks and after saving."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

import nescio as ns
from fixtures.streams import Calibrated, fed, grouped_detector, logits_of, not_more_than
from nescio.detectors.verdicts import Assessment
from nescio.errors import FileError, InputError, ParameterError, ShapeError
from nescio.monitor import Monitor


def first_alarm(detector, before, after, **settings):
    monitor = Monitor(detector, **settings)
    fed(monitor, detector, before)
    assert not monitor.alarm
    fed(monitor, detector, after)
    return None if monitor.alarm_at is None else monitor.alarm_at - len(before)


def test_a_shift_is_found_early_and_late(detector, rng):
    shifted = logits_of(rng, 3000, shift=-0.8)
    assert first_alarm(detector, logits_of(rng, 10), shifted) < 300
    assert first_alarm(detector, logits_of(rng, 50_000), shifted) < 300


def test_a_few_strange_inputs_among_many_are_found(detector, rng):
    after = logits_of(rng, 5000)
    strange = rng.random(5000) < 0.05
    after[strange] -= 5.0
    assert first_alarm(detector, logits_of(rng, 5000), after) < 1000


def test_a_small_lasting_shift_is_found(detector, rng):
    assert first_alarm(detector, logits_of(rng, 5000), logits_of(rng, 20_000, shift=-0.15)) < 5000


def test_flagged_means_below_the_threshold_also_with_fdr(detector, rng):
    logits = logits_of(rng, 400)
    monitor = Monitor(detector)
    monitor.update(detector.assess(logits, fdr=0.1))
    assert monitor.flagged == (detector.predict(logits) == -1).sum()


def test_groups_have_their_own_bags(rng):
    detector = grouped_detector(rng)
    monitor = Monitor(detector)
    groups = np.array(["night"] * 900 + ["day"] * 300)
    logits = logits_of(rng, 1200) + (groups == "night")[:, None]
    monitor.update(detector.assess(logits, groups=groups))
    # Another mix of groups is no change.
    assert not monitor.alarm
    assert [bag.total for bag in monitor.bags] == [400 + 300, 200 + 900, 600]  # of all groups
    swapped = np.array(["night", "day"] * 500)
    monitor.update(detector.assess(logits_of(rng, 1000) - 1, groups=swapped))
    assert monitor.alarm


def same_state(a, b):
    """Equal reports, up to the rounding of the evidence."""
    first, second = a.as_dict(), b.as_dict()
    for name in ("trace", "log10_martingale", "max_log10_martingale"):
        np.testing.assert_allclose(first.pop(name), second.pop(name), rtol=0, atol=1e-9)
    assert first == second


@pytest.mark.slow
def test_false_alarms_by_group_stay_below_alpha():
    n_alarms = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        names = np.array(["a", "b"])[rng.integers(0, 2, 80)]
        values = rng.normal(size=80) + 2 * (names == "b")
        calibration = ns.Calibration.from_scores(values, tpr=0.8, groups=names)
        groups = np.array(["a", "b"])[(rng.random(1500) < 0.9).astype(int)]
        stream = rng.normal(size=1500) + 2 * (groups == "b")
        assessment = Assessment(
            stream, calibration.p_values(stream, groups), stream > 0, groups=groups
        )
        monitor = Monitor(Calibrated(calibration), alpha=0.1, seed=seed)
        monitor.update(assessment)
        n_alarms += monitor.alarm
    assert not_more_than(n_alarms, 300, 0.1)


@pytest.mark.parametrize("sizes", [[1] * 30 + [970, 4000], [500, 4500], [256, 255, 257, 4232]])
def test_one_call_or_many_give_the_same(detector, rng, sizes):
    logits = np.concatenate([logits_of(rng, 3000), logits_of(rng, 2000, shift=-0.5)])
    whole = fed(Monitor(detector), detector, logits)
    assert whole.alarm
    same_state(whole, fed(Monitor(detector), detector, logits, sizes))


def test_the_seed_decides_the_random_ranks(detector, rng):
    logits = logits_of(rng, 500)
    first, same, other = (fed(Monitor(detector, seed=seed), detector, logits) for seed in (0, 0, 1))
    assert first.log10_martingale == same.log10_martingale != other.log10_martingale


def test_reset_starts_again_with_the_same_calibration(detector, rng):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 1000, shift=-2.0))
    assert monitor.alarm
    monitor.reset()
    assert not monitor.alarm
    assert (monitor.n_samples, monitor.flagged, monitor.log10_martingale) == (0, 0, 0.0)
    assert [bag.total for bag in monitor.bags] == [1500]
    fed(monitor, detector, logits_of(rng, 2000))
    assert not monitor.alarm


def test_groups_that_do_not_fit_are_refused(rng):
    detector = grouped_detector(rng)
    monitor = Monitor(detector)
    assessment = detector.assess(logits_of(rng, 5), groups=["day"] * 5)
    values = assessment.scores, assessment.p_values, assessment.in_distribution
    with pytest.raises(InputError, match="have no groups"):
        monitor.update(Assessment(*values))
    with pytest.raises(InputError, match="not calibrated for group 'dusk'"):
        monitor.update(Assessment(*values, groups=np.array(["day"] * 4 + ["dusk"])))
    with pytest.raises(ShapeError, match="groups"):
        monitor.update(Assessment(*values, groups=np.array(["day"] * 4)))
    assert monitor.n_samples == 0


def test_verdicts_of_another_detector_change_nothing(detector, rng):
    monitor, logits = Monitor(detector), logits_of(rng, 20)
    other = ns.JointEnergy().calibrate(logits_of(rng, 1500, shift=1.0))
    for strange in (ns.MaxLogit().calibrate(logits_of(rng, 1500)), other):
        with pytest.raises(InputError, match="another detector"):
            monitor.update(strange.assess(logits))
    good = detector.assess(logits)
    bad = np.where(np.arange(20) == 7, np.nan, good.scores)
    ones = np.where(np.arange(20) == 7, 1.0, good.p_values)
    with pytest.raises(InputError, match="does not match"):
        monitor.update(Assessment(bad, ones, good.in_distribution))
    assert monitor.n_samples == 0
    assert monitor.log10_martingale == 0
    monitor.update(good[:0])
    assert monitor.n_samples == 0


@pytest.mark.parametrize("settings", [{"alpha": 0}, {"alpha": 1.5}, {"window": 3}, {"seed": -1}])
def test_bad_parameters_are_rejected(detector, rng, settings):
    with pytest.raises(ParameterError, match=next(iter(settings))):
        Monitor(detector, **settings)
    with pytest.raises(ns.NotCalibratedError, match="call calibrate"):
        Monitor(ns.JointEnergy(), **settings)
    with pytest.raises(ShapeError, match="one entry per assessed input, 5, got 2"):
        Monitor(detector).update(detector.assess(logits_of(rng, 5)), times=["a", "b"])


# --- acknowledged alarms ---


def test_an_acknowledged_alarm_is_recorded_and_the_monitor_starts_again(detector, rng, tmp_path):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 300))
    with pytest.raises(InputError, match="no alarm and no changed group to acknowledge"):
        monitor.acknowledge()
    fed(monitor, detector, logits_of(rng, 700, shift=-2))
    alarm_at, change, words = monitor.alarm_at, monitor.change, str(monitor).split("\n")[0]
    record = monitor.acknowledge("Ann: lens cleaned")
    assert (record["alarm"], record["alarm_at"]) == (words, alarm_at)
    assert record["change"]["since"]["number"] == change.since.number > 250
    assert (monitor.alarm, monitor.n_samples, monitor.log10_martingale) == (False, 0, 0)
    fed(monitor, detector, logits_of(rng, 400))
    earlier = f"\nAn earlier change was acknowledged at {record['time']} (Ann: lens cleaned)."
    assert f"{earlier}\nEvidence for a change" in str(monitor)
    assert not monitor.alarm
    monitor.save(tmp_path / "state.safetensors")
    again = Monitor.load(tmp_path / "state.safetensors", detector)
    assert again.acknowledged == again.as_dict()["acknowledged"] == [record]


def test_a_changed_group_is_acknowledged_like_an_alarm(rng):
    sites = np.where(np.arange(1000) % 40 == 0, "tiny", "large")
    detector = ns.JointEnergy(nonfinite="out").calibrate(logits_of(rng, 1000), groups=sites)
    logits = logits_of(rng, 1000)
    logits[sites == "tiny"] = np.nan
    monitor = Monitor(detector)
    monitor.update(detector.assess(logits, groups=sites))
    assert (monitor.alarm, monitor.changed) == (False, True)
    first, second, advice, *_ = str(monitor).split("\n")
    assert (
        first == "CHANGED: of 1,000 inputs, those of some groups differ from the calibration data."
    )
    assert second == "Changed: group tiny (its inputs have NaN or infinity more often)."
    assert advice.startswith("What to do: look at these inputs.")
    record = monitor.acknowledge("Ann: the cable is in again")
    assert (record["alarm"], record["alarm_at"], record["change"]) == (
        f"{first} {second}",
        None,
        None,
    )
    assert (monitor.changed, monitor.n_samples) == (False, 0)
    monitor.update(detector.assess(logits_of(rng, 1000), groups=sites))
    assert not monitor.changed


def test_the_latest_hundred_acknowledged_alarms_are_kept(detector, rng):
    monitor, strange = Monitor(detector), logits_of(rng, 40, shift=-6)
    for number in range(102):
        fed(monitor, detector, strange).acknowledge(str(number))
    assert [record["note"] for record in monitor.acknowledged] == list(map(str, range(2, 102)))


# --- saved monitors ---


def test_a_saved_monitor_goes_on_exactly(detector, rng, tmp_path):
    logits = np.concatenate([logits_of(rng, 2300), logits_of(rng, 1500, shift=-0.5)])
    straight = fed(Monitor(detector, window=300), detector, logits, [1000, 2000, 800])
    monitor, start = Monitor(detector, window=300), 0
    for size in (1000, 2000, 800):
        fed(monitor, detector, logits[start : start + size])
        start += size
        monitor.save(tmp_path / "state.safetensors", force=True)
        monitor = Monitor.load(tmp_path / "state.safetensors", detector)
    assert monitor.as_dict() == straight.as_dict()
    assert monitor.alarm
    new = logits_of(rng, 700)
    fed(monitor, detector, new)
    assert monitor.as_dict() == fed(straight, detector, new).as_dict()


def test_a_state_is_of_one_detector(detector, rng, tmp_path):
    path = tmp_path / "state.safetensors"
    fed(Monitor(detector), detector, logits_of(rng, 50)).save(path)
    other = ns.JointEnergy().calibrate(logits_of(rng, 1500))
    with pytest.raises(InputError, match="another detector"):
        Monitor.load(path, other)
    with pytest.raises(FileError, match="exists already"):
        Monitor(detector).save(path)


def test_a_wrapped_model_and_its_predictions_are_watched(rng):
    inputs = rng.normal(size=(600, 4))
    model = OneVsRestClassifier(LogisticRegression()).fit(inputs[:100], inputs[:100] > 0)
    wrapped = ns.wrap(model).calibrate(inputs[100:400], self_check=False)
    by_prediction, by_assessment = Monitor(wrapped), Monitor(wrapped.detector)
    by_prediction.update(wrapped(inputs[400:]))
    by_assessment.update(wrapped.assess(inputs[400:]))
    assert by_prediction.as_dict() == by_assessment.as_dict()
    with pytest.raises(InputError, match=r"got a list. Pass what .* wrapped.assess\(inputs\)"):
        by_prediction.update(inputs.tolist())
    fitted = ns.WithVerdict(OneVsRestClassifier(LogisticRegression()), "max_logit")
    with pytest.raises(ns.NotCalibratedError):
        Monitor(fitted)
    fitted.fit(inputs, inputs > 0)
    assert Monitor(fitted).fingerprint == Monitor(fitted.detector_).fingerprint
    with pytest.raises(ns.NotCalibratedError, match="has no detector yet: fit and calibrate it"):
        Monitor(ns.wrap(model))
