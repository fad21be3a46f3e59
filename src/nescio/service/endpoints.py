"""What answers the requests: each endpoint decodes a body, calls the service, encodes an answer."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import msgspec
import numpy as np
from starlette.exceptions import HTTPException

from nescio._io.tensors import encode_tensors
from nescio._validation import Array
from nescio.detectors.assessment import Assessment
from nescio.errors import DatasetError, NescioError
from nescio.explain import Reason
from nescio.models.inputs import n_rows
from nescio.scores import label_prob
from nescio.service import charts, openapi
from nescio.service.engine import BatchResult, Engine, Model
from nescio.service.images import Decoding
from nescio.service.openapi import FORM, FORMATS, IMAGES, JSON, SAFETENSORS
from nescio.service.requests import (
    Request,
    RequestLimits,
    decode_inputs,
    decode_outputs,
    form_files,
    media_type,
)
from nescio.service.service import Service
from nescio.service.settings import MAX_EXPLAINED

# Smaller bodies are decoded without a thread, which would take longer than decoding them. Of
# safetensors, only the header is decoded.
_QUICK_BYTES = {JSON: 65_536, SAFETENSORS: 1_048_576}
# The same for answers: rows of verdicts, and logits.
_QUICK_ROWS = 5_000
_QUICK_VALUES = 20_000
_BYTES_PER_VALUE = 100  # of an answer of /v1/predict: a logit and a probability, as lists and JSON
_EXPLAINED_LABELS = 20


class Answer(NamedTuple):
    """An answer to a request."""

    body: bytes
    media_type: str = JSON
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Endpoints:
    """One method per operation of the API."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def score(self, request: Request, query: openapi.ScoreQuery) -> Answer:
        """Return scores, p-values and verdicts for logits."""
        service, current = self._service, self._service.current
        kind = _checked_type(request, FORMATS)
        body = await service.limits.read(request)
        if len(body) <= _QUICK_BYTES[kind]:
            outputs = decode_outputs(kind, body, service.limits, query.from_probs)
        else:
            outputs = await service.in_thread(
                decode_outputs, kind, body, service.limits, query.from_probs
            )
        result = await service.score(current, outputs)
        _note(request, result)
        if query.explain:
            columns = _columns_of(result.assessment)
            columns |= await service.in_thread(_explained, current.engine, result)
            return Answer(msgspec.json.encode(columns))
        answer = _accepted(request, kind)
        if len(outputs) <= _QUICK_ROWS:
            content = encode_assessment(answer, result.assessment)
        else:
            content = await service.in_thread(encode_assessment, answer, result.assessment)
            service.limits.hold(request, len(content))
        return Answer(content, answer)

    async def predict(self, request: Request, query: openapi.PredictQuery) -> Answer:
        """Return predicted labels, probabilities and verdicts for images or other inputs."""
        service, current = self._service, self._service.current
        engine, model = current.engine, current.engine.model
        if model is None:
            raise HTTPException(404, "this service has no model. Start it with --model.")
        kind = _checked_type(request, (*IMAGES, FORM, JSON, SAFETENSORS))
        body = await service.limits.read(request)
        run = service.in_thread if kind in FORMATS else service.decoding
        decoding = Decoding(service.decoders, service.settings.max_pixels)
        header = request.headers["content-type"]
        inputs, columns = await run(_inputs, model, header, body, decoding, service.limits)
        n_values = service.limits.check_predictions(n_rows(inputs), engine.n_labels or 1)
        n_bytes = sum(array.nbytes for array in inputs.values())
        service.limits.hold(request, n_bytes + _BYTES_PER_VALUE * n_values)
        result = await service.predict(current, model, inputs)
        _note(request, result)
        columns |= _columns_of(result.assessment)
        if query.explain:
            columns |= await service.in_thread(_explained, engine, result)
        n_values = service.limits.check_predictions(len(result.outputs), result.outputs.n_labels)
        if n_values <= _QUICK_VALUES:
            return Answer(_encode_predictions(engine, result, columns))
        return Answer(await service.in_thread(_encode_predictions, engine, result, columns))

    async def detector(self, request: Request, query: openapi.NoQuery) -> Answer:
        """Describe the detector and the model."""
        return Answer(msgspec.json.encode(self._service.current.engine.description))

    async def histogram(self, request: Request, query: openapi.HistogramQuery) -> Answer:
        """Draw one score among the scores of the calibration data."""
        engine = self._service.current.engine
        names = list(engine.calibration.thresholds)
        if query.group not in names:
            raise HTTPException(
                422, f"group must be one of {', '.join(names)}, got {query.group[:40]!r}."
            )
        chart = charts.score_chart(engine, query.score, query.group, query.width)
        return Answer(chart.encode(), openapi.SVG)

    async def traffic(self, request: Request, query: openapi.TrafficQuery) -> Answer:
        """Return recent scores, the share flagged, and the report of the monitor."""
        current = self._service.current
        snapshot = current.traffic.snapshot() | {"stopping": self._service.stopping}
        if query.charts is not msgspec.UNSET:
            snapshot["charts"] = charts.traffic_charts(current.engine, snapshot, query.charts)
        return Answer(msgspec.json.encode(snapshot))

    async def reload(self, request: Request, query: openapi.NoQuery) -> Answer:
        """Read the files of the detector and the model again."""
        forwarded = {"forwarded", "x-forwarded-for"} & request.headers.keys()
        client = request.scope.get("client")
        local = client is not None and client[0] in ("127.0.0.1", "::1")
        if self._service.settings.token is None and (forwarded or not local):
            raise HTTPException(
                403, "without a token, the service can only be reloaded from its own machine."
            )
        try:
            engine = await self._service.reload()
        except (NescioError, OSError) as error:
            raise HTTPException(409, f"nothing was changed: {error}") from error
        return Answer(msgspec.json.encode(engine.description))

    async def healthz(self, request: Request, query: openapi.NoQuery) -> Answer:
        """Say that the process is alive."""
        return Answer(b'{"status":"ok"}')

    async def readyz(self, request: Request, query: openapi.NoQuery) -> Answer:
        """Say whether the service should get requests."""
        if self._service.stopping:
            raise HTTPException(503, "the service is about to stop.", {"Retry-After": "1"})
        return Answer(b'{"status":"ready"}')

    async def metrics(self, request: Request, query: openapi.NoQuery) -> Answer:
        """Return the metrics for Prometheus."""
        return Answer(self._service.metrics.text(), openapi.METRICS)

    async def openapi(self, request: Request, query: openapi.NoQuery) -> Answer:
        """Return the OpenAPI document."""
        return Answer(openapi.document())


