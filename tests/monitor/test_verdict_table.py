"""Scored tables."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import nescio as ns
from fixtures.streams import logits_of, read_scored
from nescio._io.files import write_table
from nescio.errors import FileError, InputError, NescioWarning, ParameterError


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_verdicts_are_read_as_they_were_written(tmp_path, rng, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    detector = ns.JointEnergy(nonfinite="out").calibrate(logits_of(rng, 800), groups="label_count")
    logits = logits_of(rng, 30)
    logits[4, 2] = np.nan
    written = detector.assess(ns.Outputs(logits, ids=[f"photo {row}" for row in range(30)]))
    written.save(tmp_path / f"scored{suffix}")
    read = read_scored(tmp_path / f"scored{suffix}")[0]
    for name, column in written.columns().items():
        assert read.columns()[name].tolist() == column.tolist()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "score\n1\n", "no column p_value"),
        ("a.csv", "score,p_value,in_distribution\n", "no rows"),
        ("a.csv", "score,p_value,in_distribution\n1,low,True\n", "'low' is not a number"),
        ("a.csv", "score,p_value,in_distribution\n1,0.5,maybe\n", "two numbers and True or False"),
        ("a.jsonl", '{"p_value": 0.5}\n{"score": 1}\n', "has no column in_distribution"),
        ("a.txt", "", "must end in"),
    ],
)
def test_files_that_are_no_verdicts_are_refused(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises((InputError, FileError, ParameterError), match=reason):
        read_scored(tmp_path / name)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_missing_ids_and_times_are_empty(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"scored{suffix}"
    when = np.array(["2026-01-02T03", "NaT"], "datetime64[ns]")
    ids = np.array([2**53 + 1, None], dtype=object)
    verdicts = {"score": [0.5, 1.5], "p_value": [0.5, 0.5], "in_distribution": [True, False]}
    write_table(path, {**verdicts, "photo": ids, "when": when, "text": ["\u2028" * 200_000, None]})
    assert read_scored(path, id_column="photo")[0].ids.tolist() == ["9007199254740993", ""]
    first, second = read_scored(path, time_column="when")[1]
    assert (first[:13], second) == ("2026-01-02T03", "")
    with pytest.warns(NescioWarning):
        assert read_scored(path, time_column="text")[1][1] == ""
    for option in ("id_column", "time_column"):
        with pytest.raises(ParameterError, match=r"no column 'fhoto'\. Did you mean 'photo'"):
            read_scored(path, **{option: "fhoto"})


@pytest.mark.parametrize(
    ("times", "row"),
    [
        (["2026-01-02 03:00", "", "2026-01-02 04:00", "2026-01-02 03:30"], 3),
        (["2026-01-02 03:00:00+01:00", "2026-01-02T02:30Z", "2026-01-02T02:00:00Z"], 2),
        (["8", "9.5", "10", "9.75"], 3),
        (["2026-01-02T03:00:00.123456789", "2026-01-02T03:00:00.123456790"], None),
        (["2026-03-29 01:59:59+01:00", "2026-03-29 03:00:00+02:00"], None),
        (["8", "9", "10", "10"], None),
        (["", ""], None),
    ],
)
def test_times_that_are_not_in_order_get_a_warning(tmp_path, times, row):
    rows = "".join(f"1.5,0.5,True,{time}\n" for time in times)
    (tmp_path / "x.csv").write_text(f"score,p_value,in_distribution,when\n{rows}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read_scored(tmp_path / "x.csv", time_column="when")[1] == times
    said = [str(warning.message) for warning in caught]
    assert len(said) == (row is not None)
    assert row is None or f"row {row} ({times[row]}) is earlier" in said[0]


@pytest.mark.parametrize("times", [["Oslo", "Lima"], ["2026-01-02", "2026-01-01T00:00:00Z"]])
def test_what_is_no_time_gets_a_warning(tmp_path, times):
    rows = "".join(f"1.5,0.5,True,{time}\n" for time in times)
    (tmp_path / "x.csv").write_text(f"score,p_value,in_distribution,site\n{rows}")
    why = rf"row 0 \({times[0]}\) is earlier than a row before it, or no number or ISO 8601 time"
    with pytest.warns(NescioWarning, match=why):
        assert read_scored(tmp_path / "x.csv", time_column="site")[1] == times


def test_ids_that_look_like_formulas_come_back(tmp_path, detector):
    assessment = replace(
        detector.assess(logits_of(np.random.default_rng(2), 3)),
        ids=np.array(["=1+1", "-x", "plain"]),
    )
    for name in ("x.csv", "x.jsonl"):
        assessment.save(tmp_path / name)
        assert read_scored(tmp_path / name)[0].ids.tolist() == ["=1+1", "-x", "plain"]
    assert "'=1+1" in (tmp_path / "x.csv").read_text()
