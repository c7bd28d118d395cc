"""The composition root: the only place that knows every service and backend, and how a process is put together.

Adding a service is one folder with the rooms of its neighbours, and one line in SERVICES.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from payonce import embedded
from payonce.billing_outside import open_billing
from payonce.engine import brakes, webhooks
from payonce.engine.audit.run import STATEMENT_LIMIT_S, Audit, Check, Report, Tell, checks_of, run_audit
from payonce.engine.bell import Bell
from payonce.engine.checks import SEND_CHECKS
from payonce.engine.database import Database
from payonce.engine.durability import check_durability, weaknesses
from payonce.engine.janitors import run_janitors
from payonce.engine.janitors.prune import add_partitions
from payonce.engine.ledger import Finding
from payonce.engine.migrate import Migration, Status, known_migrations, migrate, status
from payonce.engine.outbox import LogRelay, Relay, declare_relays
from payonce.engine.policy import environment_name, override_from_environment
from payonce.engine.process import Worker
from payonce.engine.quarantine import notice_identity
from payonce.engine.queue import Admin
from payonce.engine.reconcile import StatementSource, register
from payonce.engine.sessions import connect
from payonce.engine.transaction import Reader, Tx, begin
from payonce.engine.work import Handler
from payonce.examples import tally, transfers
from payonce.kit.ids import process_name
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid
from payonce.on_demand import (
    billing_routes,
    billing_scenarios,
    billing_short_routes,
    payouts_routes,
    payouts_scenarios,
    transfers_routes,
    transfers_scenarios,
)
from payonce.outside import open_banks, open_task_server, open_webhooks, payout_targets
from payonce.paying import open_payouts
from payonce.pushing import at_home, open_pushed, tuned
from payonce.queues.backends import Backend, open_backend, refuse_if_elsewhere, take_over, until_moved
from payonce.queues.cloudtasks.server.observing import observe_tasks
from payonce.service import Running, Service
from payonce.services import billing, payouts
from payonce.settings import TOKEN_BYTES, Settings, revealed

DEFAULT_LEASE_S: Final = 30.0

log = get_logger(__name__)

SERVICES: Final = (
    Service("tally", "payonce.examples.tally", tally.ROLES, tally.INVARIANTS),
    Service(
        "transfers", "payonce.examples.transfers", transfers.ROLES, transfers.INVARIANTS, resources=open_banks,
        references=transfers.REFERENCES, statements=transfers.statements, scenarios=transfers_scenarios,
        routes=transfers_routes, scopes=transfers.SCOPES,
    ),
    Service(
        "payouts", "payonce.services.payouts", payouts.ROLES, payouts.INVARIANTS, payouts.SCHEDULES,
        resources=open_payouts, references=payouts.REFERENCES, statements=payouts.statements,
        scenarios=payouts_scenarios, routes=payouts_routes, scopes=payouts.SCOPES, pushes=payout_targets,
        observes=payouts.observe_payouts, names=payouts.NAMES,
    ),
    Service(
        "billing", "payonce.services.billing", billing.ROLES, billing.INVARIANTS, billing.SCHEDULES,
        resources=open_billing, references=billing.REFERENCES, statements=billing.statements, names=billing.NAMES,
        scenarios=billing_scenarios, routes=billing_routes, short_routes=billing_short_routes, scopes=billing.SCOPES,
        observes=billing.observe_billing,
    ),
    Service("webhooks", None, {"sender": [webhooks.deliver]}, resources=open_webhooks),
    Service(
        "cloudtasks", "payonce.queues.cloudtasks.server", {"server": ()}, runs={"server": open_task_server},
        observes=observe_tasks,
    ),
)  # fmt: skip

RELAYS: Final[Sequence[Relay]] = (LogRelay(),)

ACTIONS: Final[Sequence[Callable[[Admin], brakes.Action[Any]]]] = (
    brakes.answering,
    brakes.redriving,
    brakes.writing_off,
    brakes.bounding,
    payouts.deciding,
    payouts.clearing,
    payouts.limiting,
    billing.deciding,
    billing.giving_back,
)
"""What may need a second person."""


def role_names() -> list[str]:
    return [f"{service.name}.{role}" for service in SERVICES for role in service.roles]


def handlers_of(roles: Sequence[str]) -> list[Handler]:
    """The handlers of these roles, with the environment's changes to their policies."""
    known = {
        f"{service.name}.{role}": [replace(handler, service=service.name) for handler in handlers]
        for service in SERVICES
        for role, handlers in service.roles.items()
    }
    for role in roles:
        if role not in known:
            raise Invalid(f"there is no role {role!r}; known are: {', '.join(known)}")
    chosen = [handler for role in dict.fromkeys(roles) for handler in known[role]]
    return [replace(handler, policy=override_from_environment(handler.policy)) for handler in chosen]


