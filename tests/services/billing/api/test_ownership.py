"""Two customers, and every route that there is: neither learns of the other's things that they exist."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from payonce.services.billing import SCOPES
from payonce.services.billing.api import callers
from payonce.services.billing.payments.api import payment_completion
from payonce.services.billing.subscriptions.api import subscriptions
from tests.ablations import patched
from tests.http.client import Answer
from tests.http.test_description import OF_BILLING
from tests.services.billing.api.conftest import OpenShop
from tests.services.billing.api.counter import Shop
from tests.services.billing.billing_stage import BEGIN, Customer

ELSEWHERE = frozenset({"plan_id", "feature", "feature_name", "queue", "migration_id"})
"""Parameters of paths that are nobody's: plans are for everybody, queues and plan migrations for operators."""
FOR_ALL = ("/v1/auth/", "/v1/plans")
FOR_OPERATORS = ("/v1/ops", "/v1/webhooks/status", "/v1/customers")
UNKNOWN = "unknown-id"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/subscriptions": {"plan_id": "basic"},
    "/v1/subscriptions/trial": {"trial_plan_id": "trial"},
    "/v1/subscriptions/{subscription_id}/change-plan": {"new_plan_id": "pro"},
    "/v1/subscriptions/{subscription_id}/cancel": {"at": "now"},
    "/v1/customers/{account_id}": {"revision": 0, "name": "Eve"},
    "/v1/test-clocks/{clock_id}/advance": {"to": (BEGIN + timedelta(days=1)).isoformat()},
    "/v1/test-clocks/{clock_id}/join": {},
    "/v1/ops/accounts/{account_id}/role": {"role": "operator"},
    "/v1/transactions/{transaction_id}/refund": {"reason": "probing"},
    "/v1/credit/adjustments": {"amount": "1.00", "currency": "AED", "change": "add", "reason": "probing"},
    "/v1/credit/payouts": {"amount": "1.00", "currency": "AED", "reason": "probing"},
    "/v1/payments/process": {"amount": "1.00", "currency": "AED"},
    "/v1/payment-methods/": {"token": "pm_probing"},
    "/v1/usage/use": {"feature_name": "api_calls", "event_id": "e-1"},
    "/v1/usage/reset": {"note": "probing"},
}
"""What is sent where a body is wanted, so that it is not the body that is refused."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody works on what a probe would order, so nobody waits for it.
    monkeypatch.setattr(payment_completion, "WAIT_S", 0.0)


@dataclass(frozen=True)
class Probe:
    """One way to name somebody's thing to a route: in its path, its query or its body."""

    method: str
    path: str
    parameter: str
    where: str

    async def tried(self, who: Shop, ids: dict[str, str], number: int) -> Answer:
        body = dict(BODIES.get(self.path, {}))
        path = self.path
        for name in re.findall(r"{(\w+)}", path):
            path = path.replace(f"{{{name}}}", ids.get(name, "x"))
        if self.where == "query":
            path = f"{path}?account_id={ids['account_id']}"
        if self.where == "body":
            body["account_id"] = ids["account_id"]
        sent = body if self.method != "GET" and (body or self.path in BODIES) else None
        return await who(self.method, path, body=sent, headers={"idempotency-key": f"probe-{number}"})


def probes(described: dict[str, Any]) -> Iterator[Probe]:
    """Found by themselves: whatever route is added is probed too."""
    schemas = described["components"]["schemas"]
    for path, ways in described["paths"].items():
        for method, operation in ways.items():
            if "AccessToken" not in str(operation.get("security")) or path.startswith(FOR_ALL):
                continue
            named = {each["name"]: each["in"] for each in operation.get("parameters", ())}
            for name, where in named.items():
                if where == "path" and name not in ELSEWHERE:
                    yield Probe(method.upper(), path, name, "path")
            if named.get("account_id") == "query":
                yield Probe(method.upper(), path, "account_id", "query")
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            model = schemas.get(content.get("schema", {}).get("$ref", "").rpartition("/")[2], {})
            if "account_id" in model.get("properties", {}):
                yield Probe(method.upper(), path, "account_id", "body")


async def things_of(ada: Shop) -> dict[str, str]:
    """One of everything that a customer can have, by the names of the routes' parameters."""
    clock = await ada.post("/v1/test-clocks", {"now_at": BEGIN.isoformat()})
    await ada.order("/v1/subscriptions/trial", {})
    await ada.house.run()
    subscription = (await ada.get("/v1/subscriptions/active")).json
    [invoice] = (await ada.get("/v1/invoices")).json["invoices"]
    [note] = (await ada.get(f"/v1/invoices/{invoice['id']}")).json["credit_notes"]
    [transaction] = (await ada.get("/v1/transactions")).json["transactions"]
    [method] = (await ada.get("/v1/payment-methods/")).json["payment_methods"]
    payout = await paid_out(ada)
    event = await ada.house.s.owner.fetchval("select event_id from payments.notifications where action = 'trial'")
    return {
        "account_id": ada.account_id,
        "subscription_id": subscription["id"],
        "invoice_id": invoice["id"],
        "credit_note_id": note["id"],
        "clock_id": clock.json["id"],
        "transaction_id": transaction["id"],
        "method_id": method["id"],
        "event_id": event,
        "payout_id": payout,
    }


