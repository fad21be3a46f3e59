"""The arithmetic of the scores in NumPy."""

import os
import subprocess
import sys

import numpy as np
import pytest

from nescio._threads import map_rows
from nescio.scores import joint_energy_by_products, joint_energy_direct


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
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(wide)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "False"
