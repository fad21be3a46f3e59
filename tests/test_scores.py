import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from nescio import scores
from nescio.errors import ImplausibleValuesWarning, InputError, ParameterError, ShapeError
from nescio.scores import SCORES, joint_energy_by_products, joint_energy_direct, map_rows

K = 3


def plain(name, logits, k=K):
    """Each score as the paper writes it, in float64 and as plainly as possible."""
    f = np.asarray(logits, dtype=np.float64)
    present = f > -np.inf
    with np.errstate(all="ignore"):
        label = {
            "logit": np.where(present, f, 0.0),
            "prob": 1 / (1 + np.exp(-f)),
            "energy": np.logaddexp(f, 0.0),
        }
        top = np.argsort(-f, axis=1, kind="stable")[:, :k]
        kind = "energy" if "energy" in name else name.rpartition("_")[2]
        if name == "msp":
            shifted = np.exp(f - f.max(1, keepdims=True))
            return shifted.max(1) / shifted.sum(1)
        if name == "exp_joint_energy":  # up to a function that grows
            return np.log((np.exp(label["energy"]) - 1).sum(1))
    if name == "conditional_joint_energy":
        return np.where(f >= 0, label["energy"], 0).sum(1)
    if name == "max_logit":
        return f.max(1)
    if name.startswith("max"):
        return label[kind].max(1)
    if name.startswith("top_k"):
        return np.take_along_axis(label[kind], top, axis=1).sum(1)
    return label[kind].sum(1)


def call(name, logits):
    return SCORES[name](logits, k=K) if name.startswith("top_k") else SCORES[name](logits)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("spread", [1.0, 10.0, 60.0])
def test_every_score_agrees_with_its_plain_form(name, dtype, spread, rng):
    logits = rng.normal(-spread / 2, spread, (300, 17)).astype(dtype)
    result = call(name, logits)
    assert result.dtype == (np.float64 if dtype == np.float64 else np.float32)
    tolerance = 1e-12 if dtype == np.float64 else 2e-6
    scale = np.abs(logits.astype(np.float64)).sum(1) if "logit" in name else 0.0
    np.testing.assert_allclose(
        result, plain(name, logits), rtol=tolerance, atol=tolerance * np.max(scale)
    )


