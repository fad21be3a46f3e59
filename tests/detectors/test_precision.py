"""A verdict and a p-value do not depend on how the values were stored (docs/adr/0019)."""

import functools
import json
import tempfile
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from nescio.checks import make_outputs
from nescio.detectors import DETECTORS
from nescio.errors import NescioWarning
from nescio.scores import TERMS, joint_energy_by_products, joint_energy_direct
from nescio.service.openapi import JSON
from nescio.service.requests import decode_outputs

STEPS = {"tied": 1.1, "fits float16": 0.5, "continuous": None}
STORED = ("float64", "csv", "json", "parquet", "safetensors", "float16")
MATRICES = (*("logits", "features", "odin_max", "odin_sum", "mahalanobis_max", "mahalanobis_sum"),)


def storages(values):
    return [kind for kind in STORED if kind != "float16" or values == "fits float16"]


@functools.cache
def made(values, seed, n_samples):
    """Outputs in float64; 1.1 and its multiples are no numbers of float32."""
    outputs = make_outputs(n_samples, seed=seed, shift=2.0 if seed == 3 else 0.0)
    step = STEPS[values]

    def rounded(matrix):
        return matrix if step is None else np.round(matrix / step) * step

    head = ns.Head(rounded(outputs.head.weight), rounded(outputs.head.bias))
    return replace(
        outputs,
        logits=rounded(outputs.logits),
        features=rounded(outputs.features),
        arrays={name: rounded(matrix) for name, matrix in outputs.arrays.items()},
        head=head,
    )


@functools.cache
def stored(values, seed, n_samples, kind):
    outputs = made(values, seed, n_samples)
    read = {name: through(np.array(outputs.get(name)), kind) for name in MATRICES}
    dtype = read["logits"].dtype
    head = ns.Head(outputs.head.weight.astype(dtype), outputs.head.bias.astype(dtype))
    return replace(
        outputs,
        logits=read.pop("logits"),
        features=read.pop("features"),
        arrays=read,
        head=outputs.head if kind in ("csv", "json") else head,
    )


def through(matrix, kind):
    """Write a matrix in one way and read it as nescio does."""
    if kind.startswith("float"):
        return matrix.astype(kind)
    if kind == "json":
        body = json.dumps({"logits": matrix.tolist()}).encode()
        return np.array(decode_outputs(JSON, body).logits)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x.{kind}"
        names = [f"label {column}" for column in range(matrix.shape[1])]
        if kind == "csv":
            lines = [",".join(map(repr, row)) for row in matrix.tolist()]
            path.write_text("\n".join([",".join(names), *lines]), "utf-8")
        elif kind == "parquet":
            import pyarrow as pa
            from pyarrow import parquet

            parquet.write_table(pa.table(list(matrix.T), names=names), path)
        else:
            ns.Outputs(matrix.astype(np.float32)).save(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NescioWarning)
            return np.array(ns.Outputs.load(path).logits)


def calibrated(name, values, kind):
    detector = DETECTORS[name]()
    if detector.learns_from:
        detector.fit(stored(values, 1, 150, kind))
    return detector.calibrate(stored(values, 2, 200, kind), groups=groups(detector, 200))


def groups(detector, n_samples):
    # A detector that learns from half of the data has too few samples for two groups.
    return None if detector.learns_from_held_out else np.arange(n_samples) % 2


@pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")
@pytest.mark.parametrize("values", STEPS)
@pytest.mark.parametrize("name", DETECTORS)
def test_verdicts_do_not_depend_on_the_storage(name, values):
    detector = calibrated(name, values, "float32")
    new = stored(values, 3, 60, "float32")
    expected = detector.assess(new, groups=groups(detector, 60))
    in_float64 = calibrated(name, values, "float64")
    kinds = ["float32", *storages(values)]
    for (calibrated_in, same), kind in product({32: detector, 64: in_float64}.items(), kinds):
        outputs = stored(values, 3, 60, kind)
        verdicts = same.assess(outputs, groups=groups(same, 60))
        where = f"{kind}, calibrated in float{calibrated_in}"
        taus = same.calibration_.threshold_of(verdicts.groups)
        if values == "continuous":  # rounding may exchange two neighbours in rank
            ranks = same.calibration_.n_samples * (verdicts.p_values - expected.p_values)
            assert np.abs(ranks).max() < 2.5, where
            near = np.isclose(verdicts.scores, taus, rtol=1e-5)
            assert (near | (verdicts.in_distribution == expected.in_distribution)).all(), where
        else:
            np.testing.assert_array_equal(verdicts.p_values, expected.p_values, where)
            inside = expected.in_distribution
            np.testing.assert_array_equal(verdicts.in_distribution, inside, where)
        inside = same.predict(outputs, groups=groups(same, 60)) == 1
        np.testing.assert_array_equal(inside, verdicts.in_distribution, where)
        by_hand = same.score_samples(outputs) >= taus
        np.testing.assert_array_equal(by_hand, verdicts.in_distribution, where)


@pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")
@pytest.mark.parametrize("name", ["max_logit", "joint_energy", "combined"])
def test_a_monitor_sees_the_same_stream(name):
    detector = calibrated(name, "tied", "csv")
    monitors = []
    for kind in ("float32", "csv"):
        new = stored("tied", 4, 400, kind)
        monitor = ns.Monitor(detector)
        monitor.update(detector.assess(new, groups=groups(detector, 400)))
        monitors.append(monitor)
    assert monitors[0].log10_martingale == monitors[1].log10_martingale
    assert monitors[0].alarm_at is None


@pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")
def test_groups_by_label_count_are_the_same():
    detector = ns.JointEnergy().calibrate(stored("tied", 5, 1200, "csv"), groups="label_count")
    csv, float32 = (detector.assess(stored("tied", 3, 300, kind)) for kind in ("csv", "float32"))
    assert len(set(csv.groups)) > 1
    for name in ("groups", "p_values", "in_distribution"):
        np.testing.assert_array_equal(getattr(float32, name), getattr(csv, name))


def test_neighbours_are_found_beyond_the_range_of_float32():
    logits = np.random.default_rng(0).normal(size=(100, 3))
    detector = ns.LocalOutlierFactor().fit(logits).calibrate(logits[:, ::-1])
    assert detector.predict([[1e300, 0.0, 0.0]]) == -1


@pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")
def test_verdicts_do_not_depend_on_the_kernel(monkeypatch):
    """Two processors may use two kernels: their scores differ in the last bits."""
    values = np.array([-2.2, -1.1, 1.1, 2.2])  # few sums, which lie far apart
    rng = np.random.default_rng(0)
    held_out, new = (rng.choice(values, (n, 8)).astype(np.float32) for n in (500, 300))
    by_kernel = []
    for kernel in (joint_energy_direct, joint_energy_by_products):
        monkeypatch.setitem(TERMS, "energy", TERMS["energy"]._replace(sum_kernel=kernel))
        detector = ns.JointEnergy().calibrate(held_out)
        by_kernel.append(detector.score_samples(new))
    first, second = by_kernel
    assert (first != second).any()
    p_values = [detector.calibration_.p_values(scores, None) for scores in by_kernel]
    np.testing.assert_array_equal(*p_values)
    np.testing.assert_array_equal(first >= detector.offset_, second >= detector.offset_)


@pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")
@pytest.mark.parametrize("name", ["mahalanobis", "relative_mahalanobis", "vim"])
def test_features_that_depend_on_each_other_do_so_in_every_precision(name):
    """Rounding to float32 leaves a little variance where there is none, which must not count."""
    rng = np.random.default_rng(0)

    def made(n_samples, dtype):
        free = np.round(rng.normal(size=(n_samples, 6)), 1)
        features = np.c_[free, free[:, 0] + free[:, 1], 1.1 * free[:, 2]].astype(dtype)
        labels = rng.random((n_samples, 3)) < 0.5
        return ns.Outputs(features[:, :3], features, labels=labels)

    p_values = []
    for dtype in (np.float64, np.float32):
        rng = np.random.default_rng(0)
        detector = DETECTORS[name]().fit(made(800, dtype)).calibrate(made(400, dtype))
        p_values.append(detector.assess(made(100, dtype)).p_values)
    np.testing.assert_allclose(*p_values, atol=2.5 / 401)  # neighbours in rank
