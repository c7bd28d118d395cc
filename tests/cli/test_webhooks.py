"""`payonce webhooks` from the first endpoint to a replay, with a real worker, and one that is killed in mid-send."""

import asyncio
import base64
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
from standardwebhooks.webhooks import Webhook

from payonce.cli.application import run_command
from payonce.kit.webhooks import Secret, Verified, signed_headers, verify
from payonce.settings.data_folder import kept_keys
from payonce.testing import ScratchDatabase
from payonce.testing.server import serving
from tests.cli.conftest import PATIENCE_S, Ended, Payonce, ask, until
from tests.engine.webhooks_stage import Arrived, Shop

KEYS = f"k1:{base64.b64encode(b'k' * 32).decode()}"
WORKER = {"PAYONCE_WEBHOOK_PRIVATE": "true"}


class Desk:
    """The command, and a shop that listens in a thread of its own."""

    def __init__(
        self, payonce: Payonce, database: ScratchDatabase, capsys: pytest.CaptureFixture[str], shop: Shop, url: str
    ) -> None:
        self.payonce, self.database, self.capsys, self.shop, self.url = payonce, database, capsys, shop, url

    def __call__(self, *arguments: str) -> Any:
        ended = self.plain(*arguments, "--json")
        assert ended.code == 0, ended.stderr
        return ended.json

    def plain(self, *arguments: str) -> Ended:
        """In this process, for the sake of time; what works on the queue is a process of its own."""
        code = run_command(["webhooks", *arguments])
        return Ended(code, *self.capsys.readouterr())

    def add(self, path: str = "/hook") -> Any:
        return self("endpoints", "add", self.url + path, "--event", "invoice.*", "--by", "ada")

    def start(self, **variables: str) -> "subprocess.Popen[str]":
        return self.payonce.start("run", "webhooks.sender", **{**WORKER, **variables})

    def heard(self, count: int) -> list[Arrived]:
        until(lambda: len(self.shop.arrived) >= count, f"the shop hears {count} times")
        return self.shop.arrived

    def told(self, event: str, state: str = "delivered") -> str:
        """The id of the event's delivery, once one has that state."""
        query = "select id::text from payonce.webhook_deliveries where event_id = $1 and state = $2"
        found: str = until(lambda: ask(self.database.owner_url, query, event, state), f"{event} is {state}")
        return found


