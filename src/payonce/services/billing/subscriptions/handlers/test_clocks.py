"""Test clocks advance their customers' time from one due step to the next, in order.

A clock advances only when its customers have no work in progress: no unanswered charge or refund, and no due step being
processed. Whatever ends the last such work wakes the clock (test_clock_wakeup.py), so a simulated year takes as long as
its work.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Invalid, Unprocessable
from payonce.services.billing.messages import ClockMove
from payonce.services.billing.policies import BILLING_CLOCK
from payonce.services.billing.subscriptions.domain.calendar import EARLIEST, whole_second
from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.handlers.revenue import COUNTED_MAX, earn_due_by_clock, is_uncounted
from payonce.services.billing.subscriptions.store.due_work import is_passed_over, take_due_by_clock
from payonce.services.billing.subscriptions.store.test_clock_wakeup import MOVE, under_way

HOPS_MAX: Final = 50
"""Per commit, over moments with revenue recognition only."""
ADVANCE_MAX: Final = timedelta(days=3 * 366)
"""Per call: each renewal on the way is processed."""
CUSTOMERS_MAX: Final = 1_000
LOOK_AGAIN_S: Final = 1.0
"""The delay after a lock by another transaction, which changes one subscription and is short."""


@dataclass(frozen=True)
class TestClock:
    id: str
    name: str
    now_at: datetime
    target_at: datetime
    made_by: str
    created_at: datetime

    @property
    def arrived(self) -> bool:
        """Whether it has reached its target. Work due at that moment may still be in progress: see `waits_for`."""
        return self.now_at == self.target_at


async def create(tx: Tx, name: str, made_by: str, at: datetime | None = None) -> TestClock:
    """Creates a clock at the given time, by default the current one."""
    if at is not None and at.tzinfo is None:
        raise Invalid(f"the moment {at.isoformat()} has no time zone; give it with its offset, such as Z")
    now = whole_second(at or await tx.fetchval("select payonce.due_now()"))
    if now < EARLIEST:
        raise Invalid(
            f"the moment {now.isoformat()} is before 1970 in UTC, where no subscription can begin; give a later one"
        )
    row = await tx.fetchrow(
        """
        insert into subscriptions.test_clocks (id, name, now_at, target_at, made_by) values ($1, $2, $3, $3, $4)
        returning *
        """,
        f"tc{secrets.token_hex(6)}",
        name,
        now,
        made_by,
    )
    return _clock(row)


async def find(read: Reader | Tx, test_clock_id: str) -> TestClock | None:
    row = await read.fetchrow("select * from subscriptions.test_clocks where id = $1", test_clock_id)
    return None if row is None else _clock(row)


async def put_on_clock(tx: Tx, account_id: str, test_clock_id: str) -> None:
    """Puts an account on the clock. Only an account without subscriptions, since no existing time may change."""
    if await find(tx, test_clock_id) is None:
        raise NotFound(f"there is no test clock {test_clock_id!r}")
    # A concurrent new subscription locks the account too, so the later of the two sees the other.
    await tx.execute("select from subscriptions.accounts where id = $1 for update", account_id)
    others = await tx.fetchval("select count(*) from subscriptions.accounts where test_clock_id = $1", test_clock_id)
    if others >= CUSTOMERS_MAX:
        raise Conflict(f"test clock {test_clock_id} has {others} customers; create another one for more")
    put = await tx.fetchval(
        """
        update subscriptions.accounts a set test_clock_id = $2, updated_at = payonce.due_now()
        where id = $1 and not exists (select from subscriptions.subscriptions s where s.account_id = a.id) returning id
        """,
        account_id,
        test_clock_id,
    )
    if put is None:
        raise Conflict("only an account without a subscription can be put on a test clock; register another one")


async def advance(tx: Tx, test_clock_id: str, to: datetime) -> TestClock:
    """Sets a later target; the clock reaches it when all work due until then is done."""
    if to.tzinfo is None:
        raise Invalid(f"the moment {to.isoformat()} has no time zone; give it with its offset, such as Z")
    row = await tx.fetchrow("select * from subscriptions.test_clocks where id = $1 for update", test_clock_id)
    if row is None:
        raise NotFound(f"there is no test clock {test_clock_id!r}")
    clock, to = _clock(row), whole_second(to)
    if not clock.target_at <= to <= clock.now_at + ADVANCE_MAX:
        raise Conflict(
            f"the clock stands at {clock.now_at.isoformat()} and goes to {clock.target_at.isoformat()}; advance it to "
            f"a moment after that and within {ADVANCE_MAX.days} days"
        )
    row = await tx.fetchrow(
        """
        update subscriptions.test_clocks set target_at = $2, puts = puts + 1, updated_at = payonce.due_now()
        where id = $1 returning *
        """,
        clock.id,
        to,
    )
    await _go_on(tx, clock)
    return _clock(row)


@handles(BILLING_CLOCK, MOVE)
async def move_clock(work: Work) -> None:
    """Advances to the next due step, unless work is in progress, whose end wakes the clock again."""
    asked: ClockMove = work.payload
    async with work.commit() as tx:
        row = await tx.fetchrow("select * from subscriptions.test_clocks where id = $1 for update", asked.test_clock_id)
        if row is None:
            raise Unprocessable(f"there is no test clock {asked.test_clock_id[:100]!r}")
        await _hop(tx, _clock(row))


async def waits_for(read: Reader | Tx, test_clock_id: str) -> str | None:
    """A description of the first work that is in progress or about to be enqueued; None if the clock may advance."""
    found: str | None = await under_way(read, test_clock_id) or await read.fetchval(
        """
        select 'what is due for subscription ' || s.id from subscriptions.subscriptions s
        join subscriptions.test_clocks c on c.id = s.test_clock_id where c.id = $1 and s.due_at <= c.now_at limit 1
        """,
        test_clock_id,
    )
    return found


async def _hop(tx: Tx, clock: TestClock) -> None:
    now = clock.now_at
    for _ in range(HOPS_MAX):
        if await take_due_by_clock(tx, clock.id, now):
            return
        if await is_passed_over(tx, clock.id, now):
            await _go_on(tx, clock, LOOK_AGAIN_S)
            return
        if await waits_for(tx, clock.id):
            return
        if await earn_due_by_clock(tx, clock.id, now) >= COUNTED_MAX:
            break
        if now >= clock.target_at:
            if await is_uncounted(tx, clock.id, now):
                await _go_on(tx, clock, LOOK_AGAIN_S)
            return
        now = await tx.fetchval(_NEXT, clock.id, now, clock.target_at)
        await tx.execute(
            "update subscriptions.test_clocks set now_at = $2, updated_at = payonce.due_now() where id = $1",
            clock.id,
            now,
        )
    await _go_on(tx, clock)


async def _go_on(tx: Tx, clock: TestClock, delay_s: float = 0.0) -> None:
    await tx.send(BILLING_CLOCK, {"test_clock_id": clock.id}, action=MOVE, correlation_id=clock.id, delay_s=delay_s)


_NEXT: Final = """
    select least($3, (
        select min(s.due_at) from subscriptions.subscriptions s where s.test_clock_id = $1 and s.due_at > $2), (
        select min(i.earn_at) from subscriptions.invoices i
        join subscriptions.subscriptions s on s.id = i.subscription_id where s.test_clock_id = $1 and i.earn_at > $2))
"""


def _clock(row: Any) -> TestClock:
    return TestClock(row["id"], row["name"], row["now_at"], row["target_at"], row["made_by"], row["created_at"])
