import json

import numpy as np
import pytest

import nescio as ns
from nescio.checks import make_outputs
from nescio.errors import InputError, ShapeError


@pytest.mark.parametrize("groups", [None, "label_count"])
def test_concat_undoes_a_split(groups):
    detector = ns.JointEnergy().calibrate(make_outputs(1500), groups=groups)
    outputs = make_outputs(30, seed=1)
    whole = detector.assess(outputs)
    joined = ns.Assessment.concat([detector.assess(outputs[:7]), detector.assess(outputs[7:])])
    assert joined.columns().keys() == whole.columns().keys()
    for name, column in whole.columns().items():
        np.testing.assert_array_equal(joined.columns()[name], column)


def test_the_group_of_each_sample_is_printed():
    camera = np.array(["front", "rear"] * 100)
    detector = ns.JointEnergy().calibrate(make_outputs(200), groups=camera)
    assessed = detector.assess(make_outputs(2, seed=1), groups=["rear", "front"])
    assert [line.split()[-1] for line in repr(assessed).splitlines()[1:]] == [
        "group", "rear", "front",
    ]  # fmt: skip


def test_only_assessments_of_one_kind_are_joined():
    with pytest.raises(InputError, match="no assessments to join"):
        ns.Assessment.concat([])
    detector = ns.JointEnergy().calibrate(make_outputs(100))
    outputs = make_outputs(2, seed=1)
    named = ns.Outputs(outputs.logits, ids=["a", "b"])
    with pytest.raises(InputError, match="must have ids and groups, or none"):
        ns.Assessment.concat([detector.assess(outputs), detector.assess(named)])


def test_an_assessment_can_be_written(detector, logits, tmp_path):
    report = detector.assess(ns.Outputs(logits, ids=[f"i{i}" for i in range(400)]))
    path = tmp_path / "x.jsonl"
    report.save(path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["id"] for row in rows] == report.ids.tolist()
    assert [row["score"] for row in rows] == report.scores.tolist()
    assert [row["in_distribution"] for row in rows] == report.in_distribution.tolist()
    with pytest.raises(ns.errors.FileError, match="exists already"):
        report.save(path)


def test_kept_columns_go_from_the_outputs_to_the_saved_table(rng, tmp_path):
    texts = np.array([f"text {row}" for row in range(30)], dtype=object)
    data = ns.Outputs(rng.normal(size=(30, 3)), kept={"text": texts, "n": np.arange(30)})
    detector = ns.JointEnergy().calibrate(rng.normal(size=(100, 3)))
    result = detector.assess(data)
    assert list(result.columns()) == ["score", "p_value", "in_distribution", "text", "n"]
    assert result[[4, 2]].kept["text"].tolist() == ["text 4", "text 2"]
    whole = ns.Outputs.concat([data[:10], data[10:]])
    assert whole.kept["n"].tolist() == list(range(30))
    joined = ns.Assessment.concat([result[:10], result[10:]])
    for rows in (30, [30], np.ones(3, bool), [[0]], 1.5):
        with pytest.raises(InputError, match="choose from 30 samples"):
            result[rows]
    assert joined.kept["text"].tolist() == texts.tolist()
    joined.save(tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text().splitlines()[3].endswith(",text 2,2")
    with pytest.raises(InputError, match="kept the same columns"):
        ns.Outputs.concat([data, ns.Outputs(data.logits)])
    with pytest.raises(InputError, match="'score' cannot be kept"):
        detector.assess(ns.Outputs(data.logits, kept={"score": np.arange(30)}))
    with pytest.raises(ShapeError, match="text must have one row per sample"):
        ns.Outputs(data.logits, kept={"text": ["x"]})
