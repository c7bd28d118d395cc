"""How a process comes by queues that a task service brings: which they are, who serves them, what runs for them."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from payonce.app.resources import cloud_tasks
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.work import Handler
from payonce.kit.outcomes import Invalid
from payonce.queues.backends import Backend, with_pushed_queues
from payonce.queues.cloudtasks.assembly import open_cloud_tasks
from payonce.queues.cloudtasks.pushed import PushedQueue
from payonce.queues.cloudtasks.tune import tuned_numbers
from payonce.service import Running, Service
from payonce.settings import Settings


async def open_pushed(
    services: Sequence[Service],
    settings: Settings,
    roles: Sequence[str],
    everybody: Sequence[Handler],
    home: Backend,
    database: Database,
    notifier: Notifier,
    stack: AsyncExitStack,
) -> tuple[Backend, dict[str, Running]]:
    """The backend with the pushed queues of all services beside it, as far as there are any, and what these roles run
    besides handlers."""
    pushed = pushed_queues(services, settings, roles, everybody)
    running = await _open_servers(services, settings, database, notifier, roles, bool(pushed), stack)
    if not pushed:
        return home, running
    await _refuse_left_behind(database, [each.queue for each in pushed if each.here])
    server = running.get("cloudtasks.server")
    config = cloud_tasks(settings, None if server is None else server.address)
    return with_pushed_queues(
        home, await stack.enter_async_context(open_cloud_tasks(database, notifier, config, pushed))
    ), running


def pushed_queues(
    services: Sequence[Service], settings: Settings, roles: Sequence[str], everybody: Sequence[Handler]
) -> list[PushedQueue]:
    """The queues of all services that a task service brings, those of these roles marked as served here."""
    policies = {handler.policy.queue: handler.policy for handler in everybody}
    pushed = []
    for service in (each for each in services if each.pushes is not None):
        mine = [role for role in dict.fromkeys(roles) if role.partition(".")[0] == service.name]
        for target in service.pushes(settings) if service.pushes is not None else ():
            serving = [
                role
                for role, handlers in service.roles.items()
                if any(handler.policy.queue == target.queue for handler in handlers)
            ]
            if len(serving) != 1:
                raise Invalid(f"queue {target.queue} is pushed and has {len(serving)} roles that serve it; one must")
            here = f"{service.name}.{serving[0]}" in mine
            policy = policies[target.queue]
            pushed.append(PushedQueue(target, policy, service.name, serving[0], here, alone=here and len(mine) == 1))
    return pushed


async def _refuse_left_behind(database: Database, queues: Sequence[str]) -> None:
    """Messages from before a queue was pushed would lie where nobody takes them any more."""
    row = await database.engine.fetchrow(
        """
        select queue, count(*) from (
            select queue from payonce.messages where queue = any($1)
            union all select queue from payonce.outbox where relay = 'redis' and queue = any($1)
        ) lying group by queue order by queue limit 1
        """,
        list(queues),
    )
    if row is not None:
        raise Invalid(
            f"{row['count']:,} messages of queue {row['queue']} wait to be claimed, and a task service brings that "
            "queue now; let the version that claims them run until `payonce queues list` shows none, then start this"
        )


async def tuned(database: Database, handlers: Sequence[Handler]) -> list[Handler]:
    """Where an operator has set a queue's rate and concurrency from what was measured, these stand."""
    numbers = await tuned_numbers(database)
    return [
        replace(handler, policy=replace(handler.policy, rate=numbers[queue][0], concurrency=numbers[queue][1]))
        if (queue := handler.policy.queue) in numbers
        else handler
        for handler in handlers
    ]


def at_home(handlers: Sequence[Handler], backend: Backend) -> list[str]:
    """Queues that lie where all queues do; pushed ones are the task service's wherever that is."""
    pushed = () if backend.pushes is None else backend.pushes.pushed
    return [handler.policy.queue for handler in handlers if handler.policy.queue not in pushed]


async def _open_servers(
    services: Sequence[Service],
    settings: Settings,
    database: Database,
    notifier: Notifier,
    roles: Sequence[str],
    pushing: bool,
    stack: AsyncExitStack,
) -> dict[str, Running]:
    """What roles run besides handlers, by role. A task server beside others is for those who push."""
    opened: dict[str, Running] = {}
    for service in services:
        for role, run in service.runs.items():
            name = f"{service.name}.{role}"
            if name in roles and (pushing or len(roles) == 1):
                running = await stack.enter_async_context(run(settings, database, notifier))
                if running is not None:
                    opened[name] = running
    return opened
