"""Processes that decode images for the service; one that exceeds its limits is replaced."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import threading
from typing import IO

import numpy as np
from numpy.typing import NDArray

from nescio.data.decoding import ANSWER, REQUEST, max_memory
from nescio.errors import DatasetError

DECODING_SECONDS = 10  # of processor time, for all images of a request
LONGEST_SECONDS = 60.0  # per image, however little of the processor the decoder gets
_MAX_SCANS = 1_000  # of a JPEG; usual files have up to 20
_SCAN = b"\xff\xda"
# The same modules as in this process, wherever it was started.
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from nescio.data.decoding import main; main()"


class Decoders:
    """A pool of processes. They start when they are needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []

    def take(self) -> subprocess.Popen[bytes]:
        """Return a process that nobody else uses."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _end(process)
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # threads would reserve memory
        )

    def give_back(self, process: subprocess.Popen[bytes]) -> None:
        """Keep a process for the next image."""
        with self._lock:
            self._idle.append(process)

    def stop(self) -> None:
        """End all processes that are not in use."""
        with self._lock:
            while self._idle:
                _end(self._idle.pop())


class Decoding:
    """Decodes the images of one request, within one limit of processor time."""

    def __init__(self, decoders: Decoders, max_pixels: int) -> None:
        self._decoders = decoders
        self._max_pixels = max_pixels
        self._seconds = float(DECODING_SECONDS)

    def pixels(self, content: bytes, size: int) -> NDArray[np.uint8]:
        """Return an image file as bytes of shape (3, size, size), or raise a `DatasetError`."""
        if content.count(_SCAN) > _MAX_SCANS:
            raise DatasetError(f"cannot read the image: it has more than {_MAX_SCANS:,} scans.")
        if self._seconds <= 0:
            raise self._too_much()
        process = self._decoders.take()
        seconds = math.ceil(self._seconds)
        end = threading.Timer(LONGEST_SECONDS, process.kill)
        end.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(REQUEST.pack(len(content), self._max_pixels, size, seconds))
            process.stdin.write(content)
            process.stdin.flush()
            found, used, n_bytes = ANSWER.unpack(_read(process.stdout, ANSWER.size))
            data = _read(process.stdout, n_bytes)
        except (OSError, EOFError) as error:
            _end(process)
            raise self._too_much() from error
        except BaseException:
            _end(process)
            raise
        finally:
            end.cancel()
        self._decoders.give_back(process)
        self._seconds -= used
        if not found:
            raise DatasetError(data.decode())
        return np.frombuffer(data, np.uint8).reshape(3, size, size)

    def _too_much(self) -> DatasetError:
        memory = max_memory(self._max_pixels) / 1e9
        return DatasetError(
            f"cannot read the image: decoding takes more than {DECODING_SECONDS} seconds of "
            f"processor time, {LONGEST_SECONDS:g} seconds in all, or {memory:.1f} GB of memory."
        )


def _read(stream: IO[bytes], n_bytes: int) -> bytes:
    data = stream.read(n_bytes)
    if len(data) < n_bytes:
        raise EOFError
    return data


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    # Closes its pipes and waits for it. What it has not read cannot be written any more.
    with contextlib.suppress(OSError), process:
        pass
