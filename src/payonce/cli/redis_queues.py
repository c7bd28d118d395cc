"""`queues refill` and `queues move`: operator actions on queues in Redis."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from payonce.cli.output import JsonOption, note, open_app, run_async, show, table
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.app.process import App

TARGETS = ("postgres", "redis")


def refill(as_json: JsonOption = False) -> None:
    """Restore messages that Redis lost from PostgreSQL. A janitor does the same every few seconds."""

    async def act() -> None:
        from payonce.engine.outbox import relay_step
        from payonce.queues.redis import RedisRelay, RedisStore
        from payonce.queues.redis.refill import refill as put_back

        async with open_app() as app, RedisStore.open(_redis_url(app), app.database) as store:
            refilled = await put_back(store)
            while await relay_step(app.database, RedisRelay(store)):
                pass
        rows = [("put back", refilled.put_back), ("parked again", refilled.parked)]
        show(asdict(refilled), as_json, table("Refilled", ("what", "messages"), rows))

    run_async(act())


def move(
    to: Annotated[str, typer.Option("--to", help="redis or postgres.")],
    as_json: JsonOption = False,
) -> None:
    """Move the messages of all queues to the other backend. Stop the workers first."""

    async def act() -> None:
        from payonce.queues.backends import refuse_while_running
        from payonce.queues.redis import RedisStore
        from payonce.queues.transfer import move_to_postgres, move_to_redis

        if to not in TARGETS:
            raise Invalid(f"there is no backend {to!r}; there are: {', '.join(TARGETS)}")
        async with open_app() as app, RedisStore.open(_redis_url(app), app.database) as store:
            await refuse_while_running(app.database)
            if to == "redis":
                moved = await move_to_redis(app.database, app.notifier, store)
            else:
                moved = await move_to_postgres(app.database, app.notifier, store)
        show({"moved": moved, "to": to}, as_json, table("Moved", ("to", "messages"), [(to, moved)]))

    run_async(act())


async def refuse(app: "App", queue: str) -> None:
    """Raises Invalid if the queue is in another backend, where its workers would not see the change."""
    from payonce.queues.backends import other_backend, queues_of_other_backends

    if queue in await queues_of_other_backends(app.database, app.backend.name):
        raise Invalid(f"{other_backend(queue, app.backend.name)}; {_way_out(app)}")


async def warn(app: "App", queue: str | None = None) -> None:
    """Warns that the figures of a queue in another backend are not those that its workers see."""
    from payonce.queues.backends import other_backend, queues_of_other_backends

    for name in await queues_of_other_backends(app.database, app.backend.name):
        if queue is None or name == queue:
            note(f"warning: {other_backend(name, app.backend.name)}; {_way_out(app)}")
            return


def _way_out(app: "App") -> str:
    return (
        "set REDIS_URL and PAYONCE_QUEUES to its workers' values, or move the queues with: "
        f"payonce queues move --to {app.backend.name}"
    )


def _redis_url(app: "App") -> str:
    url = app.settings.redis_url
    if url is None:
        raise Invalid("REDIS_URL is not set; set it to the Redis server in question, such as redis://localhost:6379/0")
    return url.get_secret_value()
