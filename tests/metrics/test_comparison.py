from dataclasses import replace

import numpy as np
import pytest

from nescio import DETECTORS, Combined, NearestNeighbours, NNGuide, Outputs
from nescio.benchmark.results import Line, comparison_lines
from nescio.checks import make_outputs
from nescio.errors import InputError, LabelMismatchError, ShapeError
from nescio.metrics import auroc, delong_test
from nescio.metrics.comparison import Scored, compare_outputs, find_lead


@pytest.fixture
def splits():
    return make_outputs(300), make_outputs(200, seed=1), make_outputs(150, seed=2, shift=2.0)


def test_every_detector_on_every_ood_set(splits):
    train, test, far = splits
    near = make_outputs(100, seed=3, shift=0.5)
    detectors = {name: detector() for name, detector in DETECTORS.items()}
    done = []
    found = compare_outputs(
        detectors,
        test,
        {"far": far, "near": near},
        train=train,
        held_out=make_outputs(100, seed=4),
        n_bootstrap=50,
        on_step=done.append,
    )
    assert sum(done) == 2 * len(DETECTORS)
    assert found.skipped == {}
    assert list(found.results) == ["far", "near"]
    for results in found.results.values():
        assert list(results) == list(DETECTORS)
    scores = [detectors["max_logit"].score_samples(data) for data in (test, far)]
    assert found.results["far"]["max_logit"].auroc.value == auroc(*scores)
    assert not hasattr(detectors["lof"], "samples_")  # the caller's are left alone


def test_the_lead_is_delongs_test_of_the_best_two(splits):
    _, test, far = splits
    detectors = {name: DETECTORS[name]() for name in ("sum_logit", "max_logit", "joint_energy")}
    found = compare_outputs(detectors, test, {"far": far}, n_bootstrap=0)
    results = found.results["far"]
    ranked = sorted(results, key=lambda name: -results[name].auroc.value)
    lead = found.lead["far"]
    assert [lead.best, lead.second] == ranked[:2]
    scores = [detectors[name].score_samples(data) for name in ranked[:2] for data in (test, far)]
    assert lead.test == delong_test(*scores)


def test_detectors_that_rank_alike_do_not_lead_each_other(splits):
    _, test, far = splits
    alike = {name: DETECTORS[name]() for name in ("max_logit", "max_energy")}
    assert compare_outputs(alike, test, {"far": far}, n_bootstrap=0).lead == {}
    three = alike | {"sum_logit": DETECTORS["sum_logit"]()}
    lead = compare_outputs(three, test, {"far": far}, n_bootstrap=0).lead["far"]
    assert {lead.best, lead.second} == {"max_logit", "sum_logit"}


def test_scores_that_differ_by_rounding_alone_rank_alike():
    sure = Scored(np.arange(400.0), {"far": np.arange(400.0) - 30})
    saturated = Scored(sure.id_scores, {"far": sure.ood_scores["far"].copy()})
    saturated.ood_scores["far"][-1] += 1.5  # of 160,000 pairs, two change places
    found = find_lead("far", {"a": sure, "b": saturated})
    assert found is None
    worse = Scored(sure.id_scores, {"far": sure.ood_scores["far"] + 20})
    lead = find_lead("far", {"a": sure, "b": saturated, "c": worse})
    assert (lead.best, lead.second) == ("a", "c")


def test_a_single_input_has_results_and_no_lead(splits):
    _, test, far = splits
    detectors = {name: DETECTORS[name]() for name in ("sum_logit", "joint_energy")}
    found = compare_outputs(detectors, test, {"far": far[:1]}, n_bootstrap=0)
    assert found.lead == {}
    assert set(found.results["far"]) == set(detectors)


def test_if_none_can_run_the_reasons_are_there(splits):
    _, test, far = splits
    found = compare_outputs({"lof": DETECTORS["lof"]()}, test, {"far": far})
    assert found.results == {"far": {}}
    [line] = comparison_lines(found, "spec", "id", 0, {})
    assert line.evaluation is None
    assert "it learns from data" in line.skipped
    assert Line.from_dict(line.as_dict()) == line


def test_outputs_of_other_models_are_refused(splits):
    train, test, far = splits
    detectors = {"joint_energy": DETECTORS["joint_energy"]()}
    few = Outputs(far.logits[:, :3])
    with pytest.raises(ShapeError, match=f"has {test.n_labels} labels and few has 3"):
        compare_outputs(detectors, test, {"far": far, "few": few})
    with pytest.raises(ShapeError, match="the training outputs has 3"):
        compare_outputs(detectors, test, {"far": far}, train=Outputs(train.logits[:, :3]))
    named = [
        Outputs(one.logits, label_names=[f"{word} {at}" for at in range(one.n_labels)])
        for one, word in ((test, "cat"), (far, "dog"))
    ]
    with pytest.raises(LabelMismatchError, match=r"labels of far differ .* label 0 is 'dog 0'"):
        compare_outputs(detectors, named[0], {"far": named[1]})


