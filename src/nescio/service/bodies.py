"""Decode the bodies of requests and encode answers: JSON and safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from nescio._io.tensors import decode_tensors, encode_tensors
from nescio._validation import Array
from nescio.detectors.assessment import Assessment
from nescio.errors import FileFormatError, InputError
from nescio.outputs import Outputs
from nescio.service.limits import check_rows

JSON = "application/json"
SAFETENSORS = "application/x-safetensors"
FORMATS = (JSON, SAFETENSORS)
IMAGES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff")

_BODY = "the body"
_MATRICES = ("logits", "features", "head.", "arrays.", "perturbed.")  # how their names begin
_MAX_HEADER_BYTES = 1_000_000  # of a safetensors body
# What takes less than about a millisecond to decode.
_QUICK_TEXT_BYTES = 65_536
_QUICK_TENSOR_BYTES, _QUICK_HEADER_BYTES = 1_000_000, 4_096


class ScoreBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body of a request to score."""

    logits: list[list[float]]
    features: list[list[float]] | None = None
    ids: list[str] | None = None
    label_names: list[str] | None = None
    arrays: dict[str, list[list[float]]] | None = None


class PredictBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body of a request to predict: the inputs of the model by name."""

    inputs: dict[str, msgspec.Raw]


_SCORE_DECODER = msgspec.json.Decoder(ScoreBody)
_PREDICT_DECODER = msgspec.json.Decoder(PredictBody)


def media_type(header: str) -> str:
    """Return a media type without its parameters, such as "application/json"."""
    return header.partition(";")[0].strip().lower()


def decode_outputs(kind: str, data: bytes, max_rows: int) -> Outputs:
    """Return the outputs in a body, or raise an `HTTPException` that says what is wrong."""
    try:
        if kind == SAFETENSORS:
            tensors, metadata = decode_tensors(_with_short_header(data), _BODY)
            _check_floats(tensors)
            return Outputs.from_tensors(tensors, metadata, _BODY)
        body = _decoded(_SCORE_DECODER, data)
        check_rows(len(body.logits), max_rows)
        return Outputs(
            _matrix("logits", body.logits),
            features=None if body.features is None else _matrix("features", body.features),
            ids=body.ids,
            label_names=body.label_names,
            arrays={name: _matrix(name, rows) for name, rows in (body.arrays or {}).items()},
        )
    except FileFormatError as error:
        raise HTTPException(400, str(error)) from error
    except InputError as error:
        raise HTTPException(422, str(error)) from error


def decode_inputs(kind: str, data: bytes) -> dict[str, Array]:
    """Return the inputs of a model by name, from a body of JSON or safetensors."""
    if kind == SAFETENSORS:
        try:
            return decode_tensors(_with_short_header(data), _BODY)[0]
        except FileFormatError as error:
            raise HTTPException(400, str(error)) from error
    raw: Mapping[str, msgspec.Raw] = _decoded(_PREDICT_DECODER, data).inputs
    return {name: _nested(name, value) for name, value in raw.items()}


def is_quick_to_decode(kind: str, data: bytes) -> bool:
    """Whether decoding takes so little time that the event loop can do it."""
    if kind == SAFETENSORS:  # arrays are not copied
        return len(data) <= _QUICK_TENSOR_BYTES and _header_bytes(data) <= _QUICK_HEADER_BYTES
    return len(data) <= _QUICK_TEXT_BYTES


def encode_assessment(kind: str, result: Assessment) -> bytes:
    """Return scores, p-values and verdicts as columns, in the given format."""
    if kind == JSON:
        return encode_json(columns_of(result))
    columns: dict[str, Array] = {
        "p_value": result.p_values,
        "score": result.scores,
        "in_distribution": result.in_distribution,
    }
    if result.groups is None:
        return encode_tensors(columns, {})
    names, columns["group"] = np.unique(result.groups, return_inverse=True)
    return encode_tensors(columns, {"groups": names.tolist()})


def columns_of(result: Assessment) -> dict[str, list[Any]]:
    """Return the columns of an assessment as lists."""
    return {name: column.tolist() for name, column in result.columns().items()}


def encode_json(value: Any) -> bytes:
    """Return strict JSON; an infinite number becomes null."""
    return msgspec.json.encode(value)


def _check_floats(tensors: Mapping[str, Array]) -> None:
    """Reject integers: when scored, an array of single bytes takes eight times its size."""
    for name, array in tensors.items():
        if name.startswith(_MATRICES) and array.dtype.kind != "f":
            raise InputError(f"{name} must be floating point numbers, got {array.dtype}.")


def _with_short_header(data: bytes) -> bytes:
    """Return the body unless its header is so long that reading it takes seconds."""
    if _header_bytes(data) > _MAX_HEADER_BYTES:
        raise FileFormatError(
            f"{_BODY} is not a safetensors file, or its header has more than "
            f"{_MAX_HEADER_BYTES:,} bytes."
        )
    return data


def _header_bytes(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"{_BODY} is not valid JSON for this path: {error}.") from error


def _matrix(name: str, rows: list[list[float]]) -> NDArray[np.float64]:
    if not rows:
        raise InputError(f"{name} must have at least one row.")
    lengths = set(map(len, rows))
    if len(lengths) != 1:
        raise InputError(
            f"all rows of {name} must have the same length, got {min(lengths)} to "
            f"{max(lengths)} numbers."
        )
    return np.array(rows, dtype=np.float64)


def _nested(name: str, value: msgspec.Raw) -> Array:
    """Return nested lists of numbers as an array; integers stay integers."""
    if b'"' in bytes(value):  # NumPy would store every string at the length of the longest
        raise HTTPException(422, f"input {name[:40]!r} must contain numbers, got text.")
    try:
        array = np.array(msgspec.json.decode(value))
    except (ValueError, RecursionError, OverflowError) as error:
        raise HTTPException(
            422, f"input {name[:40]!r} must be a regular array of numbers."
        ) from error
    if array.dtype.kind not in "ifub":
        raise HTTPException(422, f"input {name[:40]!r} must contain numbers, got {array.dtype}.")
    return array
