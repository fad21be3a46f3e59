"""The routes of the service. Each reads a request, calls the service, and writes an answer."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from nescio._validation import Array, looks_like_probabilities
from nescio.errors import DatasetError, FileFormatError, InputError, NescioError, ParameterError
from nescio.explain import PartsReason, Reason
from nescio.outputs import Outputs
from nescio.runners.batches import n_rows
from nescio.scores import label_prob
from nescio.service import charts, openapi
from nescio.service.access import AccessCheck, check_reload
from nescio.service.bodies import (
    FORMATS,
    IMAGES,
    JSON,
    SAFETENSORS,
    check_rows,
    columns_of,
    decode_inputs,
    decode_outputs,
    encode_assessment,
    json_numbers,
    json_pieces,
    media_type,
)
from nescio.service.decoders import Decoding
from nescio.service.engine import BatchResult, Engine
from nescio.service.errors import TooLargeError, problem
from nescio.service.forms import FORM, form_files
from nescio.service.model import Model
from nescio.service.pages import page, page_files
from nescio.service.recording import RequestRecorder
from nescio.service.service import Service
from nescio.service.settings import Settings

_ENOUGH_TO_WARN = 5  # fewer numbers lie within [0, 1] by chance
_ANSWERED = (HTTPException, FileFormatError, DatasetError, InputError, ParameterError)
# Smaller bodies are decoded without a thread, which would take longer than decoding them:
# "benchmarks/service.py clients" gets 15 to 40 % fewer answers per second then. Of safetensors,
# only the header is decoded.
_QUICK_BYTES = {JSON: 65_536, SAFETENSORS: 1_048_576}
# The same for answers: rows of verdicts, and logits.
_QUICK_ROWS = 5_000
_QUICK_VALUES = 20_000
_PIECE_BYTES = 262_144
_MAX_VALUES = 1_000_000  # rows times labels of an answer; about 40 MB of JSON
_BYTES_PER_VALUE = 8  # a logit and a probability, in single precision
_EXPLAINED_ROWS = 100
_EXPLAINED_LABELS = 20


def make_app(settings: Settings) -> Starlette:
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
    >>> "/v1/score" in [route.path for route in app.routes]
    True
    """
    service = Service(settings)
    routes = [*_routes(Endpoints(service)), *(Route(path, page) for path in page_files())]
    paths = frozenset(route.path for route in routes)
    middleware = [Middleware(RequestRecorder, service=service, paths=paths)]
    if settings.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=["retry-after", "x-nescio-warning", "x-request-id"],
        )
        middleware.append(cors)
    middleware.append(Middleware(AccessCheck, service=service))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers=dict.fromkeys(_ANSWERED, _error),
        lifespan=lifespan,
    )
    app.state.service = service
    return app


def _routes(endpoints: Endpoints) -> list[Route]:
    return [
        Route("/v1/score", endpoints.score, methods=["POST"]),
        Route("/v1/predict", endpoints.predict, methods=["POST"]),
        Route("/v1/detector", endpoints.detector),
        Route("/v1/histogram", endpoints.histogram),
        Route("/v1/traffic", endpoints.traffic),
        Route("/v1/reload", endpoints.reload, methods=["POST"]),
        Route("/healthz", endpoints.healthz),
        Route("/readyz", endpoints.readyz),
        Route("/metrics", endpoints.metrics),
        Route("/openapi.json", endpoints.openapi),
    ]


