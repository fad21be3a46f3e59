"""The OpenAPI description of the service. The schemas are written by hand."""

from __future__ import annotations

from typing import Any

from nescio._version import __version__
from nescio.service.bodies import IMAGES, JSON, SAFETENSORS
from nescio.service.charts import WIDTHS
from nescio.service.errors import PROBLEM, phrase

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_TEXT = {"schema": {"type": "string"}}
_MATRIX = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "array", "minItems": 1, "items": {"type": "number"}},
}
_NAMES = {"type": "array", "items": {"type": "string"}}
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_NUMBERS_OR_NULL = {"type": "array", "items": {"type": ["number", "null"]}}
_WIDTH = {"type": "integer", "minimum": WIDTHS[0], "maximum": WIDTHS[1]}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": required | optional}


_COLUMNS = {
    "score": {
        **_NUMBERS_OR_NULL,
        "description": "Higher means more in-distribution; null for a row without a score.",
    },
    "p_value": _NUMBERS,
    "in_distribution": {"type": "array", "items": {"type": "boolean"}},
}
_OPTIONAL_COLUMNS = {
    "id": _NAMES,
    "group": {
        **_NAMES,
        "description": "The number of predicted labels, if the detector was calibrated by it.",
    },
    "explanation": {"type": "array", "items": {"type": "object"}},
}
_PROBLEM = _object(
    {
        "title": {"type": "string", "description": "The reason phrase of the status."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong and what to do."},
    }
)
_MEANINGS = {
    400: "The body cannot be read.",
    401: "The token is missing or invalid.",
    403: "The origin, the host name or the address of the caller is not allowed.",
    404: "The service has no model.",
    408: "The body took too long to arrive.",
    409: "The new files cannot be used. The old ones stay in use.",
    413: "The body is too large, or it has too many rows.",
    415: "The format of the body is not supported.",
    422: "The request can be read but not used: wrong parameters or labels, NaN, a damaged image.",
    503: "The service is busy or about to stop. Try again after Retry-After seconds.",
}
_EXPLAIN = {
    "name": "explain",
    "in": "query",
    "description": "Add each label's share of the score, for at most 100 rows.",
    "schema": {"type": "boolean", "default": False},
}


def _operation(
    summary: str,
    description: str,
    answer: dict[str, Any],
    *errors: int,
    body: dict[str, Any] | None = None,
    parameters: tuple[dict[str, Any], ...] = (),
) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "OK.", "content": answer}}
    for status in errors:
        responses[str(status)] = {
            "description": f"{phrase(status)}. {_MEANINGS[status]}",
            "content": {PROBLEM: {"schema": _PROBLEM}},
        }
    operation: dict[str, Any] = {
        "summary": summary,
        "description": description,
        "responses": responses,
    }
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _query(name: str, description: str, schema: dict[str, Any], required: bool) -> dict[str, Any]:
    return {
        "name": name, "in": "query", "description": description, "schema": schema,
        "required": required,
    }  # fmt: skip


_SCORE_BODY = {
    **_object(
        {"logits": _MATRIX},
        features={"anyOf": [_MATRIX, {"type": "null"}]},
        ids={"anyOf": [_NAMES, {"type": "null"}]},
        label_names={"anyOf": [_NAMES, {"type": "null"}]},
        arrays={
            "anyOf": [{"type": "object", "additionalProperties": _MATRIX}, {"type": "null"}],
            "description": "Further arrays by name, if the detector reads them.",
        },
    ),
    "additionalProperties": False,
}
_SCORE_EXAMPLE = {"logits": [[2.1, -3.0, 0.4], [-5.2, -6.1, -4.8]], "ids": ["a.jpg", "b.jpg"]}
_SCORE = _operation(
    "Verdicts on logits",
    "Returns a score, a p-value and a verdict for each row of logits.",
    {JSON: {"schema": _object(_COLUMNS, **_OPTIONAL_COLUMNS)}, SAFETENSORS: _BINARY},
    400, 401, 403, 408, 413, 415, 422, 503,
    body={JSON: {"schema": _SCORE_BODY, "example": _SCORE_EXAMPLE}, SAFETENSORS: _BINARY},
    parameters=(_EXPLAIN,),
)  # fmt: skip

