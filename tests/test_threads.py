"""Row-wise work on every processor."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from nescio import _threads
from nescio._threads import accumulator, available_cpus, in_threads, map_rows


def row_sums(rows, work, result):
    np.copyto(work, rows)
    work.sum(1, out=result)


@pytest.mark.parametrize("cpus", [1, 2, 5])
@pytest.mark.parametrize("n_rows", [0, 1, 7, 1000])
def test_the_result_does_not_depend_on_blocks_or_processors(cpus, n_rows, rng, monkeypatch):
    matrix = rng.normal(size=(n_rows, 3))
    expected = map_rows(row_sums, matrix)
    monkeypatch.setattr(_threads, "available_cpus", lambda: cpus)
    monkeypatch.setattr(_threads, "_BLOCK_ELEMENTS", 12)  # four rows
    np.testing.assert_array_equal(map_rows(row_sums, matrix), expected)


def test_an_error_in_a_thread_is_raised(rng, monkeypatch):
    def fails(rows, work, result):
        raise ZeroDivisionError

    monkeypatch.setattr(_threads, "_BLOCK_ELEMENTS", 12)
    with pytest.raises(ZeroDivisionError):
        map_rows(fails, rng.normal(size=(100, 3)))


def test_half_precision_is_computed_in_single():
    precisions = {"f2": "f4", "f4": "f4", "f8": "f8"}
    assert {kind: accumulator(np.dtype(kind)) for kind in precisions} == precisions
    assert available_cpus() >= 1


def test_blas_has_one_thread_inside_of_threads_and_its_own_number_after(monkeypatch):
    monkeypatch.setattr(_threads, "available_cpus", lambda: 2)

    def of_blas():
        return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}

    with threadpool_limits(limits=2, user_api="blas"):
        before, seen = of_blas(), []
        # The second user begins while the first is not done, as requests of a service do.
        in_threads(lambda _: in_threads(lambda _: seen.append(of_blas()), [0, 1], 2), [0, 1], 2)
        assert seen == [{1}] * 4
        assert of_blas() == before
        in_threads(lambda _: seen.append(of_blas()), [0], 2)
        assert seen[-1] == before
