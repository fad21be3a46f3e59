"""Labels are matched by name, everything of a label together."""

from dataclasses import replace

import numpy as np
import pytest

import nescio as ns
from fixtures.own_detectors import ReAct
from nescio.checks import make_outputs
from nescio.errors import (
    IgnoredLabelsWarning,
    InputError,
    LabelMismatchError,
    ShapeError,
    label_difference,
)
from nescio.outputs.outputs import match_labels


@pytest.fixture
def outputs():
    return make_outputs(300)


@pytest.fixture
def reordered(outputs):
    """The same outputs with the labels in another order."""
    return reorder(outputs, [3, 0, 5, 1, 4, 2])


def reorder(outputs, order):
    """Return all arrays of some labels, those for ODIN too."""
    arrays = {name: outputs.arrays[name][:, order] for name in ("odin_max", "odin_sum")}
    kept = {name: array for name, array in outputs.arrays.items() if name not in arrays}
    return replace(outputs.select_labels(order), arrays={**kept, **arrays})


@pytest.mark.parametrize("name", ns.DETECTORS)
def test_the_order_of_labels_does_not_matter(name, outputs, reordered):
    detector = ns.DETECTORS[name]().fit(make_outputs(200, seed=1)).calibrate(outputs)
    expected, found = detector.assess(outputs), detector.assess(reordered)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-9)  # sums in another order
    np.testing.assert_array_equal(found.in_distribution, expected.in_distribution)


def test_the_head_is_matched_with_the_logits(outputs):
    some = outputs.select_labels([2, 0])
    detector = ReAct().fit(some)
    with pytest.warns(IgnoredLabelsWarning):
        found = detector.score_samples(outputs)
    np.testing.assert_array_equal(found, detector.score_samples(some))


def test_layers_are_not_matched(outputs, reordered):
    """A detector that reads one can be used with labels in any order."""
    hidden = {"penultimate": np.asarray(outputs.logits[:, :2])}
    manifest = {"layers": ["pooled", "hidden"]}
    for name, facts in (("penultimate", {}), ("hidden", manifest)):
        given = replace(reordered, arrays={name: hidden["penultimate"]}, manifest=facts)
        for reads in ((), (name,)):
            found = match_labels(given, outputs.label_names, reads)
            np.testing.assert_array_equal(found.get(name), hidden["penultimate"])
    unknown = replace(reordered, arrays={"hidden": hidden["penultimate"]}, manifest={})
    with pytest.raises(InputError, match="which columns of 'hidden'"):
        match_labels(unknown, outputs.label_names, ("hidden",))


def test_labels_to_learn_from_are_matched(outputs, reordered):
    matched = match_labels(reordered, outputs.label_names)
    for name in ("logits", "labels"):
        np.testing.assert_array_equal(matched.get(name), outputs.get(name))
    np.testing.assert_array_equal(matched.head.weight, outputs.head.weight)
    np.testing.assert_array_equal(matched.features, outputs.features)
    assert matched.label_names == outputs.label_names
    assert match_labels(outputs, outputs.label_names) is outputs


def test_explanations_and_label_counts_follow_the_names(outputs, reordered):
    detector = ns.JointEnergy().calibrate(make_outputs(1500, seed=1), groups="label_count")
    expected, found = detector.explain(outputs[:5]), detector.explain(reordered[:5])
    assert found.label_names == outputs.label_names
    np.testing.assert_array_equal(found.terms, expected.terms)
    assert found.groups.tolist() == expected.groups.tolist()


def test_other_labels_are_ignored_with_one_warning(outputs):
    detector = ns.JointEnergy().calibrate(outputs.select_labels(["label 4", "label 1"]))
    wide = ns.Outputs(
        np.hstack([outputs.logits, outputs.logits]),
        label_names=[*outputs.label_names, *"uvwxyz"],
        ids=[f"sample {i}" for i in range(300)],
    )
    with pytest.warns(IgnoredLabelsWarning) as caught:
        found = detector.assess(wide)
    assert [str(one.message) for one in caught] == [
        "ignored 10 labels that the detector was not made for: 'label 0', 'label 2', 'label 3', "
        "'label 5', 'u' and 5 more."
    ]
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(found.scores, ns.scores.joint_energy(outputs.logits[:, [4, 1]]))
    assert found.ids[7] == "sample 7"


def test_missing_labels_are_named(outputs):
    detector = ns.JointEnergy().calibrate(outputs)
    other = replace(outputs, label_names=["label 0", "x", *outputs.label_names[2:5], "y"])
    message = r"has 6, the data 6\)\. Missing: 'label 1', 'label 5'\. Not known .*: 'x', 'y'\.$"
    with pytest.raises(LabelMismatchError, match=message):
        detector.predict(other)
    with pytest.raises(LabelMismatchError, match=r"has 6, the data 2\)\. Missing: 'label 2'"):
        detector.predict(outputs.select_labels([0, 1]))
    many = label_difference([f"n{i}" for i in range(20)], ["n0", "extra"])
    assert "Missing: 'n1', 'n2', 'n3', 'n4', 'n5' and 14 more. Not known" in many


def test_without_names_only_the_number_counts(outputs):
    detector = ns.JointEnergy().calibrate(outputs)
    detector.predict(outputs.logits)
    with pytest.raises(ShapeError, match=r"made for 6 labels, got 7\. Pass Outputs with label_na"):
        detector.predict(np.zeros((3, 7)))
    for n_labels in (5, 7):
        with pytest.raises(
            ShapeError, match=r"by name\. The detector has 'label 0', .*'label 5'\."
        ):
            detector.predict(ns.Outputs(np.zeros((3, n_labels))))
    unnamed = ns.JointEnergy().calibrate(outputs.logits)
    with pytest.raises(
        ShapeError, match=r"6 labels, got 2\. The data has 'a', 'b'; the detector d"
    ):
        unnamed.predict(ns.Outputs(np.zeros((3, 2)), label_names=["a", "b"]))
    message = r"^the detector was made for 6 labels, got 7\. In the terms of scikit-learn: X has 7"
    with pytest.raises(ShapeError, match=message):
        unnamed.predict(np.zeros((3, 7)))
    with pytest.raises(ShapeError, match=r"^the detector was made for 6 labels, got 7\.$"):
        unnamed.predict(ns.Outputs(np.zeros((3, 7))))


def test_logits_of_perturbed_inputs_depend_on_all_labels(outputs):
    detector = ns.ODIN().calibrate(reorder(outputs, [0, 1, 2]))
    with pytest.raises(InputError, match="odin_max was computed with all 6 labels"):
        detector.predict(outputs)


def test_columns_of_an_array_of_ones_own_are_unknown(outputs):
    class Own(ns.Detector):
        """Reads an array that nescio knows nothing about."""

        name = "own"
        scores_from = ("mine",)

        def _score(self, arrays):
            return arrays.mine[:, 0]

    given = replace(outputs, arrays={"mine": outputs.logits})
    detector = Own().calibrate(given)
    detector.predict(given)
    turned = replace(given, label_names=given.label_names[::-1])
    with pytest.raises(InputError, match="does not know which columns of 'mine' belong to which"):
        detector.predict(turned)
    ns.JointEnergy().calibrate(given).predict(turned)  # which does not read it
