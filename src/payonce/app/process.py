"""One process: its database, its queues, its workers and its background work, assembled from the settings."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

from payonce.app import registry
from payonce.app.addresses import Addresses, find_database
from payonce.app.assembly import (
    check_environment,
    check_held,
    is_among,
    open_forwarding,
    open_resources,
    roles_of,
    schedules_of,
    services_in,
)
from payonce.app.extras import check_extras
from payonce.app.pushed_queues import at_home, open_pushed, tuned
from payonce.engine.audit.run import STATEMENT_LIMIT_S, Audit, Check, CheckProgress, Report, checks_of, run_audit
from payonce.engine.controls.checks import SEND_CHECKS
from payonce.engine.database.connections import Database, check_login
from payonce.engine.database.durability import check_durability, weaknesses
from payonce.engine.database.identity import notice_identity
from payonce.engine.database.migrate import Migration, Status, migrate, status
from payonce.engine.database.notifier import Notifier
from payonce.engine.database.sessions import connect
from payonce.engine.janitors import run_janitors
from payonce.engine.janitors.prune import add_partitions
from payonce.engine.ledger import Finding
from payonce.engine.messages.process import Worker
from payonce.engine.messages.transaction import Reader, Tx, begin
from payonce.engine.messages.work import Handler
from payonce.engine.outbox import declare_relays
from payonce.engine.reconcile import StatementSource, register
from payonce.kit.ids import process_name
from payonce.kit.log import get_logger
from payonce.queues.backends import Backend, adopt_queues, open_backend, refuse_stranded_messages, watch_for_moves
from payonce.service import Running, Service
from payonce.settings import TOKEN_BYTES, Settings, revealed

DEFAULT_LEASE_S: Final = 30.0

log = get_logger(__name__)


async def migrate_database(addresses: Addresses) -> list[Migration]:
    connection = await connect(addresses.owner)
    try:
        return await migrate(connection, registry.all_migrations())
    finally:
        await connection.close()


async def database_status(addresses: Addresses) -> Status:
    connection = await connect(addresses.owner)
    try:
        return await status(connection, registry.all_migrations())
    finally:
        await connection.close()


async def _find_weaknesses(read: Reader) -> list[Finding]:
    return [Finding("durability", weak.text, weak.way_out) for weak in await weaknesses(read)]


class App:
    """One process: its database, its queues, and, with roles, its workers."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        notifier: Notifier,
        handlers: Sequence[Handler],
        backend: Backend,
        roles: Sequence[str] = (),
    ) -> None:
        self.settings = settings
        self.roles = tuple(roles)
        self.services = services_in(registry.SERVICES, settings)
        """Those whose tables the database holds, whichever roles run here."""
        self.database = database
        self.notifier = notifier
        self.backend = backend
        self.feed = backend.feed
        self.admin = backend.admin
        self.read = Reader(database)
        self.actions = {action.name: action for action in (declared(self.admin) for declared in registry.actions())}
        self.lookups = [lookup for service in self.services for lookup in service.lookups]
        self.attention = [service.attention for service in self.services if service.attention is not None]
        self.running: Mapping[str, Running] = {}
        self.resources: Sequence[object] = ()
        self.statements: Sequence[StatementSource] = ()
        self.loops: dict[str, asyncio.Task[None]] = {}
        """What runs for as long as the process does; an ended one means that the process is not well."""
        self.closing = asyncio.Event()
        """Set when HTTP ends: what streams to a browser lets go then."""
        self.process_name = process_name()
        self._console_token: str | None = None
        self._open_queue = lambda policy: backend.queue(policy, self.process_name)
        self._handlers = handlers
        self._worker: Worker | None = None

    def console_token(self) -> str:
        """What the console's link carries while nobody has a login; see `payonce console`."""
        if self._console_token is None:
            try:
                self._console_token = self.settings.console_token()
            except OSError:
                # Nowhere to keep it: then it is this process's own.
                self._console_token = secrets.token_urlsafe(TOKEN_BYTES)
        return self._console_token

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, roles: Sequence[str] = ()) -> AsyncIterator["App"]:
        """Refuses, with what to do, a database that is away, too new or not migrated, and roles that do not exist."""
        handlers = registry.handlers_of(roles)
        registry.check_roles(settings, roles)
        if roles:
            settings.access.check_platform(settings.cloud_tasks_project)
        services, everybody = services_in(registry.SERVICES, settings), registry.handlers_of(registry.role_names())
        check_environment(everybody)
        known = {handler.policy.queue for handler in everybody}
        everybody = registry.handlers_of(roles_of(services))
        check_extras(settings, roles)
        addresses = await find_database(settings)
        if settings.embedded:
            await migrate_database(addresses)
        lease_s = min((handler.policy.lease_s for handler in handlers), default=DEFAULT_LEASE_S)
        async with AsyncExitStack() as stack:
            database = await stack.enter_async_context(
                Database.open(addresses.service, work_pool_size=settings.pool_size, shortest_lease_s=lease_s)
            )
            await database.check(registry.all_migrations())
            if roles:
                # Commands go on: somebody may have to freeze a vendor on just such a database, and the audit tells.
                await check_durability(database.engine, accepted=settings.accept_data_loss)
                await check_login(database.engine, **settings.access.accepted_logins(settings.embedded))
            await notice_identity(database, "start of a process")
            notifier = await stack.enter_async_context(Notifier.open(database, listen=bool(roles)))
            if handlers:
                # Made while workers settle, a partition would refuse the rows that wait for it in the default one.
                await add_partitions(database)
            backend = await stack.enter_async_context(
                open_backend(settings.backend, revealed(settings.redis_url), database, notifier)
            )
            handlers, everybody = await tuned(database, handlers), await tuned(database, everybody)
            backend, running = await open_pushed(
                services, settings, roles, everybody, backend, database, notifier, stack
            )
            backend = await open_forwarding(services, settings, backend, database, notifier, stack)
            queues = at_home(handlers, backend)
            await refuse_stranded_messages(database, backend.name, queues, revealed(settings.redis_url))
            if handlers:
                served = {each.policy.queue for each in everybody}
                await check_held(registry.SERVICES, settings, database, known - served)
                await adopt_queues(database, backend.name, queues)
            app = cls(settings, database, notifier, handlers, backend, roles)
            app.running = running
            await app._declare(everybody)
            if handlers:
                running_here = [service for service in services if is_among(service, roles)]
                app.resources, app.statements = await open_resources(running_here, settings, database, stack)
                for source in app.statements:
                    await register(database, source)
            try:
                yield app
            finally:
                await app._end_loops()

    def begin(self, trace_id: str | None = None) -> AbstractAsyncContextManager[Tx]:
        """A transaction outside any run: an HTTP request, a command."""
        return begin(self.database, self.feed, trace_id)

    async def audit(self, tell: CheckProgress | None = None, *, statement_limit_s: float = STATEMENT_LIMIT_S) -> Report:
        """The books, the engine's rows, what every service promises, and whether the database keeps its commits."""
        checks = [
            *checks_of(self.services),
            *(self._check(service, audit) for service in self.services for audit in service.audits),
        ]
        if not self.settings.accept_data_loss:
            checks.append(Check("database: commits survive a crash", _find_weaknesses))
        report = await run_audit(self.database, checks, tell, statement_limit_s=statement_limit_s)
        if self.settings.accept_data_loss:
            report = replace(report, accepted=tuple(weak.text for weak in await weaknesses(self.database.engine)))
        return report

    async def known_as(self, name: str) -> list[str]:
        """The correlation ids of what a service's callers call so."""
        queries = [service.names for service in self.services if service.names is not None]
        return list(dict.fromkeys([row[0] for query in queries for row in await self.read.fetch(query, name)]))

    def holds(self, role: str) -> bool:
        """Whether the database has the tables of this role's service, whichever roles run here."""
        return role in roles_of(self.services)

    def answers(self, service: Service) -> bool:
        """Whether this process answers its routes. One without roles answers for all services."""
        return not (self.roles and service.routes_with_role) or is_among(service, self.roles)

    @asynccontextmanager
    async def open_statements(self) -> AsyncIterator[Sequence[StatementSource]]:
        """The statements of every vendor, for a command: it needs the vendors' keys in its environment."""
        async with AsyncExitStack() as stack:
            with_statements = [service for service in self.services if service.statements is not None]
            _, statements = await open_resources(with_statements, self.settings, self.database, stack)
            yield statements

    def start(self) -> None:
        """Begins to work on the queues of the roles, and to keep house."""
        if self._handlers:
            self._worker = Worker(
                self._handlers,
                self.database,
                self.feed,
                self._open_queue,
                self.resources,
                self.settings.slots,
                checks=SEND_CHECKS,
            )
            self.loops["worker"] = asyncio.create_task(self._worker.run(), name="worker")
        moved = watch_for_moves(self.database, self.backend.name, at_home(self._handlers, self.backend))
        self.loops["backend"] = asyncio.create_task(moved, name="backend")
        self.loops["janitors"] = asyncio.create_task(self._keep_house(), name="janitors")
        for name, running in self.running.items():
            self.loops[name] = asyncio.create_task(running.run(), name=name)
        if self.pushes_here:
            assert self.backend.pushes is not None
            keeping = self.backend.pushes.maintenance.run(self.process_name)
            self.loops["task service"] = asyncio.create_task(keeping, name="task service")

    @property
    def pushes_here(self) -> bool:
        """Whether a task service brings work to this process, which must listen then."""
        return self.backend.pushes is not None and self.backend.pushes.works_here

    async def stop(self) -> None:
        """No more claims; what runs may finish within the grace, the rest is left to its lease."""
        for running in self.running.values():
            running.stop()
        if self.backend.pushes is not None:
            self.backend.pushes.close_endpoints()
        if self._worker is not None:
            await self._worker.stop(self.settings.grace_s)
            await self.loops["worker"]

    async def _keep_house(self) -> None:
        """The leader of a service puts its schedules, whatever roles it runs itself."""
        await run_janitors(
            self.database,
            self.feed,
            self.admin,
            holder=self.process_name,
            schedules=schedules_of(self.services),
            relays=(*registry.RELAYS, *self.backend.relays),
            leader_janitors=self.backend.janitors,
            statements=self.statements,
            keep_days=self.settings.job_log_days,
            notifier=self.notifier,
            anchor=self.settings.audit_anchor,
            observers=[service.observes for service in self.services if service.observes is not None],
        )

    def _check(self, service: Service, audit: Audit) -> Check:
        async def run(read: Reader) -> list[Finding]:
            if service.resources is None:
                return await audit(read, ())
            async with service.resources(self.settings, self.database) as resources:
                return await audit(read, resources)

        return Check(f"{service.name}: {getattr(audit, '__name__', repr(audit)).replace('_', ' ')}", run)

    async def _end_loops(self) -> None:
        for task in self.loops.values():
            task.cancel()
        await asyncio.gather(*self.loops.values(), return_exceptions=True)

    async def _declare(self, everybody: Sequence[Handler]) -> None:
        """Our queues as we know them; those of others only where they are missing, for they may run with
        other settings than ours."""
        ours = {handler.policy.queue: handler.policy for handler in self._handlers}
        known = set(await self.admin.queues())
        missing = {handler.policy.queue: handler.policy for handler in everybody if handler.policy.queue not in known}
        if wanted := {**missing, **ours}:
            await self.feed.declare(list(wanted.values()))
        await declare_relays(self.database, (*registry.RELAYS, *self.backend.relays, *self.backend.known_relays))
