"""The worker that pays through effects of every kind while the server crashes. Run as a module."""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import asyncpg
import msgspec
import uvloop

from payonce.app.logging import configure_logs
from payonce.engine.controls.checks import SEND_CHECKS
from payonce.engine.database import commits
from payonce.engine.database.commits import LOST_ANSWERS, Session
from payonce.engine.database.connections import Database
from payonce.engine.database.identity import notice_identity
from payonce.engine.database.notifier import Notifier
from payonce.engine.database.sessions import PlainConnection
from payonce.engine.effects import CannotTell, DidNot, Happened
from payonce.engine.janitors import IDENTITY_EVERY_S, Janitor, run_ticks
from payonce.engine.ledger import Posting, Reference, moved
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.process import Worker
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Refused
from payonce.queues.postgres import PostgresFeed, PostgresQueue
from payonce.testing.crash.ablations import put
from tests.processes import payer
from tests.processes.crash_aim import Aim, Moment
from tests.processes.journal import Journal
from tests.processes.payer import PRICE, Order, Pay, Receipt

ACCOUNT, PAID = "bank/account", "payments/made"
PAYMENTS: Final = Policy("payments", max_attempts=None, backoff=Fixed(0.1), lease_s=10.0, run_limit_s=120.0)
SLOTS: Final = 10
LOOK_S: Final = 0.005
HELD_MAX_S: Final = 20.0


class Duty(payer.Duty, kw_only=True):
    ablated: bool = False
    """Whether the fate of a lost COMMIT is looked up by the id of its transaction, which may be another's by then."""


class Charge(Pay):
    """Does not block the process while the bank takes its time, so that others are at their COMMITs."""

    # A send begins in the first half of it: also after the restart of a server on a busy machine.
    timeout_s = 8.0

    def __init__(self, duty: Duty, http: aiohttp.ClientSession, name: str, row: int) -> None:
        super().__init__(duty, name, row, None)
        self._http = http

    async def perform(self, request: Order) -> Receipt:
        cart = msgspec.json.decode(await self._ask("open", request), type=int)
        return msgspec.json.decode(await self._ask(f"pay/{cart}", request), type=Receipt)

    async def resolve(self, request: Order) -> Happened[Receipt] | DidNot | CannotTell:
        found = msgspec.json.decode(await self._ask("find", request), type=Receipt | None)
        return DidNot() if found is None else Happened(found)

    async def _forget(self, request: Order) -> None:
        await self._ask("forget", request)

    async def _ask(self, path: str, order: Order) -> bytes:
        async with self._http.post(f"{self._duty.bank_url}/{path}", data=msgspec.json.encode(order)) as answer:
            if answer.status >= 400:
                raise Refused(f"the bank answers {answer.status}")
            return await answer.read()


class CrashedConnection(PlainConnection):
    """Holds COMMITs back, or their answers, while a crash is aimed at them. Knows the ids of the lost ones."""

    aim: Aim
    journal: Journal
    transaction_ids: dict[Session, int | None]

    async def execute(self, query: str, *arguments: Any, **options: Any) -> str:
        if query != "COMMIT;":
            return await super().execute(query, *arguments, **options)
        session = Session(self.backend_pid, self.backend_started_at)
        self.transaction_ids[session] = None
        # A round trip of its own, and only here: the product does not ask for ids.
        transaction_id = await super().fetchval("select pg_current_xact_id_if_assigned()::text::bigint")
        self.transaction_ids[session] = transaction_id
        moment = self.aim.moment()
        try:
            if moment is Moment.BEFORE_COMMIT:
                await self._held()
            answer = await super().execute(query, *arguments, **options)
            if moment is Moment.AFTER_COMMIT and await self._held():
                raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        except LOST_ANSWERS:
            if transaction_id is not None:
                self.journal.note("lost", transaction_id)
            raise
        return answer

    async def _held(self) -> bool:
        """Returns when the crash has ended the connection, or the aim was dropped; answers whether it ended."""
        self.aim.wait_begins()
        async with asyncio.timeout(HELD_MAX_S):
            while self.aim.moment() is not None and not self.is_closed():  # noqa: ASYNC110 - another process's doing
                await asyncio.sleep(LOOK_S)
        return self.is_closed()


def look_up_commits_by_id(transaction_ids: dict[Session, int | None]) -> None:
    """The ablation: what payonce must not do."""

    async def status_of_the_id(database: Database, session: Session, *_: object) -> bool | None:
        if (transaction_id := transaction_ids.get(session)) is None:
            return False
        try:
            connection = await database.connect()
        except commits.UNREACHABLE:
            return None
        try:
            status = await connection.fetchval("select txid_status($1)", transaction_id)
            return None if status == "in progress" else bool(status == "committed")
        except commits.UNREACHABLE:
            # Also while the id lies in the server's future.
            return None
        finally:
            connection.terminate()

    put(commits, "_find", status_of_the_id)


async def serve(duty: Duty) -> None:
    journal = Journal(Path(duty.folder))
    CrashedConnection.aim, CrashedConnection.journal = Aim(journal.folder), journal
    CrashedConnection.transaction_ids = {}
    if duty.ablated:
        look_up_commits_by_id(CrashedConnection.transaction_ids)

    async with (
        aiohttp.ClientSession() as http,
        Database.open(duty.url, shortest_lease_s=PAYMENTS.lease_s, connection_class=CrashedConnection) as database,
        Notifier.open(database) as notifier,
    ):

        @handles(PAYMENTS)
        async def pay(work: Work) -> None:
            row, name = work.message.payload["row"], work.message.payload["kind"]
            await work.effect(Charge(duty, http, name, row), key=f"p-{row}")
            async with work.commit() as tx:
                if name != "harmless":
                    await tx.post(Posting(f"p-{row}", Reference("payment", f"p-{row}"), moved(PRICE, ACCOUNT, PAID)))

        name = f"payer-{os.getpid()}"
        feed = PostgresFeed(database, notifier)
        open_queue = partial(PostgresQueue, database, notifier, worker=name)
        worker = Worker([pay], database, feed, open_queue, slots=SLOTS, checks=SEND_CHECKS)
        journal.note("ready", 0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run())
            identity = Janitor("identity", IDENTITY_EVERY_S, partial(notice_identity, database, name))
            tasks.create_task(run_ticks([identity]))


if __name__ == "__main__":
    configure_logs("json", quiet=True)
    uvloop.run(serve(msgspec.json.decode(sys.argv[1], type=Duty)))
