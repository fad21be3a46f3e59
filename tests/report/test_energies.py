"""The figures of label-wise energies."""

import re
from dataclasses import replace

import numpy as np

from fixtures.reports import Page
from nescio.outputs import Outputs
from nescio.report import build_report
from nescio.report.energies import label_switch


def test_many_labels_stay_small_and_the_rare_are_left_out(make_evidence, make_lines):
    evidence = make_evidence(oods=("a", "b", "c"), n_labels=2000, n_samples=60)
    truth = np.zeros((60, 2000), dtype=np.uint8)
    truth[:, 1000:1100] = 1
    truth[:2, 1100:] = 1
    logits = evidence.id_outputs.logits
    evidence = replace(evidence, id_outputs=Outputs(logits, labels=truth))
    lines = make_lines(evidence, n_bootstrap=0)
    page = build_report(lines, [evidence], title="Large")
    assert len(page.encode()) < 5_000_000
    drawn = re.findall(r"Densities of the energy of label (\d+), ID against OOD", page)
    assert drawn == [str(at) for at in range(1000, 1100)]
    said = "The 100 most frequent of the 2,000 labels are drawn."
    assert said in Page(page).text
    few = make_evidence(n_labels=100)
    assert "most frequent of the" not in build_report(make_lines(few), [few], title="Few")


def test_labels_left_out_do_not_change_the_others(make_evidence):
    evidence = make_evidence(n_labels=130, n_samples=60)
    truth = evidence.id_outputs.labels.copy()
    truth[:, :30] = 0
    truth[0, 30:] = 1  # the first 30 labels are the rarest

    def drawn(labels):
        def cut(outputs, truth=None):
            names = [f"label-{at}" for at in labels]
            return Outputs(outputs.logits[:, labels], labels=truth, label_names=names)

        some = replace(
            evidence,
            id_outputs=cut(evidence.id_outputs, truth[:, labels]),
            ood_outputs={ood: cut(one) for ood, one in evidence.ood_outputs.items()},
        )
        return [(one.name, one.chart, one.note) for one in label_switch(some).panels]

    assert drawn(np.arange(130)) == drawn(np.arange(30, 130))
