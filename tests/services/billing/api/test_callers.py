"""Who gets in at billing: people by their tokens, services by their keys, and nobody by guessing."""

import base64
import hmac
import json
from dataclasses import replace
from typing import Annotated, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from fastapi import FastAPI, Response
from pydantic import BaseModel

from payonce.app.registry import scope_catalogue
from payonce.engine.messages.transaction import Tx
from payonce.http.kit import attempts
from payonce.http.kit.attempts import FAILURES_MAX
from payonce.http.kit.idempotency import Once
from payonce.kit.outcomes import Invalid
from payonce.services.billing.api.callers import (
    NO_BILLING_ROLE,
    BillingCaller,
    caller_of,
    require_account,
    require_account_or_key,
    require_idempotent,
    require_operator,
)
from payonce.services.billing.api.tokens import ACCESS_S, AUDIENCE, SKEW_S, Claims, Expired, Tokens
from payonce.services.billing.scopes import CHARGE, NO_TENANTS, OPERATE, READ, SCOPES
from tests.services.billing.api.conftest import OpenCounter
from tests.services.billing.api.counter import SECRET, Counter, ProcessClock


class Seen(BaseModel):
    account_id: str | None
    operator: bool
    whose: str


def seen(who: BillingCaller) -> Seen:
    return Seen(account_id=who.account_id, operator=who.operator, whose=who.idempotency_scope)


def add_routes(web: FastAPI) -> None:
    @web.get("/test/customer")
    async def for_customers(who: Annotated[BillingCaller, require_account()]) -> Seen:
        return seen(who)

    @web.get("/test/operator")
    async def for_operators(who: Annotated[BillingCaller, require_operator()]) -> Seen:
        return seen(who)

    @web.get("/test/either")
    async def for_both(who: Annotated[BillingCaller, require_account_or_key(READ)]) -> Seen:
        return seen(who)

    @web.post("/test/money")
    async def for_money(once: Annotated[Once, require_idempotent(CHARGE)]) -> Response:
        async def act(tx: Tx) -> Seen:
            return seen(caller_of(once))

        return await once.answer(act)


PATHS = ("/test/customer", "/test/operator", "/test/either")


async def statuses(ask: Any) -> list[int]:
    return [(await ask.get(path)).status for path in PATHS]


async def test_each_caller_opens_what_is_theirs(counter: OpenCounter) -> None:
    async with counter() as ask:
        add_routes(ask.web)
        ask.app.resources = [Tokens([SECRET], clock=ProcessClock())]
        assert await statuses(ask.as_account("ada")) == [200, 403, 200]
        assert await statuses(ask.as_account("root", "operator")) == [200, 200, 200]
        assert await statuses(await ask.as_holder("crm", READ)) == [403, 403, 200]
        assert await statuses(await ask.as_holder("crm", OPERATE)) == [403, 200, 403]
        assert await statuses(await ask.as_holder("crm", READ, OPERATE, tenant="acme")) == [403, 403, 403]
        assert await statuses(ask) == [401, 401, 401]
        ada = (await ask.as_account("ada").get("/test/either")).json
        assert ada == {"account_id": "ada", "operator": False, "whose": "account ada"}
        crm = (await (await ask.as_holder("crm", READ)).get("/test/either")).json
        assert crm == {"account_id": None, "operator": True, "whose": "holder crm"}


async def test_a_key_of_a_tenant_hears_that_billing_has_none_and_what_to_do(counter: OpenCounter) -> None:
    """Such a key can be older than the refusal to make one."""
    async with counter() as ask:
        older = await ask.as_holder("crm", READ, OPERATE, tenant="acme")
        for path in ("/v1/customers", "/v1/subscriptions", "/v1/payment-methods/", "/v1/auth/me"):
            refused = await older.get(path)
            assert refused.status == 403, path
            assert "belongs to tenant 'acme'" in refused.problem["detail"]
            assert NO_TENANTS in refused.problem["detail"]
            assert "lacks the scope" not in refused.problem["detail"]


def test_the_catalogue_refuses_billing_to_tenants_wherever_a_key_is_made() -> None:
    catalogue = scope_catalogue()
    catalogue.check(tuple(SCOPES), None)
    for scope in SCOPES:
        with pytest.raises(Invalid, match=f"^a key of tenant 'acme' cannot have {scope}: billing has no tenants"):
            catalogue.check(("transfers:read", scope), "acme")


