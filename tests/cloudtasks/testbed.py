"""A pushed queue on a stage: the task service, Google's client for it, the endpoint, and runs in a test's hands."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from starlette.applications import Starlette
from starlette.routing import Route

from payonce.engine.messages.model import Claim, Ending, Message, Settlement
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.process import DEFAULT_SLOTS, Worker
from payonce.engine.messages.push import EnvelopeCodec, Target
from payonce.engine.messages.work import Handler
from payonce.engine.outbox import declare_relays, relay_step
from payonce.http.guard import Guard
from payonce.queues.cloudtasks.assembly import CloudTasks, open_cloud_tasks
from payonce.queues.cloudtasks.client import Config
from payonce.queues.cloudtasks.deliveries import Delivery, DeliveryBuffer, Reply
from payonce.queues.cloudtasks.names import LOCAL_ACCOUNT, ProjectLocation
from payonce.queues.cloudtasks.pushed import PushedQueue
from payonce.queues.cloudtasks.queue import CloudTasksQueue
from payonce.queues.cloudtasks.sync import sync
from payonce.taskserver.server import CloudTasksServer, open_server
from payonce.testing import OpenStage, Stage, eventually
from payonce.testing.server import serving

QUEUE = "errands"
POLICY = Policy(QUEUE, max_attempts=None, give_up_after_s=86_400, backoff=Fixed(60), lease_s=30, run_limit_s=60)
PLACE = ProjectLocation("payonce-test", "us-central1")
NOBODY = "127.0.0.1:9"
"""The discard port: where no task service is."""


def pushed(policy: Policy = POLICY, url: str | None = None, codec: Any = None) -> PushedQueue:
    target = Target(policy.queue, f"/{policy.queue}", url, codec or EnvelopeCodec())
    return PushedQueue(target, policy, "errands", "runner", here=True)


@dataclass
class Runs:
    """One process' side of a pushed queue, with nothing but PostgreSQL behind it: a test brings tasks by hand."""

    s: Stage
    tasks: CloudTasks
    queue: CloudTasksQueue
    buffer: DeliveryBuffer
    worker: str

    async def put(self, *payloads: dict[str, Any], delivered: bool = True, **fields: Any) -> list[UUID]:
        """Messages whose tasks were made, as far as PostgreSQL knows."""
        messages = [Message(queue=self.queue.policy.queue, payload=payload, **fields) for payload in payloads]
        ids = await self.tasks.feed.put(messages)
        if delivered:
            await self.s.owner.execute(
                "update payonce.outbox set state = 'delivered', token = token + 1 where id = any($1)", ids
            )
        return ids

    def bring(self, message_id: UUID, number: int = 0, retries: int = 0, **fields: Any) -> Delivery:
        delivery = Delivery(message_id, number, retries, **fields)
        self.buffer.offer(delivery)
        return delivery

    async def begin(self, message_id: UUID, number: int = 0, retries: int = 0) -> tuple[Claim, Delivery]:
        delivery = self.bring(message_id, number, retries)
        [claim] = (await self.queue.exchange([], 10)).claims
        return claim, delivery

    async def settle(self, claim: Claim, ending: Ending, reason: str | None = None, delay_s: float = 0.0) -> Any:
        [answer] = (await self.queue.exchange([Settlement(claim, ending, reason, delay_s)], 0)).answers
        return answer

    async def told(self, delivery: Delivery) -> Reply:
        """What the task service hears, after everything that waits was looked at."""
        await self.queue.exchange([], 10)
        return await delivery.answered(0.0)

    async def row(self, message_id: UUID) -> Any:
        return await self.s.owner.fetchrow("select * from payonce.outbox where id = $1", message_id)

    async def statuses(self, message_id: UUID) -> list[str]:
        rows = await self.s.owner.fetch(
            "select status from payonce.job_logs where message_id = $1 order by id", message_id
        )
        return [row["status"] for row in rows]

    async def has_ended(self, message_id: UUID) -> bool:
        """In the inbox, and nowhere else."""
        ended = await self.s.owner.fetchval("select exists (select from payonce.inbox where id = $1)", str(message_id))
        return bool(ended) and await self.row(message_id) is None


