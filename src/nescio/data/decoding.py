"""Decode images in a process of its own, within limits of processor time and memory.

A small file can keep a decoder busy for minutes or fill the memory, in more ways than its header
shows. The operating system ends this process when it has used up its limits, and the caller starts
another one. The caller writes requests to standard input and reads answers from standard output.
"""

from __future__ import annotations

import contextlib
import signal
import struct
import sys
import time
from typing import BinaryIO

from nescio.data.images import read_image
from nescio.data.preprocessing import Preprocessing
from nescio.errors import NescioError

REQUEST = struct.Struct("<QQII")  # bytes of the file, most pixels, side of the square, seconds
ANSWER = struct.Struct("<?dQ")  # whether it is an image, seconds used, bytes of pixels or of text

_MEMORY = 500_000_000  # bytes, for the interpreter and the file
_MEMORY_PER_PIXEL = 32  # greyscale of 16 bits takes 20 while it is scaled


def main() -> None:
    """Answer requests until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the caller ends this process when it stops
        signal.signal(number, signal.SIG_IGN)
    _limit("CORE", 0)
    while answer_one(sys.stdin.buffer, sys.stdout.buffer):
        pass


def max_memory(max_pixels: int) -> int:
    """Return the memory that decoding may take, in bytes."""
    return _MEMORY + _MEMORY_PER_PIXEL * max_pixels


def answer_one(requests: BinaryIO, answers: BinaryIO) -> bool:
    """Answer the next request; return False if there is none."""
    head = requests.read(REQUEST.size)
    if len(head) < REQUEST.size:
        return False
    n_bytes, max_pixels, size, seconds = REQUEST.unpack(head)
    content = requests.read(n_bytes)
    begun = time.process_time()
    _limit("AS", max_memory(max_pixels))
    _limit("CPU", int(begun) + 1 + seconds)  # in whole seconds, since the start of this process
    try:
        pixels = Preprocessing(size).pixels(read_image(content, max_pixels=max_pixels))
        found, data = True, pixels.tobytes()
    except NescioError as error:
        found, data = False, str(error).encode("utf-8", "replace")
    answers.write(ANSWER.pack(found, time.process_time() - begun, len(data)) + data)
    answers.flush()
    return True


def _limit(name: str, most: int) -> None:
    """Set a limit of this process; not every system has it, and Windows has none."""
    if sys.platform != "win32":
        import resource

        kind = getattr(resource, f"RLIMIT_{name}")
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
