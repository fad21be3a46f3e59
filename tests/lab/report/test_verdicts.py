"""What a report says about one calibrated detector, and who is flagged."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fixtures.reports import Page
from nescio.detectors import Combined, JointEnergy, MaxLogit, TopKJointEnergy
from nescio.errors import GroupWarning, TiedScoresWarning, TooFewSamplesError
from nescio.explain import ColumnRange
from nescio.lab.report import build_report
from nescio.lab.report.figures import scores_of
from nescio.lab.report.page import from_outputs
from nescio.lab.report.verdicts import (
    Chosen,
    Promise,
    Why,
    _whys,
    _words,
    choose_default,
    describe_verdicts,
    flagged_by_label,
)
from nescio.outputs import Outputs
from nescio.outputs.sets import Sets

# --- the promise ---


def promise_of(rng, n, shift=0.0, n_calibration=1000):
    detector = JointEnergy().calibrate(rng.normal(-2, 3, (n_calibration, 12)))
    return Promise.of(detector, detector.assess(rng.normal(-2 + shift, 3, (n, 12))))


def test_ordinary_inputs_are_as_promised(rng):
    promise = promise_of(rng, 800)
    assert promise.usual == pytest.approx(0.05, abs=0.001)
    assert promise.low < promise.share < promise.high
    assert promise.comparison == "as promised"
    assert promise.change() == ""
    assert promise.compared().startswith(
        "as promised: about 5.0 % of ordinary inputs are flagged although nothing is wrong with"
    )


def test_other_inputs_are_more_than_promised(rng):
    promise = promise_of(rng, 800, shift=-3.0)
    assert promise.comparison == "more than promised"
    assert promise.change() == "They score lower than the calibration data."
    assert promise_of(rng, 800, shift=3.0).comparison == "fewer than promised"


def test_the_order_of_the_rows_means_nothing(rng):
    detector = JointEnergy().calibrate(rng.normal(-2, 3, (1000, 12)))
    verdicts = detector.assess(rng.normal(-2, 3, (800, 12)))
    assert Promise.of(detector, verdicts[np.argsort(verdicts.scores)]).kind is None


def test_a_flagged_share_beyond_chance_is_a_change_too():
    assert Promise(100, 30, 0.05, 0.01, 0.1, 500, None, "").change() == (
        "The flagged ones are more than promised."
    )


def test_one_promise_for_several_thresholds(rng):
    logits = rng.normal(-1, 2, (3000, 4))
    detector = JointEnergy().calibrate(logits[:2000], groups="label_count")
    assert len(detector.calibration_.thresholds) > 1
    promise = Promise.of(detector, detector.assess(logits[2000:]))
    assert promise.n_calibration == detector.calibration_.n_samples
    assert promise.usual == pytest.approx(0.05, abs=0.005)


# --- the default ---


def test_without_held_out_data_half_of_the_inputs_calibrate(make_outputs):
    outputs = make_outputs(600)
    chosen, sets = choose_default(Sets(outputs, {}, None, None), "raise")
    assert chosen.name == "default (combined)"
    assert (len(sets.id), len(sets.held_out)) == (300, 300)
    assert {*sets.id.ids, *sets.held_out.ids} == {*outputs.ids}
    assert "The other half (300) calibrated the detector" in chosen.context[0]
    assert (
        sets.id.ids.tolist()
        == choose_default(Sets(outputs, {}, None, None), "raise")[1].id.ids.tolist()
    )  # the same half again
    held_out = make_outputs(300, seed=1)
    chosen, sets = choose_default(Sets(outputs, {}, None, held_out), "raise")
    assert sets.id is outputs
    assert chosen.context == []
    assert chosen.detector.offset_ == chosen.detector.calibrate(held_out).offset_


def test_too_few_inputs_for_a_default(make_outputs):
    with pytest.raises(TooFewSamplesError, match=r"got 10\. The default detector is .* --held-out"):
        choose_default(Sets(make_outputs(20), {}, None, None), "raise")


# --- the page of one's own inputs ---


@pytest.fixture
def own(make_evidence):
    """A detector, and evidence without OOD data."""
    evidence = make_evidence(
        oods=(), n_samples=300, detectors={"none": lambda logits: logits[:, 0]}
    )
    held_out = make_evidence(n_samples=400, seed=3).id_outputs
    parts = ["joint_energy", "out_of_range(layer=logits, held_out=true)"]
    detector = Combined(parts).calibrate(held_out)
    manifest = {"files": {"id": "pets.csv"}}
    return Chosen("mine (combined)", detector, manifest=manifest), replace(evidence, scores={})


def test_the_most_suspicious_inputs_come_with_their_reasons(own):
    chosen, evidence = own
    said = describe_verdicts(chosen, evidence)
    scores = chosen.detector.score_samples(evidence.id_outputs)
    lowest = np.argsort(scores)[:6]
    assert [case["name"] for case in said["suspicious"]] == evidence.id_outputs.ids[lowest].tolist()
    first = said["suspicious"][0]
    [verdict] = first["verdicts"]
    assert (verdict["inside"], verdict["right"]) == (False, "")
    assert verdict["strange"].startswith("as strange as 1 in ")
    reason = chosen.detector.explain(evidence.id_outputs[lowest[:1]])[0]
    assert reason.parts[1].share < 0.1  # so the other one is the only reason, without a share
    assert first["why"][0].startswith("No label is predicted with confidence. Its strongest label")
    halves = tuple(replace(part, share=0.5) for part in reason.parts)
    texts = [why.text("") for why in _whys(replace(reason, parts=halves), predicts=False)]
    assert texts[0].startswith("50 % of the evidence: no label is predicted with confidence. ")
    assert len(texts) == 2
    wild = evidence.id_outputs.logits.copy()
    wild[7, 2] = 900.0
    changed = replace(evidence, id_outputs=replace(evidence.id_outputs, logits=wild))
    first = describe_verdicts(chosen, changed)["suspicious"][0]
    assert first["name"] == "folder/7.jpg"
    assert first["verdicts"][0]["strange"] == "as strange as 1 in 200 or rarer"
    assert first["why"][0].startswith("Out of the usual range: label-2 = 900")


def test_nothing_speaks_against_an_input_that_is_not_flagged(own):
    chosen, evidence = own
    inside = chosen.detector.assess(evidence.id_outputs).in_distribution
    few = np.append(np.flatnonzero(inside)[:7], np.flatnonzero(~inside)[:1])
    for rows, n_flagged in ((few, 1), (few[:7], 0)):
        only = replace(evidence, id_outputs=evidence.id_outputs[rows])
        said = describe_verdicts(chosen, only)
        assert [bool(case["why"]) for case in said["suspicious"]] == [n_flagged == 1] + 5 * [False]
        text = Page(build_report([], [only], title="t", chosen=chosen)).text
        assert ("The least ordinary inputs of pets" in text) == (n_flagged == 0)
        assert ("No input is flagged." in text) == (n_flagged == 0)


def test_inputs_that_calibrated_the_detector_are_noticed(make_outputs, make_evidence):
    held_out = make_outputs(300, seed=3)
    detector = JointEnergy().calibrate(held_out)
    evidence = replace(make_evidence(oods=(), detectors={}), id_outputs=held_out[100:])
    chosen = Chosen("mine", detector)
    page = Page(build_report([], [evidence], title="t", chosen=chosen))
    said = "200 of 200 scores are exactly those of calibration inputs."
    assert f"Not tested {said}" in page.text
    assert f"Like the calibration data? Not tested: {said}" in chosen.headline(evidence.id_outputs)
    whole = replace(held_out, logits=held_out.logits.round())
    with pytest.warns(TiedScoresWarning):  # they are equal by nature
        tied = Chosen("mine", MaxLogit().calibrate(whole))
    assert "Not tested" not in tied.headline(whole)


def test_a_page_without_ood_data(own):
    chosen, evidence = own
    html = build_report([], [evidence], title="Mine", chosen=chosen)
    page = Page(html)
    n_flagged = len(chosen.detector.assess(evidence.id_outputs).flagged)
    for words in (
        f"{100 * n_flagged / 300:.1f} % flagged {n_flagged} of 300 inputs.",
        "look like those of the 200 calibration inputs",
        "That about 5.0 % of ordinary inputs are flagged is the price",
        f"All {n_flagged} flagged inputs",
        "save a detector first: nescio calibrate HELD_OUT -o detector.nescio Then pass it to",
        "files.id pets.csv",
        chosen.detector.self_check(evidence.id_outputs).summary(),
        " may be ordinary: each value by itself is usual.",
        "Flagged without a fault: ",
    ):
        assert words in page.text, words
    assert "summary" not in page.ids
    assert "<i>" not in html  # nobody knows which verdicts are right
    links = {attrs["href"].removeprefix("#") for tag, attrs in page.tags if tag == "a"}
    assert links <= set(page.ids)
    assert page.count("svg", role="img", aria_label="Histogram of the p-values") == 1


def test_a_change_is_said_with_what_to_do(own):
    chosen, evidence = own
    lower = replace(evidence.id_outputs, logits=evidence.id_outputs.logits - 3)
    page = Page(build_report([], [replace(evidence, id_outputs=lower)], title="t", chosen=chosen))
    assert "These inputs do not look like the calibration data. They score lower" in page.text
    assert "What to do: look at these inputs." in page.text
    few = replace(evidence, id_outputs=evidence.id_outputs[:5])
    assert "verdicts-check" not in page.ids  # drifted inputs say nothing about the detector
    page = Page(build_report([], [few], title="t", chosen=chosen))
    assert "Too few to tell There are too few inputs." in page.text
    assert "verdicts-check" not in page.ids
    first = evidence.id_outputs[:1]
    assert chosen.headline(first).startswith("0.0 % of 1 input flagged: too few to compare (about")
    assert "by chance 0.0" not in page.text


def test_a_broken_group_is_named(make_outputs, make_evidence):
    held_out, new = make_outputs(900, seed=3), make_outputs(600)
    detector = JointEnergy().calibrate(
        held_out, groups=np.array(["a", "b", "c"])[np.arange(900) % 3]
    )
    groups = np.array(["a", "b", "c"])[np.arange(600) % 3]
    broken = replace(
        new, logits=new.logits - 1.5 * (groups == "b")[:, None], kept={"group": groups}
    )
    evidence = replace(make_evidence(oods=(), detectors={}), id_outputs=broken)
    chosen = Chosen("mine", detector)
    said = "Changed: group b (its inputs score lower)."
    assert "Like the calibration data? No. " in chosen.headline(broken)
    assert chosen.headline(broken).endswith(said)
    assert said in Page(build_report([], [evidence], title="t", chosen=chosen)).text
    as_usual = replace(new, kept={"group": groups})
    assert "Changed" not in chosen.headline(as_usual)
    # What is not flagged more often is named too.
    stuck = replace(broken, logits=np.where((groups == "b")[:, None], new.logits[1], new.logits))
    assert chosen.headline(stuck).endswith("group b (its inputs have scores that hardly vary).")


def test_missing_values_are_counted_named_and_shown_last(own):
    chosen, evidence = own
    logits = evidence.id_outputs.logits.copy()
    logits[50:54, 3] = np.nan
    detector = chosen.detector.set_params(nonfinite="out")
    broken = replace(evidence, id_outputs=replace(evidence.id_outputs, logits=logits))
    said = describe_verdicts(replace(chosen, detector=detector), broken)
    assert said["promise"].inputs == "300 inputs (4 with NaN or infinity)"
    n_flagged = said["promise"].n_flagged
    names = [row["name"] for row in said["flagged"]]
    assert names[n_flagged - 4 :] == [f"folder/{row}.jpg" for row in range(50, 54)]
    only = replace(broken, id_outputs=broken.id_outputs[50:54])
    [why] = describe_verdicts(replace(chosen, detector=detector), only)["suspicious"][0]["why"]
    assert why == "NaN or infinity in label-3."


def test_the_rest_of_the_flagged_inputs_is_listed(make_outputs, make_evidence):
    """Changed groups in turn, then the smallest p-value: scores of groups differ in scale."""
    held_out, new = make_outputs(900, seed=3), make_outputs(300, lift=0.0)
    sizes = np.where(np.arange(900) < 100, "tiny", "large")
    detector = JointEnergy().calibrate(held_out, groups=sizes)
    groups = np.array(["tiny", "large", "newco"])[np.arange(300) % 3]
    evidence = replace(
        make_evidence(oods=(), detectors={}), id_outputs=replace(new, kept={"group": groups})
    )
    with pytest.warns(GroupWarning, match="newco"):
        said = describe_verdicts(Chosen("mine", detector), evidence)
    assert said["uncalibrated"].startswith("no threshold was calibrated for 1 group: 'newco', ")
    with pytest.warns(GroupWarning):
        verdicts = detector.assess(new, groups=groups)
    above = verdicts.scores - detector.calibration_.threshold_of(verdicts.groups)
    lowest = np.lexsort((above, verdicts.p_values))
    changed = [lowest[groups[lowest] == name] for name in said["promise"].changed]
    assert len(changed) == 2
    place = np.argsort(lowest)
    in_turn = [row for turn in zip(*changed, strict=True) for row in sorted(turn, key=place.item)]
    lowest = np.append(in_turn, lowest[groups[lowest] == "newco"])
    lowest = lowest[above[lowest] < 0][:100]
    assert (above < 0).sum() > 100
    assert (np.diff(above[lowest]) < 0).any()
    assert [row["name"] for row in said["flagged"]] == new.ids[lowest].tolist()
    named = np.where(groups == "newco", "newco (not calibrated)", groups)[lowest].tolist()
    assert [row["group"] for row in said["flagged"]] == named
    assert [case["name"] for case in said["suspicious"]] == [
        f"{name}, group {group}" for name, group in zip(new.ids[lowest], named[:6], strict=False)
    ]
    sizes = {"tiny": 100, "large": 800}  # the p-value cannot be lower than 1 / (size + 1)
    rarest = [row["p_value"] == 1 / (1 + sizes.get(row["group"], 900)) for row in said["flagged"]]
    assert [row["strange"].endswith(" or rarer") for row in said["flagged"]] == rarest
    assert {*rarest} == {True, False}


@pytest.mark.parametrize(("broken", "n_broken"), [(np.nan, 12), (0.0, 40)])
def test_the_rows_of_a_small_changed_group_come_first(
    make_outputs, make_evidence, broken, n_broken
):
    """Their p-values are 1 / 22 at least, and those of the large group much lower."""
    held_out, new = make_outputs(921, seed=3), make_outputs(400)
    sizes = np.where(np.arange(921) < 21, "tiny", "large")
    detector = JointEnergy(nonfinite="out").calibrate(held_out, groups=sizes)
    groups, logits = np.where(np.arange(400) < n_broken, "tiny", "large"), new.logits.copy()
    logits[:n_broken] = broken
    outputs = replace(new, logits=logits, kept={"group": groups})
    evidence = replace(make_evidence(oods=(), detectors={}), id_outputs=outputs)
    chosen = Chosen("mine", detector)
    said = describe_verdicts(chosen, evidence)
    assert said["promise"].changed == ["tiny"]
    assert [case["name"].endswith("group tiny") for case in said["suspicious"]] == 6 * [True]
    in_list = [row["group"] for row in said["flagged"]]
    n_tiny = in_list.count("tiny")
    assert in_list == n_tiny * ["tiny"] + (len(in_list) - n_tiny) * ["large"]
    assert n_tiny == (12 if np.isnan(broken) else 0)
    rows = [row["p_value"] for row in said["flagged"][n_tiny:]]
    assert rows == sorted(rows)
    page = Page(build_report([], [evidence], title="t", chosen=chosen))
    assert "inputs of pets, those of changed groups first" in page.text
    assert "flagged inputs, those of changed groups first" in page.text
    comparison = "as promised in number, but the inputs have changed"
    assert f"flagged: {comparison} (about " in chosen.headline(outputs)
    assert f"This is {comparison}: about" in page.text
    assert page.count("li", **{"class": "alert"}) == 2


def test_reasons_are_words_first(make_outputs):
    logits = np.full((2, 7), -9.0)
    logits[1, 0] = 0.1
    nothing, weak = JointEnergy().calibrate(make_outputs()).explain(logits)
    assert _words("joint_energy", nothing, False) == "no label is predicted with confidence"
    assert _words("joint_energy", weak, True) == "no label is as strong as usual"
    distance = ColumnRange("distance to the mean", 0.01, 0.04, 0.3, 2.0)
    together = replace(weak, labels=(), ranges=(distance,))
    assert together.summary().startswith("No single value is unusual.")
    assert _words("out_of_range", together, True) == "its values together are unusual"
    assert Why("its values", together.summary()).text("").startswith("No single value is unusual.")
    single = replace(weak, labels=(), ranges=(ColumnRange("age", 640.0, 18.0, 90.0, 7.6), distance))
    assert _words("out_of_range", single, True) == "values out of their usual range"


def test_the_headline_is_that_of_the_page(own):
    chosen, evidence = own
    page = Page(build_report([], [evidence], title="t", chosen=chosen))
    share = chosen.headline(evidence.id_outputs).partition(" of 300 inputs")[0]
    assert f"{share} flagged" in page.text
    lower = replace(evidence.id_outputs, logits=evidence.id_outputs.logits - 3)
    assert "more than promised (about 5.0 %). Like the calibration data? No." in (
        chosen.headline(lower)
    )
    assert replace(chosen, is_half=True).headline(evidence.id_outputs).endswith("? Not tested.")


# --- beside OOD data ---


def test_id_inputs_that_have_changed_are_no_false_alarms(make_evidence, make_lines):
    evidence = make_evidence()
    chosen = Chosen("max_logit", MaxLogit().calibrate(evidence.id_outputs))
    lines = make_lines(evidence)
    as_before = Page(build_report(lines, [evidence], title="t", chosen=chosen)).text
    assert "possibly a false alarm" in as_before
    assert "pets (ID): " in as_before
    assert "every FPR is too high" not in as_before
    lower = replace(evidence.id_outputs, logits=evidence.id_outputs.logits - 3)
    changed = replace(evidence, id_outputs=lower)
    text = Page(build_report(lines, [changed], title="t", chosen=chosen)).text
    assert "possibly a false alarm" not in text
    assert "pets (ID): " not in text  # case studies of what is right
    assert text.count("every FPR is too high: do not rely on them") == 1


def test_the_comparison_is_folded_below_verdicts(make_evidence, make_lines):
    evidence = make_evidence()
    chosen = Chosen("max_logit", MaxLogit().calibrate(evidence.id_outputs))
    lines = [
        *make_lines(evidence),
        replace(make_lines(evidence)[0], detector="knn", evaluation=None),
    ]
    html = build_report(lines, [evidence], title="t", chosen=chosen)
    assert '<details id="comparison">' in html
    assert "<details open" not in html
    assert 'class="skipped" open' not in html
    assert '<details id="comparison">' not in build_report(lines, [evidence], title="t")


def test_other_settings_of_the_chosen_detector_have_another_name(make_outputs):
    detector = TopKJointEnergy(k=3).calibrate(make_outputs(90).logits)
    sets = Sets(make_outputs(60), {"far": make_outputs(60, seed=2)}, None, None)
    others = {detector.name: TopKJointEnergy(), "max_logit": MaxLogit()}
    options = {"text_column": None, "image_roots": {}, "on_step": lambda steps: None}
    lines, _ = from_outputs("new", sets, Chosen("mine", detector), others, **options)
    named = [line.detector for line in lines]
    assert named == ["mine", "top_k_joint_energy with standard settings", "max_logit"]


def test_a_chosen_detector_leads_the_page(make_evidence, make_lines):
    evidence = make_evidence(oods=("stones", "leaves"))
    detector = MaxLogit().calibrate(evidence.id_outputs, tpr=0.9)
    chosen = Chosen("mine (max_logit)", detector, ["The model knows <seven> labels."], ["Why."])
    scored = scores_of(evidence, "max_logit")
    evidence = replace(evidence, scores={chosen.name: scored, **evidence.scores})
    html = build_report(make_lines(evidence), [evidence], title="Tiny", chosen=chosen)
    page = Page(html)
    assert page.ids.index("verdicts") < page.ids.index("summary")
    passing = int((detector.predict(evidence.ood_outputs["stones"]) > 0).sum())
    shown = ("predicted: ", "(should be flagged)", f"{passing} of 120 strange inputs pass as ord")
    for words in ("knows <seven> labels.", "Why.", *shown):
        assert words in page.text
    through = re.findall(r"mine \(max_logit\) at its own threshold: [\d.]+ % through\.", page.text)
    assert len(through) == 2
    assert page.text.lower().count("at its own threshold: ") == 2 * 3  # also in a row and a figure
    assert "On pets against stones: mine (max_logit) lets " in page.text
    assert "mine (max_logit) is right, joint_energy is wrong" in page.text
    assert "max_logit is right" not in page.text.replace("mine (max_logit) is right", "")
    assert 'class="is-first"' in html
    shown = [panel for panel in html.split("<figure ")[1:] if " hidden" not in panel[:40]]
    names = [panel.split("<b>")[1].split("</b>")[0] for panel in shown if "<b>" in panel[:200]]
    assert names == 2 * ["mine (max_logit)", "joint_energy"]
    assert "id0-labels" not in page.ids  # it explains joint energy
    assert "verdicts" not in Page(build_report(make_lines(evidence), [evidence], title="t")).ids


def test_the_first_inputs_of_each_set_are_shown_with_their_verdicts(make_evidence):
    evidence = make_evidence(oods=("stones", "leaves"))
    detector = MaxLogit().calibrate(evidence.id_outputs, tpr=0.9)
    sets = describe_verdicts(Chosen("mine", detector), replace(evidence, scores={
        "mine": scores_of(evidence, "max_logit"), **evidence.scores
    }))["sets"]  # fmt: skip
    all_outputs = {"pets": evidence.id_outputs, **evidence.ood_outputs}
    for shown, (name, outputs) in zip(sets, all_outputs.items(), strict=True):
        assert (shown["name"], shown["is_id"]) == (name, name == "pets")
        inside = detector.predict(outputs) == 1
        assert shown["n_flagged"] == (~inside).sum()
        assert [case["name"] for case in shown["cases"]] == outputs.ids[:3].tolist()
        verdicts = [case["verdicts"][0] for case in shown["cases"]]
        assert [verdict["inside"] for verdict in verdicts] == inside[:3].tolist()
        wrong = "possibly a false alarm" if shown["is_id"] else "missed"
        right = inside if shown["is_id"] else ~inside
        said = ["right\N{NO-BREAK SPACE}verdict" if each else wrong for each in right[:3]]
        assert [verdict["right"] for verdict in verdicts] == said
        for case, logits in zip(shown["cases"], outputs.logits, strict=False):
            labels = [f"label-{label}" for label in range(7) if logits[label] > 0]
            assert case["predicted"] == (", ".join(labels) or "nothing")


# --- who is flagged ---


def tables_of(evidence, flags):
    """The tables, as rows of the name, the inputs and the flagged."""
    said = flagged_by_label(evidence, np.where(flags, -1.0, 0.0))
    return said | {
        title: [(rate.name, rate.n_samples, rate.n_flagged) for rate in rates]
        for title, rates in said["tables"].items()
    }


def test_that_inputs_with_few_labels_are_flagged_more_often_is_no_alarm(evidence):
    logits = np.full((400, 3), -2.0)
    logits[:360, 0] = 3.0  # the others have no label
    few = replace(evidence, id_outputs=Outputs(logits))
    said = tables_of(few, np.arange(400) > 370)
    assert said["Number of labels"] == [("0", 40, 29), ("1", 360, 0)]
    assert "are flagged more often" not in said["text"]


def test_flagged_inputs_are_counted_by_true_label(evidence):
    labels = np.zeros((100, 3), dtype=np.uint8)
    labels[:20, 0] = labels[20:40, 1] = 1
    labelled = replace(evidence, id_outputs=Outputs(np.zeros((100, 3)), labels=labels))
    said = tables_of(labelled, np.isin(np.arange(100), [1, 2, 3, 4, 50]))  # 50 has no label
    assert said["kind"] == said["label_kind"] == "true"
    assert said["Label"] == [("label 0", 20, 4), ("label 1", 20, 0)]
    assert said["Number of labels"] == [("0", 60, 1), ("1", 40, 4)]
    assert "Flagged more often than the others, by true label: label 0." in said["text"]


def test_without_truth_the_most_likely_label_counts(evidence):
    logits = np.full((100, 3), -3.0)
    logits[:10, 2] = -1  # nothing is predicted, yet this one is the likeliest
    said = tables_of(replace(evidence, id_outputs=Outputs(logits)), np.arange(100) < 5)
    assert (said["kind"], said["label_kind"]) == ("predicted", "most likely")
    assert said["Label"] == [("label 2", 10, 5), ("label 0", 90, 0)]
    assert said["Number of labels"] == [("0", 100, 5)]


def test_many_labels_are_cut(make_evidence):
    evidence = make_evidence(n_labels=20, n_samples=400)
    said = tables_of(evidence, np.arange(400) < 20)
    assert (len(said["Label"]), said["n_hidden"]) == (12, 8)
    lows = [rate.false_alarms.low for rate in said["tables"]["Label"]]
    assert lows == sorted(lows, reverse=True)
    crowded = replace(evidence.id_outputs, labels=np.ones((400, 20), dtype=np.uint8))
    said = tables_of(replace(evidence, id_outputs=crowded), np.arange(400) < 20)
    assert said["Number of labels"] == [("7 or more", 400, 20)]


def test_groups_are_listed_and_no_bar_is_too_long(make_evidence):
    evidence = make_evidence()
    broken = np.arange(120) < 3
    kept = {"group": np.where(broken, "broken", "fine")}
    outputs = replace(evidence.id_outputs, kept=kept)
    said = tables_of(replace(evidence, id_outputs=outputs), broken)
    assert said["Group"] == [("broken", 3, 3), ("fine", 117, 0)]
    assert said["longest"] == 1.0


def test_a_detector_that_flags_everything_has_a_page(make_evidence, make_lines):
    evidence = make_evidence()
    higher = evidence.id_outputs.logits + np.where(np.arange(7) == 0, -9, 50)
    detector = MaxLogit().calibrate(higher)
    chosen = Chosen("mine", detector)
    evidence = replace(evidence, scores={"mine": evidence.scores["max_logit"], **evidence.scores})
    page = Page(build_report(make_lines(evidence), [evidence], title="t", chosen=chosen))
    assert "100.0 % flagged 120 of 120 inputs. This is more than promised" in page.text