# --- requests -----------------------------------------------------------------------------------


def _checked_type(request: Request, kinds: tuple[str, ...]) -> str:
    kind = request.media_type
    if kind not in kinds:
        got = repr(kind[:60]) if kind else "none"
        raise HTTPException(
            415, f"the header Content-Type must be one of {', '.join(sorted(kinds))}; got {got}."
        )
    return kind


def _accepted(request: Request, kind: str) -> str:
    """Return the format of the answer: the first one that Accept names, or that of the request."""
    accept = request.headers.get("accept", "")
    if not accept or accept == "*/*":
        return kind
    return next((name for name in map(media_type, accept.split(",")) if name in FORMATS), kind)


def _note(request: Request, result: BatchResult) -> None:
    """Add to the log what was scored."""
    inside = np.count_nonzero(result.assessment.in_distribution)
    n_rows = len(result.outputs)
    request.facts = {"rows": n_rows, "flagged": n_rows - int(inside), "bytes": request.n_body}


def _inputs(
    model: Model, content_type: str, body: bytes, decoding: Decoding, limits: RequestLimits
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the inputs of the model in a body, and columns for the answer.

    Of a form, these are the names of its files; of texts, which of them were cut off.
    """
    kind = media_type(content_type)
    if kind in IMAGES:
        return model.image_input(body, decoding), {}
    if kind != FORM:
        sent = decode_inputs(kind, body, limits)
        return model.text_inputs(sent) if isinstance(sent, list) else (model.checked(sent), {})
    files = form_files(content_type, body)
    rows = []
    for name, content in files:
        try:
            rows.append(model.image_input(content, decoding))
        except DatasetError as error:
            raise DatasetError(f"{name}: {error}") from error
    inputs = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    return model.checked(inputs), {"id": [name for name, _ in files]}


# --- answers ------------------------------------------------------------------------------------


def encode_assessment(kind: str, result: Assessment) -> bytes:
    """Return scores, p-values and verdicts as columns, in the given format."""
    if kind == JSON:
        return msgspec.json.encode(_columns_of(result))
    if result.groups is None:
        columns = (result.p_values, result.scores, result.in_distribution)
        return b"".join((_head_of_verdicts(len(result)), *(column.data for column in columns)))
    names, groups = np.unique(result.groups, return_inverse=True)
    named: dict[str, Array] = {
        "p_value": result.p_values,
        "score": result.scores,
        "group": groups,
        "in_distribution": result.in_distribution,
    }
    return encode_tensors(named, {"groups": names.tolist()})


@functools.lru_cache(maxsize=256)
def _head_of_verdicts(n_rows: int) -> bytes:
    """Return the header of a safetensors file: it is the same for the same number of rows."""
    numbers, verdicts = np.zeros(n_rows), np.zeros(n_rows, dtype=bool)
    whole = encode_tensors({"p_value": numbers, "score": numbers, "in_distribution": verdicts}, {})
    return whole[: -(2 * numbers.nbytes + verdicts.nbytes)]


def _columns_of(result: Assessment) -> dict[str, list[Any]]:
    """Return the columns of an assessment as lists."""
    return {name: column.tolist() for name, column in result.columns().items()}


def _encode_predictions(engine: Engine, result: BatchResult, columns: dict[str, Any]) -> bytes:
    """Return the columns and, for each label, predictions, probabilities and logits as JSON."""
    logits = result.outputs.logits
    names = engine.label_names or tuple(map(str, range(logits.shape[1])))
    numbers: list[list[Any]] = logits.tolist()  # NaN and +inf are encoded as null
    for row, column in np.argwhere(logits == -np.inf).tolist():
        numbers[row][column] = "-inf"
    predictions = {
        "predicted": [[names[column] for column in row.nonzero()[0]] for row in logits > 0],
        "probs": label_prob(logits).tolist(),
        "logits": numbers,
    }
    return msgspec.json.encode(columns | predictions)


def _explained(engine: Engine, result: BatchResult) -> dict[str, Any]:
    """Return the reason for each verdict, with the labels that matter most."""
    if len(result.outputs) > MAX_EXPLAINED:
        raise HTTPException(413, f"at most {MAX_EXPLAINED} rows can be explained in one request.")
    return {"explanation": [_reason(reason) for reason in engine.explain(result.outputs)]}


def _reason(reason: Reason) -> dict[str, Any]:
    by_label = reason.by_label()
    labels = () if by_label is None else by_label.most_telling(_EXPLAINED_LABELS)
    explanation = {
        "term": "" if by_label is None else by_label.term,
        "summary": reason.summary(),
        "labels": [label.as_dict() for label in labels],
    }
    if reason.parts:
        parts = [part.as_dict() for part in reason.parts]
        explanation["parts"] = [{k: v for k, v in p.items() if k != "reason"} for p in parts]
    return explanation
