"""The same with the processes that operators run: `payonce run`, killed and stopped in mid-load."""

from pathlib import Path

import asyncpg

from payonce.app.registry import all_migrations
from payonce.engine.database.connections import Database
from payonce.engine.database.migrate import migrate
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.transaction import Reader, begin
from payonce.examples.tally import CHANGES, INVARIANTS, store
from payonce.examples.tally.model import Change
from payonce.queues.postgres import PostgresFeed
from payonce.testing import ScratchDatabase, eventually
from payonce.testing.processes import Processes

ROLE = "tally.worker"
CHANGES_ASKED = 300


async def test_payonce_run_killed_and_stopped_in_mid_load_applies_each_change_once(
    scratch: ScratchDatabase, tmp_path: Path
) -> None:
    owner = await asyncpg.connect(scratch.owner_url)
    await migrate(owner, all_migrations())
    with Processes(tmp_path) as processes:
        killed, stopped, survivor = [processes.start_worker(scratch.service_url, ROLE) for _ in range(3)]
        async with Database.open(scratch.service_url) as database, Notifier.open(database, listen=False) as notifier:
            for worker in (killed, stopped, survivor):
                await worker.says("worker_started", within_s=60)
            await ask_for_changes(database, PostgresFeed(database, notifier))
            read = Reader(database)

            async def applied(count: int) -> bool:
                return (await store.outcome(read)).applied >= count

            await eventually(lambda: applied(20))
            killed.kill()
            await eventually(lambda: applied(60))
            stopped.stop()
            await eventually(lambda: nothing_left(read), 60, "every change is applied")
            stopped.resume()
            survivor.terminate()
            assert await survivor.ended() == 0, survivor.last_lines()
            outcome = await store.outcome(read)
            assert (outcome.applied, outcome.doubled, outcome.lost, outcome.parked) == (CHANGES_ASKED, 0, 0, 0)
    assert [await owner.fetch(query) for query in INVARIANTS.values()] == [[]] * len(INVARIANTS)
    await owner.close()


async def ask_for_changes(database: Database, feed: PostgresFeed) -> None:
    async with begin(database, feed) as tx:
        await store.add_rows(tx, list(range(CHANGES_ASKED)))
        for row_id in range(CHANGES_ASKED):
            await tx.send(CHANGES, Change(row_id=row_id, takes_ms=1_000 if row_id % 3 else 300))


async def nothing_left(read: Reader) -> bool:
    return await store.unfinished(read) == 0