def test_what_cannot_run_is_left_out_and_why(splits):
    train, test, far = splits
    bare = {"far": Outputs(far.logits)}
    detectors = {name: detector() for name, detector in DETECTORS.items()}
    found = compare_outputs(detectors, Outputs(test.logits), bare, n_bootstrap=0)
    learn = {name for name, detector in detectors.items() if detector.learned}
    read_more = {name for name, one in detectors.items() if set(one.scores_from) != {"logits"}}
    assert {"lof", "odin"} <= learn | read_more == set(found.skipped)
    assert "reads features" in found.skipped["mahalanobis"]
    assert "--train" in found.skipped["lof"]
    no_labels = Outputs(train.logits, train.features)
    found = compare_outputs(detectors, test, {"far": far}, train=no_labels, n_bootstrap=0)
    missing = {"labels", "head", "penultimate"}
    unable = {
        name
        for name, one in detectors.items()
        if missing & set(one.learns_from) or one.learns_from_held_out
    }
    assert {"mahalanobis", "react"} <= unable == set(found.skipped)
    assert "learns from labels" in found.skipped["mahalanobis"]
    only = compare_outputs({"lof": DETECTORS["lof"]()}, test, {"far": far})
    assert (only.results, list(only.skipped)) == ({"far": {}}, ["lof"])


def test_detectors_that_learn_from_held_out_data(splits):
    train, test, far = splits
    held_out, given = make_outputs(100, seed=4), {"far": far}
    detectors = {
        "both": Combined(),
        "logits": Combined(["joint_energy", "max_logit"]),
        "with lof": Combined(["joint_energy", "lof"]),
    }

    def skipped(**data):
        return compare_outputs(detectors, test, given, n_bootstrap=0, **data).skipped

    assert skipped(train=train, held_out=held_out) == {}
    assert set(skipped(held_out=held_out)) == {"both", "with lof"}
    missing = "it learns from held-out data: pass such outputs (--held-out)."
    assert skipped(train=train) == dict.fromkeys(detectors, missing)
    bare = Outputs(held_out.logits)
    assert skipped(train=train, held_out=bare) == {
        "both": "it learns from features, but the held-out data has none."
    }
    few = skipped(train=train, held_out=held_out[:20])
    assert set(few) == set(detectors)
    assert "needs at least 19 calibration samples, got 10. Half of the held-out" in few["logits"]
    masked = held_out.logits.copy()
    masked[0, 0] = -np.inf
    without = skipped(train=train, held_out=replace(held_out, logits=masked))
    assert list(without) == ["with lof"]
    assert "masked labels (-inf), but the held-out data has some" in without["with lof"]
    with pytest.raises(InputError, match="learned from this very data"):
        skipped(train=train, held_out=train)
    with pytest.raises(ShapeError, match="the held-out outputs has 3"):
        skipped(held_out=Outputs(held_out.logits[:, :3]))
    found = compare_outputs(detectors, test, given, train=train, held_out=held_out, n_bootstrap=0)
    ready = Combined().fit(train).calibrate(held_out)
    np.testing.assert_array_equal(found.scores["both"].id_scores, ready.score_samples(test))
    assert not hasattr(detectors["logits"], "detectors_")


def test_the_result_is_plain_data(splits):
    import json

    _, test, far = splits
    found = compare_outputs({"msp": DETECTORS["msp"]()}, test, {"far": far}, n_bootstrap=20)
    plain = json.loads(json.dumps(found.as_dict()))
    (row,) = plain["results"]
    assert (row["ood"], row["detector"], row["n_ood"]) == ("far", "msp", 150)
    assert row["auroc"]["low"] <= row["auroc"]["value"] <= row["auroc"]["high"]
    assert np.isfinite(row["aupr_ood_positive"]["value"])
    assert found.lead == {}


def test_the_best_detector_is_first_in_the_plain_data(splits):
    _, test, far = splits
    detectors = {name: DETECTORS[name]() for name in ("sum_logit", "max_logit", "joint_energy")}
    found = compare_outputs(detectors, test, {"far": far}, n_bootstrap=0)
    rows = found.as_dict()["results"]
    assert [row["rank"] for row in rows] == [1, 2, 3]
    values = [row["auroc"]["value"] for row in rows]
    assert values == sorted(values, reverse=True)
    assert [row["detector"] for row in rows] == found.ranked("far")
    assert found.notes == {}
    assert not any(row["worse_than_chance"] for row in rows)


def test_swapped_data_is_named_as_the_likely_cause(splits):
    _, test, far = splits
    detectors = {name: DETECTORS[name]() for name in ("sum_logit", "max_logit", "joint_energy")}
    found = compare_outputs(detectors, far, {"test": test}, n_bootstrap=0)
    note = found.as_dict()["notes"]["test"]
    assert "all 3 detectors. The likely cause: the ID and the OOD data are swapped" in note
    assert all(row["worse_than_chance"] for row in found.as_dict()["results"])


def test_a_detector_that_needs_more_training_samples_is_skipped():
    few, more = make_outputs(20), make_outputs(60, seed=1)
    given = {"nnguide": NNGuide(k=50), "knn": NearestNeighbours(k=5)}
    found = compare_outputs(
        given, more, {"far": make_outputs(30, seed=2)}, train=few, n_bootstrap=0
    )
    assert list(found.scores) == ["knn"]
    assert "at least 50 training samples, got n_samples = 20" in found.skipped["nnguide"]
