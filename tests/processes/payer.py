"""The worker that pays through effects of every kind, and stands still where a test says so. Run as a module.

It sends with one blocking call: when it wakes up, nothing of ours comes between it and the vendor's door.
"""

import asyncio
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from payonce.engine.controls.checks import SEND_CHECKS
from payonce.engine.database.connections import Database
from payonce.engine.database.identity import notice_identity
from payonce.engine.database.notifier import Notifier
from payonce.engine.database.sessions import PlainConnection
from payonce.engine.effects import (
    Blind,
    CannotTell,
    DidNot,
    Effect,
    Findable,
    Happened,
    Harmless,
    Keyed,
    Rebroadcast,
    Safety,
)
from payonce.engine.janitors import IDENTITY_EVERY_S, Janitor, run_ticks
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.process import Worker
from payonce.engine.messages.work import Work, handles
from payonce.kit.money import Amount, well_known
from payonce.kit.outcomes import Refused
from payonce.queues.postgres import PostgresFeed, PostgresQueue
from tests.processes.journal import Journal

TIMEOUT_S: Final = 3.0
"""In which all of them gather at the vendor's door, also on a busy machine."""
HORIZON_S: Final = 0.3
SEND_LIMIT_S: Final = 60.0
PRICE: Final = Amount(100, well_known("EUR"))
PAYMENTS: Final = Policy("payments", max_attempts=None, backoff=Fixed(0.1), lease_s=4.0, run_limit_s=60.0)
KINDS: Final = ("keyed", "findable", "unfenced", "rebroadcast", "harmless", "blind")

paying: ContextVar[int | None] = ContextVar("paying", default=None)


class Duty(msgspec.Struct, kw_only=True):
    url: str
    folder: str
    bank_url: str
    stops: str = ""
    """`claimed`: when so many are claimed; `intended`: when so many have recorded their intent; `at the door`: when so
    many are about to send."""
    wanted: int = 0
    looks: bool = False
    """Whether it looks every few seconds which server serves it, as every process of payonce does."""


class Order(msgspec.Struct, frozen=True):
    kind: str
    reference: str


class Receipt(msgspec.Struct, frozen=True):
    number: str


class Gathering:
    """Lets nobody go on before all are there; then the process stands still, and wakes up with all of them."""

    def __init__(self, journal: Journal, name: str, wanted: int) -> None:
        self._journal = journal
        self._name = name
        self._wanted = wanted
        self._waiting: dict[int, Callable[[], None]] = {}
        """By row: one that lost its lease on the way arrives again."""
        self._woken = asyncio.Event()

    async def arrive(self, row: int, then: Callable[[], None] = lambda: None) -> None:
        """`then` runs right after the wake-up, before anything else of this process can."""
        if self._woken.is_set():
            then()
            return
        self._waiting[row] = then
        self._journal.note(self._name, row)
        if len(self._waiting) == self._wanted:
            os.kill(os.getpid(), signal.SIGSTOP)
            for each in self._waiting.values():
                each()
            self._woken.set()
        await self._woken.wait()


class Pay(Effect[Order, Receipt]):
    version, timeout_s = 1, TIMEOUT_S

    def __init__(self, duty: Duty, name: str, row: int, door: Gathering | None) -> None:
        self.kind = f"bank.{name}"
        self.safety: Safety = self._safety(name)
        self._duty = duty
        self._name = name
        self._row = row
        self._door = door

    async def prepare(self) -> Order:
        return Order(self._name, self.reference)

    async def perform(self, request: Order) -> Receipt:
        answers: list[Receipt | Exception] = []
        cart = msgspec.json.decode(self._call("open", request), type=int)

        def send() -> None:
            try:
                answers.append(msgspec.json.decode(self._call(f"pay/{cart}", request), type=Receipt))
            except Exception as error:
                answers.append(error)

        if self._door is None:
            send()
        else:
            await self._door.arrive(self._row, send)
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    async def resolve(self, request: Order) -> Happened[Receipt] | DidNot | CannotTell:
        found = msgspec.json.decode(self._call("find", request), type=Receipt | None)
        return DidNot() if found is None else Happened(found)

    def amount(self, request: Order) -> Amount | None:
        return None if request.kind == "harmless" else PRICE

    def vendor_ref(self, outcome: Receipt) -> str:
        return outcome.number

    async def _forget(self, request: Order) -> None:
        self._call("forget", request)

    def _call(self, path: str, order: Order) -> bytes:
        call = urllib.request.Request(f"{self._duty.bank_url}/{path}", msgspec.json.encode(order))  # noqa: S310
        try:
            with urllib.request.urlopen(call, timeout=SEND_LIMIT_S) as answer:  # noqa: S310 - the test's own bank
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise Refused(f"the bank answers {error.code}") from error

    def _safety(self, name: str) -> Safety:
        match name:
            case "keyed":
                return Keyed(valid_for_s=3_600)
            case "findable":
                return Findable(HORIZON_S, self._forget)
            case "unfenced":
                return Findable(HORIZON_S)
            case "rebroadcast":
                return Rebroadcast()
            case "harmless":
                return Harmless()
        return Blind()


async def serve(duty: Duty) -> None:
    journal = Journal(Path(duty.folder))
    gathering = Gathering(journal, duty.stops, duty.wanted)

    class StopsAfterTheIntent(PlainConnection):
        async def execute(self, query: str, *arguments: Any, **options: Any) -> str:
            answer: str = await super().execute(query, *arguments, **options)
            row = paying.get()
            if duty.stops == "intended" and query.startswith("COMMIT") and row is not None:
                paying.set(None)
                await gathering.arrive(row)
            return answer

    @handles(PAYMENTS)
    async def pay(work: Work) -> None:
        row, name = work.message.payload["row"], work.message.payload["kind"]
        paying.set(row)
        if duty.stops == "claimed":
            await gathering.arrive(row)
        door = gathering if duty.stops == "at the door" else None
        await work.effect(Pay(duty, name, row, door), key=f"p-{row}")
        async with work.commit():
            pass

    async with (
        Database.open(duty.url, shortest_lease_s=PAYMENTS.lease_s, connection_class=StopsAfterTheIntent) as database,
        Notifier.open(database) as notifier,
    ):
        name = f"payer-{os.getpid()}"
        feed = PostgresFeed(database, notifier)
        open_queue = partial(PostgresQueue, database, notifier, worker=name)
        worker = Worker([pay], database, feed, open_queue, slots=10, checks=SEND_CHECKS)
        looking = [Janitor("identity", IDENTITY_EVERY_S, partial(notice_identity, database, name))]
        journal.note("ready", 0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run())
            if duty.looks:
                tasks.create_task(run_ticks(looking))


if __name__ == "__main__":
    uvloop.run(serve(msgspec.json.decode(sys.argv[1], type=Duty)))
