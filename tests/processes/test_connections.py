"""Connections that the server ends, again and again, and a notifier that nobody hears."""

from payonce.engine.messages.model import Message
from payonce.engine.messages.transaction import begin
from payonce.testing import eventually
from tests.processes.testbed import POLICY, QUEUE, ProcessTestbed

DROPS = 12
LISTENER = "listen%"
NOTIFIER = "%pg_notify%"


async def test_connections_dropped_again_and_again_in_mid_load_lose_and_double_nothing(testbed: ProcessTestbed) -> None:
    workers = [testbed.begin_worker(slots=20) for _ in range(2)]
    await testbed.serving(*workers)
    await testbed.put(range(600), takes_s=0.03)
    dropped = 0

    async def reconnected() -> bool:
        return await testbed.connections() > len(workers)

    for turn in range(1, DROPS + 1):
        await testbed.reached(turn * 40)
        await eventually(reconnected, what="the workers have connections again")
        dropped += await testbed.drop_connections()
    await testbed.drained()
    await testbed.each_applied_once()
    assert dropped > DROPS * len(workers)
    assert all(worker.running for worker in workers), "recovered, and not by being replaced"


async def test_a_worker_that_cannot_hear_the_bell_finds_its_messages_by_looking(testbed: ProcessTestbed) -> None:
    """Guards the poll: these messages are put without a ring."""
    await testbed.worker()
    await eventually(lambda: testbed.connections(LISTENER))
    await testbed.put([0])
    await testbed.drained()
    for row in range(1, 5):
        await testbed.drop_connections(LISTENER)
        await testbed.ask("insert into books.rows (id) values ($1)", row)
        async with testbed.database.transaction() as connection:
            await testbed.feed.put([Message(queue=QUEUE, payload={"row": row})], within=connection)
        await testbed.drained()
    await testbed.each_applied_once()


async def test_a_bell_whose_connections_were_dropped_is_rung_and_heard_again(testbed: ProcessTestbed) -> None:
    worker = await testbed.worker()
    await testbed.feed.declare([POLICY])
    await eventually(lambda: testbed.connections(LISTENER))
    await notify(testbed)
    assert await testbed.drop_connections(LISTENER) == 1
    await eventually(lambda: testbed.connections(LISTENER), what="the worker listens again")
    await eventually(lambda: rings_sent_on(testbed), what="the notifier has been rung")
    await testbed.drop_connections(NOTIFIER, application_name="payonce")

    async def dropped() -> bool:
        return not await rings_sent_on(testbed)

    # A session that is being ended may still take one more ring.
    await eventually(dropped, what="the notifier's connection is gone")
    await notify(testbed)
    await eventually(lambda: rings_sent_on(testbed), what="the notifier is rung again")
    await testbed.put([1])
    await testbed.drained()
    await testbed.each_applied_once()
    assert worker.running


async def rings_sent_on(testbed: ProcessTestbed) -> int:
    """The number of connections over which a notifier was rung last."""
    return await testbed.connections(NOTIFIER, application_name="payonce")


async def notify(testbed: ProcessTestbed) -> None:
    """A ring is sent for what a transaction has put."""
    async with begin(testbed.database, testbed.feed) as tx:
        await tx.execute("insert into books.rows (id) select coalesce(max(id), 99) + 1 from books.rows")
        await tx.send(POLICY, {"row": await tx.fetchval("select max(id) from books.rows")})
