"""Calibration block by block gives the detector that calibration on all rows gives."""

from types import SimpleNamespace

import numpy as np
import pytest

import nescio as ns
from nescio.calibration import ScoreSample
from nescio.detectors.calibrating import calibrate_stream
from nescio.errors import (
    ImplausibleValuesWarning,
    InputError,
    NonFiniteError,
    ParameterError,
    TooFewSamplesError,
)
from nescio.outputs import Outputs


class Blocks:
    """Outputs in memory, read as a stream."""

    address = "held_out.parquet"

    def __init__(self, outputs, size=37):
        self.outputs, self.size = outputs, size
        self.n_rows, self.n_read = len(outputs), 0

    def blocks(self):
        self.n_read += 1
        for start in range(0, self.n_rows, self.size):
            yield SimpleNamespace(start=start, outputs=self.outputs[start : start + self.size])


def outputs_of(rng, n=600, *, names=None, features=False):
    logits = rng.normal(-1, 2, (n, 6)).astype(np.float32)
    extra = {"features": rng.normal(size=(n, 4))} if features else {}
    return Outputs(logits, label_names=names, **extra)


def bytes_of(detector, path):
    detector.save(path, force=True)
    return path.read_bytes()


def assert_same(made, expected, tmp_path):
    assert bytes_of(made, tmp_path / "a") == bytes_of(expected, tmp_path / "b")


# The maximum of a row is the same number in any block and on any processor.
@pytest.mark.parametrize("by_label_count", [False, True])
@pytest.mark.parametrize("confidence", [None, 0.9])
def test_the_file_is_the_same_byte_by_byte(rng, tmp_path, by_label_count, confidence):
    outputs = outputs_of(rng, 6_000, names=list("abcdef"))
    stream = Blocks(outputs, 701)
    made, rows = ns.MaxLogit(), []
    calibrate_stream(
        made, stream, confidence=confidence, by_label_count=by_label_count, on_rows=rows.append
    )
    groups = "label_count" if by_label_count else None
    expected = ns.MaxLogit().calibrate(outputs, confidence=confidence, groups=groups)
    assert_same(made, expected, tmp_path)
    assert sum(rows) == 6_000
    # Only groups need a second look at the data, for the medians within them.
    assert stream.n_read == (2 if by_label_count else 1)


def test_masked_labels_and_rows_without_a_score_count_as_in_the_whole(rng, tmp_path):
    outputs = outputs_of(rng, 5_500)
    outputs.logits[::3, 2] = -np.inf  # masked
    outputs.logits[5::400] = np.nan
    stream = Blocks(outputs, 500)
    made = ns.MaxLogit(nonfinite="out")
    calibrate_stream(made, stream)
    assert_same(made, ns.MaxLogit(nonfinite="out").calibrate(outputs), tmp_path)
    assert stream.n_read == 2  # the rows for the medians are drawn among those with a score
    with pytest.raises(NonFiniteError, match=r"held_out.parquet: .*row"):
        calibrate_stream(ns.MaxLogit(), Blocks(outputs, 500))


def test_a_detector_that_has_learned_scores_blocks_alike(rng):
    train, outputs = outputs_of(rng, 200, features=True), outputs_of(rng, features=True)
    made, expected = (ns.NearestNeighbours(k=3).fit(train) for _ in range(2))
    calibrate_stream(made, Blocks(outputs), n_learned=200)
    expected.calibrate(outputs)
    assert made.offset_ == pytest.approx(expected.offset_, rel=1e-6)
    assert np.array_equal(made.profile_.firing.counts, expected.profile_.firing.counts)


def test_data_that_the_detector_has_learned_from_is_refused_in_any_order(rng):
    train = outputs_of(rng, 200, features=True)
    made = ns.NearestNeighbours(k=3).fit(train)
    with pytest.raises(InputError, match="has learned from this very data"):
        calibrate_stream(made, Blocks(train[::-1]), n_learned=200)
    assert not hasattr(made, "calibration_")


def test_more_scores_than_are_kept_are_a_sample_of_all_of_them(rng):
    outputs = outputs_of(rng, 3_000)
    made = ns.MaxLogit()
    sample = calibrate_stream(made, Blocks(outputs, 256), sample=ScoreSample(500))
    assert (sample.n_rows, made.calibration_.n_samples) == (3_000, 500)
    assert set(made.calibration_.thresholds["all"].scores) <= set(outputs.logits.max(1).tolist())
    assert made.profile_.firing.n_samples == 3_000
    assert (made.predict(outputs_of(rng, 3_000)) == 1).mean() > 0.9


def test_labels_are_matched_by_name_in_every_block(rng):
    outputs = outputs_of(rng, names=list("abcdef"))
    other = outputs.select_labels([5, 4, 3, 2, 1, 0])
    mixed = SimpleNamespace(address="mixed", n_rows=1_200)
    mixed.blocks = lambda: [
        SimpleNamespace(start=0, outputs=outputs),
        SimpleNamespace(start=600, outputs=other),
    ]
    made = ns.MaxLogit()
    calibrate_stream(made, mixed)
    once = ns.MaxLogit().calibrate(outputs)
    assert np.array_equal(made.profile_.firing.counts, 2 * once.profile_.firing.counts)


def test_warnings_are_about_all_rows_and_given_once(rng):
    outputs = outputs_of(rng)
    outputs.logits[:, 3] = -9.5
    with pytest.warns(ImplausibleValuesWarning, match="for all 600 calibration samples") as given:
        calibrate_stream(ns.MaxLogit(), Blocks(outputs))
    assert len(given) == 1
    outputs.logits[599, 3] = -2.5
    outputs.logits[:37] = np.abs(outputs.logits[:37])  # never negative in the first block only
    calibrate_stream(ns.MaxLogit(), Blocks(outputs))  # a warning would be an error
    positive = Outputs(np.abs(outputs_of(rng).logits) * 200)
    with pytest.warns(ImplausibleValuesWarning, match="no value is negative") as given:
        calibrate_stream(ns.MaxLogit(), Blocks(positive))
    assert len(given) == 1


def test_errors_name_the_input_and_leave_the_detector_as_it_was(rng):
    made = ns.MaxLogit()
    with pytest.raises(TooFewSamplesError, match=r"tpr=0.95 needs at least 19"):
        calibrate_stream(made, Blocks(outputs_of(rng, 10), 5))
    assert not hasattr(made, "n_columns_")
    outputs = outputs_of(rng)
    outputs.logits[599, 0] = np.nan
    with pytest.raises(NonFiniteError, match=r"held_out.parquet, rows 592 to 599"):
        calibrate_stream(made, Blocks(outputs))
    with pytest.raises(ParameterError, match="learns from held-out data"):
        calibrate_stream(ns.Combined(), Blocks(outputs))
