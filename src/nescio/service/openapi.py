"""The API: the types of queries, bodies and answers, and the OpenAPI document made from them.

The same types decode requests, and `OPERATIONS` is the routing table, so the document is true.
"""

from __future__ import annotations

import functools
from http import HTTPStatus
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from nescio._version import __version__
from nescio.service.settings import MAX_CHARACTERS, MAX_EXPLAINED, MAX_FILES, MAX_TEXTS

JSON = "application/json"
SAFETENSORS = "application/x-safetensors"
FORMATS = (JSON, SAFETENSORS)
IMAGES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff")
FORM = "multipart/form-data"
PROBLEM = "application/problem+json"
SVG = "image/svg+xml"
METRICS = "text/plain; version=0.0.4"
WIDTHS = (200, 2_000)  # the smallest and the largest width of a chart in pixels

_LARGEST = 1.7976931348623157e308


# --- queries and bodies -------------------------------------------------------------------------

# JSON has no NaN and no infinity.
JsonNumber = Annotated[
    float | Literal["-inf"] | None,
    Meta(description='A number, "-inf" for a masked label, or null for a missing value (NaN).'),
]
Width = Annotated[int, Meta(ge=WIDTHS[0], le=WIDTHS[1])]
Explain = Annotated[
    bool,
    Meta(description=f"Add each label's share of the score; at most {MAX_EXPLAINED} rows."),
]


class NoQuery(Struct, forbid_unknown_fields=True):
    """The query of an operation without parameters."""


class ScoreQuery(Struct, forbid_unknown_fields=True):
    """The query of /v1/score."""

    explain: Explain = False
    from_probs: Annotated[
        bool | None,
        Meta(
            description="true: the rows are probabilities, which are converted to logits. false: "
            "they are logits, even if they do not look so. By default, this is checked."
        ),
    ] = None


class PredictQuery(Struct, forbid_unknown_fields=True):
    """The query of /v1/predict."""

    explain: Explain = False


class HistogramQuery(Struct, forbid_unknown_fields=True):
    """The query of /v1/histogram."""

    score: Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST, description="The score to draw.")]
    group: Annotated[str, Meta(description="The group, if calibrated by group.")] = "all"
    width: Annotated[Width, Meta(description="The width in pixels.")] = 640


class TrafficQuery(Struct, forbid_unknown_fields=True):
    """The query of /v1/traffic."""

    charts: Annotated[
        Width | UnsetType, Meta(description="Add charts as SVG of this width in pixels.")
    ] = UNSET


class ScoreBody(Struct, forbid_unknown_fields=True):
    """The JSON body of a request to score."""

    logits: list[list[JsonNumber]]
    features: list[list[JsonNumber]] | None = None
    ids: list[str] | None = None
    label_names: list[str] | None = None
    arrays: dict[str, list[list[JsonNumber]]] | None = None


class PredictBody(Struct, forbid_unknown_fields=True):
    """The JSON body of a request to predict: the inputs of the model by name, or texts."""

    inputs: dict[str, msgspec.Raw] | UnsetType = UNSET
    texts: Annotated[
        list[str] | UnsetType,
        Meta(
            description='For a service with a tokenizer, such as {"texts": ["A text."]}.',
            extra_json_schema={"minItems": 1},  # too many are 413, like too many rows
        ),
    ] = UNSET


# --- answers ------------------------------------------------------------------------------------


class LabelShare(Struct):
    """One label's part of a score."""

    label: str
    term: Annotated[float | None, Meta(description="The energy, logit or probability.")]
    share: float | None
    median: Annotated[float | None, Meta(description="The in-distribution median of this label.")]
    rank: Annotated[int, Meta(description="1 is the largest term of the input.")]
    rank_median: Annotated[float | None, Meta(description="The median of the term of this rank.")]
    difference: Annotated[float | None, Meta(description="The term minus the median of the label.")]


class PartShare(Struct):
    """What one part of a combination says about an input."""

    detector: str
    score: float | None
    p_value: float | None
    share: float | None
    nearest: Annotated[list[int | str], Meta(description="The nearest training samples.")]


class Explanation(Struct):
    """The reason for one verdict."""

    term: Annotated[str, Meta(description="What the labels' terms are, such as energy.")]
    summary: str
    labels: list[LabelShare]
    parts: list[PartShare] | UnsetType = UNSET


class Verdicts(Struct, kw_only=True):
    """One entry per row: scores, p-values and verdicts."""

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
    explanation: list[Explanation] | UnsetType = UNSET


class Predictions(Verdicts, kw_only=True):
    """Verdicts, with the predicted labels, their probabilities and the logits."""

    truncated: Annotated[
        list[bool] | UnsetType,
        Meta(description="Of texts: whether the model has seen only a part of each."),
    ] = UNSET
    predicted: list[list[str]]
    probs: list[list[float]]
    logits: list[list[JsonNumber]]


