"""A forked process with the engine: executes one command of the explorer at a time, and nothing else."""

import asyncio
import gc
import os
import random
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final

import asyncpg
import structlog

from payonce.engine.controls.checks import SEND_CHECKS
from payonce.engine.database.connections import Database, is_transient
from payonce.engine.database.identity import notice_identity
from payonce.engine.janitors import Janitor
from payonce.engine.messages.process import Worker
from payonce.engine.messages.work import Handler, Work
from payonce.engine.outbox import relay_step
from payonce.kit import ids
from payonce.kit.outcomes import Stale
from payonce.kit.redact import redact
from payonce.testing.crash.backend import Backend, EngineParts
from payonce.testing.crash.crossings import NOBODY, ForwardingTransport, WatchedConnection, in_hand, report_to
from payonce.testing.crash.person import answer, redrive, release_quarantine
from payonce.testing.crash.scenario import Scenario
from payonce.testing.crash.wire import (
    AnswerReview,
    ChildEnd,
    ChildReady,
    Command,
    CommandDone,
    Leave,
    Notice,
    Reap,
    Redrive,
    Release,
    RunRelay,
    Step,
    Tick,
)

SHORTEST_LEASE_S: Final = 1.0
"""The server ends sessions idle in a transaction after half of it: a stopped child does not block others for long."""
POOL_SIZE: Final = 4
_MILLISECONDS_APART: Final = 1_000_000


@dataclass(frozen=True)
class ChildConfig:
    """The configuration of a child."""

    name: str
    number: int
    service_url: str
    backend: Backend
    address: str
    """Of the backend's storage."""
    seed: int
    settings: dict[str, str]
    """Settings of its sessions, except their name."""
    ablate: Callable[[], object] | None = None


def live(scenario: Scenario, config: ChildConfig, connection: socket.socket) -> None:
    """Runs a child until it leaves. It lives too briefly for garbage collection to be worth it."""
    gc.disable()
    if config.ablate is not None:
        config.ablate()
    _make_ids_reproducible(config)
    explorer = ChildEnd(connection)
    report_to(explorer)
    with asyncio.Runner() as runner:
        runner.run(_execute_commands(scenario, config, explorer))


async def _execute_commands(scenario: Scenario, config: ChildConfig, explorer: ChildEnd) -> None:
    async with (
        Database.open(
            config.service_url,
            work_pool_size=POOL_SIZE,
            connection_class=WatchedConnection,
            settings={**config.settings, "application_name": config.name},
        ) as database,
        config.backend.parts(database, config.address, config.name) as parts,
    ):
        engine = ChildEngine(scenario, database, parts)
        explorer.send(ChildReady(engine.janitors))
        while not isinstance(command := explorer.receive(), Leave):
            in_hand.set(NOBODY)
            explorer.send(await engine.execute(command))  # type: ignore[arg-type]


class ChildEngine:
    """The engine's components in a child, driven by the explorer's commands."""

    def __init__(self, scenario: Scenario, database: Database, parts: EngineParts) -> None:
        self._scenario = scenario
        self._database = database
        self._feed = parts.feed
        self._admin = parts.admin
        self._steps = parts.steps
        resources = scenario.resources(ForwardingTransport, database, self._feed)
        self._workers: dict[str, Worker] = {}
        for queue, handlers in _by_queue(scenario.handlers).items():
            self._workers[queue] = Worker(
                handlers, database, self._feed, parts.open_queue, resources, checks=SEND_CHECKS
            )
        self._relays = {relay.name: relay for relay in (*parts.relays, *scenario.relays(ForwardingTransport))}
        ticking = {janitor.name: janitor for janitor in scenario.janitors(database, self._feed)}
        self.janitors = list(ticking)
        """Janitors that tick once; the backend's tick when they have something to repair."""
        self._janitors: dict[str, Janitor] = {**ticking, **{janitor.name: janitor for janitor in parts.janitors}}

    async def execute(self, command: Command) -> CommandDone:
        try:
            return CommandDone(bool(await self._execute(command)))
        except Exception as error:
            if not (is_transient(error) or isinstance(error, (asyncpg.PostgresError, Stale))):
                raise
            # As in the worker's own loops: what fails now is retried later.
            return CommandDone(False, redact(f"{type(error).__name__}: {error}"))

    async def _execute(self, command: Command) -> object:
        match command:
            case Step(queue):
                return await self._steps.get(queue, Worker.step)(self._workers[queue])
            case Reap(queue):
                return await self._workers[queue].reap()
            case RunRelay(relay):
                return await relay_step(self._database, self._relays[relay])
            case Tick(janitor):
                await self._janitors[janitor].tick()
                return True
            case AnswerReview():
                return await answer(self._scenario, self._database, self._feed, self._admin, command)
            case Redrive(queue, message_id):
                return await redrive(self._admin, queue, message_id)
            case Notice():
                return await notice_identity(self._database, "the identity janitor")
            case Release():
                return await release_quarantine(self._database, self._feed)
            case Leave():
                return False


def _by_queue(handlers: Sequence[Handler]) -> dict[str, list[Handler]]:
    found: dict[str, list[Handler]] = {}
    for handler in handlers:
        found.setdefault(handler.policy.queue, []).append(_labelled(handler))
    return found


def _labelled(handler: Handler) -> Handler:
    """A handler that records its message's name for the labels of crossings, until the next command."""
    function = handler.function

    async def labelled(work: Work, **needs: Any) -> None:
        message = work.message
        in_hand.set(message.correlation_id or message.idempotency_key or message.queue)
        await function(work, **needs)

    return replace(handler, function=labelled)


def _make_ids_reproducible(config: ChildConfig) -> None:
    """Makes ids reproducible, since they decide the order of messages and the jitter of retries. Each child has its
    own, the same in every run."""
    drawn = random.Random(f"{config.seed} {config.number}")
    moment = _first_moment_ns(config)
    drawing: Any = ids
    drawing.os = SimpleNamespace(urandom=drawn.randbytes)
    drawing.time = SimpleNamespace(time_ns=lambda: moment)
    drawing._tick, drawing._pool, drawing._position = 0, b"", 0


def _first_moment_ns(config: ChildConfig) -> int:
    return (1_767_268_800_000 + config.number * _MILLISECONDS_APART) * 1_000_000


def quiet() -> None:
    """Discards a child's output, which does not belong to the explorer's."""
    devnull = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    sys.stdout = sys.stderr = devnull
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    for standard in (1, 2):
        os.dup2(devnull.fileno(), standard)
