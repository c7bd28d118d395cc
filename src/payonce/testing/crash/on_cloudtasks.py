"""The explorer with pushed queues beside queues in PostgreSQL. Every call and every dispatch is a crossing, and so is
every statement of our own task server, which runs in the same process as the roles."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import asyncpg

from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.janitors import Janitor
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import PullQueue
from payonce.engine.messages.process import Worker
from payonce.engine.messages.transaction import NotifyingFeed
from payonce.engine.outbox import declare_relays
from payonce.kit.http.inprocess import Application
from payonce.queues.backends import POSTGRES, Backend, with_pushed_queues
from payonce.queues.cloudtasks.assembly import CloudTasks
from payonce.queues.cloudtasks.client import Config, TaskService
from payonce.queues.cloudtasks.names import LOCAL_ACCOUNT, LOCAL_PROJECT, RELAY, ProjectLocation
from payonce.queues.cloudtasks.pushed import PushedQueue
from payonce.queues.cloudtasks.queue import CloudTasksQueue
from payonce.queues.cloudtasks.refill import REFILL_EVERY_S
from payonce.queues.cloudtasks.sync import sync
from payonce.queues.postgres import PostgresAdmin, PostgresFeed, PostgresQueue
from payonce.taskserver.delivery import Sender
from payonce.taskserver.dispatch import Dispatcher
from payonce.taskserver.operations import Operations
from payonce.taskserver.queue_store import QueueStore, remember_key
from payonce.taskserver.service import Service, Wakeups
from payonce.taskserver.task_store import TaskStore
from payonce.taskserver.tokens import KEY_KEPT_S, TokenMaker
from payonce.testing.clock import Clock
from payonce.testing.crash.backend import DriverStorage, EngineParts, PendingWork, QueueProbe
from payonce.testing.crash.crossings import cross
from payonce.testing.crash.model import Violation
from payonce.testing.crash.on_postgres import PostgresProbe, left_in_postgres
from payonce.testing.crash.tasks_wire import InProcessWire, Interceptor, client_of
from payonce.testing.crash.wire import Channel

REFILL: Final = "refill of tasks"
CONFIG: Final = Config(ProjectLocation(LOCAL_PROJECT, "here"), LOCAL_ACCOUNT, endpoint="in-process:0")
SHOWN: Final = 5


@dataclass(frozen=True)
class OnCloudTasks:
    """A backend with pushed queues on our own task server; all other queues are in PostgreSQL. A scenario names
    `payonce.taskserver` among its components, for the server's tables."""

    pushed: Sequence[PushedQueue]
    name: str = "cloudtasks"
    tokens: TokenMaker = field(default_factory=TokenMaker)
    """Created once, as generating a key takes longer than a run; children are forked with it."""

    async def declare(self, database: Database, policies: Sequence[Policy]) -> NotifyingFeed:
        async with AsyncExitStack() as stack:
            notifier = Notifier(database)
            cloud = CloudTasks(database, notifier, _service(database, _immediately), self._of(policies), stack)
            feed = _backend(database, notifier, cloud).feed
            await feed.declare(policies)
            await declare_relays(database, [cloud.relay])
            await sync(cloud.service, list(cloud.pushed.values()))
            await remember_key(database, self.tokens.kid, self.tokens.public_key, KEY_KEPT_S)
            return feed

    def storage(self, folder: Path) -> DriverStorage:
        return CloudTasksStorage(self.pushed)

    @asynccontextmanager
    async def parts(self, database: Database, address: str, worker: str) -> AsyncIterator[EngineParts]:
        async with AsyncExitStack() as stack:
            # The notifier stays closed: it would notify from a background task.
            notifier = Notifier(database)
            cloud = CloudTasks(database, notifier, _service(database, _call), self.pushed, stack)
            backend = _backend(database, notifier, cloud)
            driver = PushDriver(database, notifier, cloud, self.tokens)

            def open_queue(policy: Policy) -> PullQueue:
                queue = backend.queue(policy, worker)
                if isinstance(queue, CloudTasksQueue):
                    driver.queues[policy.queue] = queue
                return queue

            yield EngineParts(
                backend.feed,
                backend.admin,
                open_queue,
                [cloud.relay],
                # As with Redis, lost messages are searched for at once.
                [Janitor(REFILL, REFILL_EVERY_S, lambda: cloud.maintenance.refill(0.0))],
                {each.queue: driver.step_of(each) for each in self.pushed},
            )

    def _of(self, policies: Sequence[Policy]) -> list[PushedQueue]:
        declared = {policy.queue for policy in policies}
        return [each for each in self.pushed if each.queue in declared]


