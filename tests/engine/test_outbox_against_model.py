"""Random puts, deliveries, deaths, late wake-ups and repetitions: nothing is lost, and the inbox accepts it once."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pytest

from payonce.engine.database.connections import Database
from payonce.engine.messages.inbox import KEEP_S, forget_accepted
from payonce.engine.messages.model import Message
from payonce.engine.outbox import (
    Answer,
    Deferred,
    Delivered,
    Entry,
    Refusal,
    Relay,
    declare_relays,
    put_out,
    redrive_entries,
    relay_step,
    relay_steps,
)
from payonce.engine.outbox.model import REPEAT_FOR_S, Claimed, DeliveryDecision, RelayConfig, State, decide
from payonce.testing import OpenStage, Stage
from tests.engine import outbox_stage
from tests.engine.outbox_stage import BACKOFF_S, LEASE_S, AppContext, Broker
from tests.engine.outbox_stage import CONFIG as USUAL_TERMS

WALKS, WALKS_FULL = 60, 2_000
ACTIONS = 40
DRAIN_MAX = 200
CONFIG = replace(USUAL_TERMS, refusals_max=2)


class Died(BaseException):
    """The relay's process is gone: nothing of it runs any more, not even an `except Exception`."""


@dataclass
class Fickle(Broker):
    """Treats a batch as drawn for it."""

    mood: str = "well"
    stopped: list[asyncio.Event] = field(default_factory=list)

    async def deliver(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        mood, self.mood = self.mood, "well"
        match mood:
            case "dies before":
                raise Died
            case "is away":
                raise ConnectionResetError("reset")
            case "breaks":
                self.received += entries[:1]
                raise KeyError("amount")
            case "refuses":
                return [Refusal("no")] * len(entries)
            case "refuses what it took":
                self.received += entries
                return [Refusal("no"), *[Deferred("later")] * (len(entries) - 1)]
        self.received += entries
        if mood == "dies after":
            raise Died
        if mood == "stands still":
            self.stopped.append(asyncio.Event())
            self.arrived.set()
            await self.stopped[-1].wait()
        return [Delivered()] * len(entries)


MOODS = ["well", "well", "dies before", "dies after", "is away", "breaks", "refuses", "refuses what it took"]


@dataclass
class Walk:
    """One run, with a relay and a consumer of its own in a database shared with the others."""

    s: Stage
    seed: int
    committed: set[UUID] = field(default_factory=set)
    rolled_back: set[UUID] = field(default_factory=set)
    asleep: list[asyncio.Task[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.roll = random.Random(self.seed)
        self.broker = Fickle(f"relay-{self.seed}", CONFIG)
        self.context = AppContext(self.s, self.broker)

    async def go(self) -> None:
        await declare_relays(self.s.database, [self.broker])
        actions = [self.put, self.step, self.stop_in_a_delivery, self.wake_up, self.consume, self.let_time_pass]
        for _ in range(ACTIONS):
            [action] = self.roll.choices(actions, weights=[3, 6, 1, 1, 3, 6])
            await action()
            await self.nothing_happened_twice()
        await self.get_well()

    async def put(self) -> None:
        commits = self.roll.random() < 0.8
        delay_s = self.roll.choice([0.0, BACKOFF_S])
        messages = [Message(queue="payments", delay_s=delay_s) for _ in range(self.roll.randint(1, 4))]
        async with self.s.database.work.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await put_out(connection, self.broker.name, messages)
            await (transaction.commit() if commits else transaction.rollback())
        (self.committed if commits else self.rolled_back).update(message.id for message in messages)

    async def step(self) -> None:
        self.broker.mood = self.roll.choice(MOODS)
        with suppress(Died):
            await relay_step(self.s.database, self.broker)
        self.broker.mood = "well"

    async def stop_in_a_delivery(self) -> None:
        self.broker.mood = "stands still"
        self.broker.arrived.clear()
        step = asyncio.create_task(relay_step(self.s.database, self.broker))
        arrived = asyncio.create_task(self.broker.arrived.wait())
        await asyncio.wait({step, arrived}, return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()
        self.asleep.append(step)
        self.broker.mood = "well"

    async def wake_up(self) -> None:
        for event in self.broker.stopped:
            event.set()
        await asyncio.gather(*self.asleep)
        self.asleep.clear()

    async def consume(self) -> None:
        for entry in self.broker.received:
            await self.context.consume(entry, self.broker.name)
        self.broker.received.clear()

    async def let_time_pass(self) -> None:
        passing = ["leases end", "backoffs end", "memories end", "somebody redrives"]
        match self.roll.choices(passing, weights=[6, 6, 1, 2])[0]:
            case "leases end":
                await self.s.clock.advance_leases(LEASE_S)
            case "backoffs end":
                await self.s.clock.advance(BACKOFF_S)
            case "memories end":
                # A message stays in the broker no longer than allowed.
                await self.consume()
                await self.s.clock.advance(REPEAT_FOR_S)
                await forget_accepted(self.s.database)
            case "somebody redrives":
                await redrive_entries(self.s.database, self.s.notifier, self.broker.name, by="drawn")

    async def get_well(self) -> None:
        """Every committed entry was applied, or waits for a person with a reason."""
        await self.wake_up()
        await self.s.clock.advance_leases(LEASE_S)
        for _ in range(DRAIN_MAX):
            await self.s.clock.advance(BACKOFF_S)
            if not await relay_step(self.s.database, self.broker) and not await self.on_the_way():
                break
        await self.consume()
        await self.nothing_happened_twice()
        left = await self.s.owner.fetch(
            "select id, state, last_error from payonce.outbox where relay = $1", self.broker.name
        )
        assert all(row["state"] == "parked" and row["last_error"] for row in left), f"walk {self.seed}: {left}"
        lost = self.committed - (await self.applied()).keys() - {row["id"] for row in left}
        assert not lost, f"walk {self.seed} lost {lost}"

    async def nothing_happened_twice(self) -> None:
        applied = await self.applied()
        assert all(count == 1 for count in applied.values()), f"walk {self.seed}: {applied}"
        assert not self.rolled_back & applied.keys(), f"walk {self.seed}"

    async def applied(self) -> Counter[UUID]:
        ours = [str(each) for each in self.committed | self.rolled_back]
        rows = await self.s.owner.fetch("select id from business where id = any($1)", ours)
        return Counter(UUID(row["id"]) for row in rows)

    async def on_the_way(self) -> int:
        return int(
            await self.s.owner.fetchval(
                "select count(*) from payonce.outbox where relay = $1 and state <> 'parked'", self.broker.name
            )
        )


async def walk(stage: OpenStage, seeds: Sequence[int]) -> None:
    async with stage() as s:
        await s.clock.freeze()
        await s.owner.execute(
            "create table business (id text); create index on business (id); grant all on business to payonce_service"
        )
        for seed in seeds:
            going = Walk(s, seed)
            try:
                await going.go()
            finally:
                for step in going.asleep:
                    step.cancel()
                await asyncio.gather(*going.asleep, return_exceptions=True)


async def test_nothing_is_lost_and_nothing_happens_twice(stage: OpenStage) -> None:
    await walk(stage, range(WALKS))


@pytest.mark.full
@pytest.mark.parametrize("first", range(WALKS, WALKS_FULL, WALKS))
async def test_nothing_is_lost_and_nothing_happens_twice_for_long(stage: OpenStage, first: int) -> None:
    await walk(stage, range(first, first + WALKS))


async def accept_always(*_: object) -> bool:
    return True


async def claim_and_delete(
    database: Database, relay: Relay, limit: int, *, suspects: bool
) -> tuple[int, list[Claimed]]:
    """The common mistake without an outbox: out of the table first, then over the wire."""
    taken, claims = await CLAIM(database, relay, limit, suspects=suspects)
    ids = [claimed.entry.message.id for claimed in claims]
    await database.engine.execute("delete from payonce.outbox where relay = $1 and id = any($2)", relay.name, ids)
    return taken, claims


def drop_what_is_refused(config: RelayConfig, claimed: Claimed, answer: Answer) -> DeliveryDecision:
    decided = decide(config, claimed, answer)
    return replace(decided, to=None) if decided.to is State.PARKED else decided


CLAIM = relay_steps.claim


@contextmanager
def patched(target: object, name: str, replacement: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, replacement)
        yield


PLANTED = {
    "no inbox": lambda: patched(outbox_stage, "accept", accept_always),
    "deleted before it is delivered": lambda: patched(relay_steps, "claim", claim_and_delete),
    "a sender that repeats for ever": lambda: patched(relay_steps, "REPEAT_FOR_S", 100 * KEEP_S),
    "refused entries are dropped": lambda: patched(relay_steps, "decide", drop_what_is_refused),
}


@pytest.mark.parametrize("bug", PLANTED)
async def test_a_planted_bug_is_found(stage: OpenStage, bug: str) -> None:
    with PLANTED[bug](), pytest.raises(AssertionError, match="walk"):
        await walk(stage, range(WALKS))
