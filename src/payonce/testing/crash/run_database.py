"""Databases for runs: one template per scenario, with its first messages, and a copy per run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, cast
from uuid import uuid4

import asyncpg

from payonce.embedded.roles import DATABASE
from payonce.engine.database.connections import Database
from payonce.engine.database.migrate import known_migrations, migrate
from payonce.engine.database.sessions import PlainConnection, session_settings
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import begin
from payonce.engine.outbox import declare_relays
from payonce.testing.clock import Clock
from payonce.testing.cluster import Cluster
from payonce.testing.crash.backend import Backend, DriverStorage, QueueProbe
from payonce.testing.crash.child import SHORTEST_LEASE_S
from payonce.testing.crash.crossings import ForwardingTransport, learn_types
from payonce.testing.crash.failover import Failover, newest_start
from payonce.testing.crash.scenario import Scenario, options_of
from payonce.testing.crash.server_crash import Session, crash_server, take_transaction_ids
from payonce.testing.eventually import eventually
from payonce.testing.servers import OWNER, ScratchDatabase, ScratchServer

BEGINNING: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
BACKENDS_GONE_WITHIN_S: Final = 60.0


@dataclass(frozen=True)
class DatabaseTemplate:
    """A server and a template database on it without connections."""

    server: ScratchServer | Cluster
    database_name: str
    settings: dict[str, str]
    """Settings of the children's sessions, read once instead of by every child."""

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, if the server is one."""
        return self.server if isinstance(self.server, Cluster) else None


def prepare(server: ScratchServer | Cluster, backend: Backend, scenario: Scenario) -> DatabaseTemplate:
    """Migrates and sets up the template; every run begins from a copy."""
    database = server.empty_database()
    asyncio.run(_set_up(database, backend, scenario))
    settings = asyncio.run(session_settings(database.service_url, SHORTEST_LEASE_S, "child"))
    return DatabaseTemplate(server, database.name, settings)


def policies_of(scenario: Scenario) -> list[Policy]:
    return list({handler.policy.queue: handler.policy for handler in scenario.handlers}.values())


async def _set_up(database: ScratchDatabase, backend: Backend, scenario: Scenario) -> None:
    owner = await asyncpg.connect(database.owner_url, connection_class=PlainConnection)
    try:
        await migrate(owner, known_migrations(scenario.components))
        await learn_types(owner)
    finally:
        await owner.close()
    async with Clock.open(database.owner_url) as clock:
        await clock.freeze(BEGINNING)
        async with Database.open(database.service_url) as opened:
            feed = await backend.declare(opened, policies_of(scenario))
            await declare_relays(opened, scenario.relays(ForwardingTransport))
            async with begin(opened, feed) as tx:
                await scenario.set_up(tx)


@dataclass
class RunDatabase:
    """The database of one run, for the explorer: with the owner's connection and both clocks."""

    database: ScratchDatabase
    owner: Session
    superuser: Session
    probe: QueueProbe
    address: str
    settings: dict[str, str]
    closing: AsyncExitStack
    cluster: Cluster | None = None
    now: datetime = BEGINNING
    failover: Failover | None = None

    async def hop(self, to: datetime) -> None:
        self.now = await self.probe.freeze(to)

    async def end_sessions(self, application_name: str) -> None:
        """Ends the sessions of a dead process, and with them its open transactions."""
        await self.superuser.fetch(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1", application_name
        )

        async def gone() -> bool:
            return not await self.superuser.fetchval(
                "select exists (select from pg_stat_activity where application_name = $1)", application_name
            )

        await eventually(gone, BACKENDS_GONE_WITHIN_S, f"the end of the sessions of {application_name}")

    async def nobody_idles_in_a_transaction(self) -> None:
        """Waits until no session idles in a transaction; the server ends those itself, as in production."""

        async def none() -> bool:
            return not await self.superuser.fetchval(
                "select exists (select from pg_stat_activity where datname = $1 and state like 'idle in transaction%')",
                self.database.name,
            )

        await eventually(none, BACKENDS_GONE_WITHIN_S, "the end of sessions that idle in a transaction")

    async def crash_server(self, lost_id: int | None) -> bool:
        """Crashes the server, or a cluster's primary and promotes the standby. Returns when the server accepts writes
        and others have written: whether one of them got `lost_id`."""
        if self.cluster is None:
            await crash_server(self.superuser)
        else:
            self.cluster.crash_primary()
            self.cluster.promote()
            await self.superuser.open()
        await self.owner.open()
        if self.cluster is not None:
            self.failover = Failover(self.now, await newest_start(self.owner))
        return await take_transaction_ids(self.superuser, lost_id)


@asynccontextmanager
async def superuser_of(server: ScratchServer | Cluster) -> AsyncIterator[Session]:
    session = await Session(server.urls(DATABASE).superuser_url).open()
    try:
        yield session
    finally:
        await session.close()


async def open_run_database(
    template: DatabaseTemplate, superuser: Session, storage: DriverStorage, scenario: Scenario
) -> RunDatabase:
    if template.cluster is not None and template.cluster.standby is None:
        template.cluster.rejoin()
    name = f"crash_{uuid4().hex}"
    await superuser.execute(
        f"create database {name} owner {OWNER} template {template.database_name} strategy file_copy"
    )
    database = template.server.urls(name)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_drop, superuser, name)
        owner = await Session(database.owner_url, PlainConnection).open()
        stack.push_async_callback(owner.close)
        connection = cast(asyncpg.Connection, owner)
        probe = await stack.enter_async_context(storage.probe(connection, policies_of(scenario)))
        for queue, bodies in options_of(scenario).pushed.items():
            await probe.push(queue, bodies)
        if template.cluster is not None:
            # As every process does at its start: only one that knows the previous server notices a new one.
            await owner.execute("select payonce.notice_identity('the explorer')")
        closing = stack.pop_all()
        return RunDatabase(
            database, owner, superuser, probe, storage.address, template.settings, closing, template.cluster
        )
    raise AssertionError("an exit stack swallows no errors")


async def close_run_database(run_database: RunDatabase) -> None:
    await run_database.closing.aclose()


async def _drop(superuser: Session, name: str) -> None:
    await superuser.execute(f"drop database if exists {name} with (force)")
