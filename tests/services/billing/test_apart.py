"""Both services as they are deployed: a process each, HTTP between them, and a database each or one for both."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.ledger import Account, balance
from payonce.testing import ScratchDatabase, ScratchServer, Stage, eventually
from payonce.testing.processes import Processes
from payonce.testing.server import serving
from payonce.testing.stage import open_stage
from tests.engine.webhooks_stage import Shop as Merchant
from tests.services.billing.billing_stage import AED
from tests.services.billing.deployed import ADA, CARD, WITHIN_S, Databases, Running, deployed, key_for

BEGIN = datetime(2026, 2, 1, 9, tzinfo=UTC)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as running:
        yield running


@pytest.fixture(params=["one database", "two databases"])
def databases(request: pytest.FixtureRequest, scratch: ScratchDatabase, postgres: ScratchServer) -> Iterator[Databases]:
    """Of two, each has the schema of its own service alone: a statement that names the other's fails."""
    if request.param == "one database":
        yield Databases(scratch, scratch)
        return
    with postgres.lent() as second:
        both = Databases(scratch, second)
        for database, other in ((both.subscriptions, "payments"), (both.payments, "subscriptions")):
            asyncio.run(executed(database, f"drop schema {other} cascade"))
        yield both


async def executed(database: ScratchDatabase, statement: str) -> None:
    owner = await asyncpg.connect(database.owner_url)
    try:
        await owner.execute(statement)
    finally:
        await owner.close()


