"""Runs the customers' scripts, each on its own test clock, while the processes that serve them are killed."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from payonce.cli.demo.disruption import KILLS_MIN, progress_bar
from payonce.cli.demo.fleet import Fleet
from payonce.engine.messages.transaction import Reader
from payonce.services.billing.demo.customer_calls import CustomerClients
from payonce.services.billing.demo.customers import Customer
from payonce.services.billing.demo.processes import LEASE_S
from payonce.testing import Clock

KILLS, FIRST_KILL, LAST_KILL = KILLS_MIN + 2, 0.02, 0.8
"""The number of kills, and the shares of the run between which they are spread."""
TICK_S: Final = 0.4
LIMIT_S, STALLED_S = 1_500.0, 150.0
"""The limit of a run, and of the time in which no clock advances. Everything missing then counts as missed."""
_DAY: Final = timedelta(days=1)


@dataclass
class ClockWatch:
    """Polls all test clocks with one query, for every customer that waits for theirs."""

    read: Reader
    clocks: dict[str, datetime] = field(default_factory=dict)
    at_rest: set[str] = field(default_factory=set)
    """Clocks that have arrived, with no work in progress."""
    begun: int = 0
    ended: int = 0
    _looked: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def look(self) -> None:
        self.begun += 1
        rows = await self.read.fetch(CLOCKS)
        self.clocks = {row["id"]: row["now_at"] for row in rows}
        self.at_rest = {row["id"] for row in rows if row["at_rest"]}
        async with self._looked:
            self.ended = self.begun
            self._looked.notify_all()

    async def until_at(self, customer: Customer, moment: datetime) -> None:
        """Waits until the customer's clock has arrived there with no work in progress, as of now."""
        wanted = self.begun + 1
        async with self._looked:
            while self.ended < wanted or customer.id not in self.at_rest or self.clocks[customer.id] != moment:
                await self._looked.wait()


@dataclass
class CustomerLives:
    read: Reader
    clock: Clock
    fleet: Fleet
    customers: Sequence[Customer]
    clients: CustomerClients
    chance: random.Random

    async def through(self) -> None:
        """Runs until every clock has arrived at the end, or a limit is reached."""
        watch, total = ClockWatch(self.read), sum(map(_days, self.customers))
        step = (LAST_KILL - FIRST_KILL) / (KILLS - 1)
        kills = [FIRST_KILL + step * number for number in range(KILLS)]
        lives = [asyncio.create_task(self._live(customer, watch)) for customer in self.customers]
        began = moved = time.monotonic()
        passed = -1
        try:
            with progress_bar(total) as show_progress:
                while not all(life.done() for life in lives):
                    await watch.look()
                    days = sum(_days_passed(each, watch.clocks[each.id]) for each in self.customers)
                    show_progress(days, self.fleet.kills)
                    now = time.monotonic()
                    passed, moved = (days, now) if days != passed else (passed, moved)
                    if now - began > LIMIT_S or now - moved > STALLED_S:
                        return
                    await self._disrupt(days / total, kills)
                    self.fleet.restore()
                    await asyncio.sleep(TICK_S)
            await asyncio.gather(*lives)
        finally:
            for life in lives:
                life.cancel()
            await asyncio.gather(*lives, return_exceptions=True)

    async def _live(self, customer: Customer, watch: ClockWatch) -> None:
        moment = customer.begins_at
        for place, step in enumerate(customer.life.steps):
            await watch.until_at(customer, moment)
            if step.at > moment:
                moment = step.at
                await self.clients.advance(customer, moment)
                await watch.until_at(customer, moment)
            await self.clients.take(customer, place, step)
        await watch.until_at(customer, moment)
        await self.clients.advance(customer, customer.ends_at)
        await watch.until_at(customer, customer.ends_at)

    async def _disrupt(self, progress: float, kills: list[float]) -> None:
        if not kills or progress < kills[0] or await self.read.fetchval(ALONE):
            return
        if self.fleet.kill(await self._busy(), self.chance):
            kills.pop(0)
            await self.clock.advance_leases(LEASE_S + 1)

    async def _busy(self) -> dict[int, int]:
        """The number of messages that each process holds, by process id."""
        rows = await self.read.fetch(
            "select worker, count(*) as held from payonce.messages where state = 'leased' group by worker"
        )
        return {int(row["worker"].split("-")[-2]): row["held"] for row in rows}


def _days(customer: Customer) -> int:
    return _days_passed(customer, customer.ends_at)


def _days_passed(customer: Customer, moment: datetime) -> int:
    return (moment - customer.begins_at) // _DAY


CLOCKS: Final = """
    with busy as (
        select account_id from payments.notifications where delivered_at is null
        union all select account_id from subscriptions.invoices where charging or refunding
    )
    select c.id, c.now_at,
        c.now_at = c.target_at and not exists (select from busy b where b.account_id = c.id) as at_rest
    from subscriptions.test_clocks c
"""
ALONE: Final = """
    select exists (select from payonce.messages
        where running_alone or (state = 'alone' and ready_at <= payonce.due_now())
           or (state = 'leased' and (crashes >= 2 or (crashes = 1 and lease_until <= payonce.lease_now()))))
"""
"""Work in progress at two kills is retried in isolation, to find out whether it causes the crashes. Another kill at
that moment, which expires all leases, would count as proof and park the message; so would one just before the retry."""
