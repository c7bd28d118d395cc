"""Relays killed and stopped between delivering and recording: everything arrives, and the inbox makes it once."""

import random
import sys
from collections import Counter
from uuid import UUID

from payonce.engine.messages.inbox import accept
from payonce.engine.messages.model import Message
from payonce.engine.outbox import declare_relays, put_out
from payonce.testing import Clock, eventually
from payonce.testing.processes import Child
from tests.processes.desk import DRAIN_LIMIT_S, ROOT, START_LIMIT_S, Desk
from tests.processes.relay import LEASE_S, NAME, JournalRelay
from tests.processes.worker import add_one

CREW = 3
LONG_S = 300.0
"""A lease that ends when the test says so: how often each was delivered then does not depend on the machine."""


async def relay(desk: Desk, lease_s: float = LEASE_S) -> Child:
    """A relay process, serving."""
    child = begin_relay(desk, lease_s)
    await desk.noted("ready", 0, START_LIMIT_S, pid=child.pid)
    return child


def begin_relay(desk: Desk, lease_s: float = LEASE_S) -> Child:
    told = (desk.scratch.service_url, str(desk.journal.folder), str(lease_s))
    return desk.processes.start(sys.executable, "-m", "tests.processes.relay", *told, name="relay", cwd=ROOT)


async def put(desk: Desk, rows: range, **payload: object) -> dict[int, UUID]:
    await declare_relays(desk.database, [JournalRelay(desk.journal)])
    await desk.ask("insert into books.rows (id) select unnest($1::bigint[])", list(rows))
    messages = [Message(queue="additions", payload={"row": row, **payload}) for row in rows]
    async with desk.database.transaction() as connection:
        await put_out(connection, NAME, messages)
    return {message.payload["row"]: message.id for message in messages}


async def consume(desk: Desk, sent: dict[int, UUID]) -> Counter[int]:
    """Everything that the other side received, as often as it did. Answers with that."""
    received = [note.row for note in desk.journal.notes("received")]
    for row in received:
        async with desk.database.transaction() as connection:
            if await accept(connection, "books", sent[row]):
                await add_one(connection, row, sent[row])  # type: ignore[arg-type]
    return Counter(received)


async def delivered(desk: Desk) -> None:
    async def nothing_left() -> bool:
        return not await desk.ask("select exists (select from payonce.outbox)")

    await eventually(nothing_left, DRAIN_LIMIT_S, "everything is delivered")


async def test_a_relay_killed_after_delivering_has_its_batch_delivered_again(desk: Desk) -> None:
    async with Clock.open(desk.scratch.owner_url) as clock:
        sent = await put(desk, range(5), hold=True)
        first = await relay(desk, LONG_S)
        await desk.noted("holding", 0, pid=first.pid)
        first.kill()
        assert await desk.ask("select count(*) from payonce.outbox where state = 'leased'") == 5
        for row in sent:
            desk.journal.let_go(row)
        await clock.advance_leases(LONG_S)
        await relay(desk, LONG_S)
        await delivered(desk)
    assert await consume(desk, sent) == dict.fromkeys(sent, 2)
    await desk.each_applied_once()


async def test_a_relay_that_was_stopped_while_delivering_changes_nothing_when_it_wakes(desk: Desk) -> None:
    async with Clock.open(desk.scratch.owner_url) as clock:
        sent = await put(desk, range(5), hold=True)
        first = await relay(desk, LONG_S)
        await desk.noted("holding", 0, pid=first.pid)
        first.stop()
        for row in sent:
            desk.journal.let_go(row)
        await clock.advance_leases(LONG_S)
        second = await relay(desk, LONG_S)
        await delivered(desk)
        first.resume()
        more = await put(desk, range(5, 200))
        await delivered(desk)
    assert first.running
    assert second.running
    received = await consume(desk, sent | more)
    assert received == dict.fromkeys(sent, 2) | dict.fromkeys(more, 1)
    await desk.each_applied_once()


async def test_relays_killed_at_random_moments_lose_and_double_nothing(desk: Desk) -> None:
    chance = random.Random(3)
    crew = [await relay(desk) for _ in range(CREW)]
    sent = await put(desk, range(600))
    for moment in sorted(chance.randrange(400) for _ in range(5)):
        await eventually(lambda: len(desk.journal.notes("received")) >= moment, DRAIN_LIMIT_S)  # noqa: B023
        place = chance.randrange(CREW)
        crew[place].kill()
        crew[place] = begin_relay(desk)
    await delivered(desk)
    received = await consume(desk, sent)
    assert received.keys() == sent.keys()
    await desk.each_applied_once()
