"""`compare`: data of any kind, detectors of any kind, and the same results as the command line."""

import json
from dataclasses import replace

import numpy as np
import pytest

import nescio as ns
from nescio import DETECTORS, Combined, NearestNeighbours, NNGuide, Outputs
from nescio.checks import make_outputs
from nescio.errors import (
    InputError,
    LabelMismatchError,
    MissingInputError,
    ParameterError,
    ShapeError,
)
from nescio.lab.benchmark.results import Line, comparison_lines
from nescio.metrics import auroc, delong_test
from nescio.metrics.comparison import Scored, compare_outputs, find_lead
from nescio.outputs.reading import read_sets

NAMES = ["joint_energy", "max_logit"]


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


def test_the_plain_data_has_the_best_detector_first(splits):
    _, test, far = splits
    detectors = {name: DETECTORS[name]() for name in ("sum_logit", "max_logit", "joint_energy")}
    found = compare_outputs(detectors, test, {"far": far}, n_bootstrap=20)
    rows = json.loads(json.dumps(found.as_dict()))["results"]
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert [row["detector"] for row in rows] == found.ranked("far")
    values = [row["auroc"]["value"] for row in rows]
    assert values == sorted(values, reverse=True)
    assert rows[0]["auroc"]["low"] <= values[0] <= rows[0]["auroc"]["high"]
    assert found.notes == {}
    assert not any(row["worse_than_chance"] for row in rows)
    single = compare_outputs(detectors, test, {"far": far[:1]}, n_bootstrap=0)
    assert single.lead == {}
    assert set(single.results["far"]) == set(detectors)


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


# --- data of any kind ---


@pytest.fixture
def logits(rng):
    return {"known": rng.normal(0, 3, (80, 4)), "far": rng.normal(-3, 2, (60, 4))}


def compared(*data, **options):
    return ns.compare(*data, **{"detectors": NAMES, "n_bootstrap": 0} | options)


def test_data_of_any_kind_gives_the_same(logits, tmp_path):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    known, far = logits.values()
    names = ["cat", "dog", "cow", "hen"]
    expected = compared(known, {"far": far}).as_dict()
    assert compared(known, far).as_dict()["results"][0]["ood"] == "ood"
    paths = {name: tmp_path / f"{name}.npy" for name in logits}
    for name, array in logits.items():
        np.save(paths[name], array)
    turned = pandas.DataFrame(far, columns=names)[names[::-1]]  # columns are matched by name
    for given in (
        (known.tolist(), {"far": far}),
        (ns.Outputs(known), {"far": ns.Outputs(far)}),
        (pandas.DataFrame(known, columns=names), {"far": turned}),
        (polars.DataFrame(known, names), {"far": far}),
        (paths["known"], paths["far"]),
        (str(paths["known"]), [str(paths["far"])]),
        (known, {"far": paths["far"]}),
    ):
        assert compared(*given).as_dict() == expected


def test_a_sample_of_a_large_file_is_read(logits, tmp_path, monkeypatch):
    paths = {name: tmp_path / f"{name}.npy" for name in logits}
    for name, array in logits.items():
        np.save(paths[name], array)
    monkeypatch.setitem(read_sets.__kwdefaults__, "max_rows", 70)
    found = compared(paths["known"], paths["far"])
    assert found.sampled == {"ID": 80}
    result = found.results["far"]["max_logit"]
    assert (result.n_id, result.n_ood) == (70, 60)
    assert "ID: a sample of 80 rows" in repr(found)


def test_the_default_is_asked_for_by_name(logits):
    found = compared(*logits.values(), detectors=["auto", "max_logit"])
    same = compared(*logits.values(), detectors=["joint_energy"])
    assert found.results["ood"]["auto"] == same.results["ood"]["joint_energy"]


def test_detectors_are_named_as_they_are_written(logits):
    known, far = logits.values()

    def names(detectors, **options):
        found = compared(known, far, detectors=detectors, **options)
        return [*found.results["ood"]], found.skipped

    assert names("msp")[0] == ["msp"]
    assert names(ns.MSP)[0] == ["msp"]
    several = [ns.TopKJointEnergy(k=2), "top_k_joint_energy(k=3)", ns.GEN()]
    shown = ["top_k_joint_energy(k=2)", "top_k_joint_energy(k=3)", "gen"]
    assert names(several)[0] == shown
    assert names({"mine": ns.MSP(), "yours": "gen"})[0] == ["mine", "yours"]
    every, skipped = names("all")
    assert {*every, *skipped} == set(ns.DETECTORS)
    assert "pass training outputs" in skipped["lof"]
    assert "isolation_forest" in names("all", train=known.copy())[0]


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"detectors": "mahalanobis"}, MissingInputError, "mahalanobis cannot be evaluated"),
        ({"detectors": []}, ParameterError, "no detector to compare"),
        ({"detectors": [ns.MSP(), ns.MSP()]}, ParameterError, "two detectors are named msp"),
        ({"ood_data": {}}, ParameterError, "no OOD data"),
        ({"ood_data": [np.zeros((2, 4)), np.zeros((2, 4))]}, ParameterError, "sets need names"),
    ],
)
def test_mistakes_are_explained(logits, change, error, reason):
    given = {"ood_data": logits["far"], **change}
    with pytest.raises(error, match=reason):
        compared(logits["known"], **given)


def test_nothing_is_compared_with_itself(logits, tmp_path):
    path = tmp_path / "known.npy"
    np.save(path, logits["known"])
    with pytest.raises(ParameterError, match="is given as ID data"):
        compared(path, path)
    known, far = ns.Outputs(logits["known"]), logits["far"]
    for given, message in (
        ({"ood_data": {"far": known}}, r"same Outputs is given as ID data .* OOD data"),
        ({"train": known}, r"given as ID data .* training data"),
        ({"held_out": known}, r"given as ID data .* held-out data"),
        ({"train": far, "held_out": far}, r"ndarray is given as training data .* held-out data"),
    ):
        with pytest.raises(ParameterError, match=message):
            compared(known, **{"ood_data": far, **given})


def test_other_labels_are_an_error(logits):
    pandas = pytest.importorskip("pandas")
    known, far = (pandas.DataFrame(one, columns=list("abcd")) for one in logits.values())
    with pytest.raises(LabelMismatchError, match=r"^far: "):
        compared(known, {"far": far.rename(columns={"d": "e"})})


def test_probabilities_are_converted(logits):
    known, far = (1 / (1 + np.exp(-one)) for one in logits.values())
    found = compared(known, far, from_probs=True)
    expected = compared(*logits.values())
    for name in NAMES:
        ours, theirs = found.results["ood"][name], expected.results["ood"][name]
        assert ours.auroc.value == pytest.approx(theirs.auroc.value, abs=1e-3)
