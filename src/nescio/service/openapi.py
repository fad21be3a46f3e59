"""The API: the types of queries, bodies and answers, and the OpenAPI document made from them.

The same types decode requests, and `OPERATIONS` is the routing table, so the document is true.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from nescio._version import __version__
from nescio.calibration import CUSTOM
from nescio.models.images import Preprocessing
from nescio.monitor import Change, Window
from nescio.service.settings import MAX_EXPLAINED

JSON = "application/json"
SAFETENSORS = "application/x-safetensors"
FORMATS = (JSON, SAFETENSORS)
# The last is any of them, for clients that know no types of images.
_SUBTYPES = ("jpeg", "png", "webp", "gif", "bmp", "tiff")
IMAGES = (*(f"image/{subtype}" for subtype in _SUBTYPES), "application/octet-stream")
PROBLEM = "application/problem+json"
METRICS = "text/plain; version=0.0.4"
_BINARY = {"type": "string", "format": "binary"}


# --- queries and bodies -------------------------------------------------------------------------

JsonNumber = float | Literal["-inf"] | None  # JSON has no NaN and no infinity
# Numbers in nested lists, which are decoded by hand.
JsonArray = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "array", "items": {}})]


class NoQuery(Struct, forbid_unknown_fields=True):
    """The query of an operation without parameters."""


class PredictQuery(Struct, forbid_unknown_fields=True):
    """The query of /v1/predict."""

    explain: Annotated[
        bool,
        Meta(description=f"Add each label's share of the score; at most {MAX_EXPLAINED} rows."),
    ] = False
    group: Annotated[
        str | None,
        Meta(description="The group of all rows, if the detector was calibrated by your groups."),
    ] = None
    watch: Annotated[
        bool,
        Meta(description="false: neither the monitor nor the metrics of inputs count the rows."),
    ] = True


class ScoreQuery(PredictQuery, forbid_unknown_fields=True):
    """The query of /v1/score."""

    from_probs: Annotated[
        bool | None,
        Meta(
            description="true: the rows are probabilities, which are converted to logits. false: "
            "they are logits, even if they do not look so. By default, this is checked."
        ),
    ] = None


class TrafficQuery(Struct, forbid_unknown_fields=True):
    """The query of /v1/traffic."""

    charts: Annotated[
        Annotated[int, Meta(ge=200, le=2_000)] | UnsetType,
        Meta(description="Add charts as SVG of this width in pixels."),
    ] = UNSET


class ScoreBody(Struct, forbid_unknown_fields=True):
    """The JSON body of a request to score."""

    logits: Annotated[list[list[JsonNumber]], Meta(extra_json_schema={"minItems": 1})]
    features: list[list[JsonNumber]] | None = None
    ids: list[str] | None = None
    groups: list[str] | None = None
    label_names: list[str] | None = None
    arrays: dict[str, list[list[JsonNumber]]] | None = None


class PredictBody(Struct, forbid_unknown_fields=True):
    """The JSON body of a request to predict: either the inputs of the model by name, or texts."""

    inputs: Annotated[
        dict[str, JsonArray] | UnsetType,
        Meta(description='The samples are the first dimension: {"NAME": [[...], [...]]}.'),
    ] = UNSET
    texts: Annotated[
        list[str] | UnsetType,
        Meta(
            description='For a service with a tokenizer, such as {"texts": ["A text."]}.',
            extra_json_schema={"minItems": 1},  # too many are 413, like too many rows
        ),
    ] = UNSET
    ids: list[str] | None = None
    groups: list[str] | None = None


class AcknowledgeBody(Struct, forbid_unknown_fields=True):
    """The JSON body of a request to acknowledge a change."""

    note: Annotated[str, Meta(min_length=1, max_length=500, description="Who, and what was done.")]


# --- answers ------------------------------------------------------------------------------------


class LabelShare(Struct):
    """One label's part of a score."""

    label: str
    term: float | None
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
    share: Annotated[float | None, Meta(description="Of the evidence against the input.")]
    nearest: Annotated[list[int | str], Meta(description="The nearest training samples.")]
    summary: Annotated[str, Meta(description="What it saw, if it can say so.")]


class ColumnRange(Struct):
    """A feature, a column or a label next to its usual range."""

    column: str
    value: float | str | None
    low: Annotated[float | None, Meta(description="The smallest usual value; null for a word.")]
    high: Annotated[float | None, Meta(description="The largest usual value; null for a word.")]
    excess: Annotated[float | None, Meta(description="How far it is outside, in tails.")]


class Explanation(Struct):
    """The reason for one verdict: in words (summary), and by labels, columns and parts."""

    term: str
    summary: str
    labels: list[LabelShare]
    ranges: list[ColumnRange] | UnsetType = UNSET
    parts: list[PartShare] | UnsetType = UNSET


