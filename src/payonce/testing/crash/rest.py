"""What happens next: steps in seeded order while anything is due, then a person, then time, until all is at rest."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast
from uuid import UUID

from payonce.engine.effects import reviews
from payonce.engine.transaction import Reader
from payonce.testing.crash.ground import Plot
from payonce.testing.crash.scenario import Scenario, Simulators
from payonce.testing.crash.wire import AnswerReview, Carry, Command, Reap, Redrive, Step, Tick

STEPS_MAX: Final = 400
"""Of one child; a scenario is a handful of messages, so what is not at rest by then never will be."""


@dataclass
class Schedule:
    """Decides for one child; looks only at the store, so that the same store and seed lead to the same steps."""

    plot: Plot
    scenario: Scenario
    simulators: Simulators
    chance: random.Random
    longest_lease_s: float
    janitors: Sequence[str] = ()
    ticked: set[str] = field(default_factory=set)
    steps: int = 0
    held_up: bool = False
    """The last sweep freed nothing although leases had ended: somebody holds their rows locked."""
    under_way: Callable[[], Awaitable[None]] | None = None
    """Lets what is still under way arrive: a person decides later than any request can be."""

    async def next_command(self) -> Command | None:
        """The next thing to do; None when there is nothing, and time would bring nothing either."""
        while True:
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise StuckError(f"not at rest after {STEPS_MAX} steps: {await self._waiting()}")
            [look] = await self.plot.owner.fetch(_LOOK)
            if look["dead"]:
                if self.held_up:
                    await self.plot.nobody_idles_in_a_transaction()
                return Reap(self.chance.choice(look["dead"]))
            steps: list[Command] = [*map(Step, look["due"]), *map(Carry, look["relays"])]
            if steps:
                return self.chance.choice(steps)
            if (idle := await self._when_idle()) is not None:
                return idle
            if look["leased"]:
                # Whoever held it is gone, or has let go without a word.
                await self.plot.clock.advance_leases(self.longest_lease_s + 1)
            elif (following := await self.plot.clock.next_due()) is not None:
                await self.plot.hop(following)
            else:
                return None

    async def _when_idle(self) -> Command | None:
        for name in self.janitors:
            if name not in self.ticked:
                self.ticked.add(name)
                return Tick(name)
        if open_reviews := await reviews(cast(Reader, self.plot.owner), limit=1):
            if self.under_way is not None:
                arrive, self.under_way = self.under_way, None
                await arrive()
                return await self.next_command()
            review = open_reviews[0]
            answer, outcome, vendor_ref = self.scenario.decide(review, self.simulators)
            return AnswerReview(review.effect.id, review.effect.revision, answer, outcome, vendor_ref)
        row = await self.plot.owner.fetchrow(_ANSWERED_AND_PARKED)
        return None if row is None else Redrive(row["queue"], UUID(int=row["id"].int))

    async def _waiting(self) -> str:
        rows = await self.plot.owner.fetch("select queue, state, last_error from payonce.messages order by id limit 5")
        return "; ".join(f"{row['queue']} {row['state']} ({row['last_error']})" for row in rows) or "nothing waits"


class StuckError(AssertionError):
    """The scenario does not come to rest."""


_LOOK: Final = """
    select
        array(select distinct queue from payonce.messages
              where state = 'leased' and lease_until <= payonce.lease_now() order by queue) as dead,
        array(select distinct m.queue from payonce.messages m join payonce.queues q on q.name = m.queue
              where m.state in ('ready', 'alone') and m.ready_at <= payonce.due_now() and not q.paused
              order by m.queue) as due,
        array(select distinct o.relay from payonce.outbox o join payonce.relays r on r.name = o.relay
              where (o.state = 'waiting' and o.try_at <= payonce.due_now() and not r.paused)
                 or (o.state = 'leased' and o.lease_until <= payonce.lease_now()) order by o.relay) as relays,
        exists (select from payonce.messages where state = 'leased')
            or exists (select from payonce.outbox where state = 'leased') as leased
"""

# A person whose own process died between the answer and the redrive finds the message parked, its effect decided.
_ANSWERED_AND_PARKED: Final = """
    select m.id, m.queue from payonce.messages m
    where m.state = 'parked'
      and exists (select from payonce.effects e join payonce.effect_attempts a on a.effect_id = e.id
                  where e.message_id = m.id and a.event = 'answered')
      and not exists (select from payonce.effects e where e.message_id = m.id and e.state = 'review')
    order by m.id limit 1
"""
