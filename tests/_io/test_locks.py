"""Locks between processes."""

import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from nescio._io import files as locks
from nescio._io.files import exclusive, locked
from nescio.errors import FileError

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


def test_an_error_releases_the_lock(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path / "made"):
        raise KeyError
    with locked(tmp_path / "made", lambda: pytest.fail("the lock is still held")):
        pass


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_HELD", set())
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