class Verdicts(Struct, kw_only=True):
    """One entry per row; if in_distribution is false, do not trust the labels of the row."""

    score: list[float | None]
    p_value: list[float]
    in_distribution: list[bool]
    id: list[str] | UnsetType = UNSET
    group: list[str] | UnsetType = UNSET
    explanation: list[Explanation] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class Predictions(Verdicts, kw_only=True):
    """Verdicts, the names of the predicted labels, and the probability and logit of each label."""

    truncated: list[bool] | UnsetType = UNSET
    predicted: list[list[str]]
    probs: list[list[float]]
    logits: list[list[JsonNumber]]


class ModelInput(Struct):
    """One input of the model, to be sent by its name, or by the names of its columns."""

    name: str
    shape: Annotated[list[int | None], Meta(description="null is any size.")]
    dtype: str
    columns: list[str]
    example: Annotated[list[float | str | None], Meta(description="Of a table: an ordinary row.")]


class TextLimits(Struct):
    """What the service takes of texts."""

    max_tokens: int
    max_texts: int
    max_characters: int


class ModelDescription(Struct):
    """What the model takes."""

    inputs: list[ModelInput]
    preprocessing: Preprocessing | None
    texts: TextLimits | None


class DetectorDescription(Struct):
    """The detector and the model in use. A threshold without groups has the name all."""

    name: Annotated[str, Meta(description="Of the model's file or the detector's.")]
    detector: str
    params: dict[str, msgspec.Raw]
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
    warnings: Annotated[list[str], Meta(description="What is doubtful about the files.")]
    model: ModelDescription | None


class ChartOf(Struct):
    """A chart with its title and what it shows."""

    title: str
    text: str
    svg: str


class Acknowledged(Struct):
    """An alarm, or a change of groups, that was acknowledged."""

    time: Annotated[str, Meta(description="In UTC, such as 2026-01-31T12:00:00Z.")]
    alarm: Annotated[str, Meta(description="What had changed and since when, in words.")]
    alarm_at: int | None
    change: Change | None
    note: str


class MonitorReport(Struct):
    """What the monitor says about the inputs since its start or the latest acknowledged change."""

    summary: str
    n_samples: int
    flagged: int
    expected_share: float
    alpha: float
    alarm: bool
    alarm_at: int | None
    changed: Annotated[bool, Meta(description="There is an alarm or a changed group.")]
    change: Change | None
    log10_martingale: float
    max_log10_martingale: float
    trace: list[tuple[int, float]]
    windows: list[Window]
    open_window: Window | None
    n_windows: int
    n_outside: int
    acknowledged: Annotated[list[Acknowledged], Meta(description="The latest ones, oldest first.")]


class TrafficReport(Struct):
    """The report of the monitor, and charts."""

    n_watched: int
    monitor: MonitorReport
    stopping: bool
    charts: list[ChartOf] | UnsetType = UNSET


class Status(Struct):
    """The answer of a probe."""

    status: str


class Problem(Struct):
    """The body of an error answer (RFC 9457)."""

    title: Annotated[str, Meta(description="The reason phrase of the status.")]
    status: int
    detail: Annotated[str, Meta(description="What is wrong and what to do.")]


# What fields mean, in every type that has them.
_FIELDS = {
    "arrays": "Further layers by name, such as input; ignored like features.",
    "columns": "Of a table, if known: may be sent by name, one list of numbers or words each.",
    "features": "One row per sample. Ignored unless scores_from of the detector has it.",
    "group": "The group whose threshold was used, if the detector has several.",
    "groups": "The group of each row, if the detector was calibrated by your groups.",
    "ids": "A name of each row, which the answer repeats as id.",
    "label_names": "The label of each column of the logits.",
    "logits": "One row per sample, and one number per label, before the sigmoid.",
    "p_value": "How often an in-distribution sample scores as low or lower.",
    "ranges": "Of out_of_range: the values out of their usual range, the furthest first.",
    "score": "Higher means more in-distribution; null for a row without a score.",
    "term": "The energy, logit or probability of a label.",
    "trace": "Numbers of inputs, and the evidence after them.",
    "warnings": "What is doubtful: a group that was never calibrated, few values within [0, 1].",
    "truncated": "Of texts: whether the model has seen only a part of each.",
}

# --- operations ---------------------------------------------------------------------------------

OPERATIONS: dict[str, Operation] = {}
"""The operation of each path."""


