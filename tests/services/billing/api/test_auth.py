"""Accounts: made once, entered by their password alone, prolonged once with each token, ended by a new password."""

import asyncio
import hashlib
import itertools
from dataclasses import replace
from typing import Any

import pytest

from payonce.engine.operators import Role, add_person, log_in, passwords
from payonce.engine.operators.login_limits import ADDRESS_FAILURES_MAX, FAILURES_MAX, WINDOW_S
from payonce.services.billing.api.token_versions import KNOWN_FOR_S, KNOWN_MAX
from payonce.services.billing.subscriptions.store import refresh_tokens
from payonce.services.billing.subscriptions.store.accounts import AccountVersions, set_role
from payonce.testing import Clock
from tests.ablations import patched
from tests.services.billing.api.conftest import OpenCounter
from tests.services.billing.api.counter import PASSWORD, Counter

REGISTER, LOGIN, REFRESH = "/v1/auth/register", "/v1/auth/login", "/v1/auth/refresh"
ADA = {"email": "ada@example.com", "password": PASSWORD}


async def counted(ask: Counter, table: str = "accounts") -> int:
    found: int = await ask.app.read.fetchval(f"select count(*) from subscriptions.{table}")
    return found


async def test_from_registration_to_a_new_password(counter: OpenCounter) -> None:
    async with counter() as ask:
        made = await ask.post(REGISTER, {**ADA, "email": " Ada@Example.COM ", "name": "Ada", "time_zone": "Asia/Dubai"})
        assert made.status == 201
        assert (made.json["token_type"], made.json["expires_in"]) == ("bearer", 900)
        account = made.json["account"]
        assert (account["email"], account["role"], account["time_zone"]) == (
            "ada@example.com",
            "customer",
            "Asia/Dubai",
        )
        ada = ask.bearing(made.json["access_token"])
        assert (await ada.get("/v1/auth/me")).json == account
        entered = await ask.post(LOGIN, {**ADA, "email": "ADA@example.com"})
        prolonged = await ask.post(REFRESH, {"refresh_token": entered.json["refresh_token"]})
        assert (entered.status, prolonged.status) == (200, 200)
        assert (await ask.bearing(prolonged.json["access_token"]).get("/v1/auth/me")).json == account
        body = {"old_password": PASSWORD, "new_password": "another few words altogether"}
        changed = await ada.post("/v1/auth/change-password", body)
        assert changed.status == 200
        assert (await ada.get("/v1/auth/me")).status == 401
        assert (await ask.post(REFRESH, {"refresh_token": prolonged.json["refresh_token"]})).status == 401
        assert (await ask.bearing(changed.json["access_token"]).get("/v1/auth/me")).status == 200
        assert (await ask.post(REFRESH, {"refresh_token": changed.json["refresh_token"]})).status == 200
        assert (await ask.post(LOGIN, ADA)).status == 401
        assert (await ask.post(LOGIN, {**ADA, "password": body["new_password"]})).status == 200


async def test_nothing_of_a_secret_is_kept_or_told(counter: OpenCounter) -> None:
    async with counter() as ask:
        made = await ask.post(REGISTER, ADA)
        await ask.post(LOGIN, {**ADA, "password": "a password that is wrong"})
        tables = (
            "subscriptions.accounts",
            "subscriptions.refresh_tokens",
            "payonce.audit_log",
            "payonce.login_failures",
        )
        kept = [
            row["text"]
            for table in tables
            for row in await ask.app.read.fetch(f"select row_to_json(t)::text as text from {table} t")
        ]
        for secret in (PASSWORD, "a password that is wrong", made.json["refresh_token"], made.json["access_token"]):
            assert secret not in "".join(kept)
        refused = await ask.post(REGISTER, {"email": "ada@example.com", "password": ["hunter2-in-a-list"]})
        assert refused.status == 422
        assert b"hunter2" not in refused.body


async def test_a_login_tells_nobody_who_has_an_account(counter: OpenCounter) -> None:
    async with counter() as ask:
        await ask.post(REGISTER, ADA)
        wrong = [
            {**ADA, "password": "a password that is wrong"},
            {**ADA, "email": "nobody@example.com"},
            {**ADA, "email": "no address at all"},
            {**ADA, "password": "x" * 1_000},
        ]
        answers = [await ask.post(LOGIN, each) for each in wrong]
        assert {answer.status for answer in answers} == {401}
        [detail] = {answer.problem["detail"] for answer in answers}
        assert detail == "the e-mail address or the password is wrong"