class ScoreHistogram(Struct):
    """The histogram of the calibration scores."""

    edges: list[float]
    counts: list[int]
    lower: Annotated[int, Meta(description="How many of the first bar lie below its edge.")]
    higher: Annotated[int, Meta(description="How many of the last bar lie above its edge.")]


class InputDescription(Struct):
    """One input of the model."""

    name: str
    shape: Annotated[list[int | None], Meta(description="null is any size.")]
    dtype: str


class TextLimits(Struct):
    """What the service takes of texts."""

    max_tokens: int
    max_texts: int
    max_characters: int


class ModelDescription(Struct):
    """What the model takes."""

    inputs: list[InputDescription]
    preprocessing: dict[str, Any] | None
    texts: TextLimits | None


class DetectorDescription(Struct):
    """The detector and the model in use."""

    detector: str
    params: dict[str, Any]
    scores_from: list[str]
    n_columns: dict[str, int]
    label_names: list[str] | None
    threshold: dict[str, float]
    tpr: float
    confidence: float | None
    by: str | None
    n_calibration: int
    n_by_group: dict[str, int]
    statement: str
    explains: bool
    histogram: ScoreHistogram
    example: Annotated[list[float] | None, Meta(description="Logits to try.")]
    model: ModelDescription | None


class RecentInputs(Struct):
    """The latest inputs that the monitor has seen."""

    time: list[float]
    score: list[float | None]
    in_distribution: list[bool]


class FlaggedShare(Struct):
    """The share flagged of some inputs, and the band that was expected."""

    n: int
    share: float
    low: float
    high: float
    time: float | UnsetType = UNSET


class FlaggedShares(Struct):
    """The share flagged of the latest inputs, and of consecutive chunks of them."""

    all: FlaggedShare | None
    chunks: list[FlaggedShare]


class TrafficReport(Struct):
    """Recent scores, the share flagged, and the report of the monitor."""

    n_watched: int
    recent: RecentInputs
    flagged: FlaggedShares
    monitor: dict[str, Any]
    stopping: bool
    charts: dict[str, str] | UnsetType = UNSET


class Status(Struct):
    """The answer of the probes."""

    status: str


class Problem(Struct):
    """The body of an error answer (RFC 9457)."""

    title: Annotated[str, Meta(description="The reason phrase of the status.")]
    status: int
    detail: Annotated[str, Meta(description="What is wrong and what to do.")]


def phrase(status: int) -> str:
    """Return the reason phrase of RFC 9110. Before version 3.13, Python has two older ones."""
    newer = {413: "Content Too Large", 422: "Unprocessable Content"}
    return newer.get(status, HTTPStatus(status).phrase)


# --- operations ---------------------------------------------------------------------------------


