"""The one address that callers of billing can give: it is judged where it is given, and again at every delivery."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from payonce.engine.messages.process import Worker
from payonce.engine.operators import passwords
from payonce.engine.webhooks import DELIVERIES, Sender, deliver, registry, webhook_client
from payonce.kit.http import HttpClient
from payonce.testing.server import serving
from tests.ablations import patched
from tests.engine.test_webhooks_targets import NOT_PUBLIC, NOT_SENT, Names, guarded
from tests.engine.webhooks_stage import Say
from tests.engine.webhooks_stage import Shop as Merchant
from tests.services.billing.api.conftest import OpenCounter, OpenShop
from tests.services.billing.api.counter import Counter, Shop

ENDPOINTS = "/v1/webhooks/endpoints"
SCOPES = ("webhooks:read", "webhooks:write")
LIKE_A_PLACE = re.compile(
    r"ur[li]\b|_ur[li]|link|callback|redirect|host|domain|address|webhook$|endpoint$", re.IGNORECASE
)
ODD = (
    "http://hooks.example.com/",
    "https://2130706433/",
    "https://0x7f.1/",
    "https://0177.0.0.1/",
    "https://127.1/",
    "https://①②⑦.⓪.⓪.①/",
    "https://ada@hooks.example.com/",
    "https://hooks.example.com@127.0.0.1/",
    "https://127.0.0.1:443/",
    "https://127.0.0.1./",
    "https://[::ffff:169.254.169.254]/",
    "ftp://hooks.example.com/",
    "file:///etc/passwd",
    "gopher://127.0.0.1/",
    "//127.0.0.1/",
    "https://hooks.example.com/#@127.0.0.1",
    "https://hooks.example.com\\@127.0.0.1/",
    "https:///x",
    "javascript:alert(1)",
)


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "COST", 2**4)


def named(described: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every value that a caller can give to any route, in a body or a query, however deep."""
    schemas = described["components"]["schemas"]

    def within(schema: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(schema, list):
            for each in schema:
                yield from within(each)
        elif isinstance(schema, dict):
            if "$ref" in schema:
                yield from within(schemas[schema["$ref"].rpartition("/")[2]])
            for name, inner in schema.get("properties", {}).items():
                yield name, inner
            for inner in schema.values():
                yield from within(inner)

    for path, ways in described["paths"].items():
        for method, operation in ways.items():
            given = [(each["name"], each["schema"]) for each in operation.get("parameters", ())]
            for name, schema in (*given, *within(operation.get("requestBody", {}))):
                if LIKE_A_PLACE.search(name) or "uri" in str(schema.get("format")):
                    yield f"{method.upper()} {path}", name


async def test_it_is_the_only_place_that_a_caller_can_name(counter: OpenCounter) -> None:
    async with counter() as ask:
        found = set(named((await ask.get("/openapi.json")).json))
        # Of a payout it is a wallet's, on a chain.
        assert found - {("POST /v1/payouts/{payout_id}/decide", "address")} == {(f"POST {ENDPOINTS}", "url")}


async def refusals(ask: Counter) -> list[str]:
    """Addresses that were taken and should not have been."""
    merchant = await ask.with_key("merchant", *SCOPES)
    bare = [address for address in NOT_PUBLIC if "%" not in address]
    urls = [f"https://[{each}]/x" if ":" in each else f"https://{each}/x" for each in bare]
    taken = []
    for url in (*urls, *ODD):
        answer = await merchant.post(ENDPOINTS, {"url": url, "events": ["*"]})
        if answer.status != 400:
            taken.append(f"{url}: {answer.status}")
    return taken


async def test_no_spelling_of_an_address_in_the_house_is_taken(counter: OpenCounter) -> None:
    async with counter() as ask:
        assert await refusals(ask) == []
        assert await ask.app.read.fetchval("select count(*) from payonce.webhook_endpoints") == 0
        ada = await ask.registered("ada@example.com")
        for who, status in ((ask, 401), (ada, 401)):
            wanted = {"url": "https://hooks.example.com/x", "events": ["*"]}
            assert (await who.post(ENDPOINTS, wanted)).status == status, "customers have no endpoints"
        with patched(registry, "checked_url", lambda url, **_: url)():
            assert await refusals(ask), "without the check they would be taken"


@asynccontextmanager
async def told_of_a_life(ask: Shop, url: str, http: HttpClient) -> AsyncIterator[Worker]:
    """A merchant's endpoint and a new subscription, both by billing's routes; who delivers is run by the test."""
    await ask.house.s.feed.declare([DELIVERIES])
    merchant = await ask.with_key("merchant", *SCOPES)
    made = await merchant.post(ENDPOINTS, {"url": url, "events": ["subscription.created"]})
    assert made.status == 201, made.body
    ada = await ask.customer("ada@example.com")
    assert (await ada.order("/v1/subscriptions", {"plan_id": "basic"})).status == 201
    async with http as client:
        sender = Sender(client, ask.house.s.database, ask.app.settings.keyring())
        yield await ask.house.s.worker(deliver, resources=[sender])


async def tries(ask: Shop) -> list[dict[str, Any]]:
    merchant = await ask.with_key("merchant", *SCOPES)
    [endpoint] = (await merchant.get(ENDPOINTS)).json["endpoints"]
    [delivery] = (await merchant.get(f"{ENDPOINTS}/{endpoint['id']}/deliveries")).json["deliveries"]
    found: list[dict[str, Any]] = (await merchant.get(f"/v1/webhooks/deliveries/{delivery['id']}")).json["tries"]
    return found


async def test_a_name_that_leads_into_the_house_later_is_not_told(shop: OpenShop) -> None:
    names = Names(["2606:4700::1111", "127.0.0.1"], ["169.254.169.254"], ["::ffff:10.0.0.1"])
    async with shop() as ask, serving(merchant := Merchant()) as url:
        place = f"https://hooks.example.com:{url.rpartition(':')[2]}/x"
        async with told_of_a_life(ask, place, guarded(names)) as worker:
            await ask.house.s.run(worker, 3_600)
        tried = await tries(ask)
        assert (merchant.arrived, names.asked) == ([], len(tried))
        assert len(tried) >= 3
        assert {each["error"] for each in tried} == {NOT_SENT}, "and nothing of our network is told"


async def test_a_redirect_into_the_house_leads_nowhere(shop: OpenShop) -> None:
    async with shop() as ask, serving(merchant := Merchant()) as url:
        merchant.usual = Say(307, {"location": f"{url}/inside"})
        ask.app.settings = ask.app.settings.model_copy(update={"webhook_private": True})
        async with told_of_a_life(ask, f"{url}/hook", webhook_client(allow_private=True)) as worker:
            await ask.house.s.run(worker, 60)
        assert {request.path for request in merchant.arrived} == {"/hook"}
        assert {each["status"] for each in await tries(ask)} == {307}
