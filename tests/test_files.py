import os

import pytest

from nescio.errors import FileError
from nescio.files import replacing


def test_a_failure_leaves_nothing_behind(tmp_path):
    def write_half():
        with replacing(tmp_path / "x") as temporary:
            temporary.write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file(tmp_path):
    (tmp_path / "x").write_text("old")

    def write_half():
        with replacing(tmp_path / "x", force=True):
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        write_half()
    assert (tmp_path / "x").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_nothing_is_overwritten_unless_forced(tmp_path):
    (tmp_path / "x").write_text("old")
    with pytest.raises(FileError, match=r"exists already.*--force"), replacing(tmp_path / "x"):
        pass
    with replacing(tmp_path / "x", force=True) as temporary:
        temporary.write_text("new")
    assert (tmp_path / "x").read_text() == "new"


def test_a_new_file_has_ordinary_permissions(tmp_path):
    with replacing(tmp_path / "x") as temporary:
        temporary.write_text("new")
    (tmp_path / "y").write_text("ordinary")
    assert os.stat(tmp_path / "x").st_mode == os.stat(tmp_path / "y").st_mode


@pytest.mark.parametrize("where", ["", "missing/x"])
def test_an_impossible_place_is_named(tmp_path, where):
    with pytest.raises(FileError, match="cannot write"), replacing(tmp_path / where):
        pass
