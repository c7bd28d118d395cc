"""Decides the next step: pending work in seeded order, then the operator, then time, until everything has finished."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, cast
from uuid import UUID

from payonce.engine.effects import reviews
from payonce.engine.messages.transaction import Reader
from payonce.testing.crash.failover import newest_start
from payonce.testing.crash.run_database import RunDatabase
from payonce.testing.crash.scenario import Scenario, Simulators, options_of
from payonce.testing.crash.wire import AnswerReview, Command, Notice, Reap, Redrive, Release, RunRelay, Step, Tick

STEPS_MAX: Final = 400
"""Limit of steps per child; a scenario is a handful of messages, so it will not finish after more."""


@dataclass
class Schedule:
    """Decides for one child, based only on the store: the same store and seed lead to the same steps."""

    run_database: RunDatabase
    scenario: Scenario
    simulators: Simulators
    chance: random.Random
    longest_lease_s: float
    janitors: Sequence[str] = ()
    ticked: set[str] = field(default_factory=set)
    redriven: set[UUID] = field(default_factory=set)
    steps: int = 0
    held_up: bool = False
    """Whether the last sweep freed nothing although leases had expired: their rows are locked."""
    under_way: Callable[[], Awaitable[None]] | None = None
    """Lets requests in transit arrive: an operator decides later than any request takes."""

    async def next_command(self) -> Command | None:
        """The next command; None if nothing is left to do, now or later."""
        while True:
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise StuckError(f"not finished after {STEPS_MAX} steps: {await self.run_database.probe.waiting()}")
            pending = await self.run_database.probe.pending()
            if pending.dead:
                if self.held_up:
                    await self.run_database.nobody_idles_in_a_transaction()
                return Reap(self.chance.choice(pending.dead))
            steps: list[Command] = [*map(Step, pending.due), *map(RunRelay, pending.relays)]
            if steps:
                return self.chance.choice(steps)
            if pending.janitors:
                # Before the operator: janitors tick every few seconds.
                return Tick(self.chance.choice(pending.janitors))
            if (idle := await self._when_idle()) is not None:
                return idle
            if pending.leased:
                # The holder is dead, or has released it silently.
                await self.run_database.probe.advance_leases(self.longest_lease_s + 1)
                continue
            following = await self.run_database.probe.next_due()
            if await self._is_released_before(following):
                return Release()
            if following is not None:
                if options_of(self.scenario).leases_pass:
                    await self.run_database.probe.advance_leases((following - self.run_database.now).total_seconds())
                await self.run_database.hop(following)
            else:
                return None

    async def _is_released_before(self, following: datetime | None) -> bool:
        """Whether the operator releases a quarantine now, before anything else is due."""
        failover = self.run_database.failover
        if failover is None or failover.released or not failover.release_comes_before(following):
            return False
        failover.sent_in_quarantine = await newest_start(self.run_database.owner) > failover.started
        return True

    async def _when_idle(self) -> Command | None:
        if self.run_database.failover is not None and not self.run_database.failover.noticed:
            return Notice()
        for name in self.janitors:
            if name not in self.ticked:
                self.ticked.add(name)
                return Tick(name)
        if open_reviews := await reviews(cast(Reader, self.run_database.owner), limit=1):
            if self.under_way is not None:
                arrive, self.under_way = self.under_way, None
                await arrive()
                return await self.next_command()
            if (parked := await self._redriven_too_early()) is not None:
                return Redrive(*parked)
            review = open_reviews[0]
            answer, outcome, vendor_ref = self.scenario.decide(review, self.simulators)
            return AnswerReview(review.effect.id, review.effect.revision, answer, outcome, vendor_ref)
        parked = await self.run_database.probe.parked() if options_of(self.scenario).redrives else None
        return None if parked is None else Redrive(*parked)

    async def _redriven_too_early(self) -> tuple[str, UUID] | None:
        """A parked message whose effect waits for the operator, once: it goes straight back to waiting."""
        if not options_of(self.scenario).redrives_reviews:
            return None
        parked = await self.run_database.probe.parked_in_review()
        if parked is None or parked[1] in self.redriven:
            return None
        self.redriven.add(parked[1])
        return parked


class StuckError(AssertionError):
    """The scenario does not finish."""