def all_migrations() -> list[Migration]:
    return known_migrations((service.name, service.package) for service in SERVICES if service.package is not None)


@dataclass(frozen=True)
class Addresses:
    """Where the database is, for the services and for the one who migrates."""

    service: str
    owner: str


async def find_database(settings: Settings) -> Addresses:
    """The database that the environment names, or the private one, which is started if need be."""
    if settings.database_url is not None:
        owner = settings.database_owner_url or settings.database_url
        return Addresses(settings.database_url.get_secret_value(), owner.get_secret_value())
    server = await asyncio.to_thread(embedded.start, settings.server_dir)
    if server.started:
        log.info("private_postgresql_started", folder=str(server.data_dir), stop_with="payonce db stop")
    return Addresses(server.service_url, server.owner_url)


async def migrate_database(addresses: Addresses) -> list[Migration]:
    connection = await connect(addresses.owner)
    try:
        return await migrate(connection, all_migrations())
    finally:
        await connection.close()


async def database_status(addresses: Addresses) -> Status:
    connection = await connect(addresses.owner)
    try:
        return await status(connection, all_migrations())
    finally:
        await connection.close()


async def _find_weaknesses(read: Reader) -> list[Finding]:
    return [Finding("durability", weak.text, weak.way_out) for weak in await weaknesses(read)]


