"""A server, Google's client for it, and a worker that answers its tasks as a test tells it to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcAsyncIOTransport

from payonce.taskserver.dispatch import LEASE_S
from payonce.taskserver.queue_store import QueueStore
from payonce.taskserver.server import CloudTasksServer, open_server
from payonce.taskserver.task_store import Claims, TaskStore
from payonce.testing import OpenStage, Stage, eventually
from payonce.testing.server import serving

LOCATION = "projects/payonce-test/locations/us-central1"
QUEUE = f"{LOCATION}/queues/payments"


@dataclass(frozen=True)
class Arrival:
    """A request as it reached the worker."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def task(self) -> str:
        return self.headers["x-cloudtasks-taskname"]


@dataclass
class Worker:
    """Takes tasks over HTTP and answers each with what `answer` says; waits while it is held."""

    url: str = ""
    arrived: list[Arrival] = field(default_factory=list)
    answer: Callable[[Arrival], tuple[int, dict[str, str]]] = lambda _: (200, {})
    open: asyncio.Event = field(default_factory=asyncio.Event)
    held: int = 0
    """Tasks in its hands that it has not answered."""

    def __post_init__(self) -> None:
        self.open.set()

    def answers(self, *statuses: int, **headers: str) -> None:
        """These in turn, the last one for ever."""
        left = list(statuses)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answer = lambda _: (left.pop(0) if len(left) > 1 else left[0], named)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        path = scope["path"] + (f"?{scope['query_string'].decode()}" if scope["query_string"] else "")
        arrival = Arrival(scope["method"], path, headers, body, asyncio.get_running_loop().time())
        self.arrived.append(arrival)
        status, said = self.answer(arrival)
        self.held += 1
        await self.open.wait()
        self.held -= 1
        lines = [(name.encode(), value.encode()) for name, value in said.items()]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True)
class TaskServerTestbed:
    s: Stage
    server: CloudTasksServer
    client: Any
    worker: Worker

    async def queue(self, name: str = QUEUE, **settings: Any) -> Any:
        """A queue of these settings; the server knows of it when this returns."""
        return await self.client.create_queue(parent=LOCATION, queue={"name": name, **settings})

    def http(self, path: str = "/", **request: Any) -> dict[str, Any]:
        return {"http_request": {"url": f"{self.worker.url}{path}", "http_method": "POST", **request}}

    async def put(self, task_id: str = "", queue: str = QUEUE, **task: Any) -> Any:
        named = {"name": f"{queue}/tasks/{task_id}"} if task_id else {}
        return await self.client.create_task(parent=queue, task={**self.http(), **named, **task})

    async def arrivals(self, count: int, within_s: float = 30.0) -> list[Arrival]:
        """Once so many have come; and no more than these."""
        await eventually(lambda: len(self.worker.arrived) >= count, within_s, f"{count} requests have come")
        assert len(self.worker.arrived) == count
        return self.worker.arrived

    async def steps(self) -> int:
        """Dispatches all that is due, one by one; for servers that do not dispatch by themselves."""
        count = 0
        while await self.server.dispatcher.step():
            count += 1
        return count

    async def claims(self, limit: int) -> Claims:
        """As another process would claim, which then falls silent."""
        store = TaskStore(self.s.database)
        queues = await QueueStore(self.s.database).live()
        return await store.claim(dict.fromkeys(queues, True), limit, LEASE_S)

    async def emptied(self, queue: str = QUEUE) -> None:
        async def is_empty() -> bool:
            return not [task async for task in await self.client.list_tasks(parent=queue)]

        await eventually(is_empty, 30, "the queue is empty")


@asynccontextmanager
async def open_client(address: str) -> AsyncIterator[Any]:
    """Google's client, unmodified."""
    # A server that was killed is back within seconds; the channel is to find it as soon.
    patience = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 300)]
    async with grpc.aio.insecure_channel(address, options=patience) as channel:
        transport = CloudTasksGrpcAsyncIOTransport(channel=channel, credentials=AnonymousCredentials())
        yield tasks_v2.CloudTasksAsyncClient(transport=transport, client_options=ClientOptions())


@asynccontextmanager
async def open_testbed(
    stage: OpenStage, *, dispatching: bool = True, name_lock_s: float = 0.0, frozen: bool = False
) -> AsyncIterator[TaskServerTestbed]:
    worker = Worker()
    async with stage() as s, serving(worker) as worker.url:
        if frozen:
            await s.clock.freeze()
        async with (
            open_server(s.database, s.notifier, dispatching=dispatching, name_lock_s=name_lock_s) as server,
            open_client(server.address) as client,
        ):
            yield TaskServerTestbed(s, server, client, worker)
