"""What the OpenAPI description says of each route, since bodies bypass FastAPI's own models."""

from __future__ import annotations

from typing import Any

from starlette.responses import PlainTextResponse

from nescio.service.bodies import ARROW, IMAGES, JSON, SAFETENSORS

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_MATRIX = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "array", "minItems": 1, "items": {"type": "number"}},
}
_NAMES = {"type": "array", "items": {"type": "string"}}
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_NUMBERS_OR_NULL = {"type": "array", "items": {"type": ["number", "null"]}}  # null is -inf
_PROBLEM = {
    "type": "object",
    "required": ["detail"],
    "properties": {"detail": {"type": "string", "description": "What is wrong and what to do."}},
}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": required | optional,
    }


_COLUMNS = {
    "score": {
        "type": "array",
        "items": {"type": ["number", "null"]},
        "description": "Higher means more in-distribution; null for a row that has no score.",
    },
    "p_value": _NUMBERS,
    "in_distribution": {"type": "array", "items": {"type": "boolean"}},
}
_MORE_COLUMNS = {
    "id": _NAMES,
    "group": {**_NAMES, "description": "How many labels are predicted, if calibrated by that."},
    "explanation": {"type": "array", "items": {"type": "object"}},
}
_REFUSALS = {
    400: "The body cannot be read.",
    401: "The token is missing or wrong.",
    403: "Not from this origin or address.",
    404: "There is no such thing here.",
    408: "The body took too long.",
    409: "The new files cannot be used; the old ones stay.",
    413: "Too large, or too many rows.",
    415: "Not a format that is taken.",
    422: "Read, and cannot be used: wrong labels, NaN, a damaged image.",
    503: "Busy, or about to stop: come back after Retry-After seconds.",
}


def _route(
    summary: str, answer: dict[str, Any], *refusals: int, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of a route."""
    responses: dict[int | str, dict[str, Any]] = {200: {"description": "Fine.", "content": answer}}
    for status in refusals:
        responses[status] = {
            "description": _REFUSALS[status],
            "content": {JSON: {"schema": _PROBLEM}},
        }
    extra = {} if body is None else {"requestBody": {"required": True, "content": body}}
    return {"summary": summary, "responses": responses, "openapi_extra": extra}


_SCORE_EXAMPLE = {"logits": [[2.1, -3.0, 0.4], [-5.2, -6.1, -4.8]], "ids": ["a.jpg", "b.jpg"]}

SCORE = _route(
    "Verdicts on logits",
    {
        JSON: {"schema": _object(_COLUMNS, **_MORE_COLUMNS)},
        SAFETENSORS: _BINARY,
        ARROW: _BINARY,
    },
    400, 401, 403, 408, 413, 415, 422, 503,
    body={
        JSON: {
            "schema": {
                **_object(
                    {"logits": _MATRIX},
                    features={"anyOf": [_MATRIX, {"type": "null"}]},
                    ids={"anyOf": [_NAMES, {"type": "null"}]},
                    label_names={"anyOf": [_NAMES, {"type": "null"}]},
                ),
                "additionalProperties": False,
            },
            "example": _SCORE_EXAMPLE,
        },
        SAFETENSORS: _BINARY,
        ARROW: _BINARY,
    },
)  # fmt: skip

PREDICT = _route(
    "Labels and verdict for an image",
    {
        JSON: {
            "schema": _object(
                {
                    **_COLUMNS,
                    "labels": {"type": "array", "items": _NAMES},
                    "probs": {"type": "array", "items": _NUMBERS},
                    "logits": {"type": "array", "items": _NUMBERS_OR_NULL},
                },
                **_MORE_COLUMNS,
            )
        }
    },
    400, 401, 403, 404, 408, 413, 415, 422, 503,
    body={
        **dict.fromkeys(IMAGES, _BINARY),
        JSON: {
            "schema": {
                **_object({"inputs": {"type": "object", "additionalProperties": True}}),
                "additionalProperties": False,
            },
            "example": {"inputs": {"input_ids": [[101, 2054, 102]]}},
        },
        SAFETENSORS: _BINARY,
    },
)  # fmt: skip

_ANY_OBJECT = {JSON: {"schema": {"type": "object"}}}
_STATUS = {JSON: {"schema": _object({"status": {"type": "string"}})}}

DETECTOR = _route("The detector in use", _ANY_OBJECT, 401, 403)
TRAFFIC = _route("What went through lately", _ANY_OBJECT, 401, 403)
RELOAD = _route("Read the detector anew", _ANY_OBJECT, 401, 403, 409)
HEALTH = _route("Alive?", _STATUS, 403)
READY = _route("Ready for requests?", _STATUS, 403, 503)
METRICS = _route(
    "Figures for Prometheus", {"text/plain": {"schema": {"type": "string"}}}, 401, 403
) | {"response_class": PlainTextResponse}