class App:
    """One process: its database, its queues, and, with roles, its workers."""

    def __init__(
        self, settings: Settings, database: Database, bell: Bell, handlers: Sequence[Handler], backend: Backend
    ) -> None:
        self.settings = settings
        self.database = database
        self.bell = bell
        self.backend = backend
        self.feed = backend.feed
        self.admin = backend.admin
        self.read = Reader(database)
        self.actions = {action.name: action for action in (declared(self.admin) for declared in ACTIONS)}
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
        handlers = handlers_of(roles)
        settings.check_roles(roles)
        everybody = handlers_of(role_names())
        _check_environment(everybody)
        addresses = await find_database(settings)
        if settings.embedded:
            await migrate_database(addresses)
        lease_s = min((handler.policy.lease_s for handler in handlers), default=DEFAULT_LEASE_S)
        async with AsyncExitStack() as stack:
            database = await stack.enter_async_context(
                Database.open(addresses.service, work_pool_size=settings.pool_size, shortest_lease_s=lease_s)
            )
            await database.check(all_migrations())
            if roles:
                # Commands go on: somebody may have to freeze a vendor on just such a database, and the audit tells.
                await check_durability(database.engine, accepted=settings.accept_data_loss)
            await notice_identity(database, "start of a process")
            bell = await stack.enter_async_context(Bell.open(database, listen=bool(roles)))
            if handlers:
                # Made while workers settle, a partition would refuse the rows that wait for it in the default one.
                await add_partitions(database)
            backend = await stack.enter_async_context(
                open_backend(settings.backend, revealed(settings.redis_url), database, bell)
            )
            handlers, everybody = await tuned(database, handlers), await tuned(database, everybody)
            backend, running = await open_pushed(SERVICES, settings, roles, everybody, backend, database, bell, stack)
            queues = at_home(handlers, backend)
            await refuse_if_elsewhere(database, backend.name, queues, revealed(settings.redis_url))
            if handlers:
                await take_over(database, backend.name, queues)
            app = cls(settings, database, bell, handlers, backend)
            app.running = running
            await app._declare(everybody)
            if handlers:
                app.resources, app.statements = await _open_resources(settings, database, roles, stack)
                for source in app.statements:
                    await register(database, source)
            try:
                yield app
            finally:
                await app._end_loops()

    def begin(self, trace_id: str | None = None) -> AbstractAsyncContextManager[Tx]:
        """A transaction outside any run: an HTTP request, a command."""
        return begin(self.database, self.feed, trace_id)

    async def audit(self, tell: Tell | None = None, *, statement_limit_s: float = STATEMENT_LIMIT_S) -> Report:
        """The books, the engine's rows, what every service promises, and whether the database keeps its commits."""
        checks = [
            *checks_of(SERVICES),
            *(self._check(service, audit) for service in SERVICES for audit in service.audits),
        ]
        if not self.settings.accept_data_loss:
            checks.append(Check("database: commits survive a crash", _find_weaknesses))
        report = await run_audit(self.database, checks, tell, statement_limit_s=statement_limit_s)
        if self.settings.accept_data_loss:
            report = replace(report, accepted=tuple(weak.text for weak in await weaknesses(self.database.engine)))
        return report

    async def known_as(self, name: str) -> list[str]:
        """The correlation ids of what a service's callers call so."""
        queries = [service.names for service in SERVICES if service.names is not None]
        return [row[0] for query in queries for row in await self.read.fetch(query, name)]

    @asynccontextmanager
    async def open_statements(self) -> AsyncIterator[Sequence[StatementSource]]:
        """The statements of every vendor, for a command: it needs the vendors' keys in its environment."""
        async with AsyncExitStack() as stack:
            with_statements = [service.name for service in SERVICES if service.statements is not None]
            _, statements = await _open_resources(self.settings, self.database, with_statements, stack)
            yield statements

    def start(self) -> None:
        """Begins to work on the queues of the roles, and to keep house."""
        if self._handlers:
            self._worker = Worker(
                self._handlers, self.database, self.feed, self._open_queue, self.resources, self.settings.slots,
                checks=SEND_CHECKS,
            )  # fmt: skip
            self.loops["worker"] = asyncio.create_task(self._worker.run(), name="worker")
        moved = until_moved(self.database, self.backend.name, at_home(self._handlers, self.backend))
        self.loops["backend"] = asyncio.create_task(moved, name="backend")
        self.loops["janitors"] = asyncio.create_task(self._keep_house(), name="janitors")
        for name, running in self.running.items():
            self.loops[name] = asyncio.create_task(running.run(), name=name)
        if self.pushes_here:
            assert self.backend.pushes is not None
            keeping = self.backend.pushes.keeper.run(self.process_name)
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
            self.backend.pushes.close_doors()
        if self._worker is not None:
            await self._worker.stop(self.settings.grace_s)
            await self.loops["worker"]

    async def _keep_house(self) -> None:
        """Whichever process leads puts the schedules of all services, whatever roles it runs itself."""
        await run_janitors(
            self.database,
            self.feed,
            self.admin,
            holder=self.process_name,
            schedules=[schedule for service in SERVICES for schedule in service.schedules],
            relays=(*RELAYS, *self.backend.relays),
            led=self.backend.led,
            statements=self.statements,
            keep_days=self.settings.job_log_days,
            bell=self.bell,
            anchor=self.settings.audit_anchor,
            observers=[service.observes for service in SERVICES if service.observes is not None],
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
        await declare_relays(self.database, (*RELAYS, *self.backend.relays, *self.backend.also_known))


def _check_environment(everybody: Sequence[Handler]) -> None:
    """A variable that matches no queue is a slip of the pen, and would otherwise change nothing, silently."""
    known = sorted({environment_name(handler.policy.queue) for handler in everybody})
    for name in os.environ:
        prefix, _, rest = name.partition("__")
        queue, _, changed = rest.partition("__")
        if prefix == "QUEUE_POLICY" and (queue not in known or not changed):
            raise Invalid(f"{name} names no field of a queue; write QUEUE_POLICY__<QUEUE>__<FIELD>, where QUEUE is: "
                          f"{', '.join(known)}")  # fmt: skip


async def _open_resources(
    settings: Settings, database: Database, roles: Sequence[str], stack: AsyncExitStack
) -> tuple[list[object], list[StatementSource]]:
    wanted = {role.partition(".")[0] for role in roles}
    found: list[object] = []
    statements: list[StatementSource] = []
    for service in (each for each in SERVICES if each.name in wanted):
        opened: Sequence[object] = ()
        if service.resources is not None:
            opened = await stack.enter_async_context(service.resources(settings, database))
        found += opened
        if service.statements is not None:
            statements += service.statements(opened)
    return found, statements
