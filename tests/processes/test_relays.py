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
from tests.processes.relay import LEASE_S, NAME, JournalRelay
from tests.processes.testbed import DRAIN_LIMIT_S, ROOT, START_LIMIT_S, ProcessTestbed
from tests.processes.worker import add_one

CREW = 3
LONG_S = 300.0
"""A lease that ends when the test says so: how often each was delivered then does not depend on the machine."""


async def relay(testbed: ProcessTestbed, lease_s: float = LEASE_S) -> Child:
    """A relay process, serving."""
    child = begin_relay(testbed, lease_s)
    await testbed.noted("ready", 0, START_LIMIT_S, pid=child.pid)
    return child


def begin_relay(testbed: ProcessTestbed, lease_s: float = LEASE_S) -> Child:
    told = (testbed.scratch.service_url, str(testbed.journal.folder), str(lease_s))
    return testbed.processes.start(sys.executable, "-m", "tests.processes.relay", *told, name="relay", cwd=ROOT)


async def put(testbed: ProcessTestbed, rows: range, **payload: object) -> dict[int, UUID]:
    await declare_relays(testbed.database, [JournalRelay(testbed.journal)])
    await testbed.ask("insert into books.rows (id) select unnest($1::bigint[])", list(rows))
    messages = [Message(queue="additions", payload={"row": row, **payload}) for row in rows]
    async with testbed.database.transaction() as connection:
        await put_out(connection, NAME, messages)
    return {message.payload["row"]: message.id for message in messages}


async def consume(testbed: ProcessTestbed, sent: dict[int, UUID]) -> Counter[int]:
    """Everything that the other side received, as often as it did. Answers with that."""
    received = [note.row for note in testbed.journal.notes("received")]
    for row in received:
        async with testbed.database.transaction() as connection:
            if await accept(connection, "books", sent[row]):
                await add_one(connection, row, sent[row])  # type: ignore[arg-type]
    return Counter(received)


async def delivered(testbed: ProcessTestbed) -> None:
    async def nothing_left() -> bool:
        return not await testbed.ask("select exists (select from payonce.outbox)")

    await eventually(nothing_left, DRAIN_LIMIT_S, "everything is delivered")


async def test_a_relay_killed_after_delivering_has_its_batch_delivered_again(testbed: ProcessTestbed) -> None:
    async with Clock.open(testbed.scratch.owner_url) as clock:
        sent = await put(testbed, range(5), hold=True)
        first = await relay(testbed, LONG_S)
        await testbed.noted("holding", 0, pid=first.pid)
        first.kill()
        assert await testbed.ask("select count(*) from payonce.outbox where state = 'leased'") == 5
        for row in sent:
            testbed.journal.let_go(row)
        await clock.advance_leases(LONG_S)
        await relay(testbed, LONG_S)
        await delivered(testbed)
    assert await consume(testbed, sent) == dict.fromkeys(sent, 2)
    await testbed.each_applied_once()


async def test_a_relay_that_was_stopped_while_delivering_changes_nothing_when_it_wakes(testbed: ProcessTestbed) -> None:
    async with Clock.open(testbed.scratch.owner_url) as clock:
        sent = await put(testbed, range(5), hold=True)
        first = await relay(testbed, LONG_S)
        await testbed.noted("holding", 0, pid=first.pid)
        first.stop()
        for row in sent:
            testbed.journal.let_go(row)
        await clock.advance_leases(LONG_S)
        second = await relay(testbed, LONG_S)
        await delivered(testbed)
        first.resume()
        more = await put(testbed, range(5, 200))
        await delivered(testbed)
    assert first.running
    assert second.running
    received = await consume(testbed, sent | more)
    assert received == dict.fromkeys(sent, 2) | dict.fromkeys(more, 1)
    await testbed.each_applied_once()


async def test_relays_killed_at_random_moments_lose_and_double_nothing(testbed: ProcessTestbed) -> None:
    chance = random.Random(3)
    crew = [await relay(testbed) for _ in range(CREW)]
    sent = await put(testbed, range(600))
    for moment in sorted(chance.randrange(400) for _ in range(5)):
        await eventually(lambda: len(testbed.journal.notes("received")) >= moment, DRAIN_LIMIT_S)  # noqa: B023
        place = chance.randrange(CREW)
        crew[place].kill()
        crew[place] = begin_relay(testbed)
    await delivered(testbed)
    received = await consume(testbed, sent)
    assert received.keys() == sent.keys()
    await testbed.each_applied_once()
