"""Connections that the server ends, again and again, and a notifier that nobody hears."""

from payonce.engine.messages.model import Message
from payonce.engine.messages.transaction import begin
from payonce.testing import eventually
from tests.processes.desk import POLICY, QUEUE, Desk

DROPS = 12
LISTENER = "listen%"
NOTIFIER = "%pg_notify%"


async def test_connections_dropped_again_and_again_in_mid_load_lose_and_double_nothing(desk: Desk) -> None:
    workers = [desk.begin_worker(slots=20) for _ in range(2)]
    await desk.serving(*workers)
    await desk.put(range(600), takes_s=0.03)
    dropped = 0

    async def reconnected() -> bool:
        return await desk.connections() > len(workers)

    for turn in range(1, DROPS + 1):
        await desk.reached(turn * 40)
        await eventually(reconnected, what="the workers have connections again")
        dropped += await desk.drop_connections()
    await desk.drained()
    await desk.each_applied_once()
    assert dropped > DROPS * len(workers)
    assert all(worker.running for worker in workers), "recovered, and not by being replaced"


async def test_a_worker_that_cannot_hear_the_bell_finds_its_messages_by_looking(desk: Desk) -> None:
    """Guards the poll: these messages are put without a ring."""
    await desk.worker()
    await eventually(lambda: desk.connections(LISTENER))
    await desk.put([0])
    await desk.drained()
    for row in range(1, 5):
        await desk.drop_connections(LISTENER)
        await desk.ask("insert into books.rows (id) values ($1)", row)
        async with desk.database.transaction() as connection:
            await desk.feed.put([Message(queue=QUEUE, payload={"row": row})], within=connection)
        await desk.drained()
    await desk.each_applied_once()


async def test_a_bell_whose_connections_were_dropped_is_rung_and_heard_again(desk: Desk) -> None:
    worker = await desk.worker()
    await desk.feed.declare([POLICY])
    await eventually(lambda: desk.connections(LISTENER))
    await notify(desk)
    assert await desk.drop_connections(LISTENER) == 1
    await eventually(lambda: desk.connections(LISTENER), what="the worker listens again")
    await eventually(lambda: rings_sent_on(desk), what="the notifier has been rung")
    await desk.drop_connections(NOTIFIER, application_name="payonce")

    async def dropped() -> bool:
        return not await rings_sent_on(desk)

    # A session that is being ended may still take one more ring.
    await eventually(dropped, what="the notifier's connection is gone")
    await notify(desk)
    await eventually(lambda: rings_sent_on(desk), what="the notifier is rung again")
    await desk.put([1])
    await desk.drained()
    await desk.each_applied_once()
    assert worker.running


async def rings_sent_on(desk: Desk) -> int:
    """The number of connections over which a notifier was rung last."""
    return await desk.connections(NOTIFIER, application_name="payonce")


async def notify(desk: Desk) -> None:
    """A ring is sent for what a transaction has put."""
    async with begin(desk.database, desk.feed) as tx:
        await tx.execute("insert into books.rows (id) select coalesce(max(id), 99) + 1 from books.rows")
        await tx.send(POLICY, {"row": await tx.fetchval("select max(id) from books.rows")})
