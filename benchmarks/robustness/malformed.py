"""Malformed requests made from a seed, for `service.py` and for the tests.

The bodies are truncated, of another type, with NaN, huge, compressed, deeply nested or noise.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from nescio._io.tensors import encode_tensors

JSON = "application/json"
SAFETENSORS = "application/x-safetensors"


class Malformed(NamedTuple):
    """A request, and what is wrong with it."""

    kind: str
    path: str
    headers: dict[str, str]
    body: bytes


def malformed(n_bodies: int, n_labels: int, *, seed: int = 0) -> Iterator[Malformed]:
    """Yield requests, each of which must be answered with a 4xx status."""
    dice = random.Random(seed)
    kinds = [*_KINDS]
    for number in range(n_bodies):
        kind = kinds[number % len(kinds)]
        path, headers, body = _KINDS[kind](dice, n_labels)
        yield Malformed(kind, path, headers, body)


Made = tuple[str, dict[str, str], bytes]


def _score(kind: str, body: bytes, **headers: str) -> Made:
    return "/v1/score", {"content-type": kind, **headers}, body


def _logits(dice: random.Random, n_labels: int, n_rows: int | None = None) -> np.ndarray:
    rng = np.random.default_rng(dice.randrange(2**32))
    return rng.normal(-2, 3, (n_rows or dice.randrange(1, 20), n_labels)).astype(np.float32)


def _json(logits: np.ndarray) -> bytes:
    return json.dumps({"logits": logits.tolist()}).encode()


def _good(dice: random.Random, n_labels: int) -> tuple[str, bytes]:
    logits = _logits(dice, n_labels)
    return dice.choice(
        [
            (JSON, _json(logits)),
            (SAFETENSORS, encode_tensors({"logits": logits}, {})),
        ]
    )


def _truncated(dice: random.Random, n_labels: int) -> Made:
    kind, body = _good(dice, n_labels)
    return _score(kind, body[: dice.randrange(0, len(body) - 1)])


def _wrong_type(dice: random.Random, n_labels: int) -> Made:
    kind, body = _good(dice, n_labels)
    rest = {JSON, SAFETENSORS, "text/plain", "image/png", "application/zip", ""} - {kind}
    return _score(dice.choice(sorted(rest)), body)


def _not_a_number(dice: random.Random, n_labels: int) -> Made:
    logits = _logits(dice, n_labels)
    logits[dice.randrange(len(logits)), dice.randrange(n_labels)] = dice.choice([np.nan, np.inf])
    return dice.choice(
        [
            _score(JSON, _json(logits)),
            _score(SAFETENSORS, encode_tensors({"logits": logits}, {})),
        ]
    )


def _huge(dice: random.Random, n_labels: int) -> Made:
    claim = dice.choice([1 << 40, 1 << 60, (1 << 63) - 1])
    head = json.dumps(
        {"logits": {"dtype": "F32", "shape": [claim, n_labels], "data_offsets": [0, 16]}}
    ).encode()
    return dice.choice(
        [
            _score(JSON, b'{"logits": [[' + b"9" * dice.randrange(400, 9000) + b"]]}"),
            _score(JSON, b'{"logits": [[1e' + str(dice.randrange(400, 10**9)).encode() + b"]]}"),
            _score(JSON, b'{"logits": [' + b"[0]," * 200_000 + b"[0]]}"),
            _score(JSON, b'{"logits": [' + b"[]," * 500_000 + b"[]]}"),
            _score(SAFETENSORS, claim.to_bytes(8, "little") + bytes(100)),
            _score(SAFETENSORS, len(head).to_bytes(8, "little") + head + bytes(16)),
        ]
    )


def _bomb(dice: random.Random, n_labels: int) -> Made:
    zeros = bytes(dice.randrange(10**6, 2 * 10**7))
    return dice.choice(
        [
            _score(JSON, gzip.compress(zeros, 1), **{"content-encoding": "gzip"}),
            _score(SAFETENSORS, zlib.compress(zeros, 1), **{"content-encoding": "deflate"}),
            _score(SAFETENSORS, _zip(zeros)),
            ("/v1/predict", {"content-type": "image/png"}, png(50_000, 50_000)),
        ]
    )


def _deep(dice: random.Random, n_labels: int) -> Made:
    depth = dice.randrange(1_000, 200_000)
    opened, closed = dice.choice([(b"[", b"]"), (b'{"a":', b"}")])
    nested = opened * depth + b"1" + closed * depth
    cut = dice.choice([nested, nested[: len(nested) // 2]])
    return dice.choice(
        [
            _score(JSON, b'{"logits": ' + cut + b"}"),
            _score(JSON, cut),
            _score(SAFETENSORS, len(cut).to_bytes(8, "little") + cut),
        ]
    )


def _shape(dice: random.Random, n_labels: int) -> Made:
    logits = _logits(dice, n_labels, 3)
    ragged = logits.tolist()
    ragged[dice.randrange(3)].append(0.0)
    wrong: list[Made] = [
        _score(JSON, json.dumps({"logits": ragged}).encode()),
        _score(JSON, json.dumps({"logits": logits[0].tolist()}).encode()),
        _score(JSON, json.dumps({"logits": []}).encode()),
        _score(JSON, json.dumps({"logits": logits[:, 1:].tolist()}).encode()),
        _score(JSON, json.dumps({"logits": logits.tolist(), "ids": ["a"]}).encode()),
        _score(JSON, json.dumps({"logits": logits.tolist(), "labels": 1}).encode()),
        _score(SAFETENSORS, encode_tensors({"logits": logits[0]}, {})),
        _score(SAFETENSORS, encode_tensors({"scores": logits}, {})),
        _score(SAFETENSORS, encode_tensors({"logits": logits[:0]}, {})),
    ]
    return dice.choice(wrong)


def _noise(dice: random.Random, n_labels: int) -> Made:
    """Return random bytes, or a good body whose first bytes were changed."""
    noise = dice.randbytes(dice.randrange(0, 5_000))
    kind, body = _good(dice, n_labels)
    head = bytearray(body)
    for _ in range(8):  # the first bytes say how to read the rest
        head[dice.randrange(min(len(head), 8))] ^= dice.randrange(1, 256)
    return _score(kind, dice.choice([noise, bytes(head) + noise]))


def _image(dice: random.Random, n_labels: int) -> Made:
    kind = dice.choice(["image/png", "image/jpeg", "image/webp", "image/gif", "image/tiff"])
    body = dice.choice(
        [
            b"",
            dice.randbytes(500),
            png(8, 8)[:40],
            png(2**31 - 1, 2**31 - 1),
            png(40_000_000, 1),
            b"\xff\xd8" + b"\xff\xda\0\2" * 5_000,
            b"%!PS-Adobe-3.0",
        ]
    )
    return "/v1/predict", {"content-type": kind}, body


def png(width: int, height: int, pixels: bytes = bytes(10)) -> bytes:
    """Return a PNG that claims a size, by default with hardly any pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(pixels, 1)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _zip(content: bytes) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, logits=np.frombuffer(content, np.uint8))
    return stream.getvalue()


_KINDS: dict[str, Callable[[random.Random, int], Made]] = {
    "truncated": _truncated,
    "wrong type": _wrong_type,
    "NaN or infinity": _not_a_number,
    "huge": _huge,
    "compressed, bomb": _bomb,
    "deep": _deep,
    "wrong shape": _shape,
    "noise": _noise,
    "image": _image,
}
