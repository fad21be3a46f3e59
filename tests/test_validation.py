"""Checks of arrays and parameters."""

from decimal import Decimal

import numpy as np
import pytest

from nescio import JointEnergy, wrap
from nescio._validation import (
    check_logits,
    check_matrix,
    to_float,
    to_numpy,
)
from nescio.errors import InputError, ProbabilitiesError, ShapeError


@pytest.mark.parametrize("shape", [(3,), (3, 0), (2, 3, 4), ()])
def test_a_matrix_has_two_dimensions_and_a_column(shape):
    check_matrix(np.zeros((0, 3)))
    with pytest.raises(ShapeError, match=r"logits must have shape \(n_samples, n_labels\)"):
        check_matrix(np.zeros(shape))


def test_what_is_not_a_number_is_an_error():
    times = np.zeros(3, "datetime64[s]")
    wrong = (["a"], [b"1"], [1j], [None], [True], [{}], [10**400], times, times - times)
    for values in (*map(np.array, wrong), np.zeros(3, "V8")):
        for array in (values, values.astype(object)):
            with pytest.raises(InputError, match=r"must be (real )?numbers"):
                to_float(array)
    assert to_float(np.array([1, Decimal("0.5"), 2**70], object)).tolist() == [1, 0.5, 2.0**70]
    with pytest.raises(InputError, match="cannot read this list as an array"):
        to_numpy([[1.0], [2.0, 3.0]])
    with pytest.raises(InputError, match="masked arrays"):
        to_numpy(np.ma.masked_array([1.0], mask=[True]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_what_is_not_an_array_of_numbers_is_an_error_of_ours():
    sparse, torch = pytest.importorskip("scipy.sparse"), pytest.importorskip("torch")
    dense = np.ones((7, 5), np.float32)
    tensor = torch.ones(7, 5)
    wrong = {
        "got a dict": {0: dense[0]},
        "got a generator": (row for row in dense),
        "got a set": {1.0},
        "toarray": sparse.csr_array(dense),
        "sparse": sparse.coo_matrix(dense),
        "too large": [[10**400] * 5],
        "bool": dense > 0,
        "timedelta": dense.astype("timedelta64[s]"),
        "text: '1.0'": dense.astype(str),
        "text: b'1'": dense.astype("S1").astype(object),
        "Complex": dense.astype(complex).astype(object),
        "datetime": dense.astype("datetime64[s]").astype(object),
        "Sparse layout": tensor.to_sparse(),
        "device meta": tensor.to("meta"),
        "nested tensors": torch.nested.nested_tensor([tensor[0]]),
        "quantised": torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
    }
    detector = JointEnergy().calibrate(LOGITS)
    for reason, values in wrong.items():
        with pytest.raises(InputError, match=f"(?i){reason}"):
            detector.assess(values)
    for values in (tensor.to("meta"), torch.nested.nested_tensor([tensor[0]]), np.ma.array(dense)):
        with pytest.raises(InputError, match="are not supported"):
            wrap(torch.nn.Linear(5, 5)).outputs(values)
    with pytest.raises(InputError, match="expected an array or a tensor"):
        wrap(torch.nn.Linear(5, 5)).outputs(sparse.coo_matrix(dense))
    for same in (np.matrix(dense), torch._neg_view(-tensor)):
        np.testing.assert_allclose(detector.score_samples(same), detector.score_samples(dense))


LOGITS = np.random.default_rng(0).normal(-2, 3, (200, 5))
PROBS = 1 / (1 + np.exp(-LOGITS))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (PROBS, "probabilities"),
        (PROBS[:10], "probabilities"),
        (np.where(PROBS > 0.9, np.nan, PROBS), "probabilities"),
        (PROBS[:1].repeat(50, 1), "probabilities"),
        (100 * PROBS, "percentages"),
        (np.round(100 * PROBS), "percentages"),
        (np.log(PROBS), "log-probabilities"),
        (LOGITS - np.logaddexp.reduce(LOGITS, 1)[:, None], "softmax outputs"),
        (PROBS / PROBS.sum(1, keepdims=True), "softmax outputs"),
    ],
)
def test_what_is_not_logits_is_refused(values, what):
    with pytest.raises(ProbabilitiesError, match=f"these look like {what}"):
        check_logits(values)


@pytest.mark.parametrize(
    "values",
    [
        LOGITS,
        LOGITS[:1],
        PROBS[:9],  # 45 values prove nothing
        100 * PROBS[:9],
        np.log(PROBS[:99]),  # such rows may be out-of-distribution
        LOGITS - 20,  # far from the data: no label fires
        20 * np.abs(LOGITS) + 5,  # a scaled input: every label fires
        2 * PROBS,
        PROBS - 0.01,
        np.zeros((100, 5)),
        np.where(LOGITS > 0, -np.inf, LOGITS),  # masked labels
        np.zeros((0, 5)),
    ],
)
def test_logits_are_accepted_wherever_they_lie(values):
    check_logits(values)


def test_labels_are_not_taken_for_probabilities():
    labels = np.random.default_rng(0).integers(0, 2, (40, 5)).astype(float)
    with pytest.raises(ProbabilitiesError, match="every value is 0 or 1: these look like labels"):
        check_logits(labels)