async def test_a_login_takes_as_long_for_an_address_that_nobody_has(counter: OpenCounter) -> None:
    """One hash of the same cost and one note in either case, also where somebody registers what is taken."""
    hashed: list[int] = []
    genuine = hashlib.scrypt

    def scrypt(password: bytes, *, n: int, **more: Any) -> bytes:
        hashed.append(n)
        return genuine(password, n=n, **more)

    async with counter() as ask:
        await ask.post(REGISTER, ADA)
        wrong = {"password": "a password that is wrong"}
        with patched(hashlib, "scrypt", scrypt)():
            for path, who in itertools.product((LOGIN, REGISTER), ("ada", "bob")):
                await ask.post(path, {"email": f"{who}@example.com", **wrong})
                assert hashed == [passwords.COST], (path, who)
                hashed.clear()
            # Nor does the shape of the address or the length of the password tell anything.
            for email, password in (("no address at all", "wrong"), ("ada@example.com", "x" * 1_000)):
                await ask.post(LOGIN, {"email": email, "password": password})
                assert hashed == [passwords.COST], email
                hashed.clear()
        told = await ask.app.read.fetchval("select count(*) from payonce.audit_log where text = 'a login failed'")
        assert told == 4


async def test_registering_again_is_a_login_and_never_a_second_account(counter: OpenCounter) -> None:
    async with counter() as ask:
        answers = await asyncio.gather(*(ask.post(REGISTER, ADA) for _ in range(4)))
        assert {answer.status for answer in answers} == {201}
        assert len({answer.json["account"]["id"] for answer in answers}) == await counted(ask) == 1
        refused = await ask.post(REGISTER, {**ADA, "password": "a password that is wrong"})
        assert refused.status == 409
        assert refused.problem["detail"].startswith("this cannot be registered; if the e-mail address is yours, log in")


@pytest.mark.parametrize("path", [LOGIN, REGISTER])
async def test_guessing_is_bounded_and_a_right_password_waits_with_it(counter: OpenCounter, path: str) -> None:
    async with counter() as ask, Clock.open(ask.scratch.owner_url) as clock:
        await ask.post(REGISTER, ADA)
        wrong = {**ADA, "password": "a password that is wrong"}
        guesses = [(await ask.post(path, wrong)).status for _ in range(FAILURES_MAX)]
        assert set(guesses) <= {401, 409}
        waiting = await ask.post(LOGIN, ADA)
        assert (waiting.status, waiting.headers.get("retry-after")) == (429, str(WINDOW_S))
        assert (await replace(ask, client="198.51.100.9").post(LOGIN, ADA)).status == 200
        others = [
            (await ask.post(LOGIN, {**ADA, "email": f"c{n}@example.com"})).status for n in range(ADDRESS_FAILURES_MAX)
        ]
        assert others[-1] == 429
        await clock.advance(WINDOW_S + 1)
        assert (await ask.post(LOGIN, ADA)).status == 200


async def test_failed_logins_of_customers_lock_out_neither_operators_nor_who_is_known_there(
    counter: OpenCounter,
) -> None:
    """All come from one address, as behind a proxy that the settings do not name."""
    async with counter() as ask:
        await ask.post(REGISTER, ADA)
        async with ask.app.begin() as tx:
            await add_person(tx, "ann", Role.OPERATOR, PASSWORD, by="root")
        for number in range(ADDRESS_FAILURES_MAX):
            assert (await ask.post(LOGIN, {**ADA, "email": f"c{number}@example.com"})).status == 401
        assert (await ask.post(LOGIN, {**ADA, "email": "stranger@example.com"})).status == 429
        assert await log_in(ask.app.database, "ann", PASSWORD, ask.client)
        assert (await ask.post(LOGIN, ADA)).status == 200


async def test_a_refresh_token_that_comes_twice_ends_its_login_and_no_other(counter: OpenCounter) -> None:
    async with counter() as ask:
        stolen = (await ask.post(REGISTER, ADA)).json["refresh_token"]
        other = (await ask.post(LOGIN, ADA)).json["refresh_token"]
        following = (await ask.post(REFRESH, {"refresh_token": stolen})).json["refresh_token"]
        assert (await ask.post(REFRESH, {"refresh_token": stolen})).status == 401
        assert (await ask.post(REFRESH, {"refresh_token": following})).status == 401
        assert (await ask.post(REFRESH, {"refresh_token": other})).status == 200
        notes = await ask.app.read.fetch("select text from payonce.audit_log where severity = 'WARNING'")
        assert any("was reused" in row["text"] for row in notes)


