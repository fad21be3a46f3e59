"""Decode images in other processes, within limits of processor time and memory.

A small file can keep a decoder busy for minutes or fill the memory, in more ways than its header
shows. The operating system ends a process that has used up its limits, and the service starts
another one. The service writes requests to its standard input and reads answers from its output.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from typing import IO, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nescio.errors import DatasetError, require
from nescio.models.images import Preprocessing, read_image

DECODING_SECONDS = 10  # of processor time per image
LONGEST_SECONDS = 60.0  # per image, however little of the processor the decoder gets
_INTERPRETER = 220_000_000  # bytes; the addresses that it reserves are more, and vary
_MEMORY = 280_000_000  # bytes, for the file
_MEMORY_PER_PIXEL = 32  # greyscale of 16 bits takes 20 while it is scaled

_REQUEST = struct.Struct("<QQII")  # bytes of the file, most pixels, side of the square, seconds
_ANSWER = struct.Struct("<?Q")  # whether it is an image, bytes of pixels or of text
# The same modules as in this process, wherever it was started.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; from nescio.service.images import decode_all; "
    "decode_all()"
)


# --- in the service -----------------------------------------------------------------------------


class Decoders:
    """A pool of processes, which start when they are needed."""

    def __init__(self, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._idle: list[subprocess.Popen[bytes]] = []  # threads take and return them atomically

    def warm(self) -> None:
        """Start a process, which takes seconds; it says that nothing is no image."""
        with contextlib.suppress(DatasetError):
            self.decode(b"", 8)

    def stop(self) -> None:
        """End all processes that are not in use."""
        while self._idle:
            _end(self._idle.pop())

    def decode(self, content: bytes, size: int) -> NDArray[np.uint8]:
        """Return an image file as bytes, (3, size, size); a `DatasetError` says why it cannot."""
        process = self._take()
        timer = threading.Timer(LONGEST_SECONDS, process.kill)
        timer.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            head = _REQUEST.pack(len(content), self._max_pixels, size, DECODING_SECONDS)
            process.stdin.write(head + content)
            process.stdin.flush()
            is_image, n_bytes = _ANSWER.unpack(_read(process.stdout, _ANSWER.size))
            data = _read(process.stdout, n_bytes)
        except (OSError, EOFError) as error:
            _end(process)
            memory = max_memory(self._max_pixels) / 1e9
            raise DatasetError(
                f"cannot read the image: decoding takes more than {DECODING_SECONDS} seconds of "
                f"processor time, {LONGEST_SECONDS:g} seconds in all, or {memory:.1f} GB of memory."
            ) from error
        finally:
            timer.cancel()
        self._idle.append(process)
        if not is_image:
            raise DatasetError(data.decode())
        return np.frombuffer(data, np.uint8).reshape(3, size, size)

    def _take(self) -> subprocess.Popen[bytes]:
        """Return a process that nobody else uses."""
        while True:
            try:
                process = self._idle.pop()
            except IndexError:
                require("PIL.Image", "serve")  # the other process could not say so
                return subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # they would reserve memory
                )
            if process.poll() is None:
                return process
            _end(process)


def max_memory(max_pixels: int) -> int:
    """Return the memory that decoding may take, in bytes."""
    return _INTERPRETER + _MEMORY + _MEMORY_PER_PIXEL * max_pixels


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


# --- in the other process -----------------------------------------------------------------------


def decode_all() -> None:
    """Answer requests until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the service ends this process when it stops
        signal.signal(number, signal.SIG_IGN)
    _limit("CORE", 0)
    require("PIL.Image", "serve").init()  # imports all formats: the limits might not allow it
    reserved = 0
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as stream:
            reserved = int(stream.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    while _decode_next(sys.stdin.buffer, sys.stdout.buffer, reserved):
        pass


def _decode_next(requests: BinaryIO, answers: BinaryIO, reserved: int) -> bool:
    """Answer the next request; return False if there is none."""
    head = requests.read(_REQUEST.size)
    if len(head) < _REQUEST.size:
        return False
    n_bytes, max_pixels, size, seconds = _REQUEST.unpack(head)
    content = requests.read(n_bytes)
    if reserved:
        _limit("AS", reserved + max_memory(max_pixels) - _INTERPRETER)
    _limit("CPU", int(time.process_time()) + 1 + seconds)  # since the start of this process
    try:
        pixels = Preprocessing(size).pixels(read_image(content, max_pixels=max_pixels))
        is_image, data = True, pixels.tobytes()
    except DatasetError as error:
        is_image, data = False, str(error).encode("utf-8", "replace")
    answers.write(_ANSWER.pack(is_image, len(data)) + data)
    answers.flush()
    return True


def _limit(name: str, most: int) -> None:
    """Set a limit of this process; not every system has it, and Windows has none."""
    if sys.platform != "win32":
        import resource

        kind = getattr(resource, f"RLIMIT_{name}")
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
