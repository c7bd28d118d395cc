"""Wakes test clocks: whichever transaction ends the last work in progress of a clock's customers wakes it."""

from typing import Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.services.billing.policies import BILLING_CLOCK, PLAN_CHANGE

MOVE: Final = "move_clock"


async def wake(tx: Tx, test_clock_id: str | None) -> None:
    """Called in the commit that ends the work. It locks the clock: of two transactions that end at once, each would
    otherwise take the other's work for unfinished. Does nothing for customers on real time."""
    if test_clock_id is None:
        return
    await tx.execute("select from subscriptions.test_clocks where id = $1 for update", test_clock_id)
    if await under_way(tx, test_clock_id) is None:
        await tx.send(BILLING_CLOCK, {"test_clock_id": test_clock_id}, action=MOVE, correlation_id=test_clock_id)


async def under_way(read: Reader | Tx, test_clock_id: str) -> str | None:
    """A description of the first work in progress; None if only the clock itself has work left."""
    found: str | None = await read.fetchval(_UNDER_WAY, test_clock_id, PLAN_CHANGE.queue)
    return found


_UNDER_WAY: Final = """
    select 'what is due for subscription ' || s.id from subscriptions.subscriptions s
    where s.test_clock_id = $1 and s.due_at = s.put_for
    union all
    select 'the charge of invoice ' || i.number
    from subscriptions.subscriptions s join subscriptions.invoices i on i.subscription_id = s.id
    where s.test_clock_id = $1 and i.state = 'open' and i.charging
    union all
    select 'the refund of invoice ' || i.number
    from subscriptions.subscriptions s join subscriptions.invoices i on i.subscription_id = s.id
    where s.test_clock_id = $1 and i.refunding
    union all
    select 'the first invoice of subscription ' || s.id from subscriptions.subscriptions s
    where s.test_clock_id = $1 and s.state = 'incomplete' and not exists (
        select from subscriptions.invoices i where i.subscription_id = s.id)
    union all
    select 'the change of plan of subscription ' || s.id from subscriptions.subscriptions s
    join subscriptions.plan_changes c on c.subscription_id = s.id and c.state = 'pending' and not c.at_period_end
    where s.test_clock_id = $1 and not exists (
        select from payonce.live_messages m where m.correlation_id = s.id and m.queue = $2 and m.state = 'parked')
    union all
    select 'the change of plan of subscription ' || s.id from subscriptions.subscriptions s
    join payonce.live_messages m on m.correlation_id = s.id and m.queue = $2 and m.state <> 'parked'
    where s.test_clock_id = $1
    limit 1
"""
