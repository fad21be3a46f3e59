"""The ASGI application: what answers each path, who may call it, and what is recorded."""

from __future__ import annotations

import functools
import hmac
import ipaddress
import logging
import time
from asyncio import CancelledError
from dataclasses import replace
from http import HTTPStatus
from importlib import resources
from typing import Any

import msgspec
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from nescio._validation import Array
from nescio.errors import (
    DatasetError,
    FileFormatError,
    InputError,
    MissingInputError,
    NescioError,
    NonFiniteError,
    ParameterError,
)
from nescio.models.inputs import n_rows
from nescio.service import openapi as api
from nescio.service.images import Decoders
from nescio.service.model import Model
from nescio.service.requests import (
    Answer,
    Request,
    TooLargeError,
    WrongBodyError,
    busy,
    check_predictions,
    decode_inputs,
    decode_json,
    decode_outputs,
    doubt_of_few,
    encode_predictions,
    encode_verdicts,
    verdict_columns,
)
from nescio.service.service import Service
from nescio.service.settings import Settings
from nescio.service.traffic import logger

_ANSWERED = (HTTPException, FileFormatError, DatasetError, InputError, ParameterError)
_ROUTINE = frozenset({"/healthz", "/readyz", "/metrics", "/v1/traffic"})  # polled regularly
# What ends a request, a task or the process, and is not the failure of a request.
_ENDING = (ClientDisconnect, CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
_CLIENT_CLOSED = 499  # the client closed the connection before the answer was complete
_LONGEST_EXAMPLE = 2_000  # characters of a body in an error message
_PIECE_BYTES = 262_144  # a large answer waits in memory in pieces, not as a whole
# Of an answer, in JSON: a row of verdicts, and a logit with its probability. The latter takes
# more memory while it is encoded.
_BYTES_PER_VERDICT, _BYTES_PER_VALUE = 13, 100

# What to do about an error of the library, for who sends requests.
_ADVICE: dict[type[Exception], str] = {
    MissingInputError: " Send them too: scores_from of /v1/detector names all that it reads.",
    NonFiniteError: " Leave out rows with missing values (null), or fill these in.",
}
_PAGE_TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html; charset=utf-8"}
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


# --- what answers each path ---------------------------------------------------------------------


@api.Operation(
    "POST",
    "/v1/score",
    {api.JSON: api.Verdicts, api.SAFETENSORS: None},
    query=api.ScoreQuery,
    body={api.JSON: api.ScoreBody, api.SAFETENSORS: None},
)
async def score(service: Service, request: Request, query: api.ScoreQuery) -> Answer:
    """Verdicts on logits.

    Returns a score, a p-value and a verdict for each row of logits.
    """
    engine = service.engine
    kind = request.require_type(api.FORMATS)
    body = await service.limits.read(request)
    # Of safetensors, only the header is decoded.
    n_bytes = len(body) if kind == api.JSON else len(body) // 16
    how = kind, body, query.from_probs, engine.check_logits
    outputs = await service.coding(n_bytes, decode_outputs, *how)
    outputs = engine.prepared(outputs, query.group)
    warned = engine.warned(outputs, doubt_of_few(outputs.logits, query.from_probs))
    # First: rows that cannot be explained are an error, and must not become traffic.
    further = await service.in_thread(engine.explain, outputs) if query.explain else {}
    request.result = result = await service.verdicts(engine, outputs, query.watch)
    kind = api.JSON if query.explain else request.accepted_format()
    n_bytes, further = _BYTES_PER_VERDICT * len(outputs), further | warned
    content = await service.coding(n_bytes, encode_verdicts, kind, result, further)
    if len(content) > _PIECE_BYTES:
        service.limits.hold(request, len(content))
    return Answer(content, kind)


@api.Operation(
    "POST",
    "/v1/predict",
    {api.JSON: api.Predictions},
    query=api.PredictQuery,
    body=dict.fromkeys(api.IMAGES) | {api.JSON: api.PredictBody, api.SAFETENSORS: None},
    errors=(404,),
)
async def predict(service: Service, request: Request, query: api.PredictQuery) -> Answer:
    """Predicted labels and verdicts for an image, texts or the rows of a table.

    Runs the model on an image, on texts, or on inputs or columns by name. Returns the predicted
    labels, the probabilities and the verdicts. A service takes texts if it has a tokenizer:
    model.texts of /v1/detector has the limits.
    """
    engine, model = service.engine, service.engine.model
    if model is None:
        raise HTTPException(404, "this service has no model. Send logits to /v1/score.")
    kind = request.require_type((*api.FORMATS, *(api.IMAGES if model.preprocessing else ())))
    body = await service.limits.read(request)
    run = service.in_thread if kind in api.FORMATS else service.decoding
    inputs, of_rows, truncated = await run(_inputs, model, request, body, service.decoders)
    n_values = check_predictions(n_rows(inputs), engine.n_labels or 1)
    n_bytes = sum(array.nbytes for array in inputs.values())
    service.limits.hold(request, n_bytes + _BYTES_PER_VALUE * n_values)
    outputs = replace(await service.outputs(engine, inputs, request), **of_rows)
    outputs = engine.prepared(outputs, query.group)
    explained = await service.in_thread(engine.explain, outputs) if query.explain else {}
    request.result = result = await service.verdicts(engine, outputs, query.watch)
    columns = truncated | verdict_columns(result) | explained | engine.warned(outputs)
    logits = outputs.logits
    n_bytes = _BYTES_PER_VALUE * check_predictions(*logits.shape)
    names = engine.label_names or tuple(map(str, range(logits.shape[1])))
    return Answer(await service.coding(n_bytes, encode_predictions, logits, names, columns))


@api.Operation("GET", "/v1/detector", {api.JSON: api.DetectorDescription})
async def detector(service: Service, request: Request, query: api.NoQuery) -> Answer:
    """The detector in use.

    Returns the thresholds, labels and guarantee of the detector, and what the model takes.
    """
    return Answer(service.engine.description)


@api.Operation("GET", "/v1/traffic", {api.JSON: api.TrafficReport}, query=api.TrafficQuery)
async def traffic(service: Service, request: Request, query: api.TrafficQuery) -> Answer:
    """Recent traffic.

    Returns the report of the monitor with the share flagged, and charts of recent inputs.
    """
    traffic = service.engine.traffic
    report = await service.in_thread(traffic.report, service.stopping, query.charts)
    return Answer(msgspec.json.encode(report))


@api.Operation(
    "POST",
    "/v1/acknowledge",
    {api.JSON: api.Acknowledged},
    body={api.JSON: api.AcknowledgeBody},
    errors=(409,),
)
async def acknowledge(service: Service, request: Request, query: api.NoQuery) -> Answer:
    """Acknowledge the change that the monitor has found.

    Records it with a note, and starts the monitor again.
    """
    _check_operator(service, request)
    request.require_type((api.JSON,))
    body: api.AcknowledgeBody = decode_json(await service.limits.read(request), api.AcknowledgeBody)
    try:
        record = await service.in_thread(service.acknowledge, body.note)
    except InputError as error:
        raise HTTPException(409, error.reason) from error
    return Answer(msgspec.json.encode(record))


@api.Operation("POST", "/v1/reload", {api.JSON: api.DetectorDescription}, errors=(409,))
async def reload(service: Service, request: Request, query: api.NoQuery) -> Answer:
    """Reload the files.

    Reads the files of the detector and the model again. Requests are served meanwhile.
    """
    _check_operator(service, request)
    try:
        engine = await service.reload()
    except (NescioError, OSError) as error:
        reason = error.reason if isinstance(error, NescioError) else error
        raise HTTPException(409, f"nothing was changed: {reason}") from error
    return Answer(engine.description)


@api.Operation("GET", "/healthz", {api.JSON: api.Status}, public=True)
async def healthz(service: Service, request: Request, query: api.NoQuery) -> Answer:
    """Liveness probe.

    Says that the process is alive.
    """
    return Answer(b'{"status":"ok"}')


@api.Operation("GET", "/readyz", {api.JSON: api.Status}, public=True, errors=(503,))
async def readyz(service: Service, request: Request, query: api.NoQuery) -> Answer:
    """Readiness probe.

    Says whether the service should get requests: not while it is about to stop.
    """
    if service.stopping:
        raise busy("The service is about to stop.")
    return Answer(b'{"status":"ready"}')


@api.Operation("GET", "/metrics", {api.METRICS: str})
async def metrics(service: Service, request: Request, query: api.NoQuery) -> Answer:
    """Metrics for Prometheus.

    Returns all metrics as text.
    """
    return Answer(generate_latest(service.metrics.registry), api.METRICS)


@api.Operation("GET", "/openapi.json", {api.JSON: dict[str, msgspec.Raw]}, public=True)
async def openapi(service: Service, request: Request, query: api.NoQuery) -> Answer:
    """OpenAPI document.

    Returns the description of the API.
    """
    return Answer(service.engine.document)


def _inputs(
    model: Model, request: Request, body: bytes, decoders: Decoders
) -> tuple[dict[str, Array], dict[str, Any], dict[str, Any]]:
    """Return the inputs of the model in a body, ids and groups, and the columns of texts."""
    kind = request.media_type
    if kind in api.IMAGES:
        return model.image_input(body, decoders), {}, {}
    sent, of_rows = decode_inputs(kind, body, model.numbers)
    if isinstance(sent, dict):
        return model.checked(sent), of_rows, {}
    inputs, truncated = model.text_inputs(sent)
    return inputs, of_rows, {"truncated": truncated}


# --- the application ----------------------------------------------------------------------------


def make_app(settings: Settings) -> App:
    """Return the service as an ASGI application.

    Parameters
    ----------
    settings : Settings
        The files of the detector and the model are read immediately. A `NescioError` says what is
        wrong with them.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import nescio as ns
    >>> logits = np.random.default_rng(0).normal(-2, 3, (100, 5))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ns.JointEnergy().calibrate(logits).save(f"{folder}/tagger.nescio")
    ...     app = make_app(Settings(detector=f"{folder}/tagger.nescio"))
    >>> "/v1/score" in app.routes
    True
    """
    return App(Service(settings))


class App:
    """The service as an ASGI application."""

    def __init__(self, service: Service) -> None:
        self.service = service
        # The operation of each path of the API, and each file of the page.
        self.routes: dict[str, api.Operation | Answer] = {**api.OPERATIONS, **page_files()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the life of the application."""
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await receive()
            await self.service.start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.service.stop()
            await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, then count, time and log it."""
        started = time.perf_counter()
        service = self.service
        service.n_accepted += 1
        request = Request(scope, receive)
        status = _CLIENT_CLOSED
        try:
            answer = await self._answer(request)
            await _send(answer, request, send, close=service.stopping)
            status = answer.status
            service.n_answered += 1
        except ClientDisconnect:
            pass  # nobody to answer
        finally:
            service.limits.release(request)
            path = scope["path"] if scope["path"] in self.routes else "other"
            seconds = time.perf_counter() - started
            service.metrics.count(path, status, seconds)
            level = logging.DEBUG if path in _ROUTINE and status == 200 else logging.INFO
            if logger.isEnabledFor(level):
                facts = {"id": request.id, "method": scope["method"], "path": path}
                facts |= {"status": status, "ms": round(seconds * 1e3, 2)}
                if status >= 400 and status != _CLIENT_CLOSED:
                    facts["reason"] = msgspec.json.decode(answer.body)["detail"][:300]
                logger.log(level, "request", extra=facts | request.scored())
        if request.unread:
            await service.limits.discard(request)
            await send({"type": "http.response.body"})

    async def _answer(self, request: Request) -> Answer:
        """Return the answer of the endpoint, or an error."""
        try:
            return await self._endpoint(request)
        except WrongBodyError as error:
            example = self.service.engine.examples.get(request.scope["path"])
            text = msgspec.json.encode(example).decode()
            fits = example is not None and len(text) < _LONGEST_EXAMPLE
            advice = f" Send a body such as {text}." if fits else ""
            return _problem(FileFormatError(error.reason + advice))
        except _ANSWERED as error:
            return _problem(error)
        except _ENDING:
            raise
        except BaseException:  # also a panic in Rust, such as that of a tokenizer
            logger.exception("failed", extra={"id": request.id, "path": request.scope["path"]})
            return _problem(HTTPException(500, "the service failed. Its log has the details."))

    async def _endpoint(self, request: Request) -> Answer:
        """Check who calls, and return the answer of the endpoint."""
        settings = self.service.settings
        method, path = request.scope["method"], request.scope["path"]
        route = self.routes.get(path)
        origin = request.header(b"origin")  # browsers let web pages of others send requests
        if origin and origin.lower().partition("://")[2] != request.header(b"host").lower():
            raise HTTPException(403, f"web pages of {origin[:100]} may not call this service.")
        if settings.token is None:
            if self.service.only_local:
                _check_host(request.header(b"host"))
        elif route is None or (isinstance(route, api.Operation) and not route.public):
            _check_token(request.header(b"authorization"), settings.token)
        if route is None:
            paths = ", ".join(api.OPERATIONS)
            raise HTTPException(404, f"there is no {path[:100]}. The paths are {paths}.")
        posts = isinstance(route, api.Operation) and route.method == "POST"
        allowed = "POST" if posts else "GET, HEAD"
        if method not in allowed.split(", "):
            detail = f"the path {path} takes {allowed}, got {method}."
            raise HTTPException(405, detail, {"Allow": allowed})
        if isinstance(route, Answer):
            return route
        try:
            query = msgspec.convert(request.query(), route.query, strict=False)
        except msgspec.ValidationError as error:
            names = ", ".join(route.query.__struct_fields__) or "none"
            fault = str(error).replace("`bool`", "true or false")
            detail = f"the query of the address is wrong: {fault}. Its parameters: {names}."
            raise HTTPException(422, detail) from error
        answer: Answer = await route.respond(self.service, request, query)
        return answer


# --- who may call -------------------------------------------------------------------------------


def _check_token(header: str, token: str) -> None:
    scheme, _, sent = header.partition(" ")
    same = hmac.compare_digest(sent.strip().encode("latin-1"), token.encode())
    if not same or scheme.lower() != "bearer":
        what = "invalid token" if sent else "this path needs a token"
        detail = f"{what}. Send the header Authorization: Bearer TOKEN."
        raise HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})


