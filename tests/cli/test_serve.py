"""nescio serve: what is wrong is said before anything is served."""

import logging
import socket
import sys

import numpy as np
import pytest

import nescio as ns

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


@pytest.fixture(autouse=True)
def _logging_as_before():
    names = ("nescio.service", "uvicorn", "uvicorn.error", "py.warnings")
    loggers = [logging.getLogger(name) for name in names]
    before = [(log.handlers[:], log.level, log.propagate) for log in loggers]
    yield
    logging.captureWarnings(False)
    for log, (handlers, level, propagate) in zip(loggers, before, strict=True):
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


@pytest.fixture
def never_serves(monkeypatch):
    """Take down the settings and the address instead of serving."""
    import nescio.service

    called = {}
    monkeypatch.setattr(
        nescio.service, "serve", lambda settings, **address: called.update(s=settings, **address)
    )
    return called


@pytest.fixture
def detector(tmp_path, rng):
    ns.JointEnergy().calibrate(rng.normal(-1, 3, (200, 4))).save(tmp_path / "d.nescio")
    return tmp_path / "d.nescio"


def fails(nescio, reason, *arguments):
    code, out, err = nescio("serve", *arguments)
    assert code == 1, err
    assert out == ""
    assert err.startswith("error: ")
    assert reason in err


def test_options_become_settings(nescio, detector, never_serves, tmp_path, monkeypatch):
    monkeypatch.delenv("NESCIO_TOKEN", raising=False)
    (tmp_path / "token").write_text(" secret \n")
    code, _, _ = nescio(
        "serve", detector, "--host", "0.0.0.0", "--port", 80, "--token-file", tmp_path / "token",
        "--cors-origin", "https://a.example", "--cors-origin", "https://b.example",
        "--max-body-mb", 2, "--max-rows", 7, "--max-megapixels", 1.5, "--max-requests", 3,
        "--drain-seconds", 5, "--alpha", 0.05, "--log-level", "error",
    )  # fmt: skip
    assert code == 0
    settings = never_serves["s"]
    assert (never_serves["host"], never_serves["port"]) == ("0.0.0.0", 80)
    assert never_serves["log_level"] == "error"
    assert settings.token == "secret"
    assert settings.cors_origins == ("https://a.example", "https://b.example")
    assert (settings.max_body_bytes, settings.max_json_bytes) == (2_000_000, 500_000)
    assert (settings.max_rows, settings.max_pixels, settings.max_requests) == (7, 1_500_000, 3)
    assert (settings.drain_seconds, settings.alpha) == (5.0, 0.05)


def test_by_default_it_is_for_this_machine_only(nescio, detector, never_serves, monkeypatch):
    monkeypatch.delenv("NESCIO_TOKEN", raising=False)
    assert nescio("serve", detector)[0] == 0
    assert never_serves["host"] == "127.0.0.1"
    assert never_serves["s"].token is None
    assert never_serves["s"].cors_origins == ()


def test_a_token_of_the_environment_is_taken_and_one_of_a_file_goes_first(
    nescio, detector, never_serves, monkeypatch, tmp_path
):
    monkeypatch.setenv("NESCIO_TOKEN", "outer\n")
    nescio("serve", detector)
    assert never_serves["s"].token == "outer"
    (tmp_path / "token").write_text("inner")
    nescio("serve", detector, "--token-file", tmp_path / "token")
    assert never_serves["s"].token == "inner"


@pytest.mark.parametrize("content", [b"", b" \n", "пароль".encode(), b"\xff\xfe"])
def test_a_token_that_is_none_does_not_open_the_service(content, nescio, detector, tmp_path):
    (tmp_path / "token").write_bytes(content)
    fails(nescio, "token", detector, "--token-file", tmp_path / "token")


def test_an_empty_variable_does_not_open_the_service(nescio, detector, monkeypatch):
    monkeypatch.setenv("NESCIO_TOKEN", "")
    fails(nescio, "token", detector)


def test_files_that_are_not_there(nescio, detector, tmp_path):
    fails(nescio, "there is no file", tmp_path / "nowhere.nescio")
    fails(nescio, "nowhere.onnx", detector, "--model", tmp_path / "nowhere.onnx")
    fails(nescio, "nowhere", detector, "--token-file", tmp_path / "nowhere")


def test_files_that_are_something_else(nescio, detector, tmp_path):
    np.save(tmp_path / "logits.npy", np.zeros((3, 3)))
    fails(nescio, "logits.npy", tmp_path / "logits.npy")
    pytest.importorskip("onnxruntime")
    fails(nescio, ".onnx", detector, "--model", tmp_path / "logits.npy")
    (tmp_path / "noise.onnx").write_bytes(b"noise")
    fails(nescio, "as ONNX", detector, "--model", tmp_path / "noise.onnx")


def test_a_detector_without_calibration(nescio, tmp_path, rng):
    ns.JointEnergy().fit(rng.normal(-1, 3, (200, 4))).save(tmp_path / "fitted.nescio")
    fails(nescio, "not calibrated", tmp_path / "fitted.nescio")


def test_a_detector_by_groups_of_ones_own(nescio, tmp_path, rng):
    detector = ns.JointEnergy().calibrate(
        rng.normal(-1, 3, (200, 4)), groups=np.repeat(["day", "night"], 100)
    )
    detector.save(tmp_path / "grouped.nescio")
    fails(nescio, "groups of your own", tmp_path / "grouped.nescio")


def test_a_port_in_use(nescio, detector):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fails(nescio, f"port {port}", detector, "--port", port)


def test_an_address_that_is_not_ours(nescio, detector):
    fails(nescio, "cannot listen on 192.0.2.1", detector, "--host", "192.0.2.1", "--port", 0)


def test_options_that_cannot_be(nescio, detector, tmp_path):
    fails(nescio, "--log-level", detector, "--log-level", "loud")
    fails(nescio, "origin", detector, "--cors-origin", "*")
    fails(nescio, "alpha", detector, "--alpha", 2)
    fails(nescio, "nowhere", detector, "--monitor-state", tmp_path / "nowhere" / "state")
    assert nescio("serve", detector, "--port", 70000)[0] == 2
    assert nescio("serve", detector, "--max-rows", 0)[0] == 2


def test_a_missing_extra_is_named(nescio, detector, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    fails(nescio, "'.[serve]'", detector)


def test_help_says_how_it_stops(nescio):
    code, out, _ = nescio("serve", "--help")
    assert code == 0
    for word in ("SIGTERM", "SIGHUP", "--token-file", "NESCIO_TOKEN", "127.0.0.1"):
        assert word in out
