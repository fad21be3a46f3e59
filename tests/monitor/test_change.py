"""The start of a change, its kind, and the id and the time that name it."""

import numpy as np
import pytest

import nescio as ns
from fixtures.streams import fed, logits_of
from nescio.errors import ShapeError
from nescio.monitor import Monitor
from nescio.monitor.betting import BETS, Martingale
from nescio.monitor.change import ChangeFinder, Place


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda p: p**3, "lower"),
        (lambda p: 1 - p**3, "higher"),
        (lambda p: np.where(np.arange(len(p)) % 12, p, 1e-6), "some lower"),
        (lambda p: np.where(np.arange(len(p)) % 12, p, 1 - 1e-6), "some higher"),
        (lambda p: np.where(p < 0.5, p**2, 1 - (1 - p) ** 2), "more extreme"),
        (lambda p: 0.5 + 0.5 * (p - 0.5), "less extreme"),
    ],
)
def test_start_and_kind_of_a_change_are_found(rng, change, kind):
    p_values = rng.random(3000)
    p_values[2000:] = change(p_values[2000:])
    finder = ChangeFinder()
    finder.add(Martingale().gains(p_values), lambda column: Place(column + 1))
    found = finder.likeliest()
    assert found.kind == kind
    assert abs(found.since.at - 2001) <= 100


def test_the_start_is_the_same_however_the_stream_is_split(rng):
    p_values = rng.random(1000) ** 1.1
    gains = Martingale().gains(p_values)
    whole, parts = ChangeFinder(), ChangeFinder()
    whole.add(gains, lambda column: Place(column + 1))
    at = 0
    for size in (1, 1, 98, 400, 500):
        part = Martingale().gains(p_values[at : at + size])
        parts.add(part, lambda column, at=at: Place(at + column + 1))
        at += size
    assert parts.starts == whole.starts
    np.testing.assert_allclose(parts.gains, whole.gains, atol=1e-9)
    before = np.concatenate([np.zeros((len(BETS), 1)), gains[:, :-1]], axis=1)
    assert [start.at for start in whole.starts] == (before.argmin(axis=1) + 1).tolist()


def test_id_and_time_of_the_start_are_named_also_after_a_restart(detector, rng, tmp_path):
    logits = np.concatenate([logits_of(rng, 400), logits_of(rng, 200, shift=-1.5)])
    ids = [f"photo {row}" for row in range(600)]
    times = np.arange(600).astype("datetime64[h]")
    monitor = Monitor(detector)
    for start in range(0, 600, 50):  # the change begins in another block than the alarm
        rows = slice(start, start + 50)
        outputs = ns.Outputs(logits[rows], ids=ids[rows])
        monitor.update(detector.assess(outputs), times=times[rows])
        monitor.save(tmp_path / "state.safetensors", force=True)
        monitor = Monitor.load(tmp_path / "state.safetensors", detector)
    since = monitor.change.since
    assert since.id == ids[since.at - 1]
    assert since.time == str(times[since.at - 1])
    assert f"since about input {since.at} (id {since.id}, time {since.time}), " in str(
        monitor.report()
    )
    monitor.reset()
    assert monitor.change is None


def test_times_of_a_shuffled_frame_belong_to_its_rows(detector, rng):
    pandas = pytest.importorskip("pandas")
    times = pandas.Series(pandas.date_range("2026-01-01", periods=200, freq="h"))
    times = times.sample(frac=1, random_state=0)
    monitor = Monitor(detector)
    monitor.update(detector.assess(logits_of(rng, 200, shift=-1.5)), times=times)
    since = monitor.change.since
    assert since.time == str(times.iloc[since.at - 1])


def test_times_must_be_as_many_as_the_inputs(detector, rng):
    assessment = detector.assess(logits_of(rng, 5))
    with pytest.raises(ShapeError, match="one entry per assessed input, 5, got 2"):
        Monitor(detector).update(assessment, times=["a", "b"])


def test_a_quiet_stream_has_no_change(detector, rng):
    assert fed(Monitor(detector), detector, logits_of(rng, 600)).change is None
