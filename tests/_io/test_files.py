import json
import os
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from nescio._io import files
from nescio._io.files import (
    check_target,
    exclusive,
    existing_file,
    locked,
    replacing,
    to_json,
    write_table,
)
from nescio.errors import FileError


@pytest.mark.parametrize("old", [None, "old"])
def test_a_failure_leaves_what_was_there(tmp_path, old):
    path = tmp_path / "x"
    if old is not None:
        path.write_text(old)

    def write_half():
        with replacing(path, force=True) as temporary:
            temporary.write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        write_half()
    assert [file.read_text() for file in tmp_path.iterdir()] == ([] if old is None else [old])


def test_nothing_is_overwritten_unless_forced(tmp_path):
    (tmp_path / "x").write_text("old")
    with pytest.raises(FileError, match=r"exists already.*force=True"), replacing(tmp_path / "x"):
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


def test_only_regular_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (
        pytest.raises(FileError, match="not a regular file"),
        replacing(tmp_path / "pipe", force=True),
    ):
        pass
    assert (tmp_path / "pipe").is_fifo()


def test_links_are_followed(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileError, match="exists already"), replacing(tmp_path / "link"):
        pass
    with replacing(tmp_path / "link", force=True) as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_a_file_that_appears_meanwhile_is_kept(tmp_path):
    def write_slowly():
        with replacing(tmp_path / "x") as temporary:
            temporary.write_text("ours")
            (tmp_path / "x").write_text("theirs")

    with pytest.raises(FileError, match="exists already"):
        write_slowly()
    assert (tmp_path / "x").read_text() == "theirs"


def test_a_name_too_long_is_explained(tmp_path):
    for call in (existing_file, lambda path: check_target(path, force=False)):
        with pytest.raises(FileError, match="File name too long"):
            call(tmp_path / ("a" * 300))


WRITE = """
import sys, time
from pathlib import Path
from nescio._io.files import replacing, temporary_in
with temporary_in(Path(sys.argv[1]), is_folder=True), replacing(Path(sys.argv[1]) / "x"):
    print("writing", flush=True)
    time.sleep(600)
"""


def aged(folder, seconds):
    for path in folder.iterdir():
        os.utime(path, (time.time() - seconds,) * 2)
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of open files")
def test_what_a_killed_process_left_is_removed_at_the_next_write(tmp_path):
    """As long as it runs, its files stay, however old they are."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITE, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "writing\n"
            theirs = aged(tmp_path, 2 * 24 * 3600)
            assert len(theirs) == 2
            with replacing(tmp_path / "y"):
                pass
            assert sorted(path.name for path in tmp_path.iterdir()) == [*theirs, "y"]
        finally:
            process.kill()
    aged(tmp_path, 60)
    with replacing(tmp_path / "z"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["y", "z"]


def test_without_locks_what_was_left_is_removed_after_a_day(tmp_path, monkeypatch):
    monkeypatch.setattr("nescio._io.files._acquired", lambda descriptor: None)
    (tmp_path / f".nescio-{'a' * 16}").mkdir()
    of_the_user = tmp_path / ".nescio-cache"
    of_the_user.mkdir()
    for hours, n_left in ((23, 2), (25, 1)):
        aged(tmp_path, hours * 3600)
        with replacing(tmp_path / "x", force=True):
            pass
        assert len([*tmp_path.glob(".nescio-*")]) == n_left
    assert of_the_user.exists()


def test_the_directory_is_synced_after_the_rename(tmp_path, monkeypatch):
    synced = []
    real = os.fsync

    def fsync(descriptor):
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        synced.append((kind, (tmp_path / "x").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with replacing(tmp_path / "x") as temporary:
        temporary.write_text("x")
    assert synced == [("file", False), ("folder", True)]


# --- tables to write ---


COLUMNS = {"id": ["a", "b"], "score": np.array([1.5, -np.inf]), "kept": np.array([True, False])}


def test_a_table_has_a_row_per_sample_in_every_format(tmp_path):
    for suffix in ("csv", "jsonl", "parquet"):
        write_table(tmp_path / f"x.{suffix}", COLUMNS)
    lines = (tmp_path / "x.csv").read_text().split()
    assert lines == ["id,score,kept", "a,1.5,True", "b,-inf,False"]
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert rows == [
        {"id": "a", "score": 1.5, "kept": True},
        {"id": "b", "score": None, "kept": False},
    ]
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(tmp_path / "x.parquet").to_pydict() == {
        name: list(column) for name, column in COLUMNS.items()
    }


def test_json_is_strict():
    assert to_json({"a": [float("nan"), {"b": (1.0, float("inf"))}]}) == (
        '{"a": [null, {"b": [1.0, null]}]}'
    )


def test_text_that_a_spreadsheet_would_run_is_quoted(tmp_path):
    ids = ["=1+1", "+x", "-2", "@sum", "-x", "a=1", "'=1"]
    write_table(tmp_path / "x.csv", {"id": ids, "=name": range(7)})
    cells = [line.split(",") for line in (tmp_path / "x.csv").read_text().splitlines()]
    expected = ["'=1+1", "'+x", "-2", "'@sum", "'-x", "a=1", "'=1"]
    assert [row[0] for row in cells[1:]] == expected
    assert cells[0] == ["id", "'=name"]
    write_table(tmp_path / "x.jsonl", {"id": ids})
    assert "=1+1" in (tmp_path / "x.jsonl").read_text().splitlines()[0]


# --- locks between processes ---


HOLD = """
import sys, time
from pathlib import Path
from nescio._io.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_is_waited_for_and_released_when_its_process_is_killed(tmp_path):
    path = tmp_path / "sub" / "made.bin"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "held\n"
            said = []

            @contextmanager
            def waiting():
                said.append("waiting")
                process.kill()
                yield

            with locked(path, waiting):
                assert said == ["waiting"]
        finally:
            process.kill()
    with locked(path, lambda: pytest.fail("the lock is still held")):
        pass


def test_only_one_makes_a_file(tmp_path):
    made, path = [], tmp_path / "made"

    def make():
        with locked(path):
            if not path.exists():
                made.append(1)
                path.touch()

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert [file.name for file in tmp_path.iterdir()] == ["made"], "the file of the lock is gone"


def test_an_error_releases_the_lock(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path / "made"):
        raise KeyError
    with locked(tmp_path / "made", lambda: pytest.fail("the lock is still held")):
        pass


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_HELD", set())
    with locked(tmp_path / "made"), locked(tmp_path / "made"):
        pass


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"cannot write to .*file"), locked(tmp_path / "file" / "x"):
        pass


def test_a_lock_that_is_not_waited_for(tmp_path):
    path = tmp_path / "state.bin"
    wanted = r"another process is using .*state.bin.* another state file"
    with (
        exclusive(path, "state file"),
        pytest.raises(FileError, match=wanted),
        exclusive(path, "state file"),
    ):
        pass
    with exclusive(path):
        pass


def test_a_link_has_the_lock_of_its_file(tmp_path):
    """Two names of one state are one state."""
    link = tmp_path / "link.bin"
    link.symlink_to(tmp_path / "state.bin")
    taken = pytest.raises(FileError, match=r"another process is using .*link\.bin")
    with exclusive(tmp_path / "state.bin"), taken, exclusive(link):
        pass
