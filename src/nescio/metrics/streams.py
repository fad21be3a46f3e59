"""Comparison of several detectors on outputs that are read in blocks of rows.

All detectors score each block, so the data is read once. The scores are kept one by one while they
fit, and then counted in cells (`ScoreCells`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nescio.calibration import Scores
from nescio.detectors.base import Detector
from nescio.detectors.calibrating import OncePerStream, Stream
from nescio.detectors.naming import as_detector
from nescio.errors import about
from nescio.metrics.cells import MAX_CELLS, MAX_EXACT, ScoreCells
from nescio.metrics.comparison import (
    Comparison,
    Scored,
    check_same_labels,
    find_lead,
    missing_input,
    prepared,
)
from nescio.metrics.evaluation import Evaluation, evaluate
from nescio.outputs import Outputs
from nescio.outputs.streams import where

_ID = "the ID data"


def compare_streams(
    detectors: Mapping[str, Detector],
    id_stream: Stream,
    ood_streams: Mapping[str, Stream],
    *,
    train: Outputs | None = None,
    held_out: Outputs | None = None,
    tpr: float = 0.95,
    n_bootstrap: int = 1000,
    seed: int = 0,
    max_exact: int = MAX_EXACT,
    max_cells: int = MAX_CELLS,
    on_rows: Callable[[int], object] = lambda n: None,
) -> Comparison:
    """Evaluate each detector on each OOD set; see `compare_outputs`.

    `max_exact` and `max_cells` are for all detectors and data sets together. `on_rows` is called
    with the number of rows of each block.
    """
    streams = {_ID: id_stream, **ood_streams}
    heads = {name: next(iter(one.blocks())).outputs for name, one in streams.items()}
    id_head, ood_heads = heads[_ID], {name: heads[name] for name in ood_streams}
    others = {"the training outputs": train, "the held-out outputs": held_out}
    given = {name: outputs for name, outputs in others.items() if outputs is not None}
    check_same_labels(id_head, {**ood_heads, **given})
    ready: dict[str, Detector] = {}
    skipped: dict[str, str] = {}
    for name, one in detectors.items():
        found = prepared(as_detector(one), id_head, ood_heads, train, held_out)
        if isinstance(found, str):
            skipped[name] = found
        else:
            ready[name] = found
    share = max(1, len(ready) * len(streams))
    cells = {
        name: {
            data: ScoreCells(max_exact=max_exact // share, max_cells=max(1, max_cells // share))
            for data in streams
        }
        for name in ready
    }
    for data, stream in streams.items():
        _score(ready, data, stream, cells, skipped, on_rows)
    kept = {name: cells[name] for name in detectors if name in ready}
    options = {"tpr": tpr, "n_bootstrap": n_bootstrap, "seed": seed}
    return _compared(kept, ood_streams, skipped, options)


def _score(
    ready: dict[str, Detector],
    data: str,
    stream: Stream,
    cells: Mapping[str, Mapping[str, ScoreCells]],
    skipped: dict[str, str],
    on_rows: Callable[[int], object],
) -> None:
    """Score all blocks; leave out a detector that cannot score one of them."""
    once = {name: OncePerStream() for name in ready}
    for block in stream.blocks():
        outputs = block.outputs
        with about(where(stream.address, block.start, len(outputs), stream.n_rows)):
            for name, detector in list(ready.items()):
                reason = missing_input(detector, outputs, data, "reads", detector.scores_from)
                if reason is not None:  # masked labels that only some rows have
                    skipped[name] = reason
                    del ready[name]
                    continue
                with once[name].block(outputs):
                    scores = detector.score_samples(outputs)
                cells[name][data].add(scores)
        on_rows(len(outputs))
    for name in ready:
        once[name].warn()


def _compared(
    cells: Mapping[str, Mapping[str, ScoreCells]],
    ood_streams: Mapping[str, Stream],
    skipped: Mapping[str, str],
    options: Mapping[str, Any],
) -> Comparison:
    results: dict[str, dict[str, Evaluation]] = {ood: {} for ood in ood_streams}
    for name, found in cells.items():
        for ood in ood_streams:
            results[ood][name] = evaluate(found[_ID], found[ood], **options)
    scores: dict[str, Scored] = {}
    for name, found in cells.items():
        if all(one.exact for one in found.values()):
            by_ood: dict[str, Scores] = {ood: found[ood].scores for ood in ood_streams}
            scores[name] = Scored(found[_ID].scores, by_ood)
    # DeLong's test compares detectors sample by sample: it needs all scores of all of them.
    leads = {ood: find_lead(ood, scores) for ood in results} if len(scores) == len(cells) else {}
    lead = {ood: one for ood, one in leads.items() if one is not None}
    return Comparison(results, lead, dict(skipped), scores)