async def test_of_two_who_come_with_one_token_at_once_one_gets_in_and_the_login_ends(counter: OpenCounter) -> None:
    async with counter() as ask:
        token = (await ask.post(REGISTER, ADA)).json["refresh_token"]
        answers = await asyncio.gather(*(ask.post(REFRESH, {"refresh_token": token}) for _ in range(3)))
        assert sorted(answer.status for answer in answers) == [200, 401, 401]
        [winner] = [answer.json["refresh_token"] for answer in answers if answer.status == 200]
        assert (await ask.post(REFRESH, {"refresh_token": winner})).status == 401


async def test_refresh_tokens_end_by_the_clock_of_the_store(counter: OpenCounter) -> None:
    async with counter() as ask, Clock.open(ask.scratch.owner_url) as clock:
        token = (await ask.post(REGISTER, ADA)).json["refresh_token"]
        await clock.advance(refresh_tokens.REFRESH_DAYS * 86_400 + 1)
        assert (await ask.post(REFRESH, {"refresh_token": token})).status == 401


async def test_a_logout_ends_that_login_and_tells_nothing_of_tokens(counter: OpenCounter) -> None:
    async with counter() as ask:
        token = (await ask.post(REGISTER, ADA)).json["refresh_token"]
        assert [(await ask.post("/v1/auth/logout", {"refresh_token": text})).status for text in ("x", token)] == [
            204
        ] * 2
        assert (await ask.post(REFRESH, {"refresh_token": token})).status == 401


async def test_a_new_role_ends_the_tokens_that_say_the_old_one(counter: OpenCounter) -> None:
    async with counter() as ask:
        ada = await ask.registered("ada@example.com")
        account_id = (await ada.get("/v1/auth/me")).json["id"]
        async with ask.app.begin() as tx:
            await set_role(tx, account_id, "operator", "tester")
        assert (await ada.get("/v1/auth/me")).status == 401
        assert (await ask.post(LOGIN, ADA)).json["account"]["role"] == "operator"


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("email", "ada", 400),
        ("email", "a b@example.com", 400),
        ("email", "a" * 250 + "@example.com", 400),
        ("email", "", 422),
        ("email", 7, 422),
        ("email", "ada@example.com\n", 422),
        ("password", "short", 400),
        ("password", "x" * 1_001, 422),
        ("time_zone", "Mars/Olympus", 400),
        ("time_zone", "../../etc/passwd", 400),
        ("time_zone", "localtime", 400),
        ("locale", "klingon!", 400),
        ("locale", "xx", 400),
        ("locale", "zzz-zzzz-zz", 400),
        ("name", "\x00", 422),
        ("role", "operator", 422),
    ],
)
async def test_what_makes_no_sense_is_refused_in_one_sentence(
    counter: OpenCounter, field: str, value: object, status: int
) -> None:
    async with counter() as ask:
        refused = await ask.post(REGISTER, {**ADA, field: value})
        assert (refused.status, await counted(ask)) == (status, 0)
        assert refused.problem["detail"]


async def test_versions_are_remembered_for_a_moment_and_within_bounds(counter: OpenCounter) -> None:
    async with counter() as ask:
        ada = (await (await ask.registered("ada@example.com")).get("/v1/auth/me")).json["id"]
        now = [0.0]
        versions = AccountVersions(ask.app.read, clock=lambda: now[0])
        assert await versions.version_of(ada, fresh=False) == 0
        async with ask.app.begin() as tx:
            await set_role(tx, ada, "operator", "tester")
        assert await versions.version_of(ada, fresh=False) == 0
        now[0] = KNOWN_FOR_S
        assert await versions.version_of(ada, fresh=False) == 1
        async with ask.app.begin() as tx:
            await set_role(tx, ada, "customer", "tester")
        assert await versions.version_of(ada, fresh=True) == 2
        versions.forget(ada)
        assert await versions.version_of("nobody", fresh=False) is None
        versions._known.update({str(number): (0, 1e9) for number in range(KNOWN_MAX)})
        await versions.version_of(ada, fresh=False)
        assert len(versions._known) == KNOWN_MAX