class Operation(NamedTuple):
    """One operation of the API; `id` is the method of `Endpoints` that answers it."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    errors: tuple[int, ...]
    answer: dict[str, Any]  # a type by format; None is binary or text
    query: type[Struct] = NoQuery
    body: dict[str, Any] | None = None
    example: dict[str, Any] | None = None


OPERATIONS = (
    Operation(
        "score", "POST", "/v1/score",
        "Verdicts on logits",
        "Returns a score, a p-value and a verdict for each row of logits.",
        (400, 401, 403, 408, 413, 415, 422, 503),
        {JSON: Verdicts, SAFETENSORS: None},
        ScoreQuery,
        {JSON: ScoreBody, SAFETENSORS: None},
        {"logits": [[2.1, -3.0, 0.4], [-5.2, -6.1, -4.8]], "ids": ["a.jpg", "b.jpg"]},
    ),
    Operation(
        "predict", "POST", "/v1/predict",
        "Predicted labels and verdict for an image or a text",
        "Runs the model on an image, on the images of a form, on texts, or on its inputs by name. "
        "Returns the predicted labels, the probabilities and the verdicts. A form has image files "
        f"under any field name, at most {MAX_FILES}; each is a row. A service takes texts if it "
        f"has a tokenizer (see model.texts of /v1/detector): at most {MAX_TEXTS:,} per request, "
        f"with {MAX_CHARACTERS:,} characters in all.",
        (400, 401, 403, 404, 408, 413, 415, 422, 503),
        {JSON: Predictions},
        PredictQuery,
        {**dict.fromkeys(IMAGES), FORM: None, JSON: PredictBody, SAFETENSORS: None},
        {"inputs": {"input_ids": [[101, 2054, 102]]}},
    ),
    Operation(
        "detector", "GET", "/v1/detector",
        "The detector in use",
        "Returns the thresholds, labels, guarantee and calibration histogram of the detector, and "
        "what the model takes.",
        (401, 403, 422),
        {JSON: DetectorDescription},
    ),
    Operation(
        "histogram", "GET", "/v1/histogram",
        "A chart of one score",
        "Draws a score and the threshold on the histogram of the calibration scores.",
        (401, 403, 422),
        {SVG: None},
        HistogramQuery,
    ),
    Operation(
        "traffic", "GET", "/v1/traffic",
        "Recent traffic",
        "Returns recent scores, the share flagged with its expected band, and the monitor's view.",
        (401, 403, 422),
        {JSON: TrafficReport},
        TrafficQuery,
    ),
    Operation(
        "reload", "POST", "/v1/reload",
        "Reload the files",
        "Reads the files of the detector and the model again. Requests are served meanwhile.",
        (401, 403, 409, 422),
        {JSON: DetectorDescription},
    ),
    Operation(
        "healthz", "GET", "/healthz",
        "Liveness probe", "Says that the process is alive.", (403, 422), {JSON: Status},
    ),
    Operation(
        "readyz", "GET", "/readyz",
        "Readiness probe",
        "Says whether the service should get requests: not while it is about to stop.",
        (403, 422, 503),
        {JSON: Status},
    ),
    Operation(
        "metrics", "GET", "/metrics",
        "Metrics for Prometheus", "Returns all metrics as text.", (401, 403, 422), {METRICS: None},
    ),
    Operation(
        "openapi", "GET", "/openapi.json",
        "This document", "Returns the description of the API.", (403, 422), {JSON: dict[str, Any]},
    ),
)  # fmt: skip
"""All operations."""

_MEANINGS = {
    400: "The body cannot be read.",
    401: "The token is missing or invalid.",
    403: "The origin, the host name or the address of the caller is not allowed.",
    404: "The service has no model.",
    408: "The body took too long to arrive.",
    409: "The new files cannot be used. The old ones stay in use.",
    413: "The body is too large, or it has too many rows.",
    415: "The format of the body is not supported.",
    422: "The request can be read but not used: an unknown parameter, wrong labels, probabilities "
    "instead of logits, NaN, a damaged image.",
    503: "The service is busy or about to stop. Try again after Retry-After seconds.",
}


@functools.cache
def document() -> bytes:
    """Return the OpenAPI document."""
    kinds = [
        kind
        for operation in OPERATIONS
        for kind in (*operation.answer.values(), *(operation.body or {}).values(), operation.query)
        if kind is not None
    ]
    template = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components([*kinds, Problem], ref_template=template)
    refs = dict(zip([*map(str, kinds), str(Problem)], schemas, strict=True))
    queries = {
        operation.id: components.pop(operation.query.__name__)
        for operation in OPERATIONS
        if operation.query is not NoQuery
    }
    components.pop(NoQuery.__name__)
    components["PredictBody"]["oneOf"] = [{"required": ["inputs"]}, {"required": ["texts"]}]
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        described = _described(operation, refs, queries.get(operation.id, {}))
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    security = {"token": {"type": "http", "scheme": "bearer"}}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "nescio",
                "summary": "Which inputs should a multi-label classifier not be trusted on?",
                "version": __version__,
            },
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": security},
        }
    )


def _described(operation: Operation, refs: dict[str, Any], query: dict[str, Any]) -> dict[str, Any]:
    def content(kinds: dict[str, Any]) -> dict[str, Any]:
        return {
            name.partition(";")[0]: {"schema": _plain(name) if kind is None else refs[str(kind)]}
            for name, kind in kinds.items()
        }

    responses: dict[str, Any] = {
        "200": {"description": "OK.", "content": content(operation.answer)}
    }
    for status in operation.errors:
        responses[str(status)] = {
            "description": f"{phrase(status)}. {_MEANINGS[status]}",
            "content": content({PROBLEM: Problem}),
        }
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "description": operation.description,
        "responses": responses,
    }
    if query:
        described["parameters"] = [
            {"name": name, "in": "query", "required": name in query["required"], "schema": schema}
            for name, schema in query["properties"].items()
        ]
    if operation.body is not None:
        bodies = content(operation.body)
        bodies[JSON]["example"] = operation.example
        described["requestBody"] = {"required": True, "content": bodies}
    if 401 in operation.errors:  # the token is optional: a service may have none
        described["security"] = [{"token": []}, {}]
    return described


def _plain(media_type: str) -> dict[str, Any]:
    """Return the schema of a body that is no JSON."""
    if media_type == FORM:
        return {
            "type": "object",
            "additionalProperties": {"type": "string", "format": "binary"},
        }
    if media_type in (SVG, METRICS):
        return {"type": "string"}
    return {"type": "string", "format": "binary"}
