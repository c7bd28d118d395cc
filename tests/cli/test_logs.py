"""The process log: JSON or lines with signs, and no secret in either."""

import io
import json
import logging

import pytest
import structlog

from payonce.app.logging import NO_SIGN, configure_logs, sign_of
from payonce.settings import load_settings

pytestmark = pytest.mark.usefixtures("restored_logs")


def logged(style: str, **values: object) -> str:
    stream = io.StringIO()
    configure_logs("json" if style == "json" else "pretty", stream=stream)
    structlog.get_logger("test").info("worker_started", **values)
    return stream.getvalue()


def test_machines_get_one_object_per_line() -> None:
    said = json.loads(logged("json", roles=["tally.worker"], count=3))
    assert (said["level"], said["event"], said["roles"], said["count"]) == (
        "info",
        "worker_started",
        ["tally.worker"],
        3,
    )
    assert said["timestamp"].endswith("Z")


def test_people_get_a_line_with_a_sign() -> None:
    assert "🚀 worker started  roles=" in logged("pretty", roles=["tally.worker"])


def test_numbers_that_are_no_card_numbers_stay() -> None:
    said = json.loads(logged("json", count=3, wei=4242424242424241, fine=True, share=0.5))
    assert (said["count"], said["wei"], said["fine"], said["share"]) == (3, 4242424242424241, True, 0.5)


def test_a_terminal_obeys_nothing_that_a_stranger_wrote() -> None:
    said = logged("pretty", path="\x1b[2J\rpayout done\x9b31m\x00\u202e\ttwo\nlines", **{"odd\x1bkey": 1})
    assert said.endswith(r'path="\x1b[2J\x0dpayout done\x9b31m\x00\u202e\x09two ⏎ lines" odd\x1bkey=1' + "\n")


def test_a_traceback_keeps_its_lines_and_nothing_else_that_a_terminal_obeys() -> None:
    stream = io.StringIO()
    configure_logs("pretty", stream=stream)
    try:
        raise RuntimeError("\x1b[2Jgone")
    except RuntimeError:
        structlog.get_logger("test").exception("handler_failed\x07")
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith(r"handler failed\x07")
    assert rest[-1] == r"RuntimeError: \x1b[2Jgone"
    assert len(rest) > 2


@pytest.mark.parametrize("style", ["json", "pretty"])
def test_no_secret_gets_through(style: str) -> None:
    said = logged(
        style,
        password="hunter2",
        api_token=12345678,
        url="postgresql://someone:hunter2@host/x",
        nested={"deep": [{"client_secret": "hunter2"}], "card": "4111 1111 1111 1111"},
        error=ValueError("signing_key=hunter2"),
        pan=4242424242424242,
        cvc="7777",
        payload={"sk_live_51H8abcDEFghi": 1},
    )
    for secret in ("hunter2", "12345678", "4111", "4242", "7777", "51H8abc"):
        assert secret not in said


def test_a_traceback_is_shown_without_its_secrets() -> None:
    stream = io.StringIO()
    configure_logs("json", stream=stream)
    try:
        raise RuntimeError("bad token=hunter2")
    except RuntimeError:
        structlog.get_logger("test").exception("handler_failed")
    said = json.loads(stream.getvalue())
    assert "RuntimeError" in said["exception"]
    assert "hunter2" not in stream.getvalue()


def test_the_standard_librarys_logging_takes_the_same_way() -> None:
    stream = io.StringIO()
    configure_logs("json", stream=stream)
    logging.getLogger("some.library").warning("password=%s", "hunter2")
    said = json.loads(stream.getvalue())
    assert (said["logger"], said["level"], "hunter2" in said["event"]) == ("some.library", "warning", False)


def test_quiet_keeps_to_warnings() -> None:
    stream = io.StringIO()
    configure_logs("json", quiet=True, stream=stream)
    structlog.get_logger("test").info("worker_started")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("event", "level", "sign"),
    [
        ("worker_started", "info", "🚀"),
        ("retry_later", "info", "🔄"),
        ("worker_stopped", "info", "✅"),
        ("handler_failed", "error", "❌"),
        ("lease_lost", "warning", "⚠️"),
        ("lease_acquired", "info", "⏰"),
        ("listening", "info", "🌐"),
        ("payment_sent", "info", "💰"),
        ("signature_checked", "info", "🔐"),
        ("trace_begun", "info", "🆔"),
        ("payload_read", "info", "📦"),
        ("whatever", "info", NO_SIGN),
    ],
)
def test_the_sign_follows_the_event_and_the_level(event: str, level: str, sign: str) -> None:
    assert sign_of(event, level) == sign


def test_emoji_are_in_json_only_when_asked_for() -> None:
    events = {
        "payout_received": "📦 payout received",
        "payout_priced": "💰 payout priced",
        "exchange_created": "🌐 exchange created",
        "hostpay_triggered": "🚀 hostpay triggered",
        "payout_finished": "✅ payout finished",
        "nothing_known": "nothing known",
    }
    for emoji in (True, False):
        stream = io.StringIO()
        configure_logs("json", stream=stream, emoji=emoji)
        for event in events:
            structlog.get_logger("test").info(event, payout="p-1")
        said = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert [line["event"] for line in said] == list(events), "machines still tell lines apart by their event"
        assert [line.get("message") for line in said] == (list(events.values()) if emoji else [None] * len(events))


def test_json_names_its_level_for_googles_log_viewer_when_asked() -> None:
    for severity in (True, False):
        stream = io.StringIO()
        configure_logs("json", stream=stream, severity=severity)
        log = structlog.get_logger("test")
        log.info("worker_started")
        log.warning("task_refused")
        log.error("handler_failed")
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            log.exception("handler_failed")
        log.critical("store_gone")
        logging.getLogger("library").warning("as libraries do")
        said = [json.loads(line) for line in stream.getvalue().splitlines()]
        named = ["INFO", "WARNING", "ERROR", "ERROR", "CRITICAL", "WARNING"]
        assert [line["level"].upper() for line in said] == named
        assert [line.get("severity") for line in said] == (named if severity else [None] * len(named))


@pytest.mark.parametrize("name", ["K_SERVICE", "CLOUD_RUN_JOB"])
def test_levels_are_named_for_google_on_cloud_run_unless_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for variable in ("K_SERVICE", "CLOUD_RUN_JOB", "PAYONCE_LOG_SEVERITY"):
        monkeypatch.delenv(variable, raising=False)
    assert not load_settings().log_severity
    monkeypatch.setenv(name, "gcsplit2-10-26")
    assert load_settings().log_severity
    monkeypatch.setenv("PAYONCE_LOG_SEVERITY", "false")
    assert not load_settings().log_severity
    monkeypatch.delenv(name)
    monkeypatch.setenv("PAYONCE_LOG_SEVERITY", "true")
    assert load_settings().log_severity
