"""What becomes of one damaged input."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuzzing.kinds import Kind, mutation, result_of
from nescio.errors import NescioError

CLEAN, UNCHANGED, CHANGED, TRACEBACK = "clean", "unchanged", "changed", "traceback"
ACCEPTED = (UNCHANGED, CHANGED)

_WHOLE: dict[tuple[str, bytes], str] = {}  # the results of whole inputs


def outcome_of(
    kind: Kind, number: int, path: Path, *, seed: int = 0, seconds: int = 20
) -> tuple[str, str]:
    """Return what becomes of a mutation, and where it failed if it did.

    An input that takes longer than the time is a failure too.
    """
    whole, damaged = mutation(kind, number, seed)
    key = (kind.name, whole)
    if key not in _WHOLE:
        _WHOLE[key] = result_of(kind, path, whole)
    try:
        with _time_limit(seconds):
            same = result_of(kind, path, damaged) == _WHOLE[key]
    except NescioError:
        return CLEAN, ""
    except Exception as error:
        if getattr(error, "status_code", 500) < 500:  # the service answers with this status
            return CLEAN, ""
        last = traceback.extract_tb(error.__traceback__)[-1]
        return TRACEBACK, f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"
    return (UNCHANGED if same else CHANGED), ""


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
