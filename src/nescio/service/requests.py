"""Requests and answers: their limits, the content of bodies, and the encoding of verdicts.

Every limit on a request is checked by `RequestLimits`; `Settings` holds those that can be set.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import re
import uuid
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from nescio._io.tables import GROUP
from nescio._io.tensors import decode_tensors, encode_tensors
from nescio._validation import ENOUGH_VALUES, Array, check_logits
from nescio.detectors.verdicts import Assessment
from nescio.errors import FileFormatError, InputError, ProbabilitiesError, counted
from nescio.outputs import Outputs
from nescio.outputs.files import parse_tensors
from nescio.scores import label_prob, logits_from_probs
from nescio.service import openapi as api
from nescio.service.settings import MAX_CHARACTERS, MAX_ROWS, MAX_TEXTS, Settings

BODY_SECONDS = 30.0  # for a body to arrive
_PROCESS = uuid.uuid4().hex[:12]
_NUMBERS = itertools.count(1)
_MAX_VALUES = 1_000_000  # rows times labels of an answer to /v1/predict
_MAX_HEADER_BYTES = 1_000_000  # of a safetensors body; longer ones take seconds to read
_MAX_ARRAYS = 100
# A list in a JSON body takes ten times as long to decode as a number, and other threads have to
# wait meanwhile.
_MAX_LISTS = 4 * MAX_ROWS
_MAX_ITEMS = 2_000_000  # numbers and texts in a JSON body; they are decoded in 0.2 seconds

_BODY = "the body"
_FROM_PROBS = "Add ?from_probs=true to the address for probabilities, ?from_probs=false for logits."
_MATRICES = ("logits", "features", "head.", "arrays.", "perturbed.")  # how their names begin


class TooLargeError(InputError):
    """A request that is larger than the service allows: status 413."""


class WrongBodyError(FileFormatError):
    """JSON that is no body of its path: the answer shows one that is."""


class Request:
    """One HTTP request: its headers by name, and what it uses of the limits."""

    __slots__ = ("headers", "id", "n_body", "n_held", "receive", "result", "scope", "unread")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.receive = receive
        # If a header is repeated, the first one counts.
        self.headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        sent = self.headers.get(b"x-request-id", b"")
        is_plain = 0 < len(sent) <= 64 and sent.translate(None, b"-_").isalnum()
        self.id = sent.decode() if is_plain else f"{_PROCESS}-{next(_NUMBERS):x}"
        self.result: Assessment | None = None  # the verdicts
        self.n_body: int | None = None  # bytes of its body, once they are being read
        self.n_held = 0  # bytes of inputs and answers
        announced = {b"content-length", b"transfer-encoding"} & self.headers.keys()
        self.unread = bool(announced) or scope["method"] == "POST"  # some of its body may arrive

    def header(self, name: bytes) -> str:
        """Return a header, or "" if there is none."""
        return self.headers.get(name, b"").decode("latin-1")

    def query(self) -> dict[str, str]:
        """Return the query of the address by name."""
        pairs = parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if len(query := dict(pairs)) < len(pairs):
            raise HTTPException(422, "send each parameter of the address once.")
        return query

    @property
    def media_type(self) -> str:
        """The type of the body without parameters, such as "application/json"."""
        return _media_type(self.headers.get(b"content-type", b""))

    async def part(self) -> bytes:
        """Return the next part of the body."""
        message = await self.receive()
        self.unread = message.get("more_body", False)
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        return bytes(message.get("body", b""))

    def require_type(self, allowed: Collection[str]) -> str:
        """Return the type of the body, or raise an error if it is not an allowed one."""
        kind = self.media_type
        if kind not in allowed:
            names, got = ", ".join(sorted(allowed)), repr(kind[:60]) if kind else "none"
            # curl and urllib send a form unless they are told the type.
            advice = " Send no form: curl needs -H and --data-binary." if "form" in kind else ""
            detail = f"the header Content-Type must be one of {names}; got {got}.{advice}"
            raise HTTPException(415, detail)
        return kind

    def accepted_format(self) -> str:
        """Return the format of the answer: the first that Accept names, or that of the body."""
        accept = self.headers.get(b"accept", b"*/*")
        named = map(_media_type, () if accept == b"*/*" else accept.split(b","))
        return next((kind for kind in named if kind in api.FORMATS), self.media_type)

    def scored(self) -> dict[str, Any]:
        """Return what the log says about the verdicts."""
        if self.result is None:
            return {}
        return {"rows": len(self.result), "flagged": len(self.result.flagged), "bytes": self.n_body}


@functools.lru_cache(maxsize=64)
def _media_type(header: bytes) -> str:
    return header.partition(b";")[0].strip().lower().decode("latin-1")


class Answer(NamedTuple):
    """An answer to a request."""

    body: bytes
    media_type: str = api.JSON
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class RequestLimits:
    """Limits on requests: how many are in progress, how large they are and how long they take."""

    def __init__(self, settings: Settings) -> None:
        self.max_requests = settings.max_requests
        self._max_bytes = settings.max_body_bytes
        # A number of two characters takes 32 bytes while JSON is decoded.
        self._max_json_bytes = max(1, settings.max_body_bytes // 4)
        self.max_waiting_bytes = 8 * settings.max_body_bytes
        self.n_requests = 0  # whose bodies are being read or worked on
        self.n_bytes = 0  # of their bodies
        self.n_held = 0  # bytes of their inputs and answers

    async def read(self, request: Request) -> bytes:
        """Return the body. The request counts as in progress until `release`."""
        if self.n_requests >= self.max_requests:
            raise busy(f"{self.n_requests:,} requests are already in progress.")
        max_bytes = self._max_json_bytes if request.media_type == api.JSON else self._max_bytes
        announced = request.headers.get(b"content-length", b"")
        if announced.isdigit():
            _check_size(int(announced), max_bytes)
        if request.headers.get(b"content-encoding", b"").lower() not in (b"", b"identity"):
            raise HTTPException(415, "compressed bodies are not accepted: send the body as it is.")
        self.n_requests += 1
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await self._receive(request, max_bytes)
        except TimeoutError as error:
            detail = f"the body did not arrive within {BODY_SECONDS:g} seconds."
            raise HTTPException(408, detail, {"Connection": "close"}) from error

    async def _receive(self, request: Request, max_bytes: int) -> bytes:
        parts: list[bytes] = []
        request.n_body = 0
        while request.unread:
            part = await request.part()
            _check_size(request.n_body + len(part), max_bytes)
            if self.n_bytes + len(part) > self.max_waiting_bytes:
                raise busy(f"Bodies of {self.n_bytes:,} bytes are already waiting.")
            self.n_bytes += len(part)
            request.n_body += len(part)
            parts.append(part)
        return b"".join(parts)  # a single part is not copied

    async def discard(self, request: Request) -> None:
        """Read the rest of a refused body, within limits: simple clients send all, then read."""
        size = 0
        with contextlib.suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(BODY_SECONDS):
                while request.unread and size <= self.max_waiting_bytes:
                    size += len(await request.part())

    def hold(self, request: Request, n_bytes: int) -> None:
        """Count memory that a request needs beside its body, until `release`.

        A request that is alone gets what it needs.
        """
        if self.n_held and self.n_held + n_bytes > self.max_waiting_bytes:
            raise busy(f"Requests of {self.n_held:,} bytes are already in progress.")
        self.n_held += n_bytes
        request.n_held += n_bytes

    def release(self, request: Request) -> None:
        """Stop counting a request: it was answered."""
        if request.n_body is not None:
            self.n_requests -= 1
            self.n_bytes -= request.n_body
        self.n_held -= request.n_held


def busy(reason: str) -> HTTPException:
    """Return the error for a request that should be repeated a second later."""
    return HTTPException(503, f"{reason} Try again in one second.", {"Retry-After": "1"})


def _check_size(n_bytes: int, max_bytes: int) -> None:
    if n_bytes > max_bytes:
        raise HTTPException(
            413,
            f"the body has at least {n_bytes:,} bytes; {max_bytes:,} are allowed. Send a smaller "
            "image, or rows in several requests. A safetensors body may be four times as large as "
            "a JSON body. --max-body-mb of the service sets the limit.",
        )


def check_count(what: str, count: int, kind: str, most: int) -> None:
    """Raise an error if something has too many of a kind."""
    if count > most:
        raise TooLargeError(
            f"{what} has {count:,} {kind}; {most:,} are allowed. Send them in several requests."
        )


def _check_rows(n_rows: int, most: int = MAX_ROWS) -> None:
    if not n_rows:
        raise InputError("the request has no rows.")
    check_count("the request", n_rows, "rows", most)


def check_predictions(n_rows: int, n_labels: int) -> int:
    """Return rows times labels, or raise an error if that is too much for one answer."""
    _check_rows(n_rows)
    if n_rows * n_labels > _MAX_VALUES and n_rows > 1:
        raise TooLargeError(
            f"an answer may have {_MAX_VALUES:,} logits, that is {_MAX_VALUES // n_labels:,} "
            f"rows of {n_labels:,} labels; got {n_rows:,} rows. Send them in several requests."
        )
    return n_rows * n_labels


# --- bodies -------------------------------------------------------------------------------------


class LogitsCheck:
    """Rejects probabilities. Requests that are too small to tell are checked with earlier ones."""

    def __init__(self) -> None:
        self._earlier: deque[float] = deque(maxlen=ENOUGH_VALUES)

    def __call__(self, logits: Array) -> None:
        """Raise a `ProbabilitiesError` if these are not logits."""
        if logits.size < ENOUGH_VALUES:
            self._earlier.extend(logits.ravel().tolist())
            logits = np.array([self._earlier])
        check_logits(logits)


def decode_outputs(
    kind: str,
    data: bytes,
    from_probs: bool | None = None,
    check: Callable[[Array], None] = check_logits,
) -> Outputs:
    """Return the outputs in a body of JSON or safetensors; `from_probs` is that of detectors."""
    outputs = _tensor_outputs(data) if kind == api.SAFETENSORS else _json_outputs(data)
    if from_probs:
        probs = outputs.logits
        try:
            return replace(outputs, logits=logits_from_probs(probs))
        except InputError as error:
            place = np.argwhere((probs < 0) | (probs > 1))[0]
            raise InputError(
                f"{error.reason} The first is in {place_of(place)}. If they are logits, leave "
                "out ?from_probs=true."
            ) from error
    if from_probs is None:
        try:
            check(outputs.logits)
        except ProbabilitiesError as error:
            raise ProbabilitiesError(f"{error.reason} {_FROM_PROBS}") from error
    return outputs


def doubt_of_few(logits: Array, from_probs: bool | None) -> str:
    """Return a warning if values that are too few to be checked may be probabilities."""
    few = from_probs is None and 0 < logits.size < ENOUGH_VALUES
    if few and logits.min() >= 0 and logits.max() <= 1:
        return f"every value lies within [0, 1]: these may be probabilities. {_FROM_PROBS}"
    return ""


def _tensor_outputs(data: bytes) -> Outputs:
    tensors, metadata = _decode_tensors(data)
    check_count(_BODY, len(tensors), "arrays", _MAX_ARRAYS)
    shapes = {name: tensors[name].shape[:1] for name in ("logits", "ids.ends") if name in tensors}
    for n_rows in itertools.chain(*shapes.values()):
        _check_rows(n_rows)
    if len(set(shapes.values())) > 1:
        raise InputError("there must be one id per row of the logits.")
    for name, array in tensors.items():
        # When scored, an array of single bytes would take eight times its size.
        if name.startswith(_MATRICES) and array.dtype.kind != "f":
            raise InputError(f"{name} must be floating point numbers, got {array.dtype}.")
    # Answers have no kept columns, and outputs with different ones are not scored together.
    return Outputs(**parse_tensors(_BODY, tensors, metadata, kept=False))


def _json_outputs(data: bytes) -> Outputs:
    body: api.ScoreBody = decode_json(data, api.ScoreBody)
    check_count(_BODY, len(body.arrays or ()), "arrays", _MAX_ARRAYS)
    _check_rows(len(body.logits))
    return Outputs(
        _matrix("logits", body.logits),
        features=None if body.features is None else _matrix("features", body.features),
        label_names=body.label_names,
        arrays={name: _matrix(name, rows) for name, rows in (body.arrays or {}).items()},
        **_of_rows(body),
    )


def decode_inputs(kind: str, data: bytes, numbers: Collection[str]) -> tuple[Any, dict[str, Any]]:
    """Return the inputs of a model by name, or texts, and of JSON also the ids and groups."""
    if kind == api.SAFETENSORS:
        return _decode_tensors(data)[0], {}
    body: api.PredictBody = decode_json(data, api.PredictBody)
    if (body.inputs is UNSET) == (body.texts is UNSET):
        raise InputError('send either the inputs of the model by name, "inputs", or "texts".')
    if body.inputs is not UNSET:
        check_count(_BODY, len(body.inputs), "arrays", _MAX_ARRAYS)
        inputs = {
            name: _nested(name, value, name in numbers) for name, value in body.inputs.items()
        }
        return inputs, _of_rows(body)
    texts = body.texts or []
    _check_rows(len(texts), MAX_TEXTS)
    # Tokens take 100 times the memory of characters.
    check_count("the request", sum(map(len, texts)), "characters", MAX_CHARACTERS)
    return texts, _of_rows(body)


def _of_rows(body: api.ScoreBody | api.PredictBody) -> dict[str, Any]:
    """Return ids and groups as arguments of `Outputs`."""
    groups = {} if body.groups is None else {GROUP: np.array(body.groups, dtype=np.str_)}
    return {"ids": body.ids, "kept": groups}


def _decode_tensors(data: bytes) -> tuple[dict[str, Array], dict[str, Any]]:
    if int.from_bytes(data[:8], "little") > _MAX_HEADER_BYTES:
        raise FileFormatError(
            f"{_BODY} is not a safetensors file, or its header has more than "
            f"{_MAX_HEADER_BYTES:,} bytes."
        )
    return decode_tensors(data, _BODY)


def decode_json(data: bytes, kind: Any) -> Any:
    """Return the content of a JSON body, or raise an error that says what is wrong with it."""
    for mark, most, what in ((b"[", _MAX_LISTS, "lists"), (b",", _MAX_ITEMS, "numbers")):
        # Counting takes a tenth of the time of decoding; a short body needs none.
        if len(data) > most:
            check_count(_BODY, data.count(mark), f"{what} (safetensors may have more)", most)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # A literal beside a number is an enumeration for msgspec.
        fault = str(error).replace("Invalid enum value", "Not a number:") if data else "it is empty"
        hint = _hint(fault, data, kind)
        raise (FileFormatError if hint else WrongBodyError)(
            f"{_BODY} is not valid JSON for this path: {fault}.{hint}"
        ) from error


def _hint(error: str, data: bytes, kind: type[msgspec.Struct]) -> str:
    """Return what to do about some mistakes; "" if an example of a body says it."""
    bodies = {path: entry for path, entry in api.OPERATIONS.items() if api.JSON in entry.body}
    if "unknown field" in error:
        field = error.split("`")[1]
        paths = [path for path in bodies if field in bodies[path].body[api.JSON].__struct_fields__]
        return f" To send {field}, use {paths[0]}." if paths else ""
    if "invalid character" in error and (b"NaN" in data or b"Infinity" in data):
        if kind is api.PredictBody:
            return " JSON has no NaN: send null for a missing value that the model can fill in."
        return (
            ' JSON has no NaN or infinity: leave such rows out, or send "-inf" for a masked label.'
        )
    if "keys must be strings" in error or error.startswith("Expected `str`, got"):
        return ' Names and texts need double quotes, such as "7".'
    return ""


def _matrix(name: str, rows: list[list[Any]]) -> NDArray[np.float64]:
    if len(set(map(len, rows))) != 1:
        fault = _fault(rows, rows) or "got no rows"
        raise InputError(f"{name} must have one or more rows of the same length: {fault}.")
    return np.array(rows, dtype=np.float64)


def _nested(name: str, value: msgspec.Raw, are_numbers: bool) -> Array:
    """Return nested lists of numbers as an array; integers stay integers, and null is NaN."""
    text = bytes(value)
    try:
        cells = msgspec.json.decode(text)
        if isinstance(cells, int | float | str):
            raise InputError(
                f"input {name[:40]!r} must be a list, also for one row: [{text.decode()}]."
            )
        if not are_numbers:  # words, or a column that is not read
            return np.array(cells, dtype=object)
        # NumPy would store every string at the length of the longest.
        if b'"' not in text:
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                array = np.array(cells)
                array = array if array.dtype.kind in "ifub" else np.array(cells, np.float64)
                if array.dtype.kind == "b" or not (b"true" in text or b"false" in text):
                    return array
        fault = _fault(cells, cells) or "a number is too large"
    except msgspec.ValidationError as error:  # such as 1e400
        fault = f"{place_of([int(at) for at in re.findall(r'[0-9]+', str(error))])} is too large"
    except (RecursionError, UnicodeDecodeError):
        fault = "they are nested too deeply, or text that is not UTF-8"
    raise InputError(f"input {name[:40]!r} must be a regular array of numbers: {fault}.")


def _fault(cells: Any, first: Any, *place: int) -> str:
    """Return what in nested lists is no number, or not as long as the first; "" if nothing."""
    if isinstance(cells, list) and isinstance(first, list):
        if len(cells) != len(first):
            return f"{place_of(place)} has {counted(len(cells), 'number')}, expected {len(first):,}"
        return next(filter(None, (_fault(c, first[0], *place, n) for n, c in enumerate(cells))), "")
    is_number = isinstance(cells, int | float | None) and not isinstance(cells, bool)
    if is_number and not isinstance(first, list):
        return ""
    kinds: dict[Any, str] = {bool: "true or false", dict: "an object", list: "a list"}
    kind = f"text, {cells[:40]!r}" if isinstance(cells, str) else kinds.get(type(cells), "no list")
    return f"{place_of(place)} is {kind}"


def place_of(place: Sequence[int]) -> str:
    """Return a position in an array in words."""
    words = zip(("row", "column"), place[:2], strict=False)
    deeper = "".join(f"[{at}]" for at in place[2:])
    return ", ".join(f"{word} {at}" for word, at in words) + deeper or "it"


# --- answers ------------------------------------------------------------------------------------


def verdict_columns(assessment: Assessment) -> dict[str, list[Any]]:
    """Return scores, p-values and verdicts as lists."""
    return {name: column.tolist() for name, column in assessment.columns().items()}


def encode_verdicts(kind: str, assessment: Assessment, further: dict[str, Any]) -> bytes:
    """Return scores, p-values and verdicts in the given format, with further columns."""
    if kind == api.JSON:
        return msgspec.json.encode(verdict_columns(assessment) | further)
    arrays: dict[str, Array] = {"p_value": assessment.p_values, "score": assessment.scores}
    metadata = dict(further)
    if assessment.groups is not None:
        names, arrays["group"] = np.unique(assessment.groups, return_inverse=True)
        metadata["groups"] = names.tolist()
    return encode_tensors(arrays | {"in_distribution": assessment.in_distribution}, metadata)


def encode_predictions(logits: Array, label_names: Sequence[str], columns: dict[str, Any]) -> bytes:
    """Return the columns and, for each label, predictions, probabilities and logits as JSON."""
    numbers: list[list[Any]] = logits.tolist()  # NaN and +inf are encoded as null
    for row, column in np.argwhere(logits == -np.inf).tolist():
        numbers[row][column] = "-inf"
    predictions = {
        "predicted": [[label_names[column] for column in row.nonzero()[0]] for row in logits > 0],
        "probs": label_prob(logits).tolist(),
        "logits": numbers,
    }
    return msgspec.json.encode(columns | predictions)
