"""A whole life with cards, and card numbers sent by mistake to every route: afterwards no number is anywhere.

Looked at are the logs, every answer, every table of every schema, and all of Redis.
"""

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from payonce.app.process import App
from payonce.embedded.redis import RedisServer
from payonce.http.application import build_web
from payonce.services.billing.api import card_numbers
from payonce.services.billing.subscriptions.model import State
from payonce.settings import Settings
from payonce.testing import OpenStage, ScratchDatabase
from tests.ablations import patched
from tests.http.client import Answer
from tests.redis.terminal import Terminal
from tests.services.billing.api.conftest import OpenShop
from tests.services.billing.api.counter import Shop, resources, through
from tests.services.billing.api.test_ownership import BODIES, things_of
from tests.services.billing.billing_stage import DECLINES, PAYS, Customer, open_house
from tests.services.billing.redis_stage import on_redis

SENT: Final = "5555555555554444"
"""What is sent by mistake, so that it can be told from the cards that are used as they should be."""
SPELT: Final = (SENT, "5555 5555 5555 4444")
NUMBERS: Final = (PAYS, DECLINES, *SPELT)
OF_BILLING: Final = (
    "/v1/auth",
    "/v1/plans",
    "/v1/subscriptions",
    "/v1/invoices",
    "/v1/entitlements",
    "/v1/usage",
    "/v1/test-clocks",
    "/v1/payments",
    "/v1/payment-methods",
    "/v1/transactions",
    "/v1/ops",
)
KEEPING: Final = ("/v1/auth/register", "/v1/plans", "/v1/usage/use", "/v1/transactions")
"""Routes that keep a text of the caller's as it came."""
SIGNED: Final = ("/v1/webhooks/payment", "/v1/webhooks/gateway")
"""Not in the description, and open to everybody who knows the address."""
LEAST_TRIED: Final = 100
NAMES: Final = itertools.count()


@pytest.fixture(autouse=True)
def _in_redis(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis_server.url)


@pytest.fixture
def shop(settings: Settings, scratch: ScratchDatabase, stage: OpenStage, redis_server: RedisServer) -> OpenShop:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Shop]:
        async with open_house(on_redis(stage, redis_server)) as house, App.open(settings) as app:
            app.resources = [*resources(app), house.client, house.notifier]
            web = build_web(app)
            house.door._take = through(web, house.door)  # type: ignore[method-assign, assignment]
            yield Shop(app, web, scratch, house=house)

    return opened


async def test_no_card_number_is_anywhere_after_a_life_and_many_mistakes(
    shop: OpenShop, redis_server: RedisServer, capfd: pytest.CaptureFixture[str]
) -> None:
    async with shop() as ask:
        hers = await live(ask)
        answers = await sent_everywhere(ask, hers)
        assert len(answers) > LEAST_TRIED
        assert [answer for answer in answers if answer.status >= 500] == []
        await ask.house.run()
        told = [(f"{answer.status}", answer.body.decode()) for answer in answers]
        places = [*told, ("the log", "".join(capfd.readouterr())), *await rows(ask), *await kept_in(redis_server)]
        assert ask.account_id in str(await rows(ask)), "it would not be found either"
        assert found_in(places) == []


async def test_without_the_door_they_would_be_found(shop: OpenShop, redis_server: RedisServer) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        hers = await things_of(ada)
        with patched(card_numbers, "_is_suspect", lambda _: False)():
            await sent_everywhere(ada, hers, KEEPING)
        found = {place for place, _ in found_in(await rows(ask))}
        assert found >= {"subscriptions.accounts", "subscriptions.plans", "subscriptions.usage_events"}


async def live(ask: Shop) -> dict[str, str]:
    """Cards attached, a trial paid and given back, a decline at its end, a better card, a change of plan."""
    ada = await ask.customer("ada@example.com")
    hers = await things_of(ada)
    house, customer = ask.house, Customer(ada.account_id, None)
    await house.give_card(customer, DECLINES)
    await house.pass_days(15)
    assert (await house.subscription(hers["subscription_id"])).state is State.PAST_DUE
    await house.give_card(customer, PAYS)
    await house.run()
    changed = await ada.order(f"/v1/subscriptions/{hers['subscription_id']}/change-plan", {"new_plan_id": "pro"})
    assert changed.status < 300, changed.body
    await house.run()
    ask.account_id, ask.headers = ada.account_id, ada.headers
    assert await house.broken() == {}
    return hers


