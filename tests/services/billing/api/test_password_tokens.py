"""Customers without a password: nobody logs in as them until they have set one with a token of the merchant's."""

import asyncio

import pytest

from payonce.engine.operators import login_limits, passwords
from payonce.services.billing.scopes import OPERATE, READ
from payonce.services.billing.subscriptions.store.password_tokens import LIFETIME_HOURS
from payonce.testing import Clock
from tests.http.client import Answer
from tests.services.billing.api.conftest import OpenCounter
from tests.services.billing.api.counter import PASSWORD, Counter
from tests.services.billing.api.test_customers import CUSTOMERS, create, edit

LOGIN, REGISTER, SET = "/v1/auth/login", "/v1/auth/register", "/v1/auth/set-password"
EMAIL = "ada@example.com"
NEWER = "another horse battery staple"


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "COST", 2**4)


async def opened(ask: Counter) -> tuple[Counter, str]:
    shop = await ask.with_key("shop", READ, OPERATE)
    return shop, (await create(shop, {"email": EMAIL})).json["id"]


async def token(shop: Counter, account_id: str) -> str:
    made = await shop.post(f"{CUSTOMERS}/{account_id}/password-tokens")
    assert made.status == 201, made.body
    found: str = made.json["token"]
    return found


async def set_password(ask: Counter, given: str, password: str = PASSWORD) -> Answer:
    return await ask.post(SET, {"token": given, "new_password": password})


async def log_in(ask: Counter, password: str = PASSWORD) -> int:
    return (await ask.post(LOGIN, {"email": EMAIL, "password": password})).status


async def test_without_a_password_nobody_logs_in_and_nobody_takes_the_account_by_registering(
    counter: OpenCounter,
) -> None:
    async with counter() as ask:
        shop, account_id = await opened(ask)
        refused = await ask.post(LOGIN, {"email": EMAIL, "password": PASSWORD})
        stranger = await ask.post(LOGIN, {"email": "nobody@example.com", "password": PASSWORD})
        assert refused.status == 401
        assert refused.problem["detail"] == stranger.problem["detail"], "whether there is an account is not told"
        taken = await ask.post(REGISTER, {"email": "ADA@example.com", "password": PASSWORD})
        await ask.registered("eve@example.com")
        other = await ask.post(REGISTER, {"email": "eve@example.com", "password": NEWER})
        assert (taken.status, taken.problem["detail"]) == (409, other.problem["detail"])
        assert await log_in(ask) == 401
        assert (await shop.get(f"{CUSTOMERS}/{account_id}")).json["has_password"] is False


async def test_a_token_sets_the_password_once_and_logs_in(counter: OpenCounter) -> None:
    async with counter() as ask:
        shop, account_id = await opened(ask)
        given = await token(shop, account_id)
        session = await set_password(ask, given)
        assert (session.status, session.json["account"]["id"]) == (200, account_id)
        assert (await ask.bearing(session.json["access_token"]).get("/v1/auth/me")).status == 200
        assert await log_in(ask) == 200
        again = await set_password(ask, given, NEWER)
        assert (again.status, again.problem["detail"]) == (
            401,
            "this token was used, replaced or has expired; ask the merchant for a new link",
        )
        assert (await log_in(ask), await log_in(ask, NEWER)) == (200, 401)
        assert (await shop.get(f"{CUSTOMERS}/{account_id}")).json["has_password"] is True
        kept = await ask.app.read.fetchval("select count(*) from subscriptions.password_tokens")
        assert kept == 0


async def test_of_two_who_use_one_token_at_once_one_sets_the_password(counter: OpenCounter) -> None:
    async with counter() as ask:
        shop, account_id = await opened(ask)
        given = await token(shop, account_id)
        both = await asyncio.gather(*(set_password(ask, given, password) for password in (PASSWORD, NEWER)))
        assert sorted(answer.status for answer in both) == [200, 401]
        assert sorted([await log_in(ask), await log_in(ask, NEWER)]) == [200, 401]


async def test_a_new_password_forgives_the_guesses_before(
    counter: OpenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_limits, "FAILURES_MAX", 2)
    async with counter() as ask:
        shop, account_id = await opened(ask)
        assert [await log_in(ask, "a password that is wrong") for _ in range(3)] == [401, 401, 429]
        assert (await set_password(ask, await token(shop, account_id))).status == 200
        assert await log_in(ask) == 200


async def test_a_new_password_ends_every_login(counter: OpenCounter) -> None:
    async with counter() as ask:
        shop, account_id = await opened(ask)
        session = (await set_password(ask, await token(shop, account_id))).json
        assert (await set_password(ask, await token(shop, account_id), NEWER)).status == 200
        assert (await ask.bearing(session["access_token"]).get("/v1/auth/me")).status == 401
        refreshed = await ask.post("/v1/auth/refresh", {"refresh_token": session["refresh_token"]})
        assert refreshed.status == 401
        assert await log_in(ask, NEWER) == 200


@pytest.mark.parametrize(
    "how",
    ["replaced", "expired", "a password was set since", "became an operator", "had another e-mail address", "made up"],
)
async def test_a_token_that_is_no_longer_good_changes_nothing(counter: OpenCounter, how: str) -> None:
    async with counter() as ask, Clock.open(ask.scratch.owner_url) as clock:
        shop, account_id = await opened(ask)
        session = (await set_password(ask, await token(shop, account_id))).json
        given = await token(shop, account_id)
        if how == "replaced":
            await token(shop, account_id)
        elif how == "expired":
            await clock.advance(LIFETIME_HOURS * 3_600 + 1)
        elif how == "a password was set since":
            body = {"old_password": PASSWORD, "new_password": PASSWORD}
            changed = await ask.bearing(session["access_token"]).post("/v1/auth/change-password", body)
            assert changed.status == 200
        elif how == "became an operator":
            await shop.post(f"/v1/ops/accounts/{account_id}/role", {"role": "operator"})
        elif how == "had another e-mail address":
            for revision, email in enumerate(("grace@example.com", EMAIL)):
                edited = await edit(shop, {"id": account_id, "revision": revision}, email=email)
                assert edited.status == 200
        else:
            given = given[:-1] + ("a" if given[-1] != "a" else "b")
        assert (await set_password(ask, given, NEWER)).status == 401
        assert (await log_in(ask), await log_in(ask, NEWER)) == (200, 401)


async def test_a_short_password_does_not_use_the_token_up(counter: OpenCounter) -> None:
    async with counter() as ask:
        shop, account_id = await opened(ask)
        given = await token(shop, account_id)
        refused = await set_password(ask, given, "short")
        assert (refused.status, "it needs 12 to 1,000" in refused.problem["detail"]) == (400, True)
        assert (await set_password(ask, given)).status == 200


async def test_the_store_keeps_no_token(counter: OpenCounter) -> None:
    async with counter() as ask:
        shop, account_id = await opened(ask)
        given = await token(shop, account_id)
        row = await ask.app.read.fetchrow("select p::text from subscriptions.password_tokens p")
        assert given not in row["p"]
        logged = await ask.app.read.fetchval("select string_agg(text, '') from payonce.audit_log")
        assert given not in logged