class PushDriver:
    """Drives the task server: delivers one task to its endpoint, and completes the run that it begins."""

    def __init__(self, database: Database, notifier: Notifier, cloud: CloudTasks, tokens: TokenMaker) -> None:
        self.queues: dict[str, CloudTasksQueue] = {}
        self._no_run = asyncio.Event()
        self._no_run.set()
        self._in_flight = 0
        """Requests under channel: a run begins when all of them wait for one."""
        endpoints = {_address(pushed): self._answering_in_order(endpoint) for pushed, endpoint in cloud.endpoints()}
        wire: Any = InProcessWire(endpoints, self._dispatch)
        self._dispatcher = Dispatcher(database, notifier, Sender(wire, tokens))

    def step_of(self, pushed: PushedQueue) -> Callable[[Worker], Awaitable[bool]]:
        async def deliver_and_run(worker: Worker) -> bool:
            buffer: Any = self.queues[pushed.queue]._buffer
            name = CONFIG.location.queue(pushed.remote_name)
            sending = asyncio.create_task(self._dispatcher.step(name, 1))
            try:
                while not sending.done():
                    arrival = asyncio.create_task(buffer.wakeup.wait())
                    await asyncio.wait({sending, arrival}, return_when=asyncio.FIRST_COMPLETED)
                    arrival.cancel()
                    if buffer.wakeup.is_set():
                        buffer.wakeup.clear()
                        if buffer._waiting and len(buffer._waiting) + len(buffer._resting) >= self._in_flight:
                            await self._run(worker)
                return await sending
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

        return deliver_and_run

    async def _run(self, worker: Worker) -> None:
        self._no_run.clear()
        try:
            await worker.step()
        finally:
            self._no_run.set()

    async def _dispatch(self, reads: bool, act: Callable[[], Awaitable[Any]]) -> Any:
        self._in_flight += 1
        try:
            return await cross(Channel.PUSH, reads, act)
        finally:
            self._in_flight -= 1
            self._wake_all()

    def _wake_all(self) -> None:
        """Wakes every queue after a request has ended."""
        for queue in self.queues.values():
            buffer: Any = queue._buffer
            buffer.wakeup.set()

    def _answering_in_order(self, endpoint: Application) -> Application:
        """Sends responses after the run's last statement: otherwise the order of the two crossings would vary."""

        async def answering(scope: Any, receive: Any, send: Any) -> None:
            async def in_order(event: Any) -> None:
                await self._no_run.wait()
                await send(event)

            await endpoint(scope, receive, in_order)

        return answering


@dataclass(frozen=True)
class CloudTasksStorage:
    """No storage of its own: every run has a database, which includes the server's tables."""

    pushed: Sequence[PushedQueue]
    address: str = ""

    @asynccontextmanager
    async def probe(self, owner: asyncpg.Connection, policies: Sequence[Policy]) -> AsyncIterator[QueueProbe]:
        names = {CONFIG.location.queue(each.remote_name): each.queue for each in self.pushed}
        yield CloudTasksProbe(owner, PostgresProbe(owner, Clock(owner)), names)


