from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from fixtures.own_detectors import ReAct
from nescio import Outputs
from nescio.checks import make_outputs
from nescio.errors import (
    IgnoredLabelsWarning,
    InputError,
    LabelMismatchError,
    ShapeError,
    label_difference,
)
from nescio.outputs.outputs import Head, check_label_names, match_labels


def test_rows_can_be_chosen(outputs):
    some = outputs[[3, 0]]
    assert some.ids.tolist() == ["日本", "a"]
    assert some.label_names == outputs.label_names
    np.testing.assert_array_equal(some.labels, outputs.labels[[3, 0]])
    assert len(outputs[outputs.logits[:, 0] > 99]) == 0
    assert outputs[2].ids.tolist() == [""]
    assert [sample.ids[0] for sample in outputs] == outputs.ids.tolist()
    assert outputs[::-1].ids.tolist() == outputs.ids.tolist()[::-1]
    wrong = (
        [0, 500],
        5,
        -6,
        [2**70],
        [[0]],
        np.ones(3, bool),
        1.5,
        True,
        slice("a"),
        slice(0, 5, 0),
    )
    for rows in wrong:
        with pytest.raises(InputError, match="choose from 5 samples by "):
            outputs[rows]
    for rows in (None, {1}, {}, object()):
        with pytest.raises(InputError, match="expected an array, got a "):
            outputs[rows]
    assert repr(outputs) == "Outputs(5 samples x 3 labels, 4 features, labels, ids, label_names)"


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"features": np.zeros((4, 2))}, ShapeError, "logits have 5, features 4"),
        ({"labels": np.zeros((5, 2))}, ShapeError, r"shape \(n_samples, 3\), got \(5, 2\)"),
        ({"labels": np.full((5, 3), 2)}, InputError, "every value must be 0 or 1"),
        ({"labels": np.full((5, 3), 2, np.uint8)}, InputError, "every value must be 0 or 1"),
        ({"ids": ["a"]}, ShapeError, "ids 1"),
        ({"label_names": ["cat"]}, ShapeError, "name 3 labels, got 1"),
        ({"label_names": ["cat", "dog", "cat"]}, InputError, "'cat' appears 2 times"),
        ({"label_names": {"cat", "dog", "cow"}}, InputError, "label_names must be a sequence"),
        ({"label_names": "cat"}, InputError, "label_names must be a sequence.*got a str"),
        ({"label_names": {0: "a", 1: "b", 2: "c"}}, InputError, "must be a sequence.*got a dict"),
        ({"label_names": 3}, InputError, "must be a sequence.*got a int"),
        ({"ids": Path("a.csv")}, InputError, "expected an array, got a PosixPath|WindowsPath"),
        ({"kept": {"time": [[1], [2, 3]]}}, InputError, "cannot read this list as an array"),
        (
            {"kept": np.zeros(5)},
            InputError,
            "kept must be a mapping, such as a dict, got a ndarray",
        ),
        ({"arrays": [np.zeros((5, 2))]}, InputError, "arrays must be a mapping"),
        ({"manifest": "x"}, InputError, "manifest must be a mapping"),
        ({"labels": np.zeros((5, 3), "V8")}, InputError, "every value must be 0 or 1"),
        ({"features": np.zeros((5, 3), bool)}, InputError, "features must be real numbers"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, error, reason):
    with pytest.raises(error, match=reason):
        Outputs(np.zeros((5, 3)), **change)


def test_there_is_at_least_one_label_name():
    with pytest.raises(InputError, match="at least one label"):
        check_label_names([], 0)


# --- the head, selection and concatenation ----------------------------------------------------


def test_concat_undoes_a_split(whole):
    joined = Outputs.concat([whole[:2], whole[2:5], whole[5:]])
    for name in ("logits", "features", "labels", "mine"):
        np.testing.assert_array_equal(joined.get(name), whole.get(name))
    assert joined.ids.tolist() == whole.ids.tolist()
    assert joined.head is whole.head


def test_concat_keeps_the_manifests_of_its_parts(whole):
    parts = [replace(whole, manifest={"split": name}) for name in ("a", "b")]
    assert Outputs.concat(parts).manifest == {"parts": [{"split": "a"}, {"split": "b"}]}
    assert Outputs.concat(parts[:1]).manifest == {"split": "a"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"features": None}, InputError, "must have the same arrays"),
        ({"label_names": ["cat", "car", "dog"]}, LabelMismatchError, "other label names"),
        ({"arrays": {"mine": np.zeros((6, 5))}}, ShapeError, "mine has 4 columns in outputs 0"),
        ({"head": None}, InputError, "another head"),
        ({"head": Head(np.zeros((3, 2)), np.zeros(3))}, InputError, "another head"),
    ],
)
def test_only_outputs_of_one_model_are_joined(whole, change, error, message):
    with pytest.raises(error, match=message):
        Outputs.concat([whole, replace(whole, **change)])
    with pytest.raises(InputError, match="no outputs to join"):
        Outputs.concat([])


