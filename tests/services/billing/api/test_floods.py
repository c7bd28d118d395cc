"""A flood at the door: so many registrations, hashes and tokens as were agreed, and no more."""

import asyncio
import hashlib
import threading
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from payonce.engine.operators import Role, add_person, log_in, passwords
from payonce.engine.operators.login_limits import WINDOW_S
from payonce.http.kit.auth import address_of
from payonce.http.server import bound, served
from payonce.kit.http import HttpClient
from payonce.services.billing.api import callers
from payonce.services.billing.subscriptions.resources import subscription_resources
from payonce.services.billing.subscriptions.store import accounts, refresh_tokens
from payonce.settings import load_settings
from payonce.testing import Clock
from tests.ablations import Ablations, cases, given, missed, patched
from tests.http.client import Answer
from tests.services.billing.api.conftest import OpenCounter, OpenShop
from tests.services.billing.api.counter import PASSWORD, Counter

REGISTER, LOGIN, REFRESH = "/v1/auth/register", "/v1/auth/login", "/v1/auth/refresh"
MOST, CROWD = 3, 8


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "COST", 2**4)
    monkeypatch.setenv("BILLING_REGISTRATIONS_MAX", str(MOST))
    monkeypatch.setattr(refresh_tokens, "TOKENS_MAX", MOST)


def person(number: int) -> dict[str, str]:
    return {"email": f"p{number}@example.com", "password": PASSWORD}


async def rows_in(ask: Counter, table: str) -> int:
    found: int = await ask.app.read.fetchval(f"select count(*) from {table}")
    return found


async def test_of_many_registrations_from_one_address_a_few_are_carried_out(counter: OpenCounter) -> None:
    async with counter() as ask, Clock.open(ask.scratch.owner_url) as clock:
        hashed = 0
        genuine = passwords._digest

        async def digest(*given: Any) -> bytes:
            nonlocal hashed
            hashed += 1
            return await genuine(*given)

        with patched(passwords, "_digest", digest)():
            # Whatever they say of themselves: nobody here is a proxy.
            answers = await asyncio.gather(
                *(ask.post(REGISTER, person(n), x_forwarded_for=f"198.51.100.{n}") for n in range(CROWD))
            )
        assert sorted(answer.status for answer in answers) == [201] * MOST + [429] * (CROWD - MOST)
        assert await rows_in(ask, "subscriptions.accounts") == MOST == hashed
        refused = [answer for answer in answers if answer.status == 429]
        assert {answer.headers["retry-after"] for answer in refused} == {str(WINDOW_S)}
        assert {answer.problem["detail"] for answer in refused} == {
            "too many registrations from this address; wait 15 minutes"
        }
        one = next(n for n, answer in enumerate(answers) if answer.status == 201)
        assert (await ask.post(LOGIN, person(one))).status == 200, "who has an account is not shut out"
        for elsewhere, status in (("198.51.100.9", 201), ("2001:db8::1", 201)):
            assert (await replace(ask, client=elsewhere).post(REGISTER, person(CROWD))).status == status
        await clock.advance(WINDOW_S + 1)
        assert (await ask.post(REGISTER, person(CROWD + 1))).status == 201