class Endpoints:
    """One method per route."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def score(self, request: Request) -> Response:
        """Return scores, p-values and verdicts for logits."""
        service, current = self._service, self._service.current
        kind, explain = _content_type(request, FORMATS), _flag(request, "explain")
        max_rows = service.settings.max_rows
        async with service.room.body(request, kind) as body:
            if len(body) <= _QUICK_BYTES[kind]:
                outputs = decode_outputs(kind, body, max_rows)
            else:
                outputs = await service.in_thread(decode_outputs, kind, body, max_rows)
            result = await service.score(current, outputs)
            _note(request, result, body)
            headers = _warning(outputs)
            if explain:
                columns = columns_of(result.assessment)
                columns |= await service.in_thread(_explained, current.engine, result)
                return _json(columns, headers)
            answer = _accepted(request, kind)
            if len(outputs) <= _QUICK_ROWS:
                content = encode_assessment(answer, result.assessment)
            else:
                content = await service.in_thread(encode_assessment, answer, result.assessment)
            if len(content) <= _PIECE_BYTES:
                return Response(content, headers=headers, media_type=answer)
            service.room.hold(request.scope, len(content))
            headers["content-length"] = str(len(content))
            return StreamingResponse(_cut(content), headers=headers, media_type=answer)

    async def predict(self, request: Request) -> Response:
        """Return predicted labels, probabilities and verdicts for images or other inputs."""
        service, current = self._service, self._service.current
        model = current.engine.model
        if model is None:
            raise HTTPException(404, "this service has no model. Start it with --model.")
        kind = _content_type(request, (*IMAGES, FORM, JSON, SAFETENSORS))
        explain = _flag(request, "explain")
        async with service.room.body(request, kind) as body:
            run = service.in_thread if kind in FORMATS else service.decoding
            decoding = Decoding(service.decoders, service.settings.max_pixels)
            header = request.headers["content-type"]
            max_rows = service.settings.max_rows
            inputs, columns = await run(_inputs, model, header, body, decoding, max_rows)
            n_values = _answer_size(n_rows(inputs), current.engine.n_labels or 1, max_rows)
            n_bytes = sum(array.nbytes for array in inputs.values())
            service.room.hold(request.scope, n_bytes + _BYTES_PER_VALUE * n_values)
            result = await service.predict(current, model, inputs)
            _note(request, result, body)
            columns |= columns_of(result.assessment)
            if explain:
                columns |= await service.in_thread(_explained, current.engine, result)
            n_values = _answer_size(len(result.outputs), result.outputs.n_labels, max_rows)
            n_labels, headers = result.outputs.n_labels, _warning(result.outputs)
            pieces = json_pieces(
                columns,
                _predicted(current.engine, result),
                len(result.outputs),
                max(1, _QUICK_VALUES // n_labels),
            )
            if n_values <= _QUICK_VALUES:
                return Response(b"".join(pieces), headers=headers, media_type=JSON)
            return StreamingResponse(_streamed(service, pieces), headers=headers, media_type=JSON)

    async def detector(self, request: Request) -> Response:
        """Describe the detector and the model."""
        return _json(self._service.current.engine.describe())

    async def histogram(self, request: Request) -> Response:
        """Draw one score among the scores of the calibration data."""
        engine = self._service.current.engine
        score = _number(request, "score", -math.inf, math.inf)
        width = _number(request, "width", *charts.WIDTHS, default=charts.DEFAULT_WIDTH)
        names = list(engine.calibration.thresholds)
        group = request.query_params.get("group", "all")
        if group not in names:
            raise HTTPException(
                422, f"group must be one of {', '.join(names)}, got {group[:40]!r}."
            )
        return Response(
            charts.score_chart(engine, score, group, int(width)), media_type="image/svg+xml"
        )

    async def traffic(self, request: Request) -> Response:
        """Return recent scores, the share flagged, and the report of the monitor."""
        current = self._service.current
        snapshot = current.traffic.snapshot() | {"stopping": self._service.stopping}
        if "charts" in request.query_params:
            width = int(_number(request, "charts", *charts.WIDTHS))
            snapshot["charts"] = charts.traffic_charts(current.engine, snapshot, width)
        return _json(snapshot)

    async def reload(self, request: Request) -> Response:
        """Read the files of the detector and the model again."""
        check_reload(request, self._service.settings.token)
        try:
            engine = await self._service.reload()
        except (NescioError, OSError) as error:
            raise HTTPException(409, f"nothing was changed: {error}") from error
        return _json(engine.describe())

    async def healthz(self, request: Request) -> Response:
        """Say that the process is alive."""
        return _json({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """Say whether the service should get requests."""
        if self._service.stopping:
            raise HTTPException(503, "the service is about to stop.", {"Retry-After": "1"})
        return _json({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus."""
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI description."""
        return _json(openapi.document())


# --- requests ---------------------------------------------------------------------------------


def _content_type(request: Request, kinds: tuple[str, ...]) -> str:
    kind = media_type(request.headers.get("content-type", ""))
    if kind not in kinds:
        given = repr(kind[:60]) if kind else "none"
        raise HTTPException(
            415, f"the header Content-Type must be one of {', '.join(sorted(kinds))}; got {given}."
        )
    return kind


def _accepted(request: Request, kind: str) -> str:
    """Return the format of the answer: the first one that Accept names, or that of the request."""
    named = map(media_type, request.headers.get("accept", "").split(","))
    return next((name for name in named if name in FORMATS), kind)


def _flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise HTTPException(422, f"{name} must be true or false, got {text[:40]!r}.")
    return text == "true"


def _number(
    request: Request, name: str, low: float, high: float, default: float = math.nan
) -> float:
    text = request.query_params.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        given = "none" if text is None else repr(text[:40])
        limits = "" if math.isinf(low) else f" from {low:g} to {high:g}"
        raise HTTPException(422, f"{name} must be a number{limits}, got {given}.")
    return value


def _note(request: Request, result: BatchResult, body: bytes) -> None:
    """Add to the log what was scored."""
    request.scope["facts"].update(
        rows=len(result.outputs),
        flagged=int(np.count_nonzero(~result.assessment.in_distribution)),
        bytes=len(body),
    )


def _inputs(
    model: Model, content_type: str, body: bytes, decoding: Decoding, max_rows: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the inputs of the model in a body, and columns for the answer.

    Of a form, these are the names of its files; of texts, which of them were cut off.
    """
    kind = media_type(content_type)
    if kind in IMAGES:
        return model.image_input(body, decoding), {}
    if kind != FORM:
        given = decode_inputs(kind, body, max_rows)
        return model.text_inputs(given) if isinstance(given, list) else (model.checked(given), {})
    files = form_files(content_type, body)
    rows = []
    for file in files:
        try:
            rows.append(model.image_input(file.content, decoding))
        except DatasetError as error:
            raise DatasetError(f"{file.name}: {error}") from error
    inputs = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    return model.checked(inputs), {"id": [file.name for file in files]}


