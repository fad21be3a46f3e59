"""Requests that wait together are scored together, and each gets its own answer."""

import asyncio
import json
import threading

import numpy as np
import pytest
from prometheus_client import generate_latest

import nescio as ns
from fixtures.service import refused
from nescio._io.tensors import encode_tensors
from nescio.service.openapi import SAFETENSORS
from nescio.service.service import Batcher, Engine

httpx = pytest.importorskip("httpx")
TestClient = pytest.importorskip("starlette.testclient").TestClient


def at_once(application, requests):
    """The answers to requests (path, content type, body) that are sent at the same time."""

    async def run():
        service = application.service
        await service.start()
        released, arrived = threading.Event(), asyncio.Semaphore(0)
        for batcher in (service.scoring, service.predicting):
            batcher._thread.submit(released.wait, 60)
            batcher.submit = announced(batcher.submit, arrived)
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            observed = asyncio.gather(
                *(
                    client.post(path, content=body, headers={"content-type": kind})
                    for path, kind, body in requests
                )
            )
            # No batch runs until all requests wait for one.
            for _ in requests:
                await asyncio.wait_for(arrived.acquire(), 60)
            released.set()
            await observed
        await service.stop()
        return observed.result()

    return asyncio.run(run())


def announced(submit, arrived):
    """Return a `Batcher.submit` that counts its calls; the work waits before a count is seen."""

    def submitting(*arguments, **options):
        arrived.release()
        return submit(*arguments, **options)

    return submitting


def body_of(logits):
    return ("/v1/score", SAFETENSORS, encode_tensors({"logits": np.asarray(logits)}, {}))


@pytest.fixture
def runs(monkeypatch):
    """Count the requests of each batch."""
    seen = []
    for name in ("score", "run_model"):
        original = getattr(Engine, name)

        def counting(self, works, original=original):
            seen.append(len(works))
            return original(self, works)

        monkeypatch.setattr(Engine, name, counting)
    return seen


def test_answers_are_those_of_each_request_alone(app, detector_file, some_logits, runs):
    file = detector_file()
    parts = [some_logits(n % 5 + 1, seed=n) for n in range(60)]
    answers = at_once(app(file), [body_of(part) for part in parts])
    detector = ns.load(file)
    for part, answer in zip(parts, answers, strict=True):
        expected = detector.assess(part)
        alone = encode_tensors(
            {
                "score": expected.scores,
                "p_value": expected.p_values,
                "in_distribution": expected.in_distribution,
            },
            {},
        )
        assert answer.content == alone
    assert sum(runs) == 60
    assert len(runs) < 30


def test_a_bad_request_spoils_only_itself(app, some_logits, runs):
    parts = [some_logits(2, seed=n) for n in range(20)]
    parts[7] = np.full((2, 4), np.nan, np.float32)
    application = app()
    answers = at_once(application, [body_of(part) for part in parts])
    statuses = [answer.status_code for answer in answers]
    assert [index for index, status in enumerate(statuses) if status != 200] == [7]
    assert statuses[7] == 422
    assert max(runs) > 1
    # What was scored is counted once.
    assert application.service.engine.traffic.report(False).n_watched == 38
    assert (
        "nescio_samples_total 38.0"
        in generate_latest(application.service.metrics.registry).decode()
    )


def test_groups_and_ids_stay_with_their_rows(app, detector_file, some_logits):
    file = detector_file(groups="label_count")
    parts = [some_logits(2, seed=n) for n in range(30)]
    requests = [
        (
            "/v1/score",
            "application/json",
            json.dumps({"logits": part.tolist(), "ids": ["x", "y"]}).encode(),
        )
        for part in parts
    ]
    answers = at_once(app(file), requests)
    detector = ns.load(file)
    for part, answer in zip(parts, answers, strict=True):
        assert answer.json()["id"] == ["x", "y"]
        expected = detector.assess(part.astype(np.float64))
        assert answer.json()["group"] == expected.groups.tolist()
        assert answer.json()["score"] == expected.scores.tolist()


def test_predictions_are_batched_too(app, detector_file, text_model, runs):
    tokens = [np.array([[n % 50, (3 * n) % 50]]) for n in range(24)]
    requests = [
        (
            "/v1/predict",
            SAFETENSORS,
            encode_tensors({"input_ids": ids, "attention_mask": np.ones_like(ids)}, {}),
        )
        for ids in tokens
    ]
    requests[5] = (
        "/v1/predict",
        SAFETENSORS,
        encode_tensors({"input_ids": tokens[5] + 10**6, "attention_mask": tokens[5]}, {}),
    )
    file, model = detector_file(), text_model()
    together = at_once(app(file, model=model), requests)
    assert max(runs) > 1
    alone = [at_once(app(file, model=model), [request])[0] for request in requests[:6]]
    for joined, other in zip(together, alone, strict=False):
        assert joined.status_code == other.status_code
        if joined.status_code == 200:
            assert joined.json()["logits"] == other.json()["logits"]
            assert joined.json()["score"] == pytest.approx(other.json()["score"], rel=1e-6)
    assert [index for index, answer in enumerate(together) if answer.status_code != 200] == [5]


# --- large requests of a model --------------------------------------------------------------------


@pytest.fixture
def in_pieces(app, detector_file, text_model, monkeypatch):
    """Make a service whose model takes two rows at once, and pauses after each piece."""
    monkeypatch.setattr("nescio.service.model.WORK_AT_ONCE", 2 << 10)
    pieces = []
    original = Engine.run_model

    def slow(self, works):
        pieces.append(sum(len(work["input_ids"]) for work in works))
        threading.Event().wait(0.01)
        return original(self, works)

    monkeypatch.setattr(Engine, "run_model", slow)
    return app(detector_file(), model=text_model()), pieces


