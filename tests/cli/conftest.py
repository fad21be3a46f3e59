"""A folder with files to work on."""

import numpy as np
import pytest

from nescio.checks import make_outputs


@pytest.fixture
def here(tmp_path, monkeypatch, rng):
    """A folder with the files of the README."""
    monkeypatch.chdir(tmp_path)
    np.save("val.npy", rng.normal(-1, 3, (500, 6)))
    np.save("test.npy", rng.normal(-1, 3, (300, 6)))
    np.save("textures.npy", rng.normal(-4, 2, (200, 6)))
    np.save("objects.npy", rng.normal(-3, 2, (200, 6)))
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    new = rng.normal(-2, 3, (40, 6))
    columns = {f"label {i}": new[:, i] for i in range(6)}
    pq.write_table(pa.table({"id": [f"img{i}" for i in range(40)], **columns}), "new.parquet")
    for name, seed in (("train", 0), ("held", 1)):
        make_outputs(1500, seed=seed).save(f"{name}.safetensors")
    make_outputs(100, seed=3, shift=2.0).save("far.safetensors")
    return tmp_path