def test_labels_are_selected_by_name_or_position(whole):
    for labels in (["car", "cat"], [2, 0], [-1, 0]):
        some = whole.select_labels(labels)
        np.testing.assert_array_equal(some.logits, whole.logits[:, [2, 0]])
        np.testing.assert_array_equal(some.labels, whole.labels[:, [2, 0]])
        assert some.label_names == ("car", "cat")
        np.testing.assert_allclose(
            some.features @ some.head.weight.T + some.head.bias, some.logits, rtol=1e-12
        )
        assert some.arrays == {}
    for unknown in (["bird"], [3]):
        with pytest.raises(LabelMismatchError):
            whole.select_labels(unknown)


def test_the_penultimate_layer_is_the_input_of_the_head(whole, rng):
    """An array of that name, or else the features if there is a head."""
    assert whole.get("penultimate") is whole.features
    assert "penultimate" in whole.names
    without = replace(whole, head=None)
    assert without.get("penultimate") is None
    assert "penultimate" not in without.names
    hidden = rng.normal(size=(6, 2))
    for outputs in (replace(whole, arrays={"penultimate": hidden}), replace(whole, features=None)):
        expected = outputs.arrays.get("penultimate")
        assert outputs.get("penultimate") is expected
        assert outputs.names.count("penultimate") == (expected is not None)


def test_layers_stay_when_labels_are_selected(whole, rng):
    """Their columns are no labels. Of other arrays that is not known."""
    layers = {"penultimate": rng.normal(size=(6, 2)), "conv": rng.normal(size=(6, 3))}
    outputs = replace(whole, arrays={**whole.arrays, **layers})
    assert set(outputs.select_labels([0]).arrays) == {"penultimate"}
    for manifest in ({"layers": ["pooled", "conv"]}, {"layers": 3}):
        named = replace(outputs, manifest=manifest)
        expected = {"penultimate", "conv"} if manifest["layers"] != 3 else {"penultimate"}
        assert set(named.select_labels([0]).arrays) == expected
        np.testing.assert_array_equal(
            named.select_labels([0]).get("penultimate"), layers["penultimate"]
        )


def test_a_head_that_does_not_fit_is_refused(rng):
    with pytest.raises(ShapeError, match=r"shape \(n_labels, n_units\), got \(5,\)"):
        Head(np.zeros(5), np.zeros(1))
    with pytest.raises(ShapeError, match=r"one bias per label.*Pass weight\.T\?"):
        Head(np.zeros((5, 3)), np.zeros(3))
    with pytest.raises(ShapeError, match="one bias per label"):
        Head(np.zeros((3, 2)), np.zeros(2))
    with pytest.raises(ShapeError, match="the logits have 4 labels, the head 3"):
        Outputs(rng.normal(size=(2, 4)), head=Head(np.zeros((3, 2)), np.zeros(3)))
    with pytest.raises(InputError, match="cannot be named 'features'"):
        Outputs(rng.normal(size=(2, 4)), arrays={"features": np.zeros((2, 2))})