def tokens_of(n_rows):
    ids = np.arange(n_rows)[:, None] % 50
    body = encode_tensors({"input_ids": ids, "attention_mask": np.ones_like(ids)}, {})
    return ("/v1/predict", SAFETENSORS, body)


def test_other_requests_get_their_turn_between_the_pieces_of_a_large_one(in_pieces):
    application, pieces = in_pieces
    ended = []

    async def run():
        await application.service.start()
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

            async def post(n_rows):
                path, kind, body = tokens_of(n_rows)
                answer = await client.post(path, content=body, headers={"content-type": kind})
                ended.append((n_rows, len(pieces)))
                return answer

            large = asyncio.create_task(post(101))
            while not pieces:
                await asyncio.sleep(0)
            small = await post(1)
            answers = await large, small
        await application.service.stop()
        return answers

    large, small = asyncio.run(run())
    assert max(pieces) <= 2
    (first, n_before), (last, _) = ended
    assert (first, last) == (1, 101)
    assert n_before < 6
    assert (large.status_code, small.status_code) == (200, 200)
    table = at_once(application, [tokens_of(50)])[0].json()["logits"]
    assert large.json()["logits"] == (table * 3)[:101]
    assert small.json()["logits"] == table[:1]


def test_the_work_for_a_client_that_has_left_ends(in_pieces):
    application, pieces = in_pieces
    path, kind, body = tokens_of(400)
    messages = [{"type": "http.request", "body": body}]
    sent = []

    async def receive():
        if messages:
            return messages.pop()
        while not pieces:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async def run():
        await application.service.start()
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
        await application(scope | {"headers": [(b"content-type", kind.encode())]}, receive, send)
        await application.service.stop()

    asyncio.run(run())
    assert sent == []
    assert len(pieces) < 5
    service = application.service
    assert (service.limits.n_requests, service.limits.n_held) == (0, 0)
    assert (
        'path="/v1/predict",status="499"} 1.0' in generate_latest(service.metrics.registry).decode()
    )


def test_too_many_token_ids_are_refused(in_pieces, monkeypatch):
    application, pieces = in_pieces
    monkeypatch.setattr("nescio.service.model.MAX_TOKENS", 20)
    few, many = at_once(application, [tokens_of(20)])[0], TestClient(application)
    assert few.status_code == 200
    n_before = len(pieces)
    with many as client:
        path, kind, body = tokens_of(21)
        answer = client.post(path, content=body, headers={"content-type": kind})
    refused(answer, 413, "21 token ids; 20 are allowed")
    assert len(pieces) == n_before


# --- the bound ----------------------------------------------------------------------------------


def test_more_than_may_be_under_way_are_told_to_come_back(app, some_logits, monkeypatch):
    application = app(max_requests=3)
    released, entered = threading.Event(), threading.Event()
    original = Engine.score

    def slow(self, works):
        entered.set()
        released.wait(10)
        return original(self, works)

    monkeypatch.setattr(Engine, "score", slow)

    async def run():
        await application.service.start()
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            path, kind, body = body_of(some_logits(2))

            def post():
                return client.post(path, content=body, headers={"content-type": kind})

            first = [asyncio.create_task(post()) for _ in range(3)]
            await asyncio.to_thread(entered.wait, 10)
            refused = [await post() for _ in range(4)]
            health = await client.get("/healthz")
            released.set()
            served = await asyncio.gather(*first)
            after = await post()
        await application.service.stop()
        return refused, health, served, after

    refused, health, served, after = asyncio.run(run())
    assert [answer.status_code for answer in refused] == [503] * 4
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    assert health.status_code == 200
    assert [answer.status_code for answer in (*served, after)] == [200] * 4
    assert (
        "nescio_rejected_total 4.0"
        in generate_latest(application.service.metrics.registry).decode()
    )


# --- the batcher alone --------------------------------------------------------------------------


def batched(run, works, max_size=100):
    async def collect():
        batcher = Batcher(max_size)
        observed = await asyncio.gather(
            *(
                batcher.submit(run, work, size=size, kind=lambda _, kind=kind: kind)
                for work, size, kind in works
            ),
            return_exceptions=True,
        )
        await batcher.stop()
        return observed

    return asyncio.run(collect())


def test_a_batch_has_one_kind_and_a_size():
    batches = []

    def run(works):
        batches.append(list(works))
        return list(works)

    works = [(0, 40, "a"), (1, 40, "a"), (2, 40, "a"), (3, 40, "b"), (4, 500, "b"), (5, 1, "b")]
    assert batched(run, works) == [0, 1, 2, 3, 4, 5]
    assert batches == [[0, 1], [2], [3], [4], [5]]


def test_work_that_was_quick_runs_in_the_event_loop_until_it_is_slow():
    here, threads, slow = threading.get_ident(), [], threading.Event()

    def work(items):
        threads.append(threading.get_ident())
        if slow.is_set():
            threading.Event().wait(0.02)
        if items == [0]:
            raise ValueError("no")
        return items

    async def run():
        batcher = Batcher(100)
        batcher._seconds[7] = 0.0  # as of the last batch of 64 to 127
        assert await batcher.submit(work, 5, size=70, kind=lambda _: "a") == 5
        with pytest.raises(ValueError, match="no"):
            await batcher.submit(work, 0, size=70, kind=lambda _: "a")
        batcher._seconds[7] = 0.0
        slow.set()
        await batcher.submit(work, 6, size=70, kind=lambda _: "a")  # it was quick before
        await batcher.submit(work, 7, size=70, kind=lambda _: "a")
        await batcher.submit(work, 8, size=1000, kind=lambda _: "a")  # not known yet
        await batcher.stop()

    asyncio.run(run())
    assert [thread == here for thread in threads] == [True, True, True, False, False]