class Operation(Struct):
    """One operation; it decorates the function that answers it, whose docstring describes it."""

    method: str
    path: str
    answer: dict[str, Any]  # a type by format; None is binary
    query: type[Struct] = NoQuery
    body: dict[str, Any] = {}
    errors: tuple[int, ...] = ()  # beside those that follow from the rest
    public: bool = False  # whether it needs no token
    respond: Any = None

    def __call__(self, respond: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function the answer to this operation."""
        self.respond = respond
        OPERATIONS[self.path] = self
        return respond


_MEANINGS = {
    400: "The body cannot be read.",
    401: "The token is missing or invalid.",
    403: "The origin, the host name or the address of the caller is not allowed.",
    404: "The service has no model.",
    408: "The body took too long to arrive.",
    409: "Nothing has changed; or the new files cannot be used, and the old ones stay in use.",
    413: "The body is too large, or it has too many rows.",
    415: "The format of the body is not supported.",
    422: "The request can be read but not used: an unknown parameter, wrong labels, probabilities "
    "instead of logits, NaN, a damaged image.",
    500: "The service failed. Its log has the details.",
    503: "The service is busy or about to stop. Try again after Retry-After seconds.",
}


def examples_of(detector: DetectorDescription) -> dict[str, dict[str, Any]]:
    """Return JSON bodies that the service accepts, by path; none for images and the last layer."""
    columns, model = detector.n_columns, detector.model
    n_labels = columns.get("logits", len(detector.label_names or "abc"))
    groups: dict[str, Any] = {}
    if detector.by == CUSTOM:
        groups["groups"] = [*detector.threshold][:1]
    score: dict[str, Any] = {"logits": [[(2.5, -3.5)[label % 2] for label in range(n_labels)]]}
    for name in detector.scores_from:
        if name not in ("logits", "head"):
            holder = score if name == "features" else score.setdefault("arrays", {})
            holder[name] = [[0.5] * columns[name]]
    bodies: dict[str, Any] = {"/v1/acknowledge": {"note": "Ann: the lens is clean again."}}
    if "head" not in detector.scores_from:
        bodies["/v1/score"] = score | groups
    if model is not None and model.texts is not None:
        bodies["/v1/predict"] = {"texts": ["A text."]} | groups
    elif model is not None and model.preprocessing is None:
        inputs: dict[str, Any] = {}
        for node in model.inputs:
            ones: list[Any] = np.ones([n or 1 for n in node.shape], node.dtype).tolist()
            rows = [node.example] if node.example else ones
            by_column = zip(node.columns, *rows[: bool(node.columns)], strict=False)
            inputs |= {name: [cell] for name, cell in by_column} or {node.name: rows}
        bodies["/v1/predict"] = {"inputs": inputs} | groups
    return bodies


def make_document(examples: dict[str, dict[str, Any]]) -> bytes:
    """Return the OpenAPI document with examples of bodies by path."""
    types = {
        str(kind): kind
        for operation in OPERATIONS.values()
        for kind in (*operation.answer.values(), *operation.body.values())
        if kind is not None
    } | {str(Problem): Problem}
    template = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components(types.values(), ref_template=template)
    refs = dict(zip(types, schemas, strict=True))
    # With a name, so that clients have one type for all numbers.
    number = msgspec.json.schema(JsonNumber)
    meaning = 'A number, "-inf" for a masked label, or null for a missing value (NaN).'
    components["JsonNumber"] = {"description": meaning, **number}
    components["PredictBody"]["minProperties"] = 1  # of oneOf, generators make no class
    for component in components.values():
        component["description"] = component.get("description", "").partition("\n")[0]
        for name, field in component.get("properties", {}).items():
            field.pop("default", None)  # openapi-typescript would make it a required field
            if name in _FIELDS:
                field.setdefault("description", _FIELDS[name])
    paths = {
        path: {operation.method.lower(): _described(operation, refs, examples.get(path))}
        for path, operation in OPERATIONS.items()
    }
    security = {"token": {"type": "http", "scheme": "bearer"}}
    document = msgspec.json.encode(
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
    name = b'{"$ref":"#/components/schemas/JsonNumber"}'
    document = document.replace(msgspec.json.encode(number), name)
    return document.replace(b',"items":false', b"")  # openapi-python-client cannot read it


def _described(
    operation: Operation, refs: dict[str, Any], example: dict[str, Any] | None
) -> dict[str, Any]:
    def content(types: dict[str, Any]) -> dict[str, Any]:
        return {
            name.partition(";")[0]: {"schema": _BINARY if kind is None else refs[str(kind)]}
            for name, kind in types.items()
        }

    query = msgspec.json.schema(operation.query)["$defs"][operation.query.__name__]
    summary, _, description = (inspect.getdoc(operation.respond) or "").partition("\n\n")
    responses: dict[str, Any] = {
        "200": {"description": "OK.", "content": content(operation.answer)}
    }
    of_bodies = (400, 408, 413, 415, 503) if operation.body else ()
    of_tokens = () if operation.public else (401,)
    for status in sorted({403, 422, 500, *of_bodies, *of_tokens, *operation.errors}):
        meaning = _MEANINGS[status] if operation.body or status != 422 else "Unknown parameters."
        responses[str(status)] = {
            "description": f"{HTTPStatus(status).phrase}. {meaning}",
            "content": content({PROBLEM: Problem}),
        }
    described: dict[str, Any] = {
        "operationId": operation.respond.__name__,
        "summary": summary.rstrip("."),
        "description": " ".join(description.split()),
        "responses": responses,
        "parameters": [
            {"name": name, "in": "query", "required": name in query["required"], "schema": schema}
            for name, schema in query["properties"].items()
        ],
    }
    if operation.body:
        bodies = content(operation.body)
        if example is not None:
            bodies[JSON]["example"] = example
            bodies = {name: body for name, body in bodies.items() if name not in IMAGES}
        described["requestBody"] = {"required": True, "content": bodies}
    if not operation.public:  # the token is optional: a service may have none
        described["security"] = [{"token": []}, {}]
    return described