def test_a_data_frame_gives_names_and_ids(rng):
    pandas = pytest.importorskip("pandas")
    logits = rng.normal(size=(20, 3))
    frame = pandas.DataFrame(logits, [f"x{i}" for i in range(20)], ["bird", "cat", "dog"])
    outputs = Outputs(frame, features=frame * 2, manifest={"split": "val"})
    assert outputs.label_names == ("bird", "cat", "dog")
    assert outputs.ids[:2].tolist() == ["x0", "x1"]
    assert outputs.manifest == {"split": "val"}
    np.testing.assert_array_equal(outputs.features, logits * 2)
    assert Outputs(frame, ids=range(20)).ids[1] == "1"
    turned = Outputs(frame, label_names=["dog", "cat", "bird"])
    np.testing.assert_array_equal(turned.logits, logits[:, ::-1])
    with pytest.raises(LabelMismatchError, match="Missing: 'fox'"):
        Outputs(frame, label_names=["fox", "cat", "bird"])
    assert Outputs(pandas.DataFrame(logits), label_names=[*"abc"]).label_names == ("a", "b", "c")
    with pytest.raises(InputError, match=r"'user_id'.*Outputs\.from_frame\(frame, \.\.\.\)"):
        Outputs(frame.assign(user_id=np.arange(20)))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_the_truth_in_a_data_frame_is_matched_by_name(rng, library):
    module = pytest.importorskip(library)
    make = module.table if library == "pyarrow" else module.DataFrame
    names, truth = ("bird", "cat", "dog"), rng.integers(0, 2, (20, 3))
    logits = make({name: rng.normal(size=20) for name in names})
    columns = dict(zip(names, truth.T, strict=True))
    columns["cat"] = columns["cat"] == 1
    turned = {name: columns[name] for name in ("dog", "cat", "bird")}
    for frame in (turned, {"id": [*"abcdefghijklmnopqrst"], **turned, "text": ["x"] * 20}):
        np.testing.assert_array_equal(Outputs(logits, labels=make(frame)).labels, truth)
    renamed = {f"is_{name}": column for name, column in columns.items()}
    for labels in (make(renamed), truth):
        np.testing.assert_array_equal(Outputs(logits, labels=labels).labels, truth)
    unnamed = rng.normal(size=(20, 3))
    np.testing.assert_array_equal(Outputs(unnamed, labels=make(columns)).labels, truth)
    for less in (("cat", "dog"), ("cat", "dog", "fox")):
        wrong = make({name: columns.get(name, truth[:, 0]) for name in less})
        with pytest.raises(LabelMismatchError, match=r"^labels: .*Missing: 'bird'"):
            Outputs(logits, labels=wrong)
    with pytest.raises(InputError, match="multi-hot"):
        Outputs(logits, labels=make(columns | {"dog": [None, *truth[1:, 0].tolist()]}))


def test_rows_of_data_frames_must_be_in_one_order(rng):
    pandas = pytest.importorskip("pandas")
    index = pandas.Index([f"x{i}" for i in range(20)])
    logits = pandas.DataFrame(rng.normal(size=(20, 3)), index, ["bird", "cat", "dog"])
    truth, features = (logits > 0).astype(int), logits * 2
    for name, frame in (("labels", truth), ("features", features)):
        Outputs(logits, **{name: frame})
        message = f"^row 0 of {name} has the id 'x19', but row 0 of the logits has 'x0'.*array"
        with pytest.raises(InputError, match=message):
            Outputs(logits, **{name: frame[::-1]})
        Outputs(logits, **{name: frame[::-1].to_numpy()})
        Outputs(logits, **{name: frame[::-1].reset_index(drop=True)})
        Outputs(logits, **{name: frame.set_axis(index + ".jpg")})  # ids of another kind
    with pytest.raises(InputError, match="row 0 of odd has the id"):
        Outputs(logits, arrays={"odd": features[::-1]})
    with pytest.raises(ShapeError, match="labels must have one row per sample"):
        Outputs(logits, labels=truth[:5])


def test_no_two_outputs_share_a_manifest(outputs, tmp_path):
    outputs.save(tmp_path / "x.safetensors")
    loaded = Outputs.load(tmp_path / "x.safetensors")
    some = loaded[:2]
    some.manifest["model"]["sha256"] = "changed"
    some.manifest["split"] = "changed"
    for unchanged in (loaded, Outputs.load(tmp_path / "x.safetensors")):
        assert unchanged.manifest == outputs.manifest


# --- labels are matched by name, everything of a label together ---


@pytest.fixture
def named():
    return make_outputs(300)


@pytest.fixture
def reordered(named):
    """The same outputs with the labels in another order."""
    return replace(named.select_labels([3, 0, 5, 1, 4, 2]), arrays=named.arrays)


@pytest.mark.parametrize("name", ns.DETECTORS)
def test_the_order_of_labels_does_not_matter(name, named, reordered):
    detector = ns.DETECTORS[name]().fit(make_outputs(200, seed=1)).calibrate(named)
    if set(detector.scores_from) & set(named.arrays):  # computed for perturbed inputs
        with pytest.raises(InputError, match="does not know which columns of"):
            detector.assess(reordered)
        return
    expected, assessment = detector.assess(named), detector.assess(reordered)
    # The sums are in another order.
    np.testing.assert_allclose(assessment.scores, expected.scores, rtol=1e-9)
    np.testing.assert_array_equal(assessment.in_distribution, expected.in_distribution)


def test_the_head_is_matched_with_the_logits(named):
    some = named.select_labels([2, 0])
    detector = ReAct().fit(some)
    with pytest.warns(IgnoredLabelsWarning):
        scores = detector.score_samples(named)
    np.testing.assert_array_equal(scores, detector.score_samples(some))


