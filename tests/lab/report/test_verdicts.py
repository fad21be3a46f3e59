"""What a report says about one calibrated detector, and who is flagged."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fixtures.reports import Page
from nescio.detectors import Combined, JointEnergy, MaxLogit
from nescio.errors import TooFewSamplesError
from nescio.lab.report import build_report
from nescio.lab.report.figures import scores_of
from nescio.lab.report.verdicts import (
    Chosen,
    Promise,
    choose_default,
    describe_verdicts,
    false_alarms,
    flagged,
)
from nescio.metrics.comparison import Scored
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
    assert "About 5.0 % of ordinary inputs are flagged" in promise.text()


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
    assert Promise(100, 30, 0.05, 0.01, 0.1, 500, None).change() == (
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
    assert (verdict["inside"], verdict["right"]) == (False, None)
    assert verdict["strange"].startswith("as strange as 1 in ")
    reason = chosen.detector.explain(evidence.id_outputs[lowest[:1]])[0]
    assert first["why"][0].startswith(f"{reason.parts[0].share:.0%} of the evidence: ")
    wild = evidence.id_outputs.logits.copy()
    wild[7, 2] = 900.0
    changed = replace(evidence, id_outputs=replace(evidence.id_outputs, logits=wild))
    first = describe_verdicts(chosen, changed)["suspicious"][0]
    assert first["name"] == "folder/7.jpg"
    assert (
        "values out of their usual range. Out of the usual range: label-2 = 900" in first["why"][0]
    )


def test_a_page_without_ood_data(own):
    chosen, evidence = own
    html = build_report([], [evidence], title="Mine", chosen=chosen)
    page = Page(html)
    n_flagged = len(chosen.detector.assess(evidence.id_outputs).flagged)
    for words in (
        f"{100 * n_flagged / 300:.1f} % flagged {n_flagged} of 300 inputs.",
        "look like those of the 200 calibration inputs",
        f"Flagged of 300 inputs: {n_flagged} by mine (combined).",
        "files.id pets.csv",
        chosen.detector.self_check(evidence.id_outputs).summary(),
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
    assert "Too few to tell" in Page(build_report([], [few], title="t", chosen=chosen)).text


# --- beside OOD data ---


def test_a_chosen_detector_leads_the_page(make_evidence, make_lines):
    evidence = make_evidence(oods=("stones", "leaves"))
    detector = MaxLogit().calibrate(evidence.id_outputs, tpr=0.9)
    chosen = Chosen("mine (max_logit)", detector, ["The model knows <seven> labels."], ["Why."])
    scored = scores_of(evidence, "max_logit")
    evidence = replace(evidence, scores={chosen.name: scored, **evidence.scores})
    html = build_report(make_lines(evidence), [evidence], title="Tiny", chosen=chosen)
    page = Page(html)
    assert page.ids.index("verdicts") < page.ids.index("summary")
    for words in ("knows <seven> labels.", "Why.", "predicted: ", "(should be flagged)"):
        assert words in page.text
    same = r"inputs: (\d+) by mine \(max_logit\), \1 by joint_energy\. joint_energy has a threshold"
    assert re.search(same, page.text)
    assert "On pets against stones, mine (max_logit) lets " in page.text
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
        right = inside if shown["is_id"] else ~inside
        assert [verdict["right"] for verdict in verdicts] == right[:3].tolist()
        for case, logits in zip(shown["cases"], outputs.logits, strict=False):
            labels = [f"label-{label}" for label in range(7) if logits[label] > 0]
            assert case["predicted"] == (", ".join(labels) or "nothing")


# --- who is flagged ---


def alarms_of(evidence, *names):
    names = names or ("joint_energy", "max_logit")
    flags = {name: flagged(scores_of(evidence, name).id_scores, 0.95) for name in names}
    return false_alarms(evidence, flags, 0.95)


def test_false_alarms_are_counted_by_true_label(evidence):
    labels = np.zeros((100, 3), dtype=np.uint8)
    labels[:20, 0] = 1  # joint energy flags 1 to 4 of these, and 50, which has no label
    labels[20:40, 1] = 1
    labelled = replace(evidence, id_outputs=Outputs(np.zeros((100, 3)), labels=labels))
    alarms = alarms_of(labelled)
    assert alarms["kind"] == alarms["label_kind"] == "true"
    assert alarms["totals"] == "Flagged of 100 inputs: 5 by joint_energy, 5 by max_logit."
    rows = [(row[0].name, row[0].n_samples, row[0].n_flagged) for row in alarms["by_label"]]
    assert rows == [("label 0", 20, 4), ("label 1", 20, 0)]
    assert alarms["by_label"][0][1].false_alarms.value == 0.25
    assert "Flagged more often than all" in alarms["suffering"]
    counts = [(row[0].name, row[0].n_samples, row[0].n_flagged) for row in alarms["by_count"]]
    assert counts == [("0", 60, 1), ("1", 40, 4)]
    assert alarms["fprs"] == ["FPR95 stones"]
    assert alarms["by_label"][1][2].fpr.value == 0.5  # two stones are at or above the score 21


def test_without_truth_the_most_likely_label_counts(evidence):
    logits = np.full((100, 3), -3.0)
    logits[:10, 2] = -1  # nothing is predicted, yet this one is the likeliest
    alarms = alarms_of(replace(evidence, id_outputs=Outputs(logits)))
    assert (alarms["kind"], alarms["label_kind"]) == ("predicted", "most likely")
    assert {row[0].name: row[0].n_samples for row in alarms["by_label"]} == {
        "label 2": 10,
        "label 0": 90,
    }
    assert [(row[0].name, row[0].n_flagged) for row in alarms["by_count"]] == [("0", 5)]


def test_many_labels_are_cut_and_grouped_by_frequency(make_evidence, make_lines):
    evidence = make_evidence(n_labels=20, n_samples=400)
    alarms = alarms_of(evidence)
    assert (len(alarms["by_label"]), alarms["n_hidden"]) == (12, 8)
    lows = [row[0].false_alarms.low for row in alarms["by_label"]]
    assert lows == sorted(lows, reverse=True)
    names = [row[0].name for row in alarms["by_frequency"]]
    assert names[:3] == ["rare", "medium", "frequent"]
    page = Page(build_report(make_lines(evidence), [evidence], title="t"))
    assert "8 more labels are flagged less surely" in page.text
    assert "Rare, medium and frequent are thirds of the labels." in page.text
    crowded = replace(evidence.id_outputs, labels=np.ones((400, 20), dtype=np.uint8))
    by_count = alarms_of(replace(evidence, id_outputs=crowded))["by_count"]
    assert [(row[0].name, row[0].n_samples) for row in by_count] == [("7 or more", 400)]


def test_groups_are_listed_and_no_bar_is_too_long(make_evidence):
    evidence = make_evidence()
    worst = alarms_of(evidence)["by_label"][0][0]
    scores = evidence.scores["joint_energy"].id_scores
    groups = np.where(scores <= np.sort(scores)[2], "broken", "fine")
    outputs = replace(evidence.id_outputs, kept={"group": groups})
    alarms = alarms_of(replace(evidence, id_outputs=outputs))
    assert [row[0].name for row in alarms["by_group"]] == ["broken", "fine"]
    assert alarms["longest"] == 1.0 > worst.false_alarms.value


def test_a_detector_that_flags_everything_has_a_page(make_evidence, make_lines):
    evidence = make_evidence()
    higher = evidence.id_outputs.logits + np.where(np.arange(7) == 0, -9, 50)
    detector = MaxLogit().calibrate(higher)
    chosen = Chosen("mine", detector)
    evidence = replace(evidence, scores={"mine": evidence.scores["max_logit"], **evidence.scores})
    page = Page(build_report(make_lines(evidence), [evidence], title="t", chosen=chosen))
    assert "100.0 % flagged 120 of 120 inputs. This is more than promised" in page.text


def test_at_most_as_many_detectors_as_colours(evidence):
    more = {f"d{number}": Scored(np.arange(100.0), {"stones": np.zeros(4)}) for number in range(9)}
    changed = replace(evidence, scores={**evidence.scores, **more})
    alarms = alarms_of(changed, *changed.scores)
    assert list(alarms["styles"]) == ["joint_energy", "max_logit", "d0", "d1", "d2"]
    assert len(alarms["by_label"][0]) == 5 + 1
