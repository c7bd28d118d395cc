"""The worker that is killed, stopped and cut off in these tests: adds one to a row per message. Run as a module."""

import asyncio
import os
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import uvloop

from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.policy import Exponential, Policy
from payonce.engine.messages.process import Worker
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Stale
from payonce.queues.postgres import PostgresFeed, PostgresQueue
from tests.processes.journal import Journal

HOLD_MAX_S = 100.0
"""Longer than any test waits for its worker."""
LOOK_S = 0.01
APPLICATION_NAME = "process-test-worker"


class Duty(msgspec.Struct, kw_only=True):
    """What one worker process is told at its start."""

    url: str
    folder: str
    policy: dict[str, Any]
    slots: int = 10
    pool_size: int = 10
    grace_s: float = 20.0
    http: bool = False
    """Whether the whole application listens in the same loop, at a port that the journal tells."""


class Deeds:
    """What a message may ask for, by name. Each but `skip` and `die` adds one to its row, in one commit."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def run(self, work: Work) -> None:
        row = work.message.payload["row"]
        self._journal.note("began", row)
        try:
            await getattr(self, work.message.payload.get("deed", "apply"))(work, row)
        except (asyncio.CancelledError, Stale, OSError) as error:
            self._journal.note(type(error).__name__, row)
            raise
        self._journal.note("ended", row)

    async def apply(self, work: Work, row: int) -> None:
        """Stands for a call of a vendor and the commit of its answer."""
        await asyncio.sleep(work.message.payload.get("takes_s", 0.0))
        async with work.commit() as tx:
            await add_one(tx, row, work.message.id)

    async def hold(self, work: Work, row: int) -> None:
        await self._until_let_go(row)
        async with work.commit() as tx:
            await add_one(tx, row, work.message.id)

    async def hold_in_commit(self, work: Work, row: int) -> None:
        async with work.commit() as tx:
            await add_one(tx, row, work.message.id)
            await self._until_let_go(row)

    async def hold_connection(self, work: Work, row: int) -> None:
        """Keeps a connection of the handlers' pool busy."""
        await work.read.fetchval("select pg_sleep($1)", work.message.payload["takes_s"])
        async with work.commit() as tx:
            await add_one(tx, row, work.message.id)

    async def block(self, work: Work, row: int) -> None:
        """Keeps the whole event loop busy, as a slow computation would."""
        self._journal.note("holding", row)
        deadline = time.monotonic() + HOLD_MAX_S
        while not self._journal.may_go(row) and time.monotonic() < deadline:
            pass
        async with work.commit() as tx:
            await add_one(tx, row, work.message.id)

    async def skip(self, work: Work, row: int) -> None:
        """Ends without a commit of its own, so that the worker acknowledges it with others; not all at once."""
        await asyncio.sleep(work.message.payload.get("takes_s", 0.0) * (row % 7))

    async def die(self, work: Work, row: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def _until_let_go(self, row: int) -> None:
        self._journal.note("holding", row)
        async with asyncio.timeout(HOLD_MAX_S):
            while not self._journal.may_go(row):  # noqa: ASYNC110 - another process lets it go
                await asyncio.sleep(LOOK_S)


async def add_one(tx: Tx, row: int, message_id: UUID) -> None:
    """The state, and beside it a line per addition: a doubling shows in both."""
    await tx.execute("update books.rows set value = value + 1 where id = $1", row)
    await tx.execute(
        "insert into books.lines (row_id, message_id, pid) values ($1, $2, $3)", row, message_id, os.getpid()
    )


async def serve(duty: Duty) -> None:
    policy = policy_of(duty.policy)
    deeds = Deeds(Journal(Path(duty.folder)))
    name = f"worker-{os.getpid()}-{new_id().hex[-6:]}"

    @handles(policy)
    async def handler(work: Work) -> None:
        await deeds.run(work)

    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with (
        Database.open(
            duty.url,
            work_pool_size=duty.pool_size,
            shortest_lease_s=policy.lease_s,
            application_name=APPLICATION_NAME,
        ) as database,
        Notifier.open(database) as notifier,
        AsyncExitStack() as stack,
    ):
        feed = PostgresFeed(database, notifier)
        worker = Worker(
            [handler], database, feed, lambda policy: PostgresQueue(database, notifier, policy, name), slots=duty.slots
        )
        working = asyncio.create_task(worker.run())
        if duty.http:
            # Not at the top: most workers of these tests serve no HTTP, and it takes a while to load.
            from payonce.app.process import App
            from payonce.http.server import listening
            from payonce.kit.collector import freeze_loaded_objects
            from payonce.settings import load_settings

            app = await stack.enter_async_context(App.open(load_settings()))
            port = await stack.enter_async_context(listening(app, "127.0.0.1", 0))
            # As `payonce run` does; else the collector alone holds probes up.
            freeze_loaded_objects()
            Journal(Path(duty.folder)).note("listening", port)
        Journal(Path(duty.folder)).note("ready", 0)
        stopping = asyncio.create_task(told.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            Journal(Path(duty.folder)).note("draining", 0)
            await worker.stop(duty.grace_s)
        await working


def policy_of(described: dict[str, Any]) -> Policy:
    return Policy(**{**described, "backoff": Exponential(**described["backoff"])})


if __name__ == "__main__":
    uvloop.run(serve(msgspec.json.decode(sys.argv[1], type=Duty)))
