"""What a person purges is put back, once; what is old is forgotten."""

from payonce.services.billing.payments import schedules
from payonce.services.billing.payments.handlers import refunds
from payonce.services.billing.payments.model import State
from payonce.services.billing.policies import PAYMENTS_CLOCK
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, Script
from tests.services.billing.payments.counter import open_counter
from tests.services.billing.payments.till import Till, open_till


async def look(till: Till, action: str = schedules.PUT_BACK) -> int:
    """How many messages there are after the janitor has looked."""
    async with till.s.begin() as tx:
        await tx.send(PAYMENTS_CLOCK, {}, action=action)
    janitor = await till.s.worker(schedules.put_back_payments, schedules.clean_up_payments)
    await janitor.step()
    count: int = await till.s.owner.fetchval("select count(*) from payonce.messages")
    return count


async def purge(till: Till) -> None:
    await till.s.owner.execute("delete from payonce.messages")


async def test_what_lost_its_message_is_carried_on_once(stage: OpenStage) -> None:
    async with open_counter(stage, draws=Script([None, Fault.TIMEOUT_AFTER])) as counter:
        till = counter.till
        await till.card()
        await till.run()
        till.subscriptions.answers = [500]
        transaction = await till.charged("inv-0")
        till.subscriptions.answers = [500]
        await till.ask("inv-1", account_id="acc-2", subscription_id="sub-2")
        await till.drain()
        await counter.as_customer().pay()
        async with till.s.begin() as tx:
            await refunds.request(tx, transaction.id, None, "a reason", "k")
        await purge(till)
        assert await look(till) == 0, "what is fresh may be between two messages"
        await till.s.clock.advance(schedules.FORGOTTEN_AFTER_S + 1)
        put_back = await look(till)
        assert put_back == 3
        assert await look(till) == put_back, "what has a message is left alone"
        await till.run()
        assert (await till.transaction("inv-0")).state is State.REFUNDED
        assert [told["status"] for told in till.subscriptions.told[-2:]] == ["failed", "success"]
        assert len(till.gateway.books.charges) == 2
        assert await till.broken() == {}


async def test_a_charge_in_doubt_that_lost_its_message_is_resolved_and_not_repeated(stage: OpenStage) -> None:
    async with open_till(stage, Script([None, Fault.TIMEOUT_AFTER])) as till:
        await till.card()
        await till.ask()
        await till.drain()
        await till.s.owner.execute("delete from payonce.messages")
        await till.s.clock.advance(schedules.FORGOTTEN_AFTER_S + 1)
        assert await look(till) > 0
        await till.run()
        assert (await till.transaction()).state is State.SUCCEEDED
        assert till.captures() == 1
        assert await till.broken() == {}


async def test_old_attempts_are_forgotten_and_what_they_were_about_is_not(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        await till.run()
        await till.s.clock.advance(91 * 86_400.0)
        await till.card(account_id="acc-2")
        await look(till, schedules.CLEAN_UP)
        counts = [
            await till.s.owner.fetchval(f"select count(*) from payments.{table}")
            for table in ("webhook_outbound_requests", "notifications")
        ]
        assert counts == [1, 2]
