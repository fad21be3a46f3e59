"""What comes in and goes out: JSON, safetensors and Arrow, without a check for each row."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from nescio._io.tensors import decode_tensors, encode_tensors
from nescio._validation import Array
from nescio.detectors.assessment import Assessment
from nescio.errors import FileFormatError, InputError
from nescio.outputs import Outputs
from nescio.outputs.files import _from_columns
from nescio.service.arrow import read_arrow, write_arrow
from nescio.service.errors import RefusedError

JSON = "application/json"
SAFETENSORS = "application/x-safetensors"
ARROW = "application/vnd.apache.arrow.stream"
FORMATS = (JSON, SAFETENSORS, ARROW)
IMAGES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff")

_BODY = "the body"
_MATRICES = ("logits", "features")
_MAX_HEADER_BYTES = 1_000_000  # of safetensors
_LIGHT_BYTES, _LIGHT_HEADER = 1_000_000, 4_096
_LIGHT_TEXT = 65_536


class ScoreBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON of a request to score: a row of logits for each input."""

    logits: list[list[float]]
    features: list[list[float]] | None = None
    ids: list[str] | None = None
    label_names: list[str] | None = None


class PredictBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON of a request to predict: the model's own inputs by name, samples first."""

    inputs: dict[str, msgspec.Raw]


_SCORE_DECODER = msgspec.json.Decoder(ScoreBody)
_PREDICT_DECODER = msgspec.json.Decoder(PredictBody)


def media_type(header: str | None) -> str:
    """The type of a body without its parameters: "application/json"."""
    return (header or "").partition(";")[0].strip().lower()


def decode_outputs(kind: str, data: bytes | bytearray, max_rows: int) -> Outputs:
    """The outputs in a body; a `RefusedError` that says why not, otherwise."""
    try:
        if kind == JSON:
            body = _decoded(_SCORE_DECODER, data)
            check_rows(len(body.logits), max_rows)
            return Outputs(
                _matrix("logits", body.logits),
                features=None if body.features is None else _matrix("features", body.features),
                ids=body.ids,
                label_names=body.label_names,
            )
        if kind == SAFETENSORS:
            tensors, metadata = decode_tensors(_with_a_short_header(data), _BODY)
            _check_floats({name: tensors[name] for name in tensors if name in _MATRICES})
            return Outputs.from_tensors(tensors, metadata, _BODY)
        return Outputs(**_from_columns(_BODY, read_arrow(data, _BODY)))
    except FileFormatError as error:
        raise RefusedError(400, str(error)) from error
    except InputError as error:
        raise RefusedError(422, str(error)) from error


def decode_inputs(kind: str, data: bytes | bytearray) -> dict[str, Array]:
    """A model's inputs by name in a body of JSON or safetensors."""
    if kind == SAFETENSORS:
        try:
            return decode_tensors(_with_a_short_header(data), _BODY)[0]
        except FileFormatError as error:
            raise RefusedError(400, str(error)) from error
    raw: Mapping[str, msgspec.Raw] = _decoded(_PREDICT_DECODER, data).inputs
    return {name: _nested(name, value) for name, value in raw.items()}


def _check_floats(tensors: Mapping[str, Array]) -> None:
    """Whole numbers of a byte would take eight when they are scored: eight times the body."""
    for name, array in tensors.items():
        if array.dtype.kind != "f":
            raise InputError(f"{name} must be floating point numbers, got {array.dtype}.")


def check_rows(n_rows: int, max_rows: int) -> None:
    """Raise if there are too many."""
    if n_rows > max_rows:
        raise RefusedError(
            413,
            f"{n_rows:,} rows in one request; {max_rows:,} are allowed. Send them in parts.",
        )


def is_light(kind: str, data: bytes | bytearray) -> bool:
    """Whether a body takes no time to decode: a small one, or arrays that are only pointed at."""
    if kind == SAFETENSORS:
        return len(data) <= _LIGHT_BYTES and _header_bytes(data) <= _LIGHT_HEADER
    return len(data) <= _LIGHT_TEXT


def _with_a_short_header(data: bytes | bytearray) -> bytes | bytearray:
    """The body, unless its header is of a size that takes seconds to read."""
    if _header_bytes(data) > _MAX_HEADER_BYTES:
        raise FileFormatError(
            f"{_BODY} is not a safetensors file, or its header has more than "
            f"{_MAX_HEADER_BYTES:,} bytes."
        )
    return data


def _header_bytes(data: bytes | bytearray) -> int:
    return int.from_bytes(data[:8], "little")


def encode_assessment(kind: str, result: Assessment) -> bytes:
    """Scores, p-values and verdicts as columns, in the format asked for."""
    if kind == SAFETENSORS:
        columns: dict[str, Array] = {
            "p_value": result.p_values,
            "score": result.scores,
            "in_distribution": result.in_distribution,
        }
        if result.groups is None:
            arrays = [column.tobytes() for column in columns.values()]
            return b"".join([_header_of_plain_columns(len(result)), *arrays])
        names, columns["group"] = np.unique(result.groups, return_inverse=True)
        return encode_tensors(columns, {"groups": names.tolist()})
    if kind == ARROW:
        return write_arrow(result.columns())
    return encode_json(columns_of(result))


@functools.lru_cache(maxsize=256)
def _header_of_plain_columns(n_rows: int) -> bytes:
    """What goes before the arrays; it depends on their length alone."""
    numbers, verdicts = np.zeros(n_rows), np.zeros(n_rows, np.bool_)
    whole = encode_tensors({"p_value": numbers, "score": numbers, "in_distribution": verdicts}, {})
    return whole[: len(whole) - 2 * numbers.nbytes - verdicts.nbytes]


def columns_of(result: Assessment) -> dict[str, list[Any]]:
    """The columns of an assessment as lists."""
    return {name: column.tolist() for name, column in result.columns().items()}


def encode_json(value: Any) -> bytes:
    """Strict JSON; an infinite number becomes null."""
    return msgspec.json.encode(value)


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes | bytearray) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(400, f"{_BODY} is not the JSON expected: {error}.") from error


def _matrix(name: str, rows: list[list[float]]) -> NDArray[np.float64]:
    if not rows:
        raise InputError(f"{name} have no rows.")
    lengths = set(map(len, rows))
    if len(lengths) != 1:
        raise InputError(
            f"the rows of {name} differ in length: {min(lengths)} to {max(lengths)} numbers."
        )
    return np.array(rows, dtype=np.float64)


def _nested(name: str, value: msgspec.Raw) -> Array:
    """Nested lists of numbers of any depth that NumPy has; whole numbers stay whole."""
    if b'"' in bytes(value):  # NumPy would give every string the room of the longest
        raise RefusedError(422, f"input {name[:40]!r} must hold numbers, got text.")
    try:
        array = np.array(msgspec.json.decode(value))
    except (ValueError, RecursionError, OverflowError) as error:
        raise RefusedError(
            422, f"input {name[:40]!r} is not a regular array of numbers."
        ) from error
    if array.dtype.kind not in "ifub":
        raise RefusedError(422, f"input {name[:40]!r} must hold numbers, got {array.dtype}.")
    return array
