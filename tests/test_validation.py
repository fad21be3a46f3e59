"""Checks of arrays and parameters."""

import numpy as np
import pytest

from nescio import JointEnergy
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
    for values in (*map(np.array, (["a"], [1j], [None], [True])), times, times - times):
        with pytest.raises(InputError, match="real numbers"):
            to_float(values)
    with pytest.raises(InputError, match="array of numbers"):
        to_numpy([[1.0], [2.0, 3.0]])
    with pytest.raises(InputError, match="masked arrays"):
        to_numpy(np.ma.masked_array([1.0], mask=[True]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
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
        "Sparse layout": tensor.to_sparse(),
        "meta": tensor.to("meta"),
        "NestedTensor": torch.nested.nested_tensor([tensor[0]]),
    }
    detector = JointEnergy().calibrate(LOGITS)
    for reason, values in wrong.items():
        with pytest.raises(InputError, match=f"(?i){reason}"):
            detector.assess(values)
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
        (LOGITS - np.logaddexp.reduce(LOGITS, 1)[:, None], "log-probabilities"),
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
