"""How a process is put together from the services that its database holds: their roles, and what these open."""

import os
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.janitors import Schedule
from payonce.engine.messages.policy import environment_name
from payonce.engine.messages.transaction import Reader
from payonce.engine.messages.work import Handler
from payonce.engine.reconcile import StatementSource
from payonce.http.kit.scopes import PLATFORM_SCOPES, TENANT_SCOPES, ScopeCatalogue
from payonce.kit.outcomes import Invalid
from payonce.queues.backends import Backend
from payonce.queues.relay_feed import RelayFeed
from payonce.queues.routing import RoutedFeed
from payonce.service import Service
from payonce.settings import Settings


def services_in(services: Sequence[Service], settings: Settings) -> list[Service]:
    """Those whose tables the database of this process holds."""
    found = [each if each.in_database is None else each.in_database(each, settings) for each in services]
    return [each for each in found if each is not None]


def roles_of(services: Sequence[Service]) -> list[str]:
    return [f"{service.name}.{role}" for service in services for role in service.roles]


def schedules_of(services: Sequence[Service]) -> dict[str, list[Schedule]]:
    """By service, the schedules of all its parts. Raises Invalid if two services use one name."""
    found: dict[str, list[Schedule]] = {}
    owners: dict[str, str] = {}
    for service in services:
        for schedule in service.schedules:
            if (owner := owners.setdefault(schedule.name, service.name)) != service.name:
                raise Invalid(f"{owner} and {service.name} both have a schedule {schedule.name!r}; rename one of them")
            found.setdefault(service.name, []).append(schedule)
    return found


def scopes_of(services: Sequence[Service]) -> ScopeCatalogue:
    """What keys for the routes of these services can be allowed."""
    return ScopeCatalogue(
        {**PLATFORM_SCOPES, **TENANT_SCOPES, **{name: what for each in services for name, what in each.scopes.items()}},
        frozenset({*TENANT_SCOPES, *(name for each in services for name in each.tenant_scopes)}),
        {name: each.tenant_refusal for each in services if each.tenant_refusal for name in each.scopes},
    )


def is_among(service: Service, roles: Sequence[str]) -> bool:
    """Whether one of its roles is."""
    return not set(roles).isdisjoint(roles_of([service]))


async def check_held(
    services: Sequence[Service], settings: Settings, database: Database, foreign: Iterable[str]
) -> None:
    """Refuses a database that holds other services than the settings say. `foreign` are the queues of those that they
    leave out: nobody would ever take their messages here."""
    for service in services:
        if service.check_held is not None:
            await service.check_held(settings, Reader(database))
    row = await database.engine.fetchrow(
        """
        select queue, count(*) from (
            select queue from payonce.messages where queue = any($1)
            union all select queue from payonce.outbox where relay in ('redis', 'cloudtasks') and queue = any($1)
        ) stranded group by queue order by queue limit 1
        """,
        list(foreign),
    )
    if row is not None:
        settings_of = {
            handler.policy.queue: service.held_again_by
            for service in services
            for handlers in service.roles.values()
            for handler in handlers
        }
        again = settings_of[row["queue"]] or "the settings that it had before"
        raise Invalid(
            f"{row['count']:,} messages of queue {row['queue']} wait in this database, which no longer serves that "
            f"queue; start its role with {again} until `payonce queues list` shows none"
        )


def check_environment(everybody: Sequence[Handler]) -> None:
    """A variable that matches no queue is a slip of the pen, and would otherwise change nothing, silently."""
    known = sorted({environment_name(handler.policy.queue) for handler in everybody})
    for name in os.environ:
        prefix, _, rest = name.partition("__")
        queue, _, changed = rest.partition("__")
        if prefix == "QUEUE_POLICY" and (queue not in known or not changed):
            raise Invalid(
                f"{name} names no field of a queue; write QUEUE_POLICY__<QUEUE>__<FIELD>, where QUEUE is: "
                f"{', '.join(known)}"
            )


async def open_forwarding(
    services: Sequence[Service],
    settings: Settings,
    home: Backend,
    database: Database,
    notifier: Notifier,
    stack: AsyncExitStack,
) -> Backend:
    """The backend with the queues beside it that are served from other databases."""
    backend = home
    for service in services:
        if service.forwards is not None:
            forwarding = await stack.enter_async_context(service.forwards(settings, database))
            feed = RelayFeed(database, notifier, forwarding.relay.name)
            backend = replace(
                backend,
                feed=RoutedFeed(backend.feed, feed, forwarding.queues),
                relays=(*backend.relays, forwarding.relay),
            )
    return backend


async def open_resources(
    services: Sequence[Service], settings: Settings, database: Database, stack: AsyncExitStack
) -> tuple[list[object], list[StatementSource]]:
    found: list[object] = []
    statements: list[StatementSource] = []
    for service in services:
        opened: Sequence[object] = ()
        if service.resources is not None:
            opened = await stack.enter_async_context(service.resources(settings, database))
        found += opened
        if service.statements is not None:
            statements += service.statements(opened)
    return found, statements
