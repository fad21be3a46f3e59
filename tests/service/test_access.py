"""Who may call: tokens, origins, and the address that may change something."""

import hmac

import pytest

TOKEN = "correct-horse 42"
OPEN = (
    "/",
    "/openapi.json",
    "/healthz",
    "/readyz",
    "/page.js",
    "/page.css",
    "/palette.css",
)
CLOSED = ("/v1/detector", "/v1/traffic", "/metrics", "/nowhere")


def bearer(token):
    return {"authorization": f"Bearer {token}"}


# --- the token ----------------------------------------------------------------------------------


def test_without_a_token_everything_is_open(client):
    service = client()
    for path in (*OPEN, *CLOSED[:-1]):
        assert service.get(path).status_code == 200, path


def test_a_token_closes_all_but_the_page_and_the_probes(client):
    service = client(token=TOKEN)
    for path in OPEN:
        assert service.get(path).status_code == 200, path
    for path in CLOSED:
        answer = service.get(path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/v1/score", "/v1/predict", "/v1/acknowledge"):
        assert service.post(path, json={"logits": [[1, 2, 3, 4]]}).status_code == 401


WRONG = (
    b"",
    b"Bearer",
    b"Bearer wrong",
    b"Bearer correct-horse 4",
    b"Bearer correct-horse 422",
    b"Basic correct-horse 42",
    b"correct-horse 42",
    "Bearer пароль".encode(),
    b"Bearer \x00\xff",
)


def test_a_wrong_token_is_refused(client):
    service = client(token=TOKEN)
    for header in WRONG:
        answer = service.get("/v1/detector", headers={b"authorization": header})
        assert answer.status_code == 401, header
        assert TOKEN not in answer.text


def test_the_right_token_opens(client):
    service = client(token=TOKEN)
    for header in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Bearer  {TOKEN} "):
        assert service.get("/v1/detector", headers={"authorization": header}).status_code == 200
    body = {"logits": [[1, 2, 3, 4]]}
    assert service.post("/v1/score", json=body, headers=bearer(TOKEN)).status_code == 200
    assert service.get("/nowhere", headers=bearer(TOKEN)).status_code == 404


def test_tokens_are_compared_in_constant_time(client, monkeypatch):
    compared = []

    def compare(sent, token):
        compared.append((sent, token))
        return hmac.compare_digest(sent, token)

    class Spy:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr("nescio.service.app.hmac", Spy)
    service = client(token=TOKEN)
    assert service.get("/v1/detector", headers=bearer("guess")).status_code == 401
    assert service.get("/v1/detector", headers=bearer(TOKEN)).status_code == 200
    assert compared == [(b"guess", TOKEN.encode()), (TOKEN.encode(), TOKEN.encode())]


# --- origins ------------------------------------------------------------------------------------


def from_page(origin, host="127.0.0.1:8000"):
    return {"origin": origin, "host": host}


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1:9999", "http://127.0.0.1", "x", "file://"],
)
def test_pages_of_other_origins_may_not_call(origin, client):
    service = client()
    for path in ("/v1/detector", "/metrics", "/healthz"):
        assert service.get(path, headers=from_page(origin)).status_code == 403
    answer = service.post("/v1/reload", headers=from_page(origin))
    assert answer.status_code == 403
    assert "may not call" in answer.json()["detail"]
    assert "access-control-allow-origin" not in answer.headers


def test_the_services_own_page_may_call(client):
    service = client()
    for origin, host in (
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://localhost:8000", "localhost:8000"),
        ("https://Score.Example", "score.example"),
    ):
        answer = service.get("/v1/detector", headers=from_page(origin, host))
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_options_do_nothing(client):
    assert client(token=TOKEN).options("/v1/reload").status_code == 401
    assert client().options("/v1/reload").status_code == 405


# --- operators ---------------------------------------------------------------------------------


DONE = {"/v1/reload": 200, "/v1/acknowledge": 409}  # there is no alarm


@pytest.mark.parametrize("path", DONE)
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.7"])
def test_without_a_token_only_this_machine_may_change_something(path, address, client):
    service = client(address=(address, 50000))
    status = 403 if address == "10.0.0.7" else DONE[path]
    assert service.post(path, json={"note": "Ann"}).status_code == status


@pytest.mark.parametrize("path", DONE)
def test_a_proxy_on_this_machine_does_not_open_it_to_others(path, client):
    service = client()
    for name in ("X-Forwarded-For", "Forwarded"):
        assert (
            service.post(path, json={"note": "Ann"}, headers={name: "10.0.0.7"}).status_code == 403
        )


@pytest.mark.parametrize("path", DONE)
def test_with_the_token_any_machine_may_change_something(path, client):
    service = client(address=("10.0.0.7", 50000), token=TOKEN)
    assert service.post(path, json={"note": "Ann"}, headers=bearer(TOKEN)).status_code == DONE[path]
    assert service.post(path, json={"note": "Ann"}).status_code == 401


# --- the page ------------------------------------------------------------------------------------


def test_answers_say_what_a_browser_may_do_with_them(client):
    service = client()
    page = service.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in ("/", "/healthz", "/nowhere"):
        assert service.get(path).headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("127.4.5.6:80", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 403),
        ("127.evil.example", 403),
        ("192.168.0.4", 403),
        ("12345", 403),
        (":8000", 403),
    ],
)
def test_on_this_machine_it_answers_to_no_other_name(host, status, client):
    service = client()
    headers = {"host": host, "origin": f"http://{host}"}
    service.app.service.only_local = True
    assert service.get("/v1/detector", headers=headers).status_code == status
    service.app.service.only_local = False
    assert service.get("/v1/detector", headers=headers).status_code == 200


def test_probes_answer_head_too(client):
    service = client()
    assert [service.head(path).status_code for path in ("/healthz", "/readyz", "/")] == [200] * 3
