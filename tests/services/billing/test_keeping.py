"""What is done by the clock: nothing that is under way is forgotten, and what works is left alone."""

from datetime import timedelta

import pytest

from payonce.engine.audit import Severity, notes
from payonce.services.billing.policies import BILLING_CLOCK
from payonce.services.billing.subscriptions import schedules
from payonce.services.billing.subscriptions.handlers import revenue
from payonce.services.billing.subscriptions.model import InvoiceState, State
from payonce.services.billing.subscriptions.store import due_work
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import House, open_house


async def put_back(house: House) -> list[str]:
    async with house.s.begin() as tx:
        await tx.send(BILLING_CLOCK, {}, action=schedules.PUT_BACK)
    await house.drain()
    found = await notes(house.s.read, severity=Severity.WARNING)
    return [note.text for note in found if note.location == "billing.put_back"]


async def test_what_fell_due_and_lost_its_message_is_put_again(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        assert subscription.due_at is not None
        await house.s.admin.pause("q:sub:payment_initiation", "to lose it")
        await house.go_to(subscription.due_at)
        await house.pass_days(0.1)
        assert await put_back(house) == [], "it has its message"
        await house.s.owner.execute("delete from payonce.messages")
        await house.s.admin.resume("q:sub:payment_initiation")
        assert await put_back(house) == ["renew was due and had no message"]
        await house.pass_days(0.1)
        assert [each.period for each in await house.invoices(subscription)] == [0, 1]
        assert await house.broken() == {}


async def test_a_charge_that_lost_its_message_is_asked_for_again_and_made_once(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), run=False)
        await house.s.admin.pause("q:pay:charge_initiation", "to lose it")
        await house.drain()
        await house.s.clock.advance(schedules.FORGOTTEN_AFTER_S + 1)
        assert await put_back(house) == [], "it has its message"
        await house.s.owner.execute("delete from payonce.messages")
        await house.s.admin.resume("q:pay:charge_initiation")
        assert await put_back(house) == ["invoice INV-2026-000001 was being charged and had no message"]
        await house.run()
        [invoice] = await house.invoices(subscription)
        assert (invoice.state, house.captures(invoice)) == (InvoiceState.PAID, 1)
        assert await house.broken() == {}


async def test_more_than_one_look_takes_is_looked_for_again_at_once(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_work, "TAKEN_MAX", 2)
    monkeypatch.setattr(revenue, "COUNTED_MAX", 2)
    async with open_house(stage) as house:
        subscriptions = [await house.subscribe(await house.customer()) for _ in range(3)]
        await house.s.clock.advance(timedelta(days=30).total_seconds())
        await house.look()
        assert [len(await house.invoices(each)) for each in subscriptions] == [2, 2, 2]
        assert {await house.state(each) for each in subscriptions} == {State.ACTIVE}


async def test_tokens_that_expired_long_ago_are_cleaned_up(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        for number, days in enumerate((31, 29)):
            await house.s.owner.execute(
                """
                insert into subscriptions.refresh_tokens (digest, account_id, family, expires_at)
                values (sha256($1::text::bytea), $2, 'f', payonce.due_now() - make_interval(days => $3))
                """,
                str(number),
                customer.id,
                days,
            )
        async with house.s.begin() as tx:
            await tx.send(BILLING_CLOCK, {}, action=schedules.CLEAN_UP)
        await house.drain()
        assert await house.s.owner.fetchval("select count(*) from subscriptions.refresh_tokens") == 1
