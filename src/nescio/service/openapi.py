"""The OpenAPI description of the service. The schemas come from the types of bodies and answers."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from nescio._version import __version__
from nescio.service.bodies import (
    IMAGES,
    JSON,
    MAX_CHARACTERS,
    MAX_TEXTS,
    SAFETENSORS,
    JsonNumber,
    PredictBody,
    ScoreBody,
)
from nescio.service.charts import WIDTHS
from nescio.service.errors import PROBLEM, Problem, phrase
from nescio.service.forms import FORM, MAX_FILES


class Verdicts(msgspec.Struct):
    """The answer of /v1/score."""

    score: Annotated[
        list[float | None],
        Meta(description="Higher means more in-distribution; null for a row without a score."),
    ]
    p_value: list[float]
    in_distribution: list[bool]
    id: list[str] | UnsetType = UNSET
    group: Annotated[
        list[str] | UnsetType,
        Meta(description="The number of predicted labels, if the detector was calibrated by it."),
    ] = UNSET
    mixed: Annotated[
        list[bool] | UnsetType,
        Meta(description="Whether a flagged image shows something known too (detector mixed)."),
    ] = UNSET
    heat_map: Annotated[
        list[list[list[float]]] | UnsetType,
        Meta(
            description="How suspicious each place of an image is, from 0 to 1, in 4 rows and 4 "
            "columns (detector mixed)."
        ),
    ] = UNSET
    explanation: list[dict[str, Any]] | UnsetType = UNSET


class Predictions(Verdicts, kw_only=True):
    """The answer of /v1/predict."""

    truncated: Annotated[
        list[bool] | UnsetType,
        Meta(description="Of texts: whether the model has seen only a part of each."),
    ] = UNSET
    predicted: list[list[str]]
    probs: list[list[float]]
    logits: list[list[JsonNumber]]


class Status(msgspec.Struct):
    """The answer of the probes."""

    status: str


def _schema(kind: type) -> dict[str, Any]:
    (schema,) = msgspec.json.schema_components([kind])[1].values()
    return {"schema": schema}


def _predict_schema() -> dict[str, Any]:
    """Return the schema of a body, which has either inputs or texts."""
    found = _schema(PredictBody)
    found["schema"]["oneOf"] = [{"required": ["inputs"]}, {"required": ["texts"]}]
    return found


_BINARY = {"schema": {"type": "string", "format": "binary"}}
_FORM = {
    "schema": {
        "type": "object",
        "description": f"Image files under any field name, at most {MAX_FILES}; one row each.",
        "additionalProperties": _BINARY["schema"],
    }
}
_TEXT = {"schema": {"type": "string"}}
_WIDTH = {"type": "integer", "minimum": WIDTHS[0], "maximum": WIDTHS[1]}
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
            "content": {PROBLEM: _schema(Problem)},
        }
    return {
        "summary": summary,
        "description": description,
        "responses": responses,
        **({"parameters": parameters} if parameters else {}),
        **({"requestBody": {"required": True, "content": body}} if body else {}),
    }


def _query(name: str, description: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema, **more}


_EXPLAIN = _query(
    "explain",
    "Add each label's share of the score, for at most 100 rows.",
    {"type": "boolean", "default": False},
)
_SCORE_EXAMPLE = {"logits": [[2.1, -3.0, 0.4], [-5.2, -6.1, -4.8]], "ids": ["a.jpg", "b.jpg"]}
_SCORE = _operation(
    "Verdicts on logits",
    "Returns a score, a p-value and a verdict for each row of logits.",
    {JSON: _schema(Verdicts), SAFETENSORS: _BINARY},
    400, 401, 403, 408, 413, 415, 422, 503,
    body={JSON: {**_schema(ScoreBody), "example": _SCORE_EXAMPLE}, SAFETENSORS: _BINARY},
    parameters=(_EXPLAIN,),
)  # fmt: skip

_PREDICT_EXAMPLE = {"inputs": {"input_ids": [[101, 2054, 102]]}}
_PREDICT = _operation(
    "Predicted labels and verdict for an image or a text",
    "Runs the model on an image, on the images of a form, on texts, or on its inputs by name. "
    "Returns the predicted labels, the probabilities and the verdicts. A service takes texts if it "
    f"has a tokenizer (see model.texts of /v1/detector): at most {MAX_TEXTS:,} per request, with "
    f"{MAX_CHARACTERS:,} characters in all.",
    {JSON: _schema(Predictions)},
    400, 401, 403, 404, 408, 413, 415, 422, 503,
    body={
        **dict.fromkeys(IMAGES, _BINARY),
        FORM: _FORM,
        JSON: {**_predict_schema(), "example": _PREDICT_EXAMPLE},
        SAFETENSORS: _BINARY,
    },
    parameters=(_EXPLAIN,),
)  # fmt: skip

_ANY_OBJECT = {JSON: {"schema": {"type": "object"}}}
_STATUS = {JSON: _schema(Status)}
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
        _query("score", "The score.", {"type": "number"}, required=True, example=4.0),
        _query("group", "The group, if calibrated by group.", {"type": "string"}),
        _query("width", "The width in pixels.", _WIDTH),
    ),
)  # fmt: skip
_TRAFFIC = _operation(
    "Recent traffic",
    "Returns recent scores, the share flagged with its expected band, and the monitor's report.",
    _ANY_OBJECT, 401, 403, 422,
    parameters=(_query("charts", "Add charts as SVG of this width in pixels.", _WIDTH),),
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
