"""The first section of a report: what a model was shown, and the verdicts on it."""

import re

from fixtures.reports import Page
from nescio.detectors import MaxLogit
from nescio.lab.benchmark.tables import Column, Table, TablePart
from nescio.lab.report import build_report
from nescio.lab.report.cases import Introduction, introduced

TABLE = Table(
    "Let through <if>",
    (Column("detector", number=False), Column("stones")),
    (((TablePart("max_logit"),), (TablePart("12.00", best=True),)),),
    ("In hindsight.",),
)


def introduction(evidence):
    detector = MaxLogit().calibrate(evidence.id_outputs, tpr=0.9)
    return Introduction(("The model knows <seven> labels.",), TABLE, detector)


def test_the_first_inputs_of_each_set_are_shown_with_their_verdicts(make_evidence):
    evidence = make_evidence(oods=("stones", "leaves"))
    given = introduction(evidence)
    sets = introduced(given, evidence)["sets"]
    assert [(one["name"], one["is_id"]) for one in sets] == [
        ("pets", True),
        ("stones", False),
        ("leaves", False),
    ]
    for one, outputs in zip(
        sets, (evidence.id_outputs, *evidence.ood_outputs.values()), strict=True
    ):
        inside = given.detector.predict(outputs) == 1
        assert one["n_flagged"] == (~inside).sum()
        assert [case["name"] for case in one["cases"]] == outputs.ids[:6].tolist()
        assert [case["verdicts"][0]["inside"] for case in one["cases"]] == inside[:6].tolist()
        right = inside if one["is_id"] else ~inside
        assert [case["verdicts"][0]["right"] for case in one["cases"]] == right[:6].tolist()
        for case, logits in zip(one["cases"], outputs.logits, strict=False):
            labels = [f"label-{at}" for at in range(7) if logits[at] > 0]
            assert case["predicted"] == (", ".join(labels) or "nothing")


def test_the_section_comes_first_and_only_if_asked_for(make_evidence, make_lines):
    evidence = make_evidence()
    lines = make_lines(evidence, n_bootstrap=0)
    html = build_report(lines, [evidence], title="Tiny", introduction=introduction(evidence))
    page = Page(html)
    assert page.ids.index("verdicts") < page.ids.index("summary")
    text = re.sub(r"\s+", " ", page.text)
    for part in ("The model knows <seven> labels.", "Let through <if>", "12.00", "In hindsight."):
        assert part in text
    assert "predicted: " in text
    plain = Page(build_report(lines, [evidence], title="Tiny"))
    assert "verdicts" not in plain.ids
    assert "predicted: " not in plain.text
