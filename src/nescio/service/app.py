"""The routes: each reads a request, asks the service, and writes an answer."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from nescio._validation import looks_like_probabilities
from nescio._version import __version__
from nescio.errors import InputError, NescioError
from nescio.outputs import Outputs
from nescio.scores import label_prob
from nescio.service import openapi
from nescio.service.bodies import (
    FORMATS,
    IMAGES,
    JSON,
    SAFETENSORS,
    columns_of,
    decode_inputs,
    decode_outputs,
    encode_assessment,
    encode_json,
    is_light,
    media_type,
)
from nescio.service.calls import Call, Endpoint, Reply
from nescio.service.engine import Engine, Scored
from nescio.service.errors import FAILED, RefusedError
from nescio.service.guard import SCRIPTS, Guard
from nescio.service.model import Model
from nescio.service.service import Service
from nescio.service.settings import Settings

_ENOUGH_TO_WARN = 5  # numbers within [0, 1]; that they are not probabilities would be a chance
_EXPLAINED_ROWS = 100
_EXPLAINED_LABELS = 20
_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in SCRIPTS},
}
_SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_EXPLAIN = Annotated[
    bool,
    Query(description=f"Each label's part in the score, for at most {_EXPLAINED_ROWS} rows."),
]


def make_app(settings: Settings) -> Guard:
    """The service as an ASGI application.

    Parameters
    ----------
    settings : Settings
        The detector's file is read now: what is wrong with it is raised here.
    """
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="nescio",
        summary="Which inputs should a multi-label classifier not be trusted on?",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=["retry-after", "x-nescio-warning", "x-request-id"],
        )
    app.add_exception_handler(RequestValidationError, _refused_query)
    app.add_exception_handler(HTTPException, _refused_route)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(Exception, _failed)  # the guard logs it
    score = _add_scoring(app, service)
    _add_state(app, service)
    _add_page(app)
    paths = frozenset(route.path for route in app.routes if hasattr(route, "path"))
    guard = Guard(app, service, paths, {} if settings.cors_origins else {"/v1/score": score})
    app.state.guard = guard
    return guard


def _add_scoring(app: FastAPI, service: Service) -> Endpoint:
    async def scored(call: Call, explain: bool = False) -> Reply:
        kind = _known(call, FORMATS)
        with service.room.enter() as place:
            body = await service.body(call, kind, place)
            current, rows = service.current, service.settings.max_rows
            outputs = (
                decode_outputs(kind, body, rows)
                if is_light(kind, body)
                else await service.aside(lambda: decode_outputs(kind, body, rows))
            )
            scored = await _answered(service.score(current, outputs))
            _note(call, scored, body)
            headers = _warned(outputs)
            if explain:
                explained = _explained(current.engine, scored)
                return Reply(encode_json(columns_of(scored.assessment) | explained), JSON, headers)
            answer = _accepted(call, kind)
            return Reply(encode_assessment(answer, scored.assessment), answer, headers)

    @app.post("/v1/score", **openapi.SCORE)
    async def score(request: Request, explain: _EXPLAIN = False) -> Response:
        """Scores, p-values and verdicts for a model's logits, a row an input."""
        reply = await scored(request.state.call, explain)
        return Response(reply.body, 200, dict(reply.headers), reply.media_type)

    @app.post("/v1/predict", **openapi.PREDICT)
    async def predict(request: Request, explain: _EXPLAIN = False) -> Response:
        """Labels, probabilities and verdict for an image, or for the model's inputs by name."""
        call: Call = request.state.call
        kind = _known(call, (*IMAGES, JSON, SAFETENSORS))
        settings = service.settings
        _require_model(service.current.engine)
        with service.room.enter() as place:
            body = await service.body(call, kind, place)
            current = service.current
            model = _require_model(current.engine)
            if kind in IMAGES:
                inputs = await service.aside(lambda: model.image_input(body, settings.max_pixels))
            else:
                inputs = await service.aside(
                    lambda: model.checked(decode_inputs(kind, body), settings.max_rows)
                )
            scored = await _answered(service.predict(current, inputs))
            _note(call, scored, body)
            explained = _explained(current.engine, scored) if explain else {}
            answer = encode_json(_predicted(current.engine, scored) | explained)
            return Response(answer, 200, _warned(scored.outputs), JSON)

    return scored


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/v1/detector", **openapi.DETECTOR)
    async def detector() -> Response:
        """The detector: its thresholds, labels, guarantee and calibration histogram."""
        return _json(service.current.engine.describe())

    @app.get("/v1/traffic", **openapi.TRAFFIC)
    async def traffic() -> Response:
        """Recent scores, the share flagged with its expected band, and the monitor's report."""
        snapshot = service.current.traffic.snapshot()
        return _json(snapshot | {"stopping": app.state.guard.draining})

    @app.post("/v1/reload", **openapi.RELOAD)
    async def reload(request: Request) -> Response:
        """Read the detector's and the model's files again; requests go on meanwhile."""
        if service.settings.token is None and not _is_local(request):
            raise RefusedError(403, "without a token, only a caller on this machine may reload.")
        try:
            engine = await service.reload()
        except (NescioError, OSError) as error:
            raise RefusedError(409, f"nothing was changed: {error}") from error
        return _json(engine.describe())

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", **openapi.HEALTH)
    async def healthz() -> Response:
        """Whether the process lives."""
        return _json({"status": "ok"})

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", **openapi.READY)
    async def readyz() -> Response:
        """Whether to send requests here: not while it is about to stop."""
        if app.state.guard.draining:
            raise RefusedError(503, "the service is about to stop.", {"Retry-After": "1"})
        return _json({"status": "ready"})

    @app.get("/metrics", **openapi.METRICS)
    async def metrics() -> Response:
        """For Prometheus."""
        service.watch()
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI) -> None:
    for path, (name, kind) in _PAGE.items():
        content = (resources.files("nescio.service") / "page" / name).read_bytes()
        answer = functools.partial(_page_file, content, kind)
        app.add_api_route(path, answer, methods=["GET", "HEAD"], include_in_schema=False)