# --- answers ----------------------------------------------------------------------------------


def _json(value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), headers=headers, media_type=JSON)


async def _error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        status = 413 if isinstance(error, TooLargeError) else 422
        status = 400 if isinstance(error, FileFormatError) else status
        error = HTTPException(status, str(error))
    return problem(error)


def _warning(outputs: Outputs) -> dict[str, str]:
    if not looks_like_probabilities(outputs.logits, at_least=_ENOUGH_TO_WARN):
        return {}
    return {"x-nescio-warning": "all values lie within [0, 1]: are these probabilities?"}


def _predicted(engine: Engine, result: BatchResult) -> dict[str, Callable[[slice], Any]]:
    """Return the columns with something for each label, as functions of the rows."""
    logits = result.outputs.logits
    names = engine.label_names or tuple(map(str, range(logits.shape[1])))
    return {
        "predicted": lambda rows: [
            [names[at] for at in row.nonzero()[0]] for row in logits[rows] > 0
        ],
        "probs": lambda rows: label_prob(logits[rows]).tolist(),
        "logits": lambda rows: json_numbers(logits[rows]),
    }


def _answer_size(n_rows: int, n_labels: int, max_rows: int) -> int:
    """Return rows times labels, or raise an error if that is too much for one answer."""
    check_rows(n_rows, max_rows)
    if n_rows * n_labels > _MAX_VALUES and n_rows > 1:
        raise TooLargeError(
            f"an answer may have {_MAX_VALUES:,} logits, that is {_MAX_VALUES // n_labels:,} rows "
            f"of {n_labels:,} labels; got {n_rows:,} rows. Send them in several requests.",
        )
    return n_rows * n_labels


async def _cut(content: bytes) -> AsyncIterator[bytes]:
    """Give an answer in pieces: as a whole, it would wait in memory until the client reads it."""
    for start in range(0, len(content), _PIECE_BYTES):
        yield content[start : start + _PIECE_BYTES]


async def _streamed(service: Service, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Give the pieces of an answer, each made when the one before it was sent."""
    while piece := await service.in_thread(next, pieces, b""):
        yield piece


def _explained(engine: Engine, result: BatchResult) -> dict[str, Any]:
    """Return the reason for each verdict, with the labels that matter most."""
    if len(result.outputs) > _EXPLAINED_ROWS:
        raise HTTPException(413, f"at most {_EXPLAINED_ROWS} rows can be explained in one request.")
    return {"explanation": [_reason(reason) for reason in engine.explain(result.outputs)]}


def _reason(reason: Reason | PartsReason) -> dict[str, Any]:
    by_label = reason.by_label()
    labels = () if by_label is None else by_label.most_telling(_EXPLAINED_LABELS)
    found = {
        "term": "" if by_label is None else by_label.term,
        "summary": reason.summary(),
        "labels": [label.as_dict() for label in labels],
    }
    if isinstance(reason, PartsReason):
        found["parts"] = [part.as_dict() | {"reason": None} for part in reason.parts]
    return found