@pytest.mark.parametrize("name", SCORES)
def test_bfloat16_counts_as_the_float32_it_is(name, rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    logits = rng.normal(-2, 4, (50, 9)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(call(name, logits), call(name, logits.astype(np.float32)))


@pytest.mark.parametrize("kernel", [joint_energy_direct, joint_energy_by_products])
def test_far_inputs_still_rank_where_the_papers_formula_ties(kernel):
    levels = np.linspace(-80, -20, 500, dtype=np.float32)
    logits = np.repeat(levels[:, None], 80, axis=1)
    as_printed = np.log(np.float32(1) + np.exp(logits)).sum(1)
    assert len(np.unique(as_printed)) == 1
    assert (np.diff(map_rows(kernel, logits)) > 0).all()


@pytest.mark.parametrize("kernel", [joint_energy_direct, joint_energy_by_products])
def test_huge_logits_are_exact(kernel):
    logits = np.array([[1e4, -1e4], [-1e4, -1e4], [1e4, 1e4], [100.0, 89.0]], np.float32)
    np.testing.assert_array_equal(map_rows(kernel, logits), [1e4, 0, 2e4, 189])


def test_sixteen_bits_and_ten_thousand_labels_neither_overflow_nor_lose_the_ranking(rng):
    base = rng.normal(20, 1, (1, 10_000))
    logits = (base + np.linspace(0, 2, 40)[:, None]).astype(np.float16)
    exact = np.logaddexp(logits.astype(np.float64), 0).sum(1)
    assert exact.max() > np.finfo(np.float16).max
    for name in ("joint_energy", "sum_logit", "sum_prob"):
        result = call(name, logits)
        assert np.isfinite(result).all()
    assert (np.diff(scores.joint_energy(logits)) > 0).all()
    np.testing.assert_allclose(scores.joint_energy(logits), exact, rtol=2e-6)


def test_very_many_labels_do_not_wear_the_precision_away(rng):
    ulp = np.float16(2**-6)  # at 20
    logits = np.full((200, 10_000), 20, np.float16)
    for row in range(200):
        logits[row, : 4 * row] += ulp
    assert (np.diff(scores.joint_energy(logits)) > 0).all()
    for kernel in (joint_energy_direct, joint_energy_by_products):
        same = map_rows(kernel, np.full((1, 100_000), -1.2345, np.float32))
        exact = 100_000 * np.logaddexp(np.float64(np.float32(-1.2345)), 0)
        np.testing.assert_allclose(same, exact, rtol=5e-7)


@given(hnp.arrays(np.float64, (4, 7), elements=st.floats(-1e4, 1e4)))
def test_joint_energy_is_at_least_the_top_logit(logits):
    assert (scores.joint_energy(logits) >= logits.max(1)).all()


@given(
    hnp.arrays(np.float64, (3, 9), elements=st.floats(-50, 50)),
    st.integers(1, 12),
)
def test_more_labels_mean_more_energy(logits, k):
    fewer, more = scores.top_k_joint_energy(logits, k), scores.top_k_joint_energy(logits, k + 1)
    assert (more >= fewer * (1 - 1e-12)).all()
    everything = scores.top_k_joint_energy(logits, 9)
    np.testing.assert_allclose(everything, scores.joint_energy(logits), rtol=1e-12)


@pytest.mark.parametrize("name", SCORES)
def test_a_score_does_not_depend_on_the_batch_to_the_last_bit(name, rng):
    logits = rng.normal(-3, 4, (9000, 80)).astype(np.float32)
    together = call(name, logits)
    some = rng.integers(0, 9000, 100)
    assert np.array_equal(together[some], np.concatenate([call(name, logits[[i]]) for i in some]))


@pytest.mark.parametrize("name", SCORES)
def test_a_score_does_not_depend_on_the_layout_in_memory(name, rng):
    logits = rng.normal(-3, 4, (200, 1000)).astype(np.float32)
    logits[5, 7] = 200.0
    logits[6, 7] = -np.inf
    assert np.array_equal(call(name, np.asfortranarray(logits)), call(name, logits))


@pytest.mark.parametrize("name", SCORES)
def test_a_masked_label_counts_nothing(name, rng):
    logits = rng.normal(0, 2, (20, 6))
    masked = np.concatenate([logits, np.full((20, 2), -np.inf)], axis=1)
    np.testing.assert_allclose(call(name, masked), call(name, logits), rtol=1e-12)


def test_with_every_label_masked_nothing_is_left():
    nothing = np.full((1, 4), -np.inf)
    assert scores.joint_energy(nothing) == scores.msp(nothing) == scores.sum_prob(nothing) == 0
    assert scores.max_logit(nothing) == -np.inf


def test_the_unpublished_scores():
    """Formulas that the paper's source comments out: the sum of exp(energy), and "Cond. Sum"."""
    logits = np.random.default_rng(0).normal(-2, 3, (200, 9))
    as_written = np.exp(scores.label_energy(logits)).sum(1)
    ours = scores.exp_joint_energy(logits)
    np.testing.assert_array_equal(np.argsort(ours), np.argsort(as_written))
    np.testing.assert_allclose(9 + np.exp(ours), as_written)
    # As written, in float32: 1,000 overflows, and all logits below -17 give the number of labels.
    far = np.array([[-30.0, -40.0], [-31.0, -40.0], [1000.0, 0.0], [1001.0, 0.0]], np.float32)
    np.testing.assert_allclose(scores.exp_joint_energy(far), far[:, 0], rtol=1e-5)
    assert scores.conditional_joint_energy([[0.0, -1.0], [-1.0, -2.0]])[1] == 0
    assert scores.conditional_joint_energy([[0.0, -1.0]]).round(2) == 0.69  # 0 is at least 0
    assert np.isnan(scores.conditional_joint_energy([[1.0, np.nan]]))
    masked = np.full((1, 3), -np.inf)
    assert scores.exp_joint_energy(masked) == -np.inf
    assert scores.conditional_joint_energy(masked) == 0


def test_the_papers_case_study():
    """An image of several mid-size labels against one with a single large one (Figure 4).

    The figure's bars are label-wise energies: 3.23 in all with 1.63 the largest for the VOC image
    of dog, car, chair and person; 2.19 in all with 2.14 the largest for the OOD image.
    """

    def logits_of(energies):
        filled = np.full(20, 1e-4)
        filled[: len(energies)] = energies
        return np.log(np.expm1(filled))[None]

    several = logits_of([1.63, 0.8, 0.5, 0.2984])
    single = logits_of([2.14, 0.0481])
    assert scores.joint_energy(several).round(2) == 3.23
    assert scores.joint_energy(single).round(2) == 2.19
    assert scores.joint_energy(several) > scores.joint_energy(single)
    assert scores.max_logit(several) < scores.max_logit(single)


def test_probabilities_come_back_as_the_logits_they_were(rng):
    logits = rng.normal(0, 4, (50, 6))
    np.testing.assert_allclose(
        scores.logits_from_probs(scores.label_prob(logits)), logits, rtol=1e-9, atol=1e-9
    )
    certain = scores.logits_from_probs(np.array([[0.0, 1.0]], np.float32))
    assert certain[0, 0] == -np.inf
    assert 16 < certain[0, 1] < 17
    with pytest.raises(InputError, match=r"within \[0, 1\], got \[0.5, 1.5\]"):
        scores.logits_from_probs([[0.5, 1.5, np.nan]])
    assert np.isnan(scores.logits_from_probs([[0.5, np.nan]])[0, 1])


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_data_frames_are_matrices_of_their_columns(library, rng):
    module = pytest.importorskip(library)
    make = module.table if library == "pyarrow" else module.DataFrame
    logits = rng.normal(-1, 2, (20, 3))
    columns = dict(zip("abc", logits.T, strict=True))
    for score in (scores.joint_energy, scores.max_logit, scores.label_prob):
        np.testing.assert_array_equal(score(make(columns)), score(logits))
    probs = make(dict(zip("abc", scores.label_prob(logits).T, strict=True)))
    np.testing.assert_allclose(scores.logits_from_probs(probs), logits)
    gaps = {**columns, "a": [None, *columns["a"].tolist()[1:]]}
    assert np.isnan(scores.joint_energy(make(gaps))).tolist() == [True] + [False] * 19
    for other in (list(range(20)), ["x"] * 20):
        with pytest.raises(InputError, match=r"'photo' \(.*Outputs.from_frame\(frame, "):
            scores.joint_energy(make({"photo": other, **columns}))


def test_probabilities_that_are_something_else(rng):
    with pytest.raises(InputError, match=r"got \[0, 99\]\. If they are percentages, divide"):
        scores.logits_from_probs([[0.0, 99.0]])
    with pytest.raises(InputError, match=r"got \[-1, 1\]\.$"):
        scores.logits_from_probs([[-1.0, 1.0]])
    softmax = rng.dirichlet(np.ones(5), 30)
    for probs in (softmax, softmax.astype(np.float16), softmax.round(3)):
        with pytest.warns(ImplausibleValuesWarning, match="sum to 1: these look like softmax"):
            scores.logits_from_probs(probs)
    softmax[3] = np.nan
    with pytest.warns(ImplausibleValuesWarning):
        scores.logits_from_probs(softmax)
    softmax[3] = [0.9, 0.9, 0.1, 0.1, 0.1]
    for probs in (softmax, softmax[:1], np.ones((30, 1)), rng.random((30, 2)), softmax[0]):
        scores.logits_from_probs(probs)


def test_wrong_input_is_explained():
    with pytest.raises(ShapeError, match=r"got \(3,\).*logits\[None, :\]"):
        scores.joint_energy(np.zeros(3))
    with pytest.raises(ShapeError, match=r"got \(3, 0\)"):
        scores.joint_energy(np.zeros((3, 0)))
    with pytest.raises(InputError, match="Complex data"):
        scores.joint_energy(np.zeros((3, 2), complex))
    with pytest.raises(InputError, match=r"filled\(-np.inf\)"):
        scores.joint_energy(np.ma.masked_less(np.ones((2, 2)), 0))
    with pytest.raises(InputError, match="inhomogeneous"):
        scores.joint_energy([[1.0], [1.0, 2.0]])
    for k in (0, 2.5, True, "3"):
        with pytest.raises(ParameterError, match="k must be a whole number"):
            scores.top_k_joint_energy(np.zeros((3, 2)), k)


def test_no_rows_give_no_scores():
    assert scores.joint_energy(np.zeros((0, 5))).shape == (0,)


def test_integers_and_lists_are_taken_and_terms_of_any_shape():
    assert scores.max_logit([[1, 2], [3, 0]]).tolist() == [2.0, 3.0]
    for term in (scores.label_energy, scores.label_prob):
        assert term(0.5) == term([0.5])[0] == term([[[0.5]]])[0, 0, 0]


# --- kernels ---


@pytest.mark.parametrize("kernel", [joint_energy_direct, joint_energy_by_products])
@pytest.mark.parametrize("level", [-80.0, -40.0, -20.0, 0.0, 50.0])
@pytest.mark.parametrize("n_labels", [1, 2, 63, 64, 65, 80, 1000])
def test_both_energy_kernels_keep_relative_precision_in_float32(kernel, level, n_labels, rng):
    logits = np.minimum(rng.normal(level, 3, (200, n_labels)), level + 6).astype(np.float32)
    logits = np.maximum(logits, -80)
    exact = np.logaddexp(logits.astype(np.float64), 0).sum(1)
    np.testing.assert_allclose(map_rows(kernel, logits), exact, rtol=2e-6)


def test_the_portable_kernel_is_chosen_without_wide_registers():
    """NumPy runs log1p one by one there, so products must take its place."""
    from numpy._core._multiarray_umath import __cpu_dispatch__ as targets

    wide = [target for target in targets if "AVX512" in target or target == "X86_V4"]
    code = "from nescio import scores; print(scores._has_vectorised_log1p())"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(wide)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "False"


# --- blocks of rows ---


def row_sums(rows, work, result):
    np.copyto(work, rows)
    work.sum(1, out=result)


@pytest.mark.parametrize("cpus", [1, 2, 5])
@pytest.mark.parametrize("n_rows", [0, 1, 7, 1000])
def test_the_result_does_not_depend_on_blocks_or_processors(cpus, n_rows, rng, monkeypatch):
    matrix = rng.normal(size=(n_rows, 3))
    expected = map_rows(row_sums, matrix)
    monkeypatch.setattr(scores, "available_cpus", lambda: cpus)
    monkeypatch.setattr(scores, "_BLOCK_ELEMENTS", 12)  # four rows
    np.testing.assert_array_equal(map_rows(row_sums, matrix), expected)


def test_an_error_in_a_thread_is_raised(rng, monkeypatch):
    def fails(rows, work, result):
        raise ZeroDivisionError

    monkeypatch.setattr(scores, "_BLOCK_ELEMENTS", 12)
    with pytest.raises(ZeroDivisionError):
        map_rows(fails, rng.normal(size=(100, 3)))