async def test_without_any_registrations_nobody_registers_and_customers_still_log_in(
    counter: OpenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counter() as ask:
        assert (await ask.post(REGISTER, person(0))).status == 201
        monkeypatch.setenv("BILLING_REGISTRATIONS_MAX", "0")
        for secret in ("JWT_SECRET_KEY", "WEBHOOK_SIGNING_SECRET"):
            monkeypatch.setenv(secret, "x" * 32)
        ask.app.resources = subscription_resources(load_settings(), ask.app.database)
        refused = await ask.post(REGISTER, person(1))
        assert (refused.status, refused.problem["detail"]) == (
            403,
            "self-registration is closed here; ask the merchant for an account",
        )
        assert await rows_in(ask, "subscriptions.accounts") == 1
        assert (await ask.post(LOGIN, person(0))).status == 200


async def test_passwords_wait_for_a_thread_in_bounded_number_and_who_is_sent_away_made_no_guess(
    counter: OpenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, genuine = threading.Event(), hashlib.scrypt

    def held(*given: Any, **more: Any) -> bytes:
        assert go.wait(30)
        return genuine(*given, **more)

    monkeypatch.setattr(passwords, "WAITING_MAX", 1)
    monkeypatch.setattr(hashlib, "scrypt", held)
    room = passwords.AT_ONCE + 1
    async with counter() as ask:
        asking = [
            asyncio.create_task(replace(ask, client=f"198.51.100.{n}").post((LOGIN, REGISTER)[n % 2], person(n)))
            for n in range(CROWD)
        ]
        try:
            away = await asyncio.wait_for(_first(asking, CROWD - room), 30)
        finally:
            go.set()
        assert {(answer.status, answer.headers["retry-after"]) for answer in away} == {
            (429, str(passwords.QUEUE_FULL_WAIT_S))
        }
        statuses = [(await each).status for each in asking]
        assert statuses.count(429) == CROWD - room
        assert set(statuses) <= {201, 401, 429}
        counted = await ask.app.read.fetchval("select count(*) from payonce.login_failures where name <> ''")
        assert counted == statuses.count(401)
        assert not passwords._hash_queue(accounts.LOGIN_ENDPOINT).under_way


async def test_a_crowd_of_customers_does_not_keep_operators_out_of_the_console(
    counter: OpenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, genuine, customers = threading.Event(), hashlib.scrypt, "what a customer typed"

    def held(password: bytes, **more: Any) -> bytes:
        assert password != customers.encode() or go.wait(30)
        return genuine(password, **more)

    monkeypatch.setattr(passwords, "WAITING_MAX", 1)
    monkeypatch.setattr(hashlib, "scrypt", held)
    async with counter() as ask:
        async with ask.app.begin() as tx:
            await add_person(tx, "ann", Role.OPERATOR, PASSWORD, "ada")
        asking = [
            asyncio.create_task(
                replace(ask, client=f"198.51.100.{n}").post(LOGIN, {**person(n), "password": customers})
            )
            for n in range(passwords.AT_ONCE + 2)
        ]
        try:
            [away] = await asyncio.wait_for(_first(asking, 1), 30)
            assert away.status == 429
            assert await log_in(ask.app.database, "ann", PASSWORD, "127.0.0.1")
        finally:
            go.set()
        assert sorted([(await each).status for each in asking]) == [401] * (passwords.AT_ONCE + 1) + [429]


async def _first(asking: list["asyncio.Task[Answer]"], many: int) -> list[Answer]:
    """Those who were answered while all the others wait."""
    answers = asyncio.as_completed(asking)
    return [await next(answers) for _ in range(many)]


async def test_one_account_gets_so_many_tokens_and_keeps_the_last_of_them(counter: OpenCounter) -> None:
    async with counter() as ask, Clock.open(ask.scratch.owner_url) as clock:
        token = (await ask.post(REGISTER, person(0))).json["refresh_token"]
        for _ in range(MOST - 1):
            token = (await ask.post(REFRESH, {"refresh_token": token})).json["refresh_token"]
        for path, body in ((REFRESH, {"refresh_token": token}), (LOGIN, person(0))):
            refused = await ask.post(path, body)
            assert (refused.status, refused.headers["retry-after"]) == (429, str(WINDOW_S))
        assert await rows_in(ask, "subscriptions.refresh_tokens") == MOST
        assert (await ask.post(REGISTER, person(1))).status == 201
        await clock.advance(WINDOW_S + 1)
        assert (await ask.post(REFRESH, {"refresh_token": token})).status == 200


async def test_an_invoice_is_charged_out_of_turn_so_often_and_no_more(
    shop: OpenShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "ATTEMPTS_MAX", 0)
    async with shop() as ask:
        refused = await (await ask.customer("ada@example.com")).order("/v1/invoices/any/pay")
        assert (refused.status, refused.headers["retry-after"]) == (429, str(WINDOW_S))


@pytest.mark.parametrize(("proxies", "taken_for"), [(None, "127.0.0.1"), ("127.0.0.1", "198.51.100.7")])
async def test_a_forwarded_address_is_believed_only_of_proxies_that_were_named(
    proxies: str | None, taken_for: str
) -> None:
    async def web(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse(address_of(Request(scope)))(scope, receive, send)

    async with served(web, bound("127.0.0.1", 0), proxies) as (port, _):
        url = f"http://127.0.0.1:{port}"
        async with HttpClient("door", url, timeout_s=40, allow_private=True) as http:
            answer = await http.request("GET", "/", headers={"X-Forwarded-For": "198.51.100.7"})
    assert answer.body.decode() == taken_for


async def _nothing(*_: Any) -> None:
    return None


ABLATIONS: Ablations = {
    "the bound on registrations": (
        patched(accounts, "count_action", _nothing),
        [given(test_of_many_registrations_from_one_address_a_few_are_carried_out)],
    ),
    "the bound on tokens": (
        patched(refresh_tokens, "count_action", _nothing),
        [given(test_one_account_gets_so_many_tokens_and_keeps_the_last_of_them)],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_a_safeguard_its_test_fails(counter: OpenCounter, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, counter, KeyError)  # type: ignore[arg-type]
