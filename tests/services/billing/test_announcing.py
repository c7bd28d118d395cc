"""What merchants hear: each event in the commit that it follows from, and nothing of what came to nothing."""

import base64
from typing import Any

import msgspec
import pytest

from payonce.engine.webhooks import DELIVERIES, add_endpoint
from payonce.kit.crypto import Keyring
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.handlers import new_subscriptions
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import House, open_house


async def listen(house: House) -> None:
    keys = Keyring.from_text(f"k1:{base64.b64encode(bytes(range(32))).decode()}")
    await house.s.feed.declare([DELIVERIES])
    async with house.s.begin() as tx:
        await add_endpoint(
            tx, keys, url="https://merchant.example.com/x", events=["subscription.*", "invoice.*"], by="ada"
        )


async def heard(house: House) -> list[tuple[str, dict[str, Any]]]:
    """Since the last time that it was asked."""
    rows = await house.s.owner.fetch("select type, body from payonce.webhook_events order by created_at, id")
    await house.s.owner.execute("delete from payonce.webhook_deliveries; delete from payonce.webhook_events")
    return [(row["type"], msgspec.json.decode(row["body"])["data"]) for row in rows]


async def names(house: House) -> list[str]:
    return [name for name, _ in await heard(house)]


async def test_merchants_hear_of_every_step_of_a_life(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await listen(house)
        customer = await house.customer()
        subscription = await house.start_trial(customer)
        assert await names(house) == [
            "subscription.created",
            "invoice.issued",
            "invoice.paid",
            "subscription.trial_started",
            "invoice.credited",
        ]
        await house.change_plan(subscription, "pro")
        assert await names(house) == [
            "subscription.plan_change_requested",
            "invoice.issued",
            "invoice.paid",
            "subscription.plan_changed",
        ]
        house.card_will(customer, "insufficient_funds")
        await house.pass_days(28.5)
        assert await names(house) == ["invoice.issued", "invoice.payment_failed", "subscription.past_due"]
        await house.pass_days(1)
        assert await names(house) == ["invoice.paid", "subscription.renewed"]
        await house.pause(subscription)
        await house.resume(subscription)
        assert await names(house) == ["subscription.paused", "subscription.resumed"]
        house.card_will(customer, "expired_card")
        await house.pass_days(30 + 16)
        assert (await names(house))[-1] == "subscription.unpaid"
        await house.cancel(subscription, ChangeTiming.NOW)
        [(event, told)] = await heard(house)
        assert (event, told["state"], told["id"]) == ("subscription.canceled", "canceled", subscription.id)


async def test_merchants_hear_of_what_never_began(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await listen(house)
        await house.subscribe(await house.customer("4000000000000002"))
        await house.pass_days(1)
        told = await heard(house)
        assert [name for name, _ in told] == [
            "subscription.created",
            "invoice.issued",
            "invoice.payment_failed",
            "invoice.voided",
            "subscription.expired",
        ]
        voided = told[3][1]
        assert (voided["state"], voided["due"], voided["lines"][0]["amount"]) == ("void", "29.00", "29.00")
        assert voided["credit_note"]["number"] == "CN-2026-000001"


async def test_nothing_is_said_of_what_was_not_committed(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await listen(house)
        customer = await house.customer()

        async def start_two() -> None:
            async with house.s.begin() as tx:
                await new_subscriptions.start(tx, customer.id, "basic")
                await new_subscriptions.start(tx, customer.id, "pro")

        with pytest.raises(Conflict):
            await start_two()
        assert await names(house) == []