async def _page_file(content: bytes, kind: str) -> Response:
    return Response(content, headers=dict(_SECURITY), media_type=kind)


# --- requests ---------------------------------------------------------------------------------


def _known(call: Call, kinds: tuple[str, ...]) -> str:
    kind = media_type(call.header("content-type"))
    if kind not in kinds:
        came = f"got {kind[:60]!r}" if kind else "got none"
        raise RefusedError(
            415, f"the header Content-Type must be one of {', '.join(sorted(kinds))}; {came}."
        )
    return kind


def _accepted(call: Call, kind: str) -> str:
    """The format of the answer: the first one accepted by name, or that of the request."""
    asked = map(media_type, call.header("accept").split(","))
    return next((name for name in asked if name in FORMATS), kind)


def _note(call: Call, scored: Scored, body: bytes) -> None:
    """What the log says of a request beside its path and status."""
    call.facts = {
        "rows": len(scored.outputs),
        "flagged": int(np.count_nonzero(~scored.assessment.in_distribution)),
        "bytes": len(body),
    }


def _is_local(request: Request) -> bool:
    """Whether the caller is on this machine itself, not behind a proxy that is."""
    forwarded = {"forwarded", "x-forwarded-for"} & set(request.headers)
    here = request.client is not None and request.client.host in ("127.0.0.1", "::1")
    return here and not forwarded


def _require_model(engine: Engine) -> Model:
    if engine.model is None:
        raise RefusedError(404, "there is no model here: start the service with --model.")
    return engine.model


async def _answered(work: Any) -> Scored:
    try:
        scored: Scored = await work
    except InputError as error:
        raise RefusedError(422, str(error)) from error
    return scored


# --- answers ----------------------------------------------------------------------------------


def _json(value: Any) -> Response:
    return Response(encode_json(value), media_type=JSON)


def _warned(outputs: Outputs) -> dict[str, str]:
    if not looks_like_probabilities(outputs.logits, at_least=_ENOUGH_TO_WARN):
        return {}
    return {"x-nescio-warning": "all values lie within [0, 1]: are these probabilities?"}


def _predicted(engine: Engine, scored: Scored) -> dict[str, Any]:
    logits = scored.outputs.logits
    names = engine.label_names or tuple(map(str, range(logits.shape[1])))
    return columns_of(scored.assessment) | {
        "labels": [[names[at] for at in row.nonzero()[0]] for row in logits > 0],
        "probs": label_prob(logits).tolist(),
        "logits": logits.tolist(),
    }


def _explained(engine: Engine, scored: Scored) -> dict[str, Any]:
    """For each row, what the verdict rests on and the labels that say most."""
    if len(scored.outputs) > _EXPLAINED_ROWS:
        raise RefusedError(413, f"only {_EXPLAINED_ROWS} rows can be explained in one request.")
    try:
        explanation = engine.explain(scored.outputs)
    except NescioError as error:
        raise RefusedError(422, str(error)) from error
    return {
        "explanation": [
            {
                "term": reason.term,
                "summary": reason.summary(),
                "labels": [label.as_dict() for label in reason.most_telling(_EXPLAINED_LABELS)],
            }
            for reason in explanation
        ]
    }


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, RefusedError):
        raise error
    return Response(encode_json({"detail": error.detail}), error.status, error.headers, JSON)


async def _failed(request: Request, error: Exception) -> Response:
    return Response(encode_json({"detail": FAILED}), 500, media_type=JSON)


async def _refused_query(request: Request, error: Exception) -> Response:
    first: Any = error.errors()[0] if isinstance(error, RequestValidationError) else {}
    where = ".".join(map(str, first.get("loc", ())))
    return Response(encode_json({"detail": f"{where}: {first.get('msg')}."}), 422, media_type=JSON)


async def _refused_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    detail = {404: "there is nothing here; see /docs.", 405: "not with this method; see /docs."}
    text = detail.get(status, str(getattr(error, "detail", error)))
    return Response(encode_json({"detail": text}), status, headers, JSON)