async def paid_out(ada: Shop) -> str:
    """Credit that an operator gave and paid out by hand."""
    operator = await ada.with_key("till", "billing:charge")
    order = {"account_id": ada.account_id, "amount": "5.00", "currency": "AED", "reason": "an outage"}
    added = await operator.order("/v1/credit/adjustments", {**order, "change": "add"})
    assert added.status == 202, added.body
    paid = await operator.order("/v1/credit/payouts", {**order, "way": "by_hand"})
    assert paid.status == 202, paid.body
    found: str = paid.json["payout"]["id"]
    return found


def said(answer: Answer) -> tuple[int, str]:
    """The answer without what it repeats of the question."""
    if answer.headers["content-type"] != "application/problem+json":
        return answer.status, "no problem at all"
    return answer.status, re.sub("'[^']*'", "…", answer.problem["detail"])


async def leaks(ask: Shop) -> list[str]:
    """Every probe by which a customer hears something else of another's thing than of one that is not there."""
    ada, eve = await ask.customer("ada@example.com"), await ask.customer("eve@example.com")
    hers = await things_of(ada)
    described = (await ask.get("/openapi.json")).json
    tried = list(probes(described))
    assert {probe.parameter for probe in tried} == set(hers), "a route names something that this test does not know"
    assert len(tried) > 30
    found = []
    numbers = itertools.count()
    for probe in tried:
        told = await probe.tried(eve, hers, next(numbers))
        nothing = await probe.tried(eve, dict.fromkeys(hers, UNKNOWN), next(numbers))
        if said(told) != said(nothing) or told.status not in (403, 404):
            found.append(f"{probe}: {said(told)} and {said(nothing)}")
    return found


async def test_a_customer_learns_nothing_of_anothers_things_on_any_route(shop: OpenShop) -> None:
    async with shop() as ask:
        assert await leaks(ask) == []
        events = await ask.house.s.owner.fetch("select kind from subscriptions.subscription_events order by id")
        assert "canceled" not in [row["kind"] for row in events]
        assert await ask.house.broken() == {}


async def test_the_owner_finds_all_of_them(shop: OpenShop) -> None:
    """Otherwise nothing would be shown by others not finding them."""
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        hers = await things_of(ada)
        for probe in probes((await ask.get("/openapi.json")).json):
            if probe.method == "GET" and not probe.path.startswith(FOR_OPERATORS):
                answer = await probe.tried(ada, hers | {"feature": "projects", "feature_name": "projects"}, 0)
                assert answer.status == 200, (probe, answer.body)


@pytest.mark.parametrize("safeguard", ["what is seen", "what is changed"])
async def test_without_it_the_other_customer_would_be_seen(shop: OpenShop, safeguard: str) -> None:
    take_out = {
        "what is seen": patched(callers.BillingCaller, "may_see", lambda self, account_id: True),
        "what is changed": patched(subscriptions, "only_of", lambda who: None),
    }[safeguard]
    async with shop() as ask:
        with take_out():
            assert await leaks(ask)


async def test_lists_of_a_customer_have_only_what_is_theirs(shop: OpenShop) -> None:
    async with shop() as ask:
        ada, eve = await ask.customer("ada@example.com"), await ask.customer("eve@example.com")
        await things_of(ada)
        lists = {"/v1/subscriptions": "subscriptions", "/v1/invoices": "invoices", "/v1/transactions": "transactions"}
        for path, name in lists.items():
            assert len((await ada.get(path)).json[name]) == 1
            assert (await eve.get(path)).json[name] == []
        subscription = (await ada.get("/v1/subscriptions/active")).json["id"]
        assert (await eve.get(f"/v1/invoices?subscription_id={subscription}")).json["invoices"] == []
        invoice = (await ada.get("/v1/invoices")).json["invoices"][0]["id"]
        after = (await eve.get(f"/v1/invoices?after={invoice}")).json
        assert after == {"invoices": [], "next_after": None}
        assert len(await ask.house.invoices(Customer(ada.account_id, None))) == 1


async def test_a_page_after_anothers_thing_is_the_page_after_nothing(shop: OpenShop) -> None:
    """Eve has older things of her own: what of them is listed would tell that Ada's is there, and since when."""
    async with shop() as ask:
        ada, eve = await ask.customer("ada@example.com"), await ask.customer("eve@example.com")
        await eve.subscribed()
        await ask.house.s.clock.freeze(BEGIN + timedelta(days=1))
        hers = await things_of(ada)
        lists = {"subscriptions": "subscription_id", "invoices": "invoice_id", "transactions": "transaction_id"}
        for name, of in lists.items():
            assert len((await eve.get(f"/v1/{name}")).json[name]) == 1
            pages = [(await eve.get(f"/v1/{name}?after={thing}")).json for thing in (hers[of], UNKNOWN)]
            assert pages[0] == pages[1] == {name: [], "next_after": None}


async def test_a_process_without_a_role_of_billing_answers_nothing_of_it(shop: OpenShop) -> None:
    async with shop() as ask:
        house, person = await ask.with_key("house", *SCOPES), ask.as_account("root", "operator")
        described = (await ask.get("/openapi.json")).json
        ask.app.resources = []
        tried = 0
        for path, ways in described["paths"].items():
            operation = ways.get("get")
            if operation is None or not {*operation["tags"]} & {*OF_BILLING}:
                continue
            # A key has no account of its own to ask for.
            for caller in (person,) if path.startswith("/v1/auth") else (person, house):
                answer = await caller.get(re.sub(r"{\w+}", "x", path))
                assert (answer.status, answer.problem["detail"]) == (404, callers.NO_BILLING_ROLE), path
            tried += 1
        assert tried > 20
