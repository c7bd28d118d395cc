"""How much a renewal asks of the store: what is added here is paid by every customer every month."""

from payonce.services.billing.subscriptions.handlers import payment_events, renewals
from payonce.services.billing.subscriptions.store import subscriptions
from payonce.testing import OpenStage
from tests.conformance.wire import on_the_wire
from tests.services.billing.billing_stage import open_house

ISSUED_IN = 6
"""Lock, what decides, the move, the books, the charge, the invoice."""
APPLIED_IN = 7
"""The event, lock, what decides, the invoice with its lines, the books, the invoice, the move."""


async def test_a_renewal_is_a_handful_of_statements(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        assert subscription.due_at is not None
        await house.s.clock.freeze(subscription.due_at)
        seen: list[str] = []

        def see(statement: str) -> str:
            seen.append(statement)
            return statement

        async with house.s.begin() as tx:
            with on_the_wire(see):
                await renewals._renew(tx, await subscriptions.locked(tx, subscription.id), 1)
        assert len(seen) == ISSUED_IN, seen
        await house.s.admin.pause("q:pay:subscription_update", "to be told here")
        house.door.answers = [503]
        await house.drain()
        told = await house.told("renewal")
        seen.clear()
        async with house.s.begin() as tx:
            with on_the_wire(see):
                await payment_events.apply(tx, told)
        assert len(seen) == APPLIED_IN, seen
        assert [each.period for each in await house.invoices(subscription)] == [0, 1]
        assert await house.balance("receivable") == 0