async def audited(service: Running) -> list[Any]:
    """What `payonce audit run` finds on the database of a service."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "payonce",
        "audit",
        "run",
        "--json",
        env={**os.environ, **service.environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    found = json.loads(stdout)
    assert found["checks"] > 0, stderr
    return list(found["findings"])


async def begun(*services: Running) -> None:
    for service in services:
        service.start()
    for service in services:
        await service.ready()


@pytest.mark.timeout(180)
async def test_a_customers_life_across_both_processes_one_of_which_is_killed(
    databases: Databases, processes: Processes, tmp_path: Path
) -> None:
    async with (
        open_stage(databases.subscriptions) as s,
        serving(merchant := Merchant()) as hook,
        deployed(processes, databases, tmp_path) as (subscriptions, payments),
    ):
        for service in (subscriptions, payments):
            service.start()
        for service in (subscriptions, payments):
            await service.ready()
        key = await key_for(s, "webhooks:read", "webhooks:write")
        wanted = {"url": f"{hook}/hook", "events": ["subscription.*", "invoice.*"]}
        await subscriptions.ask("POST", "/v1/webhooks/endpoints", key, wanted)

        token = (await subscriptions.ask("POST", "/v1/auth/register", body=ADA))["access_token"]
        card = (await payments.ask("POST", "/simulated-gateway/v1/tokens", body=CARD))["id"]
        await payments.ask("POST", "/v1/payment-methods/", token, {"token": card})

        payments.kill()
        made = await subscriptions.ask("POST", "/v1/subscriptions", token, {"plan_id": "basic"}, "order-1")
        assert made["state"] == "incomplete"
        payments.start()
        await payments.ready()

        async def state() -> str:
            found = await subscriptions.ask("GET", f"/v1/subscriptions/{made['id']}", token)
            return str(found["state"])

        async def active() -> bool:
            return await state() == "active"

        await eventually(active, WITHIN_S, "the subscription is active")
        [charge] = (await payments.ask("GET", "/v1/transactions", token))["transactions"]
        assert (charge["state"], charge["subscription_id"]) == ("succeeded", made["id"]), charge
        [invoice] = (await subscriptions.ask("GET", "/v1/invoices", token))["invoices"]
        assert (invoice["state"], invoice["subscription_id"]) == ("paid", made["id"])

        await subscriptions.ask("POST", f"/v1/subscriptions/{made['id']}/cancel", token, {"at": "now"}, "order-2")
        assert await state() == "canceled"
        told = [
            "subscription.created",
            "invoice.issued",
            "invoice.paid",
            "subscription.activated",
            "subscription.canceled",
        ]

        def heard() -> list[str]:
            """By the id of each event: a sender that had no answer in time tells it again under the same one."""
            return list({each.id: msgspec.json.decode(each.body)["type"] for each in merchant.arrived}.values())

        await eventually(lambda: len(heard()) >= len(told), WITHIN_S, "the merchant heard of all of it")
        assert sorted(heard()) == sorted(told)
        assert await audited(subscriptions) == await audited(payments) == []


@pytest.mark.timeout(240)
@pytest.mark.parametrize("queues", ["PostgreSQL", "Redis"])
async def test_a_customer_subscribes_renews_upgrades_and_is_refunded_with_everything_accounted_for(
    databases: Databases, processes: Processes, tmp_path: Path, queues: str, redis_server: RedisServer
) -> None:
    redis_url = redis_server.url if queues == "Redis" else None
    async with AsyncExitStack() as stack:
        at_subscriptions = await stack.enter_async_context(open_stage(databases.subscriptions))
        at_payments = await stack.enter_async_context(open_stage(databases.payments))
        subscriptions, payments = await stack.enter_async_context(deployed(processes, databases, tmp_path, redis_url))
        await begun(subscriptions, payments)
        token = (await subscriptions.ask("POST", "/v1/auth/register", body=ADA))["access_token"]
        clock = await subscriptions.ask("POST", "/v1/test-clocks", token, {"now_at": BEGIN.isoformat()})
        await subscriptions.ask("POST", f"/v1/test-clocks/{clock['id']}/join", token, {})
        card = (await payments.ask("POST", "/simulated-gateway/v1/tokens", body=CARD))["id"]
        await payments.ask("POST", "/v1/payment-methods/", token, {"token": card})
        made = await subscriptions.ask("POST", "/v1/subscriptions", token, {"plan_id": "basic"}, "order-1")

        async def invoices() -> list[tuple[str, str]]:
            found = (await subscriptions.ask("GET", "/v1/invoices", token))["invoices"]
            return sorted((each["state"], each["due"]["amount"]) for each in found)

        async def come_to(wanted: list[tuple[str, str]]) -> None:
            async def there() -> bool:
                return await invoices() == sorted(wanted)

            try:
                await eventually(there, WITHIN_S)
            except AssertionError:
                raise AssertionError(f"{await invoices()} instead of {wanted}") from None

        await come_to([("paid", "29.00")])
        for moment in (BEGIN + timedelta(days=29), BEGIN + timedelta(days=42)):
            # The renewal on the first of March; then the middle of that month.
            await subscriptions.ask("POST", f"/v1/test-clocks/{clock['id']}/advance", token, {"to": moment.isoformat()})

            async def arrived() -> bool:
                return bool((await subscriptions.ask("GET", f"/v1/test-clocks/{clock['id']}", token))["arrived"])

            await eventually(arrived, WITHIN_S, "the clock has arrived")
        await come_to([("paid", "29.00")] * 2)
        change = {"new_plan_id": "pro", "when": "now"}
        await subscriptions.ask("POST", f"/v1/subscriptions/{made['id']}/change-plan", token, change, "order-2")
        # From the 15th of March on: 17 of 31 days of the difference.
        await come_to([("paid", "29.00"), ("paid", "29.00"), ("paid", "38.39")])

        key = await key_for(at_payments, "billing:charge", "billing:read")
        charges = (await payments.ask("GET", "/v1/transactions", token))["transactions"]
        renewal = next(each for each in charges if each["action"] == "renewal")
        refund = {"reason": "they asked for it"}
        await payments.ask("POST", f"/v1/transactions/{renewal['id']}/refund", key, refund, "refund-1")

        async def refunded() -> list[str]:
            found = (await subscriptions.ask("GET", "/v1/invoices", token))["invoices"]
            return [each["refunded"]["amount"] for each in found if each["refunded"]["minor"] != "0"]

        await eventually(refunded, WITHIN_S, "subscriptions have heard of the refund")
        # Of 29.00 for March, 15.90 came back as credit.
        assert await refunded() == ["13.10"]
        till = await key_for(at_subscriptions, "billing:charge", "billing:read")
        account_id = (await subscriptions.ask("GET", "/v1/auth/me", token))["id"]
        credit = {"account_id": account_id, "amount": "20.00", "currency": "AED", "reason": "an outage"}
        await subscriptions.ask("POST", "/v1/credit/adjustments", till, {**credit, "change": "add"}, "credit-1")
        await subscriptions.ask("POST", "/v1/credit/payouts", till, credit, "credit-2")

        async def paid_out() -> bool:
            [payout] = (await subscriptions.ask("GET", "/v1/credit/payouts", token))["payouts"]
            assert payout["failure"] is None
            return bool(payout["state"] == "succeeded")

        await eventually(paid_out, WITHIN_S, "the credit is paid out")
        charges = (await payments.ask("GET", "/v1/transactions", token))["transactions"]
        assert sorted(each["refunded"]["amount"] for each in charges) == ["0.00", "13.10", "20.00"]
        assert await audited(subscriptions) == await audited(payments) == []
        await in_transit_is_nothing(databases, at_subscriptions, at_payments)


async def in_transit_is_nothing(databases: Databases, *stages: Stage) -> None:
    """What payments captured is what subscriptions were paid: the account between them is zero over both ledgers."""
    sums = [(await balance(s.read, Account("billing/captured", AED))).minor for s in stages]
    assert sum(sums) == 0, sums
    assert any(sums) is databases.are_two, "each ledger alone has one side of it"


@pytest.mark.timeout(120)
async def test_each_process_answers_its_own_routes_and_none_of_the_others(
    databases: Databases, processes: Processes, tmp_path: Path
) -> None:
    async with deployed(processes, databases, tmp_path) as (subscriptions, payments):
        await begun(subscriptions, payments)
        of_payments, of_subscriptions = await payments.paths(), await subscriptions.paths()
        for path in (
            "/v1/subscriptions",
            "/v1/auth/login",
            "/v1/invoices",
            "/v1/usage/use",
            "/v1/plans",
            "/v1/ops/accounts/{account_id}/role",
        ):
            assert (path in of_subscriptions, path in of_payments) == (True, False), path
        for path in ("/v1/transactions", "/v1/payments/process", "/v1/payment-methods/"):
            assert (path in of_payments, path in of_subscriptions) == (True, False), path
        assert "/v1/ops/queues" in of_payments & of_subscriptions
        asked = [
            (subscriptions, "GET", "/v1/plans", 200),
            (payments, "GET", "/v1/plans", 404),
            (subscriptions, "POST", "/v1/webhooks/payment", 400),
            (payments, "POST", "/v1/webhooks/payment", 404),
            (subscriptions, "POST", "/v1/auth/token-version", 400),
            (payments, "POST", "/v1/auth/token-version", 404),
            (payments, "GET", "/v1/transactions", 401),
            (subscriptions, "GET", "/v1/transactions", 404),
            (payments, "POST", "/v1/messages", 400),
            (subscriptions, "POST", "/v1/messages", 404),
            (subscriptions, "POST", "/simulated-gateway/v1/tokens", 404),
        ]
        assert [await service.status(method, path) for service, method, path, _ in asked] == [
            status for *_, status in asked
        ]
        of_platform = of_payments & of_subscriptions
        for service, foreign in (
            (payments, of_subscriptions - of_payments),
            (subscriptions, of_payments - of_subscriptions),
        ):
            answered = [
                (method, path)
                for path in sorted(foreign)
                for method in ("GET", "POST", "PATCH", "DELETE")
                if await service.status(method, path.replace("{", "").replace("}", "")) != 404
            ]
            assert answered == [], "every route of the other service is 404"
        assert not [
            path for path in of_platform if path.startswith(("/v1/subscriptions", "/v1/customers", "/v1/transactions"))
        ]


@pytest.mark.timeout(120)
async def test_one_process_of_both_answers_the_routes_of_both(
    scratch: ScratchDatabase, processes: Processes, tmp_path: Path
) -> None:
    async with deployed(processes, Databases(scratch, scratch), tmp_path) as (both, _):
        both.roles = ("billing.subscriptions", "billing.payments")
        await begun(both)
        assert {"/v1/subscriptions", "/v1/customers", "/v1/transactions", "/v1/ops/queues"} <= await both.paths()
        token = (await both.ask("POST", "/v1/auth/register", body=ADA))["access_token"]
        card = (await both.ask("POST", "/simulated-gateway/v1/tokens", body=CARD))["id"]
        await both.ask("POST", "/v1/payment-methods/", token, {"token": card})
        made = await both.ask("POST", "/v1/subscriptions", token, {"plan_id": "basic"}, "order-1")

        async def active() -> bool:
            found = await both.ask("GET", f"/v1/subscriptions/{made['id']}", token)
            return bool(found["state"] == "active")

        await eventually(active, WITHIN_S, "the subscription is active")
        assert await audited(both) == []