@pytest.fixture
def environment(payonce: Payonce, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command's environment, also for commands in this process."""
    payonce.environment.update(PAYONCE_KEYS=KEYS, PAYONCE_WEBHOOK_PRIVATE="true", PAYONCE_PORT="0")
    payonce.environment.pop("WEBHOOK_SIGNING_SECRET")
    monkeypatch.delenv("WEBHOOK_SIGNING_SECRET", raising=False)
    for name, value in payonce.environment.items():
        monkeypatch.setenv(name, value)
    yield
    structlog.reset_defaults()


@pytest.fixture
def desk(
    environment: None, payonce: Payonce, database: ScratchDatabase, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    loop, shop, stack = asyncio.new_event_loop(), Shop(), AsyncExitStack()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        url = asyncio.run_coroutine_threadsafe(stack.enter_async_context(serving(shop)), loop).result(PATIENCE_S)
        yield Desk(payonce, database, capsys, shop, url)
    finally:
        payonce.close()
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_from_the_first_endpoint_to_a_replay(desk: Desk, database: ScratchDatabase) -> None:
    made = desk.add("/their-secret-path")
    endpoint, first = made["endpoint"]["id"], made["secret"]
    event = desk("endpoints", "ping", endpoint)["event"]
    desk.start()
    [request] = desk.heard(1)
    assert Webhook(first).verify(request.body, request.headers)["type"] == "payonce.ping"
    delivery = desk.told(event)
    second = desk("endpoints", "rotate", endpoint, "--overlap", "1h")["secret"]
    assert desk("replay", delivery, "--why", "they lost it")["replayed"] == 1
    again = desk.heard(2)[-1]
    assert (again.id, again.body) == (request.id, request.body)
    for secret in (first, second):
        assert Webhook(secret).verify(again.body, again.headers)
    notes = ask(database.owner_url, "select string_agg(actor || ' ' || text, E'\n' order by id) from payonce.audit_log")
    assert "ada http://127.0.0.1" in notes
    assert "they lost it" in notes
    assert first not in notes


def test_endpoints_and_deliveries_are_shown_without_the_receivers_secret(desk: Desk) -> None:
    endpoint = desk.add("/their-secret-path")["endpoint"]["id"]
    event = desk("endpoints", "ping", endpoint)["event"]
    listed = desk.plain("endpoints", "list").stdout
    assert endpoint[:8] in listed
    assert "their-secret-path" not in listed
    assert desk("endpoints", "show", endpoint)["endpoint"]["url"].endswith("their-secret-path")
    [told] = desk("deliveries", "list", "--event", event)["deliveries"]
    assert (told["state"], told["type"], told["place"]) == ("pending", "payonce.ping", desk.url)
    shown = desk.plain("deliveries", "show", told["id"]).stdout
    assert f'"id":"{event}"' in shown.replace("\n", "")


def test_what_a_disabled_endpoint_missed_is_replayed_since_a_time(desk: Desk) -> None:
    endpoint = desk.add()["endpoint"]["id"]
    event = desk("endpoints", "ping", endpoint)["event"]
    off = desk("endpoints", "disable", endpoint, "--reason", "they move house")
    assert off["endpoint"]["reason"] == "they move house"
    desk.start()
    desk.told(event, "skipped")
    missed = ("replay", "--endpoint", endpoint, "--since", "2026-01-01T00:00:00Z", "--yes")
    assert "is disabled: they move house; enable it first" in desk.plain(*missed).sentence
    assert "payonce webhooks replay" in desk.plain("endpoints", "enable", endpoint).stdout
    done = desk(*missed)
    assert (done["matching"], done["replayed"]) == (1, 1)
    assert [request.id for request in desk.heard(1)] == [event]
    assert "add --yes" in desk.plain("endpoints", "remove", endpoint, "--reason", "closed").sentence
    assert desk("endpoints", "remove", endpoint, "--reason", "closed", "--yes")["endpoint"]["state"] == "removed"


def test_a_worker_killed_between_the_send_and_the_record_sends_again_under_the_same_id(
    desk: Desk, database: ScratchDatabase
) -> None:
    endpoint = desk.add()["endpoint"]["id"]
    desk.shop.resume = asyncio.Event()
    event = desk("endpoints", "ping", endpoint)["event"]
    victim = desk.start()
    desk.heard(1)
    victim.kill()
    victim.wait()
    # What stands still in the shop never goes on: nobody is left to hear its answer.
    desk.shop.resume = None
    desk.told(event, "pending")
    # Its lease ends here and not by the time: a short one would also end for a worker that only stood still.
    ended = "update payonce.messages set lease_until = payonce.lease_now() where state = 'leased' returning 1"
    assert ask(database.owner_url, ended) == 1
    desk.start()
    first, second = desk.heard(2)
    assert first.id == second.id == event
    assert first.body == second.body
    delivery = desk.told(event)
    attempts = "select count(*) from payonce.webhook_attempts where delivery_id = $1::text::uuid"
    assert ask(database.owner_url, attempts, delivery) == 1


def test_private_receivers_are_told_only_where_it_is_allowed(
    desk: Desk, database: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = desk.add()["endpoint"]["id"]
    desk("endpoints", "ping", endpoint)
    desk.start(PAYONCE_WEBHOOK_PRIVATE="false")
    first = "select error from payonce.webhook_attempts order by id limit 1"
    error = until(lambda: ask(database.owner_url, first), "an attempt is on record")
    assert error == "not sent: the host is not at a public address"
    assert desk.shop.arrived == []
    monkeypatch.setenv("PAYONCE_WEBHOOK_PRIVATE", "false")
    refused = desk.plain("endpoints", "add", "http://shop.example/", "--event", "*")
    assert (refused.code, "is not https" in refused.sentence) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("endpoints", "add", "https://shop.example/", "--event", "*"), "PAYONCE_KEYS is not set"),
        (("endpoints", "show", "x"), "'x' is not the id of an endpoint"),
        (("endpoints", "show", "00000000-0000-7000-8000-000000000000"), "there is no endpoint 00000000"),
        (
            ("endpoints", "list", "--state", "odd"),
            "there is no state 'odd'; an endpoint is enabled, disabled or removed",
        ),
        (("endpoints", "rotate", "00000000-0000-7000-8000-000000000000", "--overlap", "soon"), "--overlap is 'soon'"),
        (
            ("endpoints", "remove", "00000000-0000-7000-8000-000000000000", "--reason", "x"),
            "there is no endpoint 00000000",
        ),
        (("deliveries", "show", "x"), "'x' is not the id of a delivery"),
        (("deliveries", "list", "--since", "noon"), "--since is 'noon'"),
        (("replay",), "nothing is selected"),
        (("replay", "00000000-0000-7000-8000-000000000000"), "there is no delivery 00000000"),
        (("replay", "00000000-0000-7000-8000-000000000000", "--type", "x"), "give --endpoint"),
        (("replay", "--endpoint", "00000000-0000-7000-8000-000000000000"), "--since is missing"),
        (("verify", "-"), "WEBHOOK_SIGNING_SECRET is not set"),
    ],
)
def test_a_slip_is_refused_in_one_sentence(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.delenv("PAYONCE_KEYS")
    ended = desk.plain(*arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert words in ended.sentence


def signed(tmp_path: Path, secret: str, body: bytes = b'{"id":"evt_1"}') -> tuple[str, str]:
    (tmp_path / "body").write_bytes(body)
    headers = signed_headers([Secret(secret)], "evt_1", datetime.now(UTC), body)
    (tmp_path / "headers").write_text("".join(f"{name}: {value}\n" for name, value in headers.items()))
    return str(tmp_path / "body"), str(tmp_path / "headers")


def test_a_webhook_is_verified_by_hand(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = desk("secret")["secret"]
    body, headers = signed(tmp_path, secret)
    given = ("verify", body, "--headers", headers)
    monkeypatch.setenv("WEBHOOK_SIGNING_SECRET", f"an-older-shared-secret {secret}")
    good = desk(*given)
    assert (good["verified"], good["id"]) == (True, "evt_1")
    assert "verified: the standard signature of event evt_1" in desk.plain(*given).stdout
    late = desk.plain(*given, "--at", "2020-01-01T00:00:00Z", "--json")
    assert (late.code, late.json["why"], late.json["status"]) == (1, "future", 400)
    assert "cannot read" in desk.plain("verify", str(tmp_path / "absent")).sentence
    assert "is malformed; write `name: value`" in desk.plain("verify", body, "--header", "nonsense").sentence
    monkeypatch.setenv("WEBHOOK_SIGNING_SECRET", "quite-another-secret")
    forged = desk.plain(*given)
    assert (forged.code, forged.stderr.startswith("not verified (401): no signature matches")) == (1, True)
    (tmp_path / "secret").write_text(secret + "\n")
    assert desk(*given, "--secret-file", str(tmp_path / "secret"))["verified"]


def test_the_body_may_come_by_stdin(payonce: Payonce, tmp_path: Path) -> None:
    secret = "a-shared-secret-of-ours"
    _, headers = signed(tmp_path, secret)
    arguments = ("webhooks", "verify", "-", "--headers", headers, "--json")
    ended = payonce(*arguments, stdin='{"id":"evt_1"}', WEBHOOK_SIGNING_SECRET=secret)
    assert (ended.code, ended.json["verified"]) == (0, True)


def test_the_line_of_openssl_in_the_docs_makes_the_signature(tmp_path: Path) -> None:
    secret, body = Secret("a-shared-secret-of-ours"), b'{"id":"evt_1"}'
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    headers = signed_headers([secret], "evt_1", at, body)
    older = {name: value for name, value in headers.items() if name.startswith("X-")}
    said = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", secret.reveal()],
        input=headers["X-Webhook-Timestamp"].encode() + b"." + body,
        capture_output=True,
        check=True,
    ).stdout.decode()
    assert said.rpartition("= ")[2].strip() == headers["X-Webhook-Signature"].removeprefix("sha256=")
    assert isinstance(verify(older, body, [secret], at), Verified)


@pytest.mark.parametrize(
    ("name", "value"),
    [("PAYONCE_KEYS", "k1:tooshort"), ("PAYONCE_KEYS", "whsec_x"), ("WEBHOOK_SIGNING_SECRET", "short")],
)
def test_bad_settings_are_named_and_secrets_never_shown(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    ended = desk.plain("endpoints", "list")
    assert ended.code == 2
    assert ended.sentence.startswith(f"{name} set, its value is not shown; ")
    assert value not in ended.stderr.replace("`payonce webhooks secret`", "")


def test_a_tolerance_of_nothing_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_TOLERANCE_SECONDS", "0")
    assert desk.plain("endpoints", "list").sentence.startswith("WEBHOOK_TOLERANCE_SECONDS is '0'; it must be")


def test_the_private_databases_keys_are_made_once_and_are_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "keys"
    made = kept_keys(path)
    assert kept_keys(path) == made
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(path.parent) == ["keys"]
