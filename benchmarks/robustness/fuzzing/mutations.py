"""Damage to bytes, made from a seed: the same seed gives the same damage."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

# What parsers stumble over: signs, limits, other types, nesting, other alphabets, control bytes.
TOKENS = (
    b"", b"0", b"-1", b"1e999", b"-0.0", b"NaN", b"Infinity", b"null", b"true", b"false", b"[]",
    b"{}", b'""', b'"x"', b"[[[[]]]]", b"9" * 40, b"9" * 5_000, b"1e-8", b"\0", b"\xff\xfe",
    b"\xed\xa0\x80", b"\xc3\xa9", b"\r\n", b"'", b'"', b",", b"\\", b"\xe2\x80\xa8", b"=1+1",
    b"-9223372036854775809", b"18446744073709551616", b"0.1", b"2147483648", b"1_000", b"inf",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2.5, 1e308, float("nan"), float("inf"), 10**30, "", "x", "\0", "../x",
    "\ud800", "1", [], [1], [None], {}, {"x": 1}, [[[[[]]]]], "a" * 1_000, 2**63, -(2**63) - 1,
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?")
_DEPTH = 3_000


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Return the data with one to three kinds of damage."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        data = dice.choice(_BYTES)(data, dice)
    return data


def mutated_json(value: Any, dice: random.Random) -> Any:
    """Return a JSON value in which one or more entries were replaced, removed or renamed."""
    value = json.loads(json.dumps(value))
    for _ in range(dice.choice((1, 1, 2, 4))):
        holder = {"": value}
        _change(holder, "", dice)
        value = holder.get("")
    return value


def _change(holder: Any, key: Any, dice: random.Random) -> None:
    """Go down from an entry, at random, and change what is found there."""
    value = holder[key]
    if isinstance(value, dict | list) and value and dice.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        _change(value, dice.choice(list(keys)), dice)
        return
    how = dice.randrange(10)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    elif how == 2 and isinstance(holder, list):
        holder.append(value)
    elif how == 3 and isinstance(value, int | float):
        holder[key] = dice.choice((value + 1, -value, value * 1e6, value * 2, str(value)))
    else:
        holder[key] = deepcopy(dice.choice(VALUES))


def _flip(data: bytes, dice: random.Random) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _flip_early(data: bytes, dice: random.Random) -> bytes:
    """Change one of the first bytes, which say how to read the rest."""
    return _flip(data[:64], dice) + data[64:]


def _flip_late(data: bytes, dice: random.Random) -> bytes:
    """Change one of the last bytes, where archives and Parquet have their index."""
    cut = max(0, len(data) - 600)
    return data[:cut] + _flip(data[cut:], dice)


def _set_bytes(data: bytes, dice: random.Random) -> bytes:
    index = dice.randrange(len(data) + 1)
    piece = dice.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * dice.choice((1, 2, 4, 8))
    return data[:index] + piece + data[index + len(piece) :]


def _cut(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def _remove(data: bytes, dice: random.Random) -> bytes:
    index = dice.randrange(len(data) + 1)
    return data[:index] + data[index + dice.choice((1, 2, 8, 100)) :]


def _insert(data: bytes, dice: random.Random) -> bytes:
    index = dice.randrange(len(data) + 1)
    return data[:index] + dice.choice(TOKENS) + data[index:]


def _repeat(data: bytes, dice: random.Random) -> bytes:
    index = dice.randrange(len(data) + 1)
    piece = data[index : index + dice.choice((1, 10, 100))]
    return data[:index] + piece * dice.choice((2, 3, 50)) + data[index:]


def _number(data: bytes, dice: random.Random) -> bytes:
    """Replace a number in the text by something else."""
    numbers = list(_NUMBER.finditer(data[:20_000]))
    if not numbers:
        return _insert(data, dice)
    number = dice.choice(numbers)
    return data[: number.start()] + dice.choice(TOKENS) + data[number.end() :]


def _nest(data: bytes, dice: random.Random) -> bytes:
    opened, closed = dice.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")")))
    depth = dice.choice((3, _DEPTH))
    numbers = list(_NUMBER.finditer(data[:20_000]))
    if not numbers:
        return opened * depth + data + closed * depth
    number = dice.choice(numbers)
    return (
        data[: number.start()] + opened * depth + number[0] + closed * depth + data[number.end() :]
    )


def _noise(data: bytes, dice: random.Random) -> bytes:
    return dice.randbytes(dice.randrange(300))


_BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_flip, _flip_early, _flip_late) * 2, _set_bytes, _cut, _remove, _insert, _repeat,
    *(_number,) * 2, _nest, _noise,
)  # fmt: skip
