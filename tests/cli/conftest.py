"""A folder with files to work on."""

import numpy as np
import pytest

from nescio.checks import make_outputs


@pytest.fixture
def here(_in_a_folder_of_its_own, tmp_path, rng):
    """A folder with the files of the README."""
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


@pytest.fixture
def mistake(fails, tmp_path):
    """Check that a command gives one error with this reason, and writes nothing."""
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "other.jsonl").write_text("{}\n")
    np.save(tmp_path / "logits.npy", np.full((3, 2), -7.5))

    def check(arguments, reason):
        before = sorted(tmp_path.iterdir())
        assert reason in fails(*arguments)
        assert sorted(tmp_path.iterdir()) == before

    return check


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