def test_layers_are_not_matched(named, reordered):
    """A detector that reads one can be used with labels in any order."""
    hidden = {"penultimate": np.asarray(named.logits[:, :2])}
    manifest = {"layers": ["pooled", "hidden"]}
    for name, facts in (("penultimate", {}), ("hidden", manifest)):
        with_layer = replace(reordered, arrays={name: hidden["penultimate"]}, manifest=facts)
        for reads in ((), (name,)):
            matched = match_labels(with_layer, named.label_names, reads)
            np.testing.assert_array_equal(matched.get(name), hidden["penultimate"])
    unknown = replace(reordered, arrays={"hidden": hidden["penultimate"]}, manifest={})
    with pytest.raises(InputError, match="which columns of 'hidden'"):
        match_labels(unknown, named.label_names, ("hidden",))


def test_labels_to_learn_from_are_matched(named, reordered):
    matched = match_labels(reordered, named.label_names)
    for name in ("logits", "labels"):
        np.testing.assert_array_equal(matched.get(name), named.get(name))
    np.testing.assert_array_equal(matched.head.weight, named.head.weight)
    np.testing.assert_array_equal(matched.features, named.features)
    assert matched.label_names == named.label_names
    assert match_labels(named, named.label_names) is named


def test_explanations_and_label_counts_follow_the_names(named, reordered):
    detector = ns.JointEnergy().calibrate(make_outputs(1500, seed=1), groups="label_count")
    expected, explanation = detector.explain(named[:5]), detector.explain(reordered[:5])
    assert explanation.label_names == named.label_names
    np.testing.assert_array_equal(explanation.terms, expected.terms)
    assert explanation.groups.tolist() == expected.groups.tolist()


def test_other_labels_are_ignored_with_one_warning(named):
    detector = ns.JointEnergy().calibrate(named.select_labels(["label 4", "label 1"]))
    wide = ns.Outputs(
        np.hstack([named.logits, named.logits]),
        label_names=[*named.label_names, *"uvwxyz"],
        ids=[f"sample {i}" for i in range(300)],
    )
    with pytest.warns(IgnoredLabelsWarning) as caught:
        assessment = detector.assess(wide)
    assert [str(warning.message) for warning in caught] == [
        "ignored 10 labels that the detector was not made for: 'label 0', 'label 2', 'label 3', "
        "'label 5', 'u' and 5 more."
    ]
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(
        assessment.scores, ns.scores.joint_energy(named.logits[:, [4, 1]])
    )
    assert assessment.ids[7] == "sample 7"


def test_missing_labels_are_named(named):
    detector = ns.JointEnergy().calibrate(named)
    other = replace(named, label_names=["label 0", "x", *named.label_names[2:5], "y"])
    message = r"has 6, the data 6\)\. Missing: 'label 1', 'label 5'\. Not known .*: 'x', 'y'\.$"
    with pytest.raises(LabelMismatchError, match=message):
        detector.predict(other)
    with pytest.raises(LabelMismatchError, match=r"has 6, the data 2\)\. Missing: 'label 2'"):
        detector.predict(named.select_labels([0, 1]))
    many = label_difference([f"n{i}" for i in range(20)], ["n0", "extra"])
    assert "Missing: 'n1', 'n2', 'n3', 'n4', 'n5' and 14 more. Not known" in many


def test_without_names_only_the_number_counts(named):
    detector = ns.JointEnergy().calibrate(named)
    detector.predict(named.logits)
    with pytest.raises(ShapeError, match=r"made for 6 labels, got 7\. Pass Outputs with label_na"):
        detector.predict(np.zeros((3, 7)))
    for n_labels in (5, 7):
        with pytest.raises(
            ShapeError, match=r"by name\. The detector has 'label 0', .*'label 5'\."
        ):
            detector.predict(ns.Outputs(np.zeros((3, n_labels))))
    unnamed = ns.JointEnergy().calibrate(named.logits)
    with pytest.raises(
        ShapeError, match=r"6 labels, got 2\. The data has 'a', 'b'; the detector d"
    ):
        unnamed.predict(ns.Outputs(np.zeros((3, 2)), label_names=["a", "b"]))
    message = r"^the detector was made for 6 labels, got 7\. In the terms of scikit-learn: X has 7"
    with pytest.raises(ShapeError, match=message):
        unnamed.predict(np.zeros((3, 7)))
    with pytest.raises(ShapeError, match=r"^the detector was made for 6 labels, got 7\.$"):
        unnamed.predict(ns.Outputs(np.zeros((3, 7))))
