"""A server in this process: its gRPC surface, dispatcher and housekeeping."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from payonce.engine.database.connections import Database, is_transient
from payonce.engine.database.notifier import Notifier
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Unavailable
from payonce.taskserver.delivery import Sender
from payonce.taskserver.dispatch import DRAIN_S, QUEUES_CHANNEL, Dispatcher, channel_of
from payonce.taskserver.metrics import observe_for_ever
from payonce.taskserver.operations import Operations
from payonce.taskserver.queue_store import QueueStore, remember_key
from payonce.taskserver.retention import PRUNE_BATCH, PRUNE_EVERY_S, prune
from payonce.taskserver.service import Service, Wakeups
from payonce.taskserver.surface import handlers_of
from payonce.taskserver.task_store import TaskStore
from payonce.taskserver.tokens import KEY_KEPT_S, TokenMaker

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8123
MESSAGE_MAX_BYTES: Final = 32 * 1024 * 1024
"""Size limit of one call; a batch of the largest tasks exceeds it and must be split."""
CALLS_GRACE_S: Final = 5.0
CALLS_MAX: Final = 5_000
"""Limit of concurrent calls; further ones are refused with RESOURCE_EXHAUSTED."""

log = get_logger(__name__)


@dataclass(frozen=True)
class CloudTasksServer:
    """A listening server."""

    host: str
    port: int
    dispatcher: Dispatcher
    """For `step()`, when nothing runs in the background."""
    database: Database
    tokens: TokenMaker
    loops: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    """Background tasks by name."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def run(self) -> None:
        """Dispatches and cleans up until the dispatcher is stopped."""
        keeping_house = asyncio.create_task(_keep_house(self.database, self.tokens))
        try:
            await self.dispatcher.run()
        finally:
            keeping_house.cancel()
            await asyncio.gather(keeping_house, return_exceptions=True)


@asynccontextmanager
async def open_server(
    database: Database,
    notifier: Notifier,
    host: str = DEFAULT_HOST,
    port: int = 0,
    *,
    token: str | None = None,
    name_lock_s: float = 0.0,
    grace_s: float = DRAIN_S,
    dispatching: bool = True,
) -> AsyncIterator[CloudTasksServer]:
    """Listens until the block ends, then drains. Port 0 takes any free one.

    `token`: callers must send the metadata `authorization: Bearer TOKEN`; None accepts every caller. `name_lock_s`: how
    long the name of a deleted queue is refused. `grace_s`: time for running requests at the end. Without `dispatching`
    nothing runs in the background except through `server.run()`; `server.dispatcher.step()` sends, and `keep_house`
    cleans up.
    """
    tokens = TokenMaker()
    await remember_key(database, tokens.kid, tokens.public_key, KEY_KEPT_S)
    async with Sender.open(tokens) as sender:
        dispatcher = Dispatcher(database, notifier, sender, grace_s)
        tasks = TaskStore(database)
        service = Service(
            QueueStore(database), tasks, Operations(database, tasks), _wakeups(notifier, dispatcher), name_lock_s
        )
        handlers = handlers_of(service, await database.installation(), token)
        listener, listens_on = await _listening(handlers, host, port)
        server = CloudTasksServer(host, listens_on, dispatcher, database, tokens)
        if dispatching:
            server.loops["dispatcher"] = asyncio.create_task(server.run())
            server.loops["gauges"] = asyncio.create_task(observe_for_ever(database))
        try:
            yield server
        finally:
            await listener.stop(CALLS_GRACE_S)
            await service.drained()
            dispatcher.stop()
            if dispatching:
                await server.loops["dispatcher"]
                server.loops["gauges"].cancel()
                await asyncio.gather(server.loops["gauges"], return_exceptions=True)


def _wakeups(notifier: Notifier, dispatcher: Dispatcher) -> Wakeups:
    def has_tasks(queue: str) -> None:
        # A process that can dispatch the task itself need not wake the others: a NOTIFY costs as much as the task.
        if not dispatcher.wake(queue):
            notifier.notify([channel_of(queue)])

    def has_forced(queue: str) -> None:
        dispatcher.wake(queue, thoroughly=True)

    return Wakeups(lambda: notifier.notify([QUEUES_CHANNEL]), has_tasks, has_forced)


async def _listening(handlers: list[Any], host: str, port: int) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES),
            ("grpc.max_send_message_length", MESSAGE_MAX_BYTES),
            # Two servers on one port would unnoticed share its calls.
            ("grpc.so_reuseport", 0),
        ],
        maximum_concurrent_rpcs=CALLS_MAX,
    )
    server.add_generic_rpc_handlers(tuple(handlers))
    try:
        listens_on = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise Unavailable(f"cannot listen on {host}:{port}; is the port taken? Choose another with --port") from error
    await server.start()
    return server, listens_on


async def keep_house(database: Database, tokens: TokenMaker) -> int:
    """Cleans up once; returns the number of deleted rows."""
    await remember_key(database, tokens.kid, tokens.public_key, KEY_KEPT_S)
    return await prune(database)


async def _keep_house(database: Database, tokens: TokenMaker) -> None:
    while True:
        try:
            gone = await keep_house(database, tokens)
        except Exception as error:
            gone = 0
            write = log.warning if is_transient(error) else log.error
            write("cloudtasks_prune_failed", error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(0 if gone >= PRUNE_BATCH else PRUNE_EVERY_S)


def connect_lines(address: str, token: str | None = None) -> str:
    """Python code that connects Google's client to the server at this address. `token` is the expression that reads its
    token."""
    lines = (
        "import grpc; from google.cloud import tasks_v2; "
        "from google.cloud.tasks_v2.services.cloud_tasks import transports\n"
        "client = tasks_v2.CloudTasksClient("
        f'transport=transports.CloudTasksGrpcTransport(channel=grpc.insecure_channel("{address}")))'
    )
    if token is None:
        return lines
    return f'{lines}\nmetadata = [("authorization", "Bearer " + {token})]  # pass metadata=metadata with every call'