async def test_a_token_and_a_key_both_move_money_once_and_each_has_keys_of_its_own(counter: OpenCounter) -> None:
    async with counter() as ask:
        add_routes(ask.web)
        ask.app.resources = [Tokens([SECRET], clock=ProcessClock())]
        callers = [ask.as_account("ada"), ask.as_account("bob"), await ask.as_holder("crm", CHARGE)]
        assert (await callers[0].post("/test/money")).problem["type"].endswith("no-idempotency-key")
        first = [await caller.post("/test/money", idempotency_key="k") for caller in callers]
        again = [await caller.post("/test/money", idempotency_key="k") for caller in callers]
        assert [answer.status for answer in first] == [200, 200, 200]
        assert len({answer.body for answer in first}) == 3
        assert [answer.body for answer in again] == [answer.body for answer in first]
        assert ["idempotent-replayed" in answer.headers for answer in again] == [True, True, True]


def made(header: dict[str, Any], body: dict[str, Any], key: bytes = SECRET) -> str:
    """As anybody could put one together."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, body)]
    signed = ".".join(parts)
    mac = base64.urlsafe_b64encode(hmac.new(key, signed.encode(), "sha256").digest()).rstrip(b"=").decode()
    return f"{signed}.{mac}"


PAIR, CURVE = rsa.generate_private_key(65_537, 2_048), ec.generate_private_key(ec.SECP256R1())
HS256 = {"alg": "HS256", "typ": "JWT"}
BODY = {"sub": "ada", "role": "customer", "ver": 0, "iat": 1_769_860_800, "exp": 1_769_861_700, "aud": AUDIENCE}
FORGED = {
    "another secret": made(HS256, BODY, b"another secret that is just as long as ours"),
    "no algorithm": made({"alg": "none"}, BODY).rpartition(".")[0] + ".",
    "another algorithm": made({"alg": "HS512"}, BODY),
    "a key of its own": made({**HS256, "jwk": {"kty": "oct", "k": "QUFB"}, "kid": "../../dev/null"}, BODY),
    "another audience": made(HS256, {**BODY, "aud": "elsewhere"}),
    "no audience": made(HS256, {name: value for name, value in BODY.items() if name != "aud"}),
    "no end": made(HS256, {name: value for name, value in BODY.items() if name != "exp"}),
    "no account": made(HS256, {**BODY, "sub": None}),
    "an account that is no text": made(HS256, {**BODY, "sub": 7}),
    "an account that cannot be an id": made(HS256, {**BODY, "sub": "x'\0"}),
    "a version that is true": made(HS256, {**BODY, "ver": True}),
    "an end that is a text": made(HS256, {**BODY, "exp": "never"}),
    "an end that is no number": made(HS256, {**BODY, "exp": float("nan")}),
    "an end in quotes": made(HS256, {**BODY, "exp": "1769861700"}),
    "an end with a fraction": made(HS256, {**BODY, "exp": 1_769_861_700.5}),
    "a begin that is a text": made(HS256, {**BODY, "iat": "now"}),
    "not before tomorrow": made(HS256, {**BODY, "nbf": 1_769_947_200}),
    "one audience more": made(HS256, {**BODY, "aud": [AUDIENCE, "elsewhere"]}),
    "one claim more": made(HS256, {**BODY, "scope": "billing:charge"}),
    "our secret as a public key": made({"alg": "RS256", "typ": "JWT"}, BODY),
    "a key pair of its own": jwt.encode(BODY, PAIR, "RS256"),
    "a curve of its own": jwt.encode(BODY, CURVE, "ES256"),
    "no algorithm, in other letters": made({"alg": "NoNe"}, BODY).rpartition(".")[0] + ".",
    "an algorithm that is a list": made({"alg": ["HS256", "none"]}, BODY),
    "something that must be understood": made({**HS256, "crit": ["b64"], "b64": False}, BODY),
    "a body that is a list": made(HS256, []),  # type: ignore[arg-type]
    "dots alone": "..",
    "letters": "é.é.é",
    "far too long": "a" * 5_000 + ".b.c",
}
UNREADABLE = {name: token for name, token in FORGED.items() if name != "a key of its own"}


async def test_every_token_that_is_none_gets_the_same_answer(counter: OpenCounter) -> None:
    async with counter() as ask:
        add_routes(ask.web)
        ask.app.resources = [Tokens([SECRET], clock=ProcessClock())]
        clock = ProcessClock()
        ask.app.resources = [Tokens([SECRET], Ended(), clock=clock)]
        ended, good = ask.as_account("ada", version=1), ask.as_account("ada", version=2)
        assert (await good.get("/test/either")).status == 200
        answers = [await ask.get("/test/either"), await ask.bearing("sk_none").get("/test/either")]
        answers += [
            await replace(ask.bearing(token), client=f"192.0.2.{number}").get("/test/either")
            for number, token in enumerate(UNREADABLE.values())
        ]
        answers.append(await ended.get("/test/either"))
        clock.advance(ACCESS_S + SKEW_S + 1)
        answers.append(await good.get("/test/either"))
        assert {answer.status for answer in answers} == {401}
        assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
        [detail] = {answer.problem["detail"] for answer in answers}
        assert "POST /v1/auth/login" in detail


class Ended:
    """An account that ended its tokens twice."""

    async def version_of(self, account_id: str, *, fresh: bool) -> int | None:
        return 2


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_forged_token_says_nothing(name: str) -> None:
    assert Tokens([SECRET], clock=ProcessClock()).read(FORGED[name]) is None


def test_what_a_token_says_of_its_key_decides_nothing() -> None:
    assert Tokens([SECRET], clock=ProcessClock()).read(FORGED["a key of its own"]) == Claims("ada", "customer", 0)


def test_tokens_end_and_keys_are_exchanged_without_a_gap() -> None:
    clock, newer = ProcessClock(), b"the secret that follows the first of them"
    before, after = Tokens([SECRET], clock=clock), Tokens([newer, SECRET], clock=clock)
    claims = Claims("ada", "customer", 3)
    assert after.read(before.issue(claims)) == after.read(after.issue(claims)) == claims
    assert before.read(after.issue(claims)) is None
    token = before.issue(claims)
    clock.advance(ACCESS_S + SKEW_S)
    assert before.read(token) == claims
    clock.advance(1)
    with pytest.raises(Expired):
        before.read(token)


async def test_guessing_is_bounded_and_an_expired_token_is_no_guess(counter: OpenCounter) -> None:
    async with counter() as ask:
        add_routes(ask.web)
        ask.app.resources = [Tokens([SECRET], clock=ProcessClock())]
        clock = ProcessClock()
        ask.app.resources = [Tokens([SECRET], clock=clock)]
        old, good = ask.as_account("ada"), None
        clock.advance(ACCESS_S + SKEW_S + 1)
        assert {(await old.get("/test/either")).status for _ in range(FAILURES_MAX + 5)} == {401}
        good = ask.as_account("ada")
        assert (await good.get("/test/either")).status == 200
        guesses = [await ask.bearing(f"a.b.{n}").get("/test/either") for n in range(FAILURES_MAX + 1)]
        assert [answer.status for answer in guesses] == [401] * FAILURES_MAX + [429]
        assert int(guesses[-1].headers["retry-after"]) > 0
        assert (await good.get("/test/either")).status == 200
        assert (await ask.as_account("bob").get("/test/either")).status == 429


async def test_wrong_tokens_and_wrong_keys_are_counted_apart(counter: OpenCounter) -> None:
    async with counter() as ask:
        add_routes(ask.web)
        ask.app.resources = [Tokens([SECRET], clock=ProcessClock())]
        tokens = [await ask.bearing(f"a.b.{n}").get("/test/either") for n in range(FAILURES_MAX + 1)]
        assert (tokens[-1].status, "invalid access tokens" in tokens[-1].problem["detail"]) == (429, True)
        assert (await (await ask.as_holder("crm", READ)).get("/test/either")).status == 200
        keys = [await ask.bearing(f"sk_{n}").get("/test/either") for n in range(FAILURES_MAX + 1)]
        assert (keys[-1].status, "invalid API keys" in keys[-1].problem["detail"]) == (429, True)


async def test_good_tokens_do_not_push_a_good_key_out_of_memory(
    counter: OpenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "GOOD_KEYS_MAX", 2)
    async with counter() as ask:
        add_routes(ask.web)
        ask.app.resources = [Tokens([SECRET], clock=ProcessClock())]
        crm = await ask.as_holder("crm", READ)
        assert (await crm.get("/test/either")).status == 200
        customers = [ask.as_account(name) for name in ("ada", "bob", "eve")]
        assert {(await each.get("/test/either")).status for each in customers} == {200}
        guesses = [await ask.bearing(f"sk_{n}").get("/test/either") for n in range(FAILURES_MAX + 1)]
        assert guesses[-1].status == 429
        assert (await crm.get("/test/either")).status == 200


async def test_a_process_without_a_role_of_billing_says_so(counter: OpenCounter) -> None:
    async with counter() as ask:
        add_routes(ask.web)
        ask.app.resources = [Tokens([SECRET], clock=ProcessClock())]
        ada = ask.as_account("ada")
        ask.app.resources = []
        answer = await ada.get("/test/either")
        assert (answer.status, answer.problem["detail"]) == (404, NO_BILLING_ROLE)


async def test_only_where_nothing_is_at_stake_a_version_may_be_a_little_old(counter: OpenCounter) -> None:
    asked: list[bool] = []

    class Asked:
        async def version_of(self, account_id: str, *, fresh: bool) -> int | None:
            asked.append(fresh)
            return 0

    async with counter() as ask:
        add_routes(ask.web)
        ask.app.resources = [Tokens([SECRET], clock=ProcessClock())]
        ask.app.resources = [Tokens([SECRET], Asked(), clock=ProcessClock())]
        root: Counter = ask.as_account("root", "operator")
        await statuses(root)
        await root.post("/test/money", idempotency_key="k")
        assert asked == [True, True, False, True]