@asynccontextmanager
async def open_runs(s: Stage, policy: Policy = POLICY, worker: str = "worker-1") -> AsyncIterator[Runs]:
    """The clocks stand still: nothing falls due and no lease ends unless a test moves them."""
    config = Config(PLACE, LOCAL_ACCOUNT, NOBODY)
    async with open_cloud_tasks(s.database, s.notifier, config, [pushed(policy)]) as tasks:
        await declare_relays(s.database, [tasks.relay])
        await tasks.feed.declare([policy])
        queue = tasks.queue(policy, worker)
        yield Runs(s, tasks, queue, tasks._buffers[policy.queue], worker)


@asynccontextmanager
async def staged_runs(stage: OpenStage, policy: Policy = POLICY) -> AsyncIterator[Runs]:
    async with stage() as s:
        await s.clock.freeze()
        async with open_runs(s, policy) as runs:
            yield runs


@dataclass
class AppContext:
    """Everything: messages go through the real client, the server, HTTP and the endpoint into handlers."""

    s: Stage
    server: CloudTasksServer
    tasks: CloudTasks
    url: str
    policies: Sequence[Policy]
    worker: Worker
    loops: list[asyncio.Task[Any]] = field(default_factory=list)

    async def put(self, *payloads: dict[str, Any], queue: str = QUEUE, **fields: Any) -> list[UUID]:
        ids = await self.tasks.feed.put([Message(queue=queue, payload=payload, **fields) for payload in payloads])
        await self.relay()
        return ids

    async def relay(self) -> None:
        while await relay_step(self.s.database, self.tasks.relay):
            pass

    async def drained(self, within_s: float = 20.0) -> None:
        async def none_left() -> bool:
            return not await self.s.owner.fetchval(
                "select exists (select from payonce.outbox where relay = 'cloudtasks' and state <> 'parked')"
            )

        await eventually(none_left, within_s, "every message has ended")

    async def tasks_there(self) -> int:
        count = await self.s.owner.fetchval("select count(*) from cloudtasks.tasks")
        return int(count)


@asynccontextmanager
async def open_testbed(
    stage: OpenStage,
    handlers: Sequence[Handler],
    *,
    working: bool = True,
    dispatching: bool = True,
    slots: int = DEFAULT_SLOTS,
    verified_by_platform: bool = False,
) -> AsyncIterator[AppContext]:
    policies = list({handler.policy.queue: handler.policy for handler in handlers}.values())
    async with stage() as s, AsyncExitStack() as stack:
        server = await stack.enter_async_context(open_server(s.database, s.notifier, dispatching=dispatching))
        config = Config(PLACE, LOCAL_ACCOUNT, server.address, verified_by_platform=verified_by_platform)
        queues = [pushed(policy) for policy in policies]
        tasks = await stack.enter_async_context(open_cloud_tasks(s.database, s.notifier, config, queues))
        await declare_relays(s.database, [tasks.relay])
        await tasks.feed.declare(policies)
        await sync(tasks.service, queues)
        routes = [
            Route(path, endpoint, methods=["POST"]) for each, endpoint in tasks.endpoints() for path in each.paths
        ]
        tasks.address = await stack.enter_async_context(serving(Guard(Starlette(routes=routes))))
        worker = Worker(handlers, s.database, tasks.feed, lambda policy: tasks.queue(policy, "worker-1"), (), slots)
        context = AppContext(s, server, tasks, tasks.address, policies, worker)
        if working:
            context.loops.append(asyncio.create_task(worker.run()))
        try:
            yield context
        finally:
            tasks.close_endpoints()
            await worker.stop(0.0)
            for loop in context.loops:
                with suppress(asyncio.CancelledError):
                    await loop