def _check_operator(service: Service, request: Request) -> None:
    """Without a token, reject whoever is not on this machine."""
    forwarded = {b"forwarded", b"x-forwarded-for"} & request.headers.keys()
    client = request.scope.get("client")
    local = client is not None and client[0] in ("127.0.0.1", "::1")
    if service.settings.token is None and (forwarded or not local):
        raise HTTPException(403, "without a token, only its own machine may ask this of a service.")


@functools.lru_cache(maxsize=64)
def _check_host(header: str) -> None:
    """Reject other host names: with DNS rebinding, a foreign page would have our origin."""
    host = header.lower()
    name, separator, port = host.rpartition(":")
    name = name if separator and port.isdecimal() else host
    if host and name != "localhost" and not is_loopback(name.strip("[]")):
        raise HTTPException(
            403,
            f"the host name {host[:100]!r} is not accepted. Without a token, call the service as "
            "localhost or 127.0.0.1.",
        )


def is_loopback(address: str) -> bool:
    """Whether only this machine itself can reach the address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


# --- answers ------------------------------------------------------------------------------------


async def _send(answer: Answer, request: Request, send: Send, *, close: bool) -> None:
    body = answer.body
    headers = [
        (b"content-type", answer.media_type.encode("latin-1")),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request.id.encode()),
        (b"x-content-type-options", b"nosniff"),
    ]
    headers += [(k.lower().encode(), v.encode("latin-1")) for k, v in answer.headers]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    if request.scope["method"] == "HEAD":
        body = b""
    last = max(0, len(body) - 1) // _PIECE_BYTES * _PIECE_BYTES
    for start in range(0, last, _PIECE_BYTES):
        piece = body[start : start + _PIECE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    # If some of the request is unread, the answer ends after it: the end may close the connection.
    await send({"type": "http.response.body", "body": body[last:], "more_body": request.unread})


def _problem(error: HTTPException | NescioError) -> Answer:
    """Return the answer for an error, in the format of RFC 9457."""
    headers: Any = {}
    if isinstance(error, HTTPException):
        status, detail, headers = error.status_code, error.detail, error.headers or {}
    else:
        status = 413 if isinstance(error, TooLargeError) else 422
        status = 400 if isinstance(error, FileFormatError) else status
        detail = error.reason + _ADVICE.get(type(error), "")
    if detail.partition(" ")[0].isalpha():  # not the name of a parameter or a file
        detail = detail[:1].upper() + detail[1:]
    body = msgspec.json.encode(api.Problem(HTTPStatus(status).phrase, status, detail))
    return Answer(body, api.PROBLEM, status, tuple(headers.items()))


@functools.cache
def page_files() -> dict[str, Answer]:
    """Return the files of the page by path; three style sheets are those of all pages."""
    files = list((resources.files("nescio.service") / "page").iterdir())
    shared = ("palette.css", "charts.css", "base.css")
    files += [resources.files("nescio._charts") / name for name in shared]
    return {
        "/" if file.name == "index.html" else f"/{file.name}": Answer(
            file.read_bytes(),
            _PAGE_TYPES[file.name.rpartition(".")[2]],
            headers=tuple(_PAGE_HEADERS.items()),
        )
        for file in files
    }
