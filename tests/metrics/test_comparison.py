"""`evaluate` and `compare`: intervals, notes, data of any kind and detectors of any kind."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

import nescio as ns
from nescio import DETECTORS, Combined, NearestNeighbours, NNGuide, Outputs
from nescio.checks import make_outputs
from nescio.errors import (
    InputError,
    LabelMismatchError,
    MissingInputError,
    NescioWarning,
    ParameterError,
    ProbabilitiesError,
    ShapeError,
)
from nescio.lab.benchmark.results import Line, comparison_lines
from nescio.metrics import auroc, delong_test
from nescio.metrics.comparison import WORSE, Scored, chance_note, compare_outputs, find_lead
from nescio.outputs.sets import read_sets

# --- one detector ---


def test_evaluate_gives_intervals_around_its_values(rng):
    result = ns.evaluate(rng.normal(2, 1, 400), rng.normal(0, 1, 300), n_bootstrap=300)
    assert len(result.estimates) == 6
    for estimate in result.estimates.values():
        assert estimate.low < estimate.value < estimate.high
    assert (result.n_id, result.n_ood, result.fpr_name) == (400, 300, "FPR95")
    assert float(result.auroc) == result.as_dict()["auroc"]["value"]


def test_the_interval_is_as_wide_as_its_confidence_says(rng):
    id_scores, ood_scores = rng.normal(1, 1, 120), rng.normal(0, 1, 100)
    resampled = [
        auroc(rng.choice(id_scores, 120), rng.choice(ood_scores, 100)) for _ in range(2000)
    ]
    for confidence in (0.5, 0.95):
        estimate = ns.evaluate(id_scores, ood_scores, confidence=confidence, n_bootstrap=2000).auroc
        low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
        assert estimate.high - estimate.low == pytest.approx(high - low, rel=0.07)


def test_evaluate_is_repeatable_and_can_do_without_intervals(rng):
    id_scores, ood_scores = rng.normal(1, 1, 100), rng.normal(0, 1, 100)
    assert ns.evaluate(id_scores, ood_scores) == ns.evaluate(id_scores, ood_scores)
    assert ns.evaluate(id_scores, ood_scores) != ns.evaluate(id_scores, ood_scores, seed=1)
    bare = ns.evaluate(id_scores, ood_scores, n_bootstrap=0)
    assert bare.fpr.low is None
    assert "interval" not in str(bare)


@pytest.mark.slow
def test_the_bootstrap_interval_covers_the_true_auroc():
    truth = 0.5 * math.erfc(-1 / 2)  # P(N(1,1) > N(0,1))
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        result = ns.evaluate(rng.normal(1, 1, 80), rng.normal(0, 1, 80), n_bootstrap=100, seed=seed)
        covered += result.auroc.low <= truth <= result.auroc.high
    assert 0.90 < covered / 200 < 0.985


def test_bad_scores_are_explained():
    with pytest.raises(ShapeError, match="ood_scores must have shape"):
        ns.evaluate([1.0], [])
    with pytest.raises(ShapeError, match="id_scores must have shape"):
        ns.evaluate([[1.0]], [1.0])
    with pytest.raises(
        InputError, match="ood_scores must not contain NaN, but the value at index 1"
    ):
        ns.evaluate([1.0], [0.0, np.nan])
    for bad in ({"tpr": 0}, {"tpr": 1.5}, {"id_to_ood": 0}, {"confidence": 1}, {"n_bootstrap": -1},
                {"n_bootstrap": 2.5}):  # fmt: skip
        with pytest.raises(ParameterError, match=next(iter(bad))):
            ns.evaluate([1.0], [0.0], **bad)


def test_a_single_input_has_no_interval():
    result = ns.evaluate([3.0], [1.0, 2.0], n_bootstrap=10)
    assert result.auroc.value == 1
    assert result.auroc.low is None
    assert ns.evaluate([3.0, 4.0], [1.0, 2.0], n_bootstrap=10).auroc.low is not None


@pytest.mark.parametrize(
    ("id_scores", "ood_scores"),
    [
        (np.arange(10.0, 60), np.arange(-50.0, 0)),  # perfect separation
        (np.arange(-50.0, 0), np.arange(10.0, 60)),  # swapped: AUPR was 31.18 [31.49, 31.88]
        (np.zeros(30), np.zeros(20)),
        (np.repeat([0.0, 1.0], 50), np.repeat([0.0, 1.0, 2.0], 40)),
        (np.arange(2.0), np.arange(2.0)),
        (np.arange(2.0) + 5, np.arange(2.0)),
        (np.arange(500.0), np.array([-1.0, 499.5])),
        (np.full(4, -np.inf), np.array([-np.inf, 0.0])),
    ],
    ids=["separated", "swapped", "equal", "ties", "two", "two-apart", "imbalanced", "infinite"],
)
def test_an_interval_contains_its_estimate_in_extreme_cases(id_scores, ood_scores):
    _check_intervals(ns.evaluate(id_scores, ood_scores, n_bootstrap=200))


@given(
    st.lists(st.integers(-4, 4), min_size=2, max_size=12),
    st.lists(st.integers(-4, 4), min_size=2, max_size=12),
    st.sampled_from([1.0, 0.05]),
    st.sampled_from([0.5, 0.95, 0.999]),
)
def test_an_interval_contains_its_estimate(id_scores, ood_scores, tpr, confidence):
    result = ns.evaluate(id_scores, ood_scores, tpr=tpr, confidence=confidence, n_bootstrap=30)
    _check_intervals(result)


def _check_intervals(result):
    for name, estimate in result.estimates.items():
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1, (name, estimate)


def test_copies_in_a_resample_are_not_a_tie_of_the_data():
    """All resamples of swapped sets have nearly the same AUPR: that of the data."""
    estimate = ns.evaluate(np.arange(50.0), np.arange(50.0) + 100).aupr
    assert estimate.high - estimate.low < 1e-3


def test_worse_than_chance_is_said(rng):
    good, bad = rng.normal(2, 1, 100), rng.normal(0, 1, 100)
    assert "chance" not in str(ns.evaluate(good, bad))
    swapped = ns.evaluate(bad, good)
    assert swapped.worse_than_chance
    assert "Worse than chance: OOD samples tend to have higher scores" in str(swapped)
    assert "the ID and the OOD data are swapped" in str(swapped)
    without_interval = ns.evaluate(bad, good, n_bootstrap=0)
    assert without_interval.worse_than_chance


def test_chance_is_not_called_worse_than_chance():
    """Two sets from the same source, or two samples, are no reason for an alarm."""
    rng = np.random.default_rng(3)
    evaluations = [ns.evaluate(rng.normal(size=60), rng.normal(size=40), n_bootstrap=0)
             for _ in range(400)]  # fmt: skip
    below = [evaluation for evaluation in evaluations if evaluation.auroc.value < 0.5]
    assert sum(evaluation.worse_than_chance for evaluation in below) / 400 < 0.05
    assert not ns.evaluate([0.0, 1.0], [2.0, 3.0]).worse_than_chance
    assert not ns.evaluate([0.0], [1.0]).worse_than_chance


GOOD = ns.evaluate(range(50, 90), range(40), n_bootstrap=0)
SWAPPED = ns.evaluate(range(40), range(50, 90), n_bootstrap=0)
UNSURE = ns.evaluate([0.0, 1.0], [2.0, 3.0], n_bootstrap=0)


def noted(*evaluations):
    return chance_note({name: [each] for name, each in zip("abcde", evaluations, strict=False)})


def test_a_few_detectors_that_fail_are_not_taken_for_swapped_data():
    assert noted(GOOD, GOOD) == ("", False)
    note, alarming = noted(SWAPPED, SWAPPED, UNSURE, GOOD, GOOD)
    assert "a, b. These fail on this data" in note
    assert not alarming
    assert chance_note({"a": [SWAPPED, UNSURE], "b": [GOOD]}) == ("", False)


def test_nearly_all_detectors_point_at_the_data():
    note, alarming = noted(*[SWAPPED] * 4, UNSURE)
    assert "4 of 5 detectors. The likely cause: the ID and the OOD data are swapped" in note
    assert note.endswith("or the model is more confident on the OOD data.")
    assert alarming
    assert noted(SWAPPED) == (WORSE, True)
    assert noted(UNSURE) == ("", False)


# --- several detectors ---

NAMES = ["joint_energy", "max_logit"]


@pytest.fixture
def splits():
    return make_outputs(300), make_outputs(200, seed=1), make_outputs(150, seed=2, shift=2.0)


def test_every_detector_on_every_ood_set(splits):
    train, test, far = splits
    near = make_outputs(100, seed=3, shift=0.5)
    detectors = {name: detector() for name, detector in DETECTORS.items()}
    done = []
    comparison = compare_outputs(
        detectors,
        test,
        {"far": far, "near": near},
        train=train,
        held_out=make_outputs(100, seed=4),
        n_bootstrap=50,
        on_step=done.append,
    )
    assert sum(done) == 2 * len(DETECTORS)
    assert comparison.skipped == {}
    assert list(comparison.results) == ["far", "near"]
    for results in comparison.results.values():
        assert list(results) == list(DETECTORS)
    scores = [detectors["max_logit"].score_samples(data) for data in (test, far)]
    assert comparison.results["far"]["max_logit"].auroc.value == auroc(*scores)
    assert not hasattr(detectors["lof"], "samples_")  # the caller's are left alone


def test_the_lead_is_delongs_test_of_the_best_two(splits):
    _, test, far = splits
    detectors = {name: DETECTORS[name]() for name in ("sum_logit", "max_logit", "joint_energy")}
    comparison = compare_outputs(detectors, test, {"far": far}, n_bootstrap=0)
    results = comparison.results["far"]
    ranked = sorted(results, key=lambda name: -results[name].auroc.value)
    lead = comparison.lead["far"]
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
    lead = find_lead("far", {"a": sure, "b": saturated})
    assert lead is None
    worse = Scored(sure.id_scores, {"far": sure.ood_scores["far"] + 20})
    lead = find_lead("far", {"a": sure, "b": saturated, "c": worse})
    assert (lead.best, lead.second) == ("a", "c")


def test_if_none_can_run_the_reasons_are_there(splits):
    _, test, far = splits
    comparison = compare_outputs({"lof": DETECTORS["lof"]()}, test, {"far": far})
    assert (comparison.results, list(comparison.skipped)) == ({"far": {}}, ["lof"])
    [line] = comparison_lines(comparison, "spec", "id", 0, {})
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
        Outputs(
            outputs.logits, label_names=[f"{word} {label}" for label in range(outputs.n_labels)]
        )
        for outputs, word in ((test, "cat"), (far, "dog"))
    ]
    with pytest.raises(
        LabelMismatchError, match="far: the data does not have the labels of the ID data"
    ):
        compare_outputs(detectors, named[0], {"far": named[1]})


def test_what_cannot_run_is_left_out_and_why(splits):
    train, test, far = splits
    bare = {"far": Outputs(far.logits)}
    detectors = {name: detector() for name, detector in DETECTORS.items()}
    comparison = compare_outputs(detectors, Outputs(test.logits), bare, n_bootstrap=0)
    learn = {name for name, detector in detectors.items() if detector.learned}
    read_more = {
        name for name, detector in detectors.items() if set(detector.scores_from) != {"logits"}
    }
    assert {"lof", "odin"} <= learn | read_more == set(comparison.skipped)
    assert "reads features" in comparison.skipped["mahalanobis"]
    assert "--train" in comparison.skipped["lof"]
    assert any("lof" in note and "--train" in note for note in comparison._view().notes)
    no_labels = Outputs(train.logits, train.features)
    comparison = compare_outputs(detectors, test, {"far": far}, train=no_labels, n_bootstrap=0)
    missing = {"labels", "head", "penultimate"}
    unable = {
        name
        for name, detector in detectors.items()
        if missing & set(detector.learns_from) or detector.learns_from_held_out
    }
    assert {"mahalanobis", "react"} <= unable == set(comparison.skipped)
    assert "learns from labels" in comparison.skipped["mahalanobis"]


def test_detectors_that_learn_from_held_out_data(splits):
    train, test, far = splits
    held_out, ood = make_outputs(100, seed=4), {"far": far}
    detectors = {
        "both": Combined(),
        "logits": Combined(["joint_energy", "max_logit"]),
        "with lof": Combined(["joint_energy", "lof"]),
    }

    def skipped(**data):
        return compare_outputs(detectors, test, ood, n_bootstrap=0, **data).skipped

    assert skipped(train=train, held_out=held_out) == {}
    assert set(skipped(held_out=held_out)) == {"both", "with lof"}
    missing = "it learns from held-out data: pass such outputs (--held-out)."
    assert skipped(train=train) == dict.fromkeys(detectors, missing)
    bare = Outputs(held_out.logits)
    assert skipped(train=train, held_out=bare) == {
        "both": "it learns from features, but the held-out data has none. nescio extract and "
        "nescio.wrap(model, features=...) provide it, or put them in a column of lists named "
        "features (Parquet, JSON lines)."
    }
    few = skipped(train=train, held_out=held_out[:20])
    assert set(few) == set(detectors)
    assert (
        "needs at least 19 calibration samples, got 10. combined learns from half" in few["logits"]
    )
    masked = held_out.logits.copy()
    masked[0, 0] = -np.inf
    without = skipped(train=train, held_out=replace(held_out, logits=masked))
    assert list(without) == ["with lof"]
    assert "masked labels (-inf), but the held-out data has some" in without["with lof"]
    with pytest.raises(InputError, match="learned from this very data"):
        skipped(train=train, held_out=train)
    with pytest.raises(ShapeError, match="the held-out outputs has 3"):
        skipped(held_out=Outputs(held_out.logits[:, :3]))
    comparison = compare_outputs(
        detectors, test, ood, train=train, held_out=held_out, n_bootstrap=0
    )
    ready = Combined().fit(train).calibrate(held_out)
    np.testing.assert_array_equal(comparison.scores["both"].id_scores, ready.score_samples(test))
    assert not hasattr(detectors["logits"], "detectors_")


def test_the_plain_data_has_the_best_detector_first(splits):
    _, test, far = splits
    detectors = {name: DETECTORS[name]() for name in ("sum_logit", "max_logit", "joint_energy")}
    comparison = compare_outputs(detectors, test, {"far": far}, n_bootstrap=20)
    rows = json.loads(json.dumps(comparison.as_dict()))["results"]
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert [row["detector"] for row in rows] == comparison.ranked("far")
    values = [row["auroc"]["value"] for row in rows]
    assert values == sorted(values, reverse=True)
    assert rows[0]["auroc"]["low"] <= values[0] <= rows[0]["auroc"]["high"]
    assert comparison.notes == {}
    assert not any(row["worse_than_chance"] for row in rows)
    single = compare_outputs(detectors, test, {"far": far[:1]}, n_bootstrap=0)
    assert single.lead == {}
    assert set(single.results["far"]) == set(detectors)


def test_swapped_data_is_named_as_the_likely_cause(splits):
    _, test, far = splits
    detectors = {name: DETECTORS[name]() for name in ("sum_logit", "max_logit", "joint_energy")}
    comparison = compare_outputs(detectors, far, {"test": test}, n_bootstrap=0)
    note = comparison.as_dict()["notes"]["test"]
    assert "all 3 detectors. The likely cause: the ID and the OOD data are swapped" in note
    assert all(row["worse_than_chance"] for row in comparison.as_dict()["results"])


def test_a_detector_that_needs_more_training_samples_is_skipped():
    few, more = make_outputs(20), make_outputs(60, seed=1)
    detectors = {"nnguide": NNGuide(k=50), "knn": NearestNeighbours(k=5)}
    comparison = compare_outputs(
        detectors, more, {"far": make_outputs(30, seed=2)}, train=few, n_bootstrap=0
    )
    assert list(comparison.scores) == ["knn"]
    assert "at least 50 training samples, got n_samples = 20" in comparison.skipped["nnguide"]


# --- data of any kind ---


@pytest.fixture
def logits(rng):
    return {"known": rng.normal(0, 3, (80, 4)), "far": rng.normal(-3, 2, (60, 4))}


def compared(*data, **options):
    return ns.compare(*data, **{"detectors": NAMES, "n_bootstrap": 0} | options)


def test_data_of_any_kind_gives_the_same(logits, tmp_path):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    id_data, far = logits.values()
    names = ["cat", "dog", "cow", "hen"]
    expected = compared(id_data, {"far": far}).as_dict()
    assert compared(id_data, far).as_dict()["results"][0]["ood"] == "ood"
    paths = {name: tmp_path / f"{name}.npy" for name in logits}
    for name, array in logits.items():
        np.save(paths[name], array)
    turned = pandas.DataFrame(far, columns=names)[names[::-1]]  # columns are matched by name
    for data in (
        (id_data.tolist(), {"far": far}),
        (ns.Outputs(id_data), {"far": ns.Outputs(far)}),
        (pandas.DataFrame(id_data, columns=names), {"far": turned}),
        (polars.DataFrame(id_data, names), {"far": far}),
        (paths["known"], paths["far"]),
        (str(paths["known"]), [str(paths["far"])]),
        (id_data, {"far": paths["far"]}),
    ):
        assert compared(*data).as_dict()["results"] == expected["results"]


def test_a_sample_of_a_large_file_is_read(logits, tmp_path, monkeypatch):
    paths = {name: tmp_path / f"{name}.npy" for name in logits}
    for name, array in logits.items():
        np.save(paths[name], array)
    monkeypatch.setitem(read_sets.__kwdefaults__, "max_rows", 70)
    comparison = compared(paths["known"], paths["far"])
    assert comparison.sampled == {"ID": 80}
    result = comparison.results["far"]["max_logit"]
    assert (result.n_id, result.n_ood) == (70, 60)
    assert "ID: a sample of 80 rows" in repr(comparison)


def test_the_default_is_asked_for_by_name(logits):
    comparison = compared(*logits.values(), detectors=["auto", "max_logit"])
    same = compared(*logits.values(), detectors=["joint_energy"])
    assert comparison.results["ood"]["auto"] == same.results["ood"]["joint_energy"]


def test_detectors_are_named_as_they_are_written(logits):
    id_data, far = logits.values()

    def names(detectors, **options):
        comparison = compared(id_data, far, detectors=detectors, **options)
        return [*comparison.results["ood"]], comparison.skipped

    assert names("msp")[0] == ["msp"]
    assert names(ns.MSP)[0] == ["msp"]
    several = [ns.TopKJointEnergy(k=2), "top_k_joint_energy(k=3)", ns.GEN()]
    shown = ["top_k_joint_energy(k=2)", "top_k_joint_energy(k=3)", "gen"]
    assert names(several)[0] == shown
    assert names({"mine": ns.MSP(), "yours": "gen"})[0] == ["mine", "yours"]
    every, skipped = names("all")
    assert {*every, *skipped} == set(ns.DETECTORS)
    assert "pass training outputs" in skipped["lof"]
    assert "isolation_forest" in names("all", train=id_data + 1)[0]


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"detectors": "mahalanobis"}, MissingInputError, "mahalanobis cannot be evaluated"),
        ({"detectors": []}, ParameterError, "no detector to compare"),
        ({"detectors": [ns.MSP(), ns.MSP()]}, ParameterError, "two detectors are named msp"),
        ({"ood_data": {}}, ParameterError, "no OOD data"),
    ],
)
def test_mistakes_are_explained(logits, change, error, reason):
    arguments = {"ood_data": logits["far"], **change}
    with pytest.raises(error, match=reason):
        compared(logits["known"], **arguments)


def test_arrays_without_names_are_numbered(logits):
    comparison = compared(logits["known"], [logits["far"], ns.Outputs(logits["far"])])
    assert list(comparison.results) == ["ood 1", "ood 2"]


def test_samples_in_two_sets_are_noticed(logits):
    known, far = logits["known"], logits["far"]
    with pytest.warns(NescioWarning, match="^50 of the 110 rows of the OOD data 'ood' are"):
        compared(known, np.concatenate([known[:50], far]))
    detector = ns.JointEnergy().calibrate(known)
    with pytest.warns(NescioWarning, match=r"^mine: \d+ of \d+ scores are exactly those of calib"):
        compared(known, far, detectors={"mine": detector})


def test_nothing_is_compared_with_itself(logits, tmp_path):
    path = tmp_path / "known.npy"
    np.save(path, logits["known"])
    np.savetxt(tmp_path / "copy.csv", logits["known"], delimiter=",", header="a,b,c,d", comments="")
    for copy in (path, tmp_path / "copy.csv", logits["known"].copy()):
        with pytest.raises(ParameterError, match=r"ID data and the OOD data .* the same rows"):
            compared(path, copy)
    id_data, far = ns.Outputs(logits["known"]), logits["far"]
    for arguments, message in (
        ({"ood_data": {"far": id_data}}, r"ID data .* OOD data 'far' .* the same rows"),
        ({"train": id_data}, r"ID data .* training data"),
        ({"held_out": id_data}, r"ID data .* held-out data"),
        ({"held_out": far}, r"held-out data .* OOD data"),
        ({"train": far.copy(), "held_out": far}, r"training data .* held-out data"),
    ):
        with pytest.raises(ParameterError, match=message):
            compared(id_data, **{"ood_data": far, **arguments})


def test_other_labels_are_an_error(logits):
    pandas = pytest.importorskip("pandas")
    id_data, far = (pandas.DataFrame(values, columns=list("abcd")) for values in logits.values())
    with pytest.raises(LabelMismatchError, match=r"^far: "):
        compared(id_data, {"far": far.rename(columns={"d": "e"})})


def test_probabilities_are_converted_if_the_caller_says_so(logits):
    id_data, far = (1 / (1 + np.exp(-values)) for values in logits.values())
    comparison = compared(id_data, far, from_probs=True)
    expected = compared(*logits.values())
    for name in NAMES:
        ours, theirs = comparison.results["ood"][name], expected.results["ood"][name]
        assert ours.auroc.value == pytest.approx(theirs.auroc.value, abs=1e-3)
    for data in (id_data, Outputs(id_data)):
        with pytest.raises(ProbabilitiesError, match=r"^the ID data: "):
            compared(data, far)
        compared(data, {"far": far}, from_probs=False)
    with pytest.raises(ProbabilitiesError, match=r"^far: "):
        compared(logits["known"], {"far": far})