@dataclass(frozen=True)
class CloudTasksProbe:
    owner: asyncpg.Connection
    home: PostgresProbe
    names: Mapping[str, str]
    """Queues by their names at the task service."""

    async def pending(self) -> PendingWork:
        home, [row] = await self.home.pending(), await self.owner.fetch(_PENDING, RELAY)
        due = [self.names[name] for name in row["due"]]
        return replace(
            home, due=[*home.due, *due], leased=home.leased or row["leased"], janitors=[REFILL] if row["lost"] else []
        )

    async def freeze(self, at: datetime) -> datetime:
        return await self.home.freeze(at)

    async def advance_leases(self, lease_s: float) -> None:
        await self.home.advance_leases(lease_s)

    async def next_due(self) -> datetime | None:
        """Includes tasks, and messages whose task may have been lost."""
        brought = await self.owner.fetchval(_NEXT_DUE, RELAY)
        return min((each for each in (brought, await self.home.next_due()) if each is not None), default=None)

    async def waiting(self) -> str:
        rows = await self.owner.fetch("select queue, state, last_error from payonce.live_messages order by id limit 5")
        texts = [f"{row['queue']} {row['state']} ({row['last_error']})" for row in rows]
        return "; ".join([*texts, *await self._tasks()]) or "nothing waits"

    async def wipe(self) -> None:
        """Deletes all tasks and reserved names, as a task service may lose them."""
        await self.owner.execute("delete from cloudtasks.tasks; delete from cloudtasks.tombstones")

    async def push(self, queue: str, bodies: Sequence[bytes]) -> None:
        await self.home.push(queue, bodies)

    async def parked(self) -> tuple[str, UUID] | None:
        row = await self.owner.fetchrow(
            "select queue, id from payonce.live_messages where state = 'parked' order by id limit 1"
        )
        return None if row is None else (row["queue"], UUID(int=row["id"].int))

    async def parked_in_review(self) -> tuple[str, UUID] | None:
        return await self.home.parked_in_review()

    async def left_over(self, expected_parked: int) -> list[Violation]:
        found = await left_in_postgres(self.owner, expected_parked)
        return found + [Violation("stuck", f"left at the task service: {text}") for text in await self._tasks()]

    async def _tasks(self) -> list[str]:
        rows = await self.owner.fetch(
            """
            select q.name, t.id, t.last_reason from cloudtasks.tasks t join cloudtasks.queues q on q.id = t.queue_id
            order by t.id limit $1
            """,
            SHOWN,
        )
        return [f"{self.names[row['name']]} {row['id']} ({row['last_reason']})" for row in rows]


def _service(database: Database, intercept: Interceptor) -> TaskService:
    """Google's client connected to our server."""
    tasks = TaskStore(database)
    wakeups = Wakeups(lambda: None, lambda queue: None, lambda queue: None)
    server = Service(QueueStore(database), tasks, Operations(database, tasks), wakeups, 0.0)
    service: Any = TaskService(CONFIG)
    service._client = client_of(server, intercept)
    return service  # type: ignore[no-any-return]


def _backend(database: Database, notifier: Notifier, cloud: CloudTasks) -> Backend:
    home = Backend(
        POSTGRES,
        PostgresFeed(database, notifier),
        PostgresAdmin(database, notifier),
        lambda policy, worker: PostgresQueue(database, notifier, policy, worker),
    )
    return with_pushed_queues(home, cloud)


def _address(pushed: PushedQueue) -> str:
    reached = pushed.reached_at(None)
    assert reached is not None, f"queue {pushed.queue} has no address; name one in its target"
    return reached[1]


async def _immediately(reads: bool, act: Callable[[], Awaitable[Any]]) -> Any:
    return await act()


async def _call(reads: bool, act: Callable[[], Awaitable[Any]]) -> Any:
    return await cross(Channel.TASKS, reads, act)


_PENDING: Final = """
    select
        array(select distinct q.name from cloudtasks.tasks t join cloudtasks.queues q on q.id = t.queue_id
              where q.state = 'RUNNING' and q.deleted_at is null
                and ((t.lease_until is null and t.schedule_at <= payonce.due_now())
                     or t.lease_until <= payonce.lease_now()) order by q.name) as due,
        exists (select from cloudtasks.tasks where lease_until > payonce.lease_now())
            or exists (select from payonce.outbox
                       where relay = $1 and holder is not null and held_until > payonce.lease_now()) as leased,
        exists (select from payonce.outbox o
                where o.relay = $1 and o.state = 'delivered' and o.ready_at <= payonce.due_now()
                  and (o.holder is null or o.held_until <= payonce.lease_now())
                  and not exists (select from cloudtasks.tasks t join cloudtasks.queues q on q.id = t.queue_id
                                  where q.name || '/tasks/' || t.id = o.delivered_as)) as lost
"""

_NEXT_DUE: Final = """
    select min(due_at) from (
        select schedule_at as due_at from cloudtasks.tasks where lease_until is null
        union all
        select ready_at from payonce.outbox where relay = $1 and state = 'delivered'
    ) waiting where due_at > payonce.due_now()
"""