async def sent_everywhere(ask: Shop, hers: dict[str, str], to: tuple[str, ...] = OF_BILLING) -> list[Answer]:
    """By a customer and an operator in turn, to every route and in every field of its body."""
    operator = ask.as_account((await ask.customer("op@example.com", None)).account_id, "operator")
    described = (await ask.get("/openapi.json")).json
    counted, answers = itertools.count(), []
    for method, path, bodies in mistakes(described, hers, to):
        for body, who in zip(bodies, itertools.cycle((ask, operator)), strict=False):
            headers = {"idempotency-key": f"mistake-{next(counted)}"}
            answers.append(await who(method, path, body=body, headers=headers))
    for path in SIGNED:
        answers.append(await ask.post(path, {"number": SENT}))
    for spelt in SPELT:
        answers.append(await ask.order(f"/v1/subscriptions?after={spelt.replace(' ', '%20')}"))
        answers.append(await ask.get(f"/v1/invoices/{spelt.replace(' ', '%20')}"))
        answers.append(await ask.post("/v1/subscriptions", {"plan_id": "basic"}, idempotency_key=spelt))
    return answers


def mistakes(
    described: dict[str, Any], hers: dict[str, str], to: tuple[str, ...]
) -> Iterator[tuple[str, str, list[object]]]:
    """Every such route that takes a body, with bodies each of which has the number in one place."""
    for path, ways in described["paths"].items():
        for method, operation in ways.items():
            if "requestBody" not in operation or not path.startswith(to):
                continue
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            name = schema.get("$ref", "").rpartition("/")[2]
            properties = described["components"]["schemas"].get(name, {}).get("properties", {})
            right = right_body(path, properties)
            bodies: list[object] = [{**right_body(path, properties), each: SENT} for each in properties]
            bodies += [{**right, "card_number": spelt} for spelt in (*SPELT, int(SENT))]
            bodies.append(SENT.encode())
            yield method.upper(), path.format_map({"queue": "q:sub:plan_change", "plan_id": "basic", **hers}), bodies


def right_body(path: str, properties: dict[str, Any]) -> dict[str, Any]:
    """What the route takes, as far as it is needed for the number alone to be wrong."""
    if path == "/v1/auth/register":
        return {"email": f"eve-{next(NAMES)}@example.com", "password": "correct horse battery staple"}
    if path == "/v1/plans":
        return {"code": "gold", "name": "Gold", "price": "10.00", "currency": "AED"}
    known = dict(BODIES.get(path, {}))
    return known | {name: "why" for name in ("note", "reason") if name in properties}


async def rows(ask: Shop) -> list[tuple[str, str]]:
    """Every table of the database with all that is in it, bytes as what they are."""
    owner = ask.house.s.owner
    tables = await owner.fetch(
        """
        select format('%I.%I', schemaname, tablename) as name from pg_tables
        where schemaname not in ('pg_catalog', 'information_schema')
        """
    )
    found = []
    for (name,) in tables:
        for row in await owner.fetch(f"select * from {name}"):
            found.append((name, " ".join(_text(value) for value in row.values())))
    return found


async def kept_in(server: RedisServer) -> list[tuple[str, str]]:
    reads = {
        "string": "GET {}",
        "list": "LRANGE {} 0 -1",
        "zset": "ZRANGE {} 0 -1",
        "set": "SMEMBERS {}",
        "hash": "HGETALL {}",
    }
    found = []
    async with Terminal.open(server.port) as terminal:
        for key in await terminal.type("KEYS *"):
            kind = await terminal.type(f"TYPE {key}")
            found.append((key, f"{key} {await terminal.type(reads[kind].format(key))}"))
    assert found
    return found


def found_in(places: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(place, text[:2_000]) for place, text in places if any(number in text for number in NUMBERS)]


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
