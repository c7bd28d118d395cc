"""Every route of operators, found by itself: who gets in, who does not, and that nothing happens for those."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from payonce.engine.operators import passwords
from payonce.http.kit.scopes import PLATFORM_SCOPES, TENANT_SCOPES
from payonce.services.billing import SCOPES
from payonce.services.billing.api import callers
from payonce.services.billing.api.callers import CREDENTIALS_NEEDED
from payonce.services.billing.scopes import CHARGE, OPERATE, READ
from tests.ablations import patched
from tests.services.billing.api.conftest import OpenCounter
from tests.services.billing.api.counter import PASSWORD, Counter
from tests.services.billing.api.test_callers import UNREADABLE

OPS = "/v1/ops/"
QUEUE = "q:sub:plan_change"
BODIES: dict[str, object] = {
    "/v1/ops/queues/{queue}/pause": {"reason": "probing"},
    "/v1/ops/queues/{queue}/redrive": {"all": True, "why": "probing"},
    "/v1/ops/accounts/{account_id}/role": {"role": "operator"},
}
ALSO_FOR_OPERATORS = {
    ("POST", "/v1/plans"),
    ("POST", "/v1/plans/{plan_id}/retire"),
    ("GET", "/v1/webhooks/status/{event_id}"),
    ("POST", "/v1/transactions/{transaction_id}/refund"),
    ("POST", "/v1/usage/reset"),
}
LEAST = 6
IN, UNKNOWN, NOT_ALLOWED = "in", 401, 403


@dataclass(frozen=True)
class Route:
    method: str
    path: str

    @property
    def scope(self) -> str:
        """Looking takes another than steering."""
        return READ if self.method == "GET" else OPERATE

    async def tried(self, who: Counter, account_id: str) -> int | str:
        answer = await self.asked(who, account_id)
        return answer.status if answer.status in (UNKNOWN, NOT_ALLOWED) else IN

    async def asked(self, who: Counter, account_id: str) -> Any:
        path = self.path.format(queue=QUEUE, account_id=account_id)
        return await who(self.method, path, body=BODIES.get(self.path), headers={"idempotency-key": "probe"})


def routes_of(described: dict[str, Any]) -> Iterator[Route]:
    for path, ways in described["paths"].items():
        if path.startswith(OPS):
            yield from (Route(method.upper(), path) for method in ways)


async def found(ask: Counter) -> list[Route]:
    routes = list(routes_of((await ask.get("/openapi.json")).json))
    assert len(routes) >= LEAST
    return routes


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "COST", 2**4)


async def callers_of(ask: Counter) -> tuple[str, dict[str, tuple[Counter, dict[str, int | str]]]]:
    """Ada's account, and everybody with what they should meet where something is looked at, and steered."""
    ada = await ask.registered("ada@example.com")
    account = (await ada.get("/v1/auth/me")).json["id"]
    entered = await ask.post("/v1/auth/login", {"email": "ada@example.com", "password": PASSWORD})
    nobody: dict[str, int | str] = {READ: UNKNOWN, OPERATE: UNKNOWN}
    nothing: dict[str, int | str] = {READ: NOT_ALLOWED, OPERATE: NOT_ALLOWED}
    tenant = await ask.as_holder("shop", *SCOPES, tenant="acme")
    house = [*PLATFORM_SCOPES, *TENANT_SCOPES]
    return account, {
        "a stranger": (ask, nobody),
        "a refresh token": (ask.bearing(entered.json["refresh_token"]), nobody),
        "a customer": (ada, nothing),
        "a key to charge": (await ask.with_key("crm", CHARGE), nothing),
        "a key to look": (await ask.with_key("crm", READ), {READ: IN, OPERATE: NOT_ALLOWED}),
        "a key to steer": (await ask.with_key("crm", OPERATE), {READ: NOT_ALLOWED, OPERATE: IN}),
        "a key for all that is not billing's": (await ask.with_key("ops", *house), nothing),
        "a tenant's key for all of billing": (ask.bearing(tenant.headers["authorization"].split()[1]), nothing),
    }


async def strays(ask: Counter) -> list[str]:
    account, everybody = await callers_of(ask)
    routes = await found(ask)
    wrong = []
    # Whoever may steer comes last: what is changed before that was changed by somebody who may not.
    for name, (who, meets) in sorted(everybody.items(), key=lambda each: IN in each[1][1].values()):
        for route in routes:
            met = await route.tried(who, account)
            if met != meets[route.scope]:
                wrong.append(f"{name} at {route.method} {route.path}: {met}")
        if IN not in meets.values():
            paused = [each for each in await ask.app.admin.queues() if (await ask.app.admin.depth(each)).paused]
            role = await ask.app.read.fetchval("select role from subscriptions.accounts where id = $1", account)
            if (paused, role) != ([], "customer"):
                wrong.append(f"{name} changed something")
    return wrong


async def test_each_caller_meets_what_their_scopes_say_on_every_route_of_operators(counter: OpenCounter) -> None:
    async with counter() as ask:
        assert await strays(ask) == []
        # Steering made an operator of the customer: their old token has ended, and the next one opens everything.
        entered = await ask.post("/v1/auth/login", {"email": "ada@example.com", "password": PASSWORD})
        root, account = ask.bearing(entered.json["access_token"]), entered.json["account"]["id"]
        for route in sorted(await found(ask), key=lambda each: "account" in each.path):
            assert await route.tried(root, account) == IN, route


async def test_without_the_look_at_a_role_it_would_be_noticed(counter: OpenCounter) -> None:
    async with counter() as ask:
        with patched(callers, "_as_operator", lambda who: who)():
            assert any(each.startswith("a customer") for each in await strays(ask))


async def test_whatever_is_for_operators_elsewhere_is_closed_to_customers(counter: OpenCounter) -> None:
    async with counter() as ask:
        ada, described = await ask.registered("ada@example.com"), (await ask.get("/openapi.json")).json
        for method, path in sorted(ALSO_FOR_OPERATORS):
            assert method.lower() in described["paths"][path]
            concrete = path.format(plan_id="basic", event_id="e", transaction_id="t")
            bodies = {"/v1/plans": PLAN, "/v1/usage/reset": {"note": "n"}}
            body = bodies.get(path, {"reason": "r"} if path.endswith("refund") else None)
            answer = await ada(method, concrete, body=body, headers={"idempotency-key": "k"})
            assert answer.status == 403, (path, answer.body)


PLAN = {"code": "probe", "name": "Probe", "price": "1.00", "currency": "AED"}


async def test_no_forged_token_opens_any_of_them_and_all_hear_the_same(counter: OpenCounter) -> None:
    async with counter() as ask:
        heard, routes = set(), await found(ask)
        for number, (name, token) in enumerate(UNREADABLE.items()):
            who = replace(ask.bearing(token), client=f"192.0.2.{number}")
            for route in routes:
                answer = await route.asked(who, "account")
                assert answer.status == UNKNOWN, (name, route)
                heard.add((answer.problem["detail"], answer.problem["title"], answer.headers["www-authenticate"]))
        assert heard == {(CREDENTIALS_NEEDED, "Unauthorized", "Bearer")}
