"""Detectors compared block by block have the results of whole outputs."""

from types import SimpleNamespace

import numpy as np
import pytest

import nescio as ns
from nescio.errors import InputError, ShapeError
from nescio.metrics.comparison import compare_outputs
from nescio.metrics.streams import compare_streams
from nescio.outputs import Outputs


class Blocks:
    """Outputs in memory, read as a stream."""

    def __init__(self, outputs, address="data.parquet"):
        self.outputs, self.address, self.n_rows = outputs, address, len(outputs)

    def blocks(self):
        for start in range(0, self.n_rows, 64):
            yield SimpleNamespace(start=start, outputs=self.outputs[start : start + 64])


def outputs_of(rng, mean, n):
    return Outputs(rng.normal(mean, 2, (n, 5)), features=rng.normal(mean, 1, (n, 3)))


@pytest.fixture
def data(rng):
    return SimpleNamespace(
        id=outputs_of(rng, 0, 300),
        ood={"near": outputs_of(rng, -1, 150), "far": outputs_of(rng, -3, 130)},
        train=outputs_of(rng, 0, 200),
        detectors={
            "max_logit": ns.MaxLogit(),
            "joint_energy": ns.JointEnergy(),
            "knn": ns.NearestNeighbours(k=3),
            "combined": ns.Combined(),
        },
    )


def streamed(data, **options):
    ood = {name: Blocks(one) for name, one in data.ood.items()}
    return compare_streams(
        data.detectors, Blocks(data.id), ood, train=data.train, n_bootstrap=20, **options
    )


def test_the_results_are_those_of_whole_outputs(data):
    rows = []
    found = streamed(data, on_rows=rows.append)
    whole = compare_outputs(data.detectors, data.id, data.ood, train=data.train, n_bootstrap=20)
    assert sum(rows) == 580
    assert found.skipped == whole.skipped
    assert list(found.skipped) == ["combined"]  # it needs held-out data
    assert found.results["near"]["max_logit"] == whole.results["near"]["max_logit"]
    for ood, results in whole.results.items():
        assert found.ranked(ood) == whole.ranked(ood)
        assert found.lead[ood].test.p_value == pytest.approx(whole.lead[ood].test.p_value)
        for name, one in results.items():
            assert found.results[ood][name].auroc.value == pytest.approx(one.auroc.value)
    assert found.largest_error == 0


def test_more_scores_than_fit_are_counted_and_the_error_is_stated(data):
    found = streamed(data, max_exact=900, max_cells=900)  # 100 for each detector and data set
    exact = streamed(data)
    assert found.scores == {}
    assert found.lead == {}
    assert 0 < found.largest_error < 0.05
    for ood in data.ood:
        for name, one in exact.results[ood].items():
            estimate = found.results[ood][name].auroc
            assert abs(estimate.value - one.auroc.value) <= estimate.error + 1e-12


def test_a_detector_that_cannot_score_a_later_block_is_left_out(data, rng):
    data.ood["far"].logits[100, 2] = -np.inf
    data.detectors["lof"] = ns.LocalOutlierFactor(n_neighbors=5)
    found = streamed(data)
    assert "does not accept masked labels" in found.skipped["lof"]
    assert all("lof" not in results for results in found.results.values())
    assert "max_logit" in found.results["far"]


def test_errors_name_the_rows(data, rng):
    data.ood["far"].logits[100, 2] = np.nan
    with pytest.raises(InputError, match=r"data.parquet, rows 64 to 127"):
        streamed(data)
    data.ood["far"] = Outputs(rng.normal(size=(50, 4)))
    with pytest.raises(ShapeError, match="far has 4"):
        streamed(data)
