"""The first section of a report on one detector: inputs of each set, and its verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nescio.benchmark.evidence import Evidence
from nescio.benchmark.formats import Table
from nescio.detectors import Detector
from nescio.outputs import Outputs
from nescio.report.cases import input_case, input_verdict
from nescio.report.panels import label_names

_SHOWN = 6


@dataclass(frozen=True)
class Introduction:
    """What a report begins with.

    Attributes
    ----------
    sentences : sequence of str
    table : Table
    detector : Detector
        A calibrated detector, whose verdicts are shown.
    """

    sentences: Sequence[str]
    table: Table
    detector: Detector


def introduced(introduction: Introduction, evidence: Evidence) -> dict[str, Any]:
    """Return what the template reads: the sentences, the table, and the first inputs of each set.

    The inputs are the first ones, so that they are not chosen by their verdicts.
    """
    sets = {evidence.id_name: evidence.id_outputs, **evidence.ood_outputs}
    return {
        "sentences": introduction.sentences,
        "table": introduction.table,
        "sets": [
            _shown_set(introduction.detector, evidence, name, outputs)
            for name, outputs in sets.items()
        ],
    }


def _shown_set(
    detector: Detector, evidence: Evidence, name: str, outputs: Outputs
) -> dict[str, Any]:
    """Return the first inputs of one set, and how many of all are flagged."""
    is_id = outputs is evidence.id_outputs
    verdicts = detector.assess(outputs)
    labels = label_names(evidence)
    cases = []
    for row in range(min(_SHOWN, len(outputs))):
        case = input_case(evidence, name, outputs, row)
        predicted = np.flatnonzero(outputs.logits[row] > 0)
        case["predicted"] = ", ".join(labels[at] for at in predicted) or "nothing"
        score = float(verdicts.scores[row])
        case["verdicts"] = [input_verdict(detector.name, score, detector.offset_, is_id=is_id)]
        cases.append(case)
    return {
        "name": name,
        "is_id": is_id,
        "n_inputs": len(outputs),
        "n_flagged": len(verdicts.flagged),
        "cases": cases,
    }