_PREDICT_BODY = {
    **_object({"inputs": {"type": "object", "additionalProperties": True}}),
    "additionalProperties": False,
}
_PREDICT_ANSWER = _object(
    {
        **_COLUMNS,
        "predicted": {"type": "array", "items": _NAMES},
        "probs": {"type": "array", "items": _NUMBERS},
        "logits": {"type": "array", "items": _NUMBERS_OR_NULL},
    },
    **_OPTIONAL_COLUMNS,
)
_PREDICT = _operation(
    "Predicted labels and verdict for an image",
    "Runs the model on an image, or on its inputs by name, and returns the predicted labels, the "
    "probabilities and the verdicts.",
    {JSON: {"schema": _PREDICT_ANSWER}},
    400, 401, 403, 404, 408, 413, 415, 422, 503,
    body={
        **dict.fromkeys(IMAGES, _BINARY),
        JSON: {
            "schema": _PREDICT_BODY,
            "example": {"inputs": {"input_ids": [[101, 2054, 102]]}},
        },
        SAFETENSORS: _BINARY,
    },
    parameters=(_EXPLAIN,),
)  # fmt: skip

_ANY_OBJECT = {JSON: {"schema": {"type": "object"}}}
_STATUS = {JSON: {"schema": _object({"status": {"type": "string"}})}}
_DETECTOR = _operation(
    "The detector in use",
    "Returns the thresholds, labels, guarantee and calibration histogram of the detector, and what "
    "the model takes.",
    _ANY_OBJECT, 401, 403,
)  # fmt: skip
_HISTOGRAM = _operation(
    "A chart of one score",
    "Draws a score and the threshold on the histogram of the calibration scores.",
    {"image/svg+xml": _TEXT}, 401, 403, 422,
    parameters=(
        _query("score", "The score.", {"type": "number"}, True) | {"example": 4.0},
        _query("group", "The group, if calibrated by group.", {"type": "string"}, False),
        _query("width", "The width in pixels.", _WIDTH, False),
    ),
)  # fmt: skip
_TRAFFIC = _operation(
    "Recent traffic",
    "Returns recent scores, the share flagged with its expected band, and the monitor's report.",
    _ANY_OBJECT, 401, 403, 422,
    parameters=(_query("charts", "Add charts as SVG of this width in pixels.", _WIDTH, False),),
)  # fmt: skip
_RELOAD = _operation(
    "Reload the files",
    "Reads the files of the detector and the model again. Requests are served meanwhile.",
    _ANY_OBJECT, 401, 403, 409,
)  # fmt: skip
_HEALTH = _operation("Liveness probe", "Says that the process is alive.", _STATUS, 403)
_READY = _operation(
    "Readiness probe",
    "Says whether the service should get requests: not while it is about to stop.",
    _STATUS, 403, 503,
)  # fmt: skip
_METRICS = _operation(
    "Metrics for Prometheus", "Returns all metrics as text.", {"text/plain": _TEXT}, 401, 403
)


def document() -> dict[str, Any]:
    """Return the whole description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nescio",
            "summary": "Which inputs should a multi-label classifier not be trusted on?",
            "version": __version__,
        },
        "paths": {
            "/v1/score": {"post": _SCORE},
            "/v1/predict": {"post": _PREDICT},
            "/v1/detector": {"get": _DETECTOR},
            "/v1/histogram": {"get": _HISTOGRAM},
            "/v1/traffic": {"get": _TRAFFIC},
            "/v1/reload": {"post": _RELOAD},
            "/healthz": {"get": _HEALTH},
            "/readyz": {"get": _READY},
            "/metrics": {"get": _METRICS},
        },
    }
