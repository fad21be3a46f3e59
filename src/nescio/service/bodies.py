"""Decode the bodies of requests and encode answers: JSON and safetensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType
from numpy.typing import NDArray

from nescio._io.tensors import decode_tensors, encode_tensors
from nescio._validation import Array
from nescio.detectors.assessment import Assessment
from nescio.errors import FileFormatError, InputError
from nescio.outputs import Outputs
from nescio.outputs.crops import heat_map
from nescio.service.errors import TooLargeError

JSON = "application/json"
SAFETENSORS = "application/x-safetensors"
FORMATS = (JSON, SAFETENSORS)
IMAGES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff")

MAX_TEXTS = 1_000  # per request
MAX_CHARACTERS = 1_000_000  # of all texts of a request; about a second for the tokenizer

_BODY = "the body"
_MATRICES = ("logits", "features", "head.", "arrays.", "perturbed.")  # how their names begin
_MAX_HEADER_BYTES = 1_000_000  # of a safetensors body; longer ones take seconds to read
_MAX_ARRAYS = 100
# The most lists in a JSON body, if it may have only few rows. A list takes ten times as long to
# decode as a number, and other threads have to wait meanwhile.
_MAX_LISTS = 100_000
_MAX_ITEMS = 2_000_000  # numbers and texts in a JSON body; they are decoded in 0.2 seconds


# JSON has no NaN and no infinity.
JsonNumber = Annotated[
    float | Literal["-inf"] | None,
    Meta(description='A number, "-inf" for a masked label, or null for a missing value (NaN).'),
]


class ScoreBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body of a request to score."""

    logits: list[list[JsonNumber]]
    features: list[list[JsonNumber]] | None = None
    ids: list[str] | None = None
    label_names: list[str] | None = None
    arrays: dict[str, list[list[JsonNumber]]] | None = None


class PredictBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body of a request to predict: the inputs of the model by name, or texts."""

    inputs: dict[str, msgspec.Raw] | UnsetType = UNSET
    texts: Annotated[
        list[str] | UnsetType,
        Meta(
            description='For a service with a tokenizer, such as {"texts": ["A text."]}.',
            extra_json_schema={"minItems": 1},  # too many are 413, like too many rows
        ),
    ] = UNSET


def media_type(header: str) -> str:
    """Return a media type without its parameters, such as "application/json"."""
    return header.partition(";")[0].strip().lower()


def check_rows(n_rows: int, max_rows: int) -> None:
    """Raise an error if a request has no rows, or too many."""
    if not n_rows:
        raise InputError("the request has no rows.")
    if n_rows > max_rows:
        raise TooLargeError(
            f"the request has {n_rows:,} rows; {max_rows:,} are allowed. Send them in several "
            "requests.",
        )


def decode_outputs(kind: str, data: bytes, max_rows: int = 100_000) -> Outputs:
    """Return the outputs in a body of JSON or safetensors."""
    if kind == SAFETENSORS:
        tensors, metadata = _decode_tensors(data)
        _check_counts(tensors, max_rows)
        for name, array in tensors.items():
            # When scored, an array of single bytes would take eight times its size.
            if name.startswith(_MATRICES) and array.dtype.kind != "f":
                raise InputError(f"{name} must be floating point numbers, got {array.dtype}.")
        # Answers have no kept columns, and outputs with different ones are not scored together.
        return Outputs.from_tensors(tensors, metadata, _BODY, kept=False)
    body = _decode_json(data, ScoreBody, max_rows)
    _check_arrays(body.arrays or {})
    return Outputs(
        _matrix("logits", body.logits),
        features=None if body.features is None else _matrix("features", body.features),
        ids=body.ids,
        label_names=body.label_names,
        arrays={name: _matrix(name, rows) for name, rows in (body.arrays or {}).items()},
    )


def decode_inputs(kind: str, data: bytes, max_rows: int = 100_000) -> dict[str, Array] | list[str]:
    """Return the inputs of a model by name, or texts, from a body of JSON or safetensors."""
    if kind == SAFETENSORS:
        return _decode_tensors(data)[0]
    body: PredictBody = _decode_json(data, PredictBody, max_rows)
    if (body.inputs is UNSET) == (body.texts is UNSET):
        raise InputError('send either the inputs of the model by name, "inputs", or "texts".')
    if body.inputs is UNSET:
        return _checked_texts(body.texts or [])
    _check_arrays(body.inputs)
    return {name: _nested(name, value) for name, value in body.inputs.items()}


def _checked_texts(texts: list[str]) -> list[str]:
    """Raise if there are no texts, or too many characters: tokens take 100 times their memory."""
    check_rows(len(texts), MAX_TEXTS)
    n_characters = sum(map(len, texts))
    if n_characters > MAX_CHARACTERS:
        raise TooLargeError(
            f"the texts have {n_characters:,} characters; {MAX_CHARACTERS:,} are allowed. Send "
            "them in several requests."
        )
    return texts


def encode_assessment(kind: str, result: Assessment) -> bytes:
    """Return scores, p-values and verdicts as columns, in the given format."""
    if kind == JSON:
        return msgspec.json.encode(columns_of(result))
    columns: dict[str, Array] = {
        "p_value": result.p_values,
        "score": result.scores,
        "in_distribution": result.in_distribution,
    }
    if result.mixed is not None and result.crops is not None:
        columns |= {"mixed": result.mixed, "heat_map": heat_map(result.crops)}
    if result.groups is None:
        return encode_tensors(columns, {})
    names, columns["group"] = np.unique(result.groups, return_inverse=True)
    return encode_tensors(columns, {"groups": names.tolist()})


def columns_of(result: Assessment) -> dict[str, list[Any]]:
    """Return the columns of an assessment as lists, with a heat map instead of the crops."""
    plain = replace(result, crops=None).columns()
    columns = {name: column.tolist() for name, column in plain.items()}
    if result.crops is not None:
        columns["heat_map"] = heat_map(result.crops).tolist()
    return columns


def json_pieces(
    columns: Mapping[str, Any],
    long_columns: Mapping[str, Callable[[slice], Any]],
    n_rows: int,
    at_once: int,
) -> Iterator[bytes]:
    """Give the JSON of an object in pieces, so that it is never in memory as a whole.

    `columns` are its first entries. The others are given as functions that return some of their
    rows, and are called for `at_once` rows at a time.
    """
    yield msgspec.json.encode(columns)[:-1]  # without the closing brace
    for name, rows_of in long_columns.items():
        yield b"," + msgspec.json.encode(name) + b":["
        for start in range(0, n_rows, at_once):
            rows = msgspec.json.encode(rows_of(slice(start, start + at_once)))
            yield (b"," if start else b"") + rows[1:-1]
        yield b"]"
    yield b"}"


def json_numbers(matrix: Array) -> list[list[Any]]:
    """Return the rows of a matrix as `JsonNumber`; NaN and +inf are encoded as null."""
    rows: list[list[Any]] = matrix.tolist()
    for row, column in np.argwhere(matrix == -np.inf).tolist():
        rows[row][column] = "-inf"
    return rows


def _decode_tensors(data: bytes) -> tuple[dict[str, Array], dict[str, Any]]:
    if int.from_bytes(data[:8], "little") > _MAX_HEADER_BYTES:
        raise FileFormatError(
            f"{_BODY} is not a safetensors file, or its header has more than "
            f"{_MAX_HEADER_BYTES:,} bytes."
        )
    return decode_tensors(data, _BODY)


def _check_counts(tensors: Mapping[str, Array], max_rows: int) -> None:
    """Raise an error if a body has too many rows, or other numbers of logits and ids."""
    _check_arrays(tensors)
    shapes = {name: tensors[name].shape for name in ("logits", "ids.ends") if name in tensors}
    for shape in shapes.values():
        if shape:
            check_rows(shape[0], max_rows)
    if len({shape[:1] for shape in shapes.values()}) > 1:
        raise InputError("there must be one id per row of the logits.")


def _check_arrays(arrays: Collection[str]) -> None:
    if len(arrays) > _MAX_ARRAYS:
        raise TooLargeError(f"the body has {len(arrays):,} arrays; {_MAX_ARRAYS} are allowed.")


def _decode_json(data: bytes, kind: Any, max_rows: int) -> Any:
    max_lists = max(_MAX_LISTS, 4 * max_rows)
    for mark, most, what in ((b"[", max_lists, "lists"), (b",", _MAX_ITEMS, "numbers")):
        # Counting takes a tenth of the time of decoding; a short body needs none.
        if len(data) > most and data.count(mark) > most:
            raise TooLargeError(
                f"the body has more than {most:,} {what}. Send it in several requests, or as "
                "safetensors."
            )
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FileFormatError(
            f"{_BODY} is not valid JSON for this path: {error}.{_hint(str(error), data)}"
        ) from error


def _hint(error: str, data: bytes) -> str:
    """Return what to do about the usual mistakes."""
    if "invalid character" in error and (b"NaN" in data or b"Infinity" in data):
        return ' JSON has no NaN and no infinity: send null for NaN, and "-inf" for a masked label.'
    if error.startswith("Expected `array`, got") and re.search(r"`\$\.\w+\[(\d+|\.\.\.)\]`", error):
        return ' Send a list of rows, also for one row: {"logits": [[1.5, -2.0, 0.3]]}.'
    if error.startswith("Expected `object`, got `array`"):
        if "`$.inputs`" in error:
            return ' Send the inputs of the model by name: {"inputs": {"NAME": [[...], [...]]}}.'
        return ' Send an object such as {"logits": [[1.5, -2.0, 0.3]]}.'
    if "Invalid enum value" in error:
        return ' Send numbers, null for NaN, and "-inf" for a masked label.'
    return ""


def _matrix(name: str, rows: list[list[Any]]) -> NDArray[np.float64]:
    lengths = set(map(len, rows))
    if len(lengths) != 1:
        found = f"rows of {min(lengths)} to {max(lengths)} numbers" if lengths else "no rows"
        raise InputError(f"{name} must have one or more rows of the same length, got {found}.")
    return np.array(rows, dtype=np.float64)


def _nested(name: str, value: msgspec.Raw) -> Array:
    """Return nested lists of numbers as an array; integers stay integers."""
    what = f"input {name[:40]!r} must be a regular array of numbers"
    if b'"' in bytes(value):  # NumPy would store every string at the length of the longest
        raise InputError(f"{what}, got text.")
    try:
        array = np.array(msgspec.json.decode(value))
    except (ValueError, RecursionError, OverflowError) as error:
        raise InputError(f"{what}.") from error
    if array.dtype.kind not in "ifub":
        raise InputError(f"{what}, got {array.dtype}.")
    return array
