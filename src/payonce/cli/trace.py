"""`trace`: the runs and messages of one payment, in time order."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from payonce.cli.errors import EXIT_FAILED
from payonce.cli.output import JsonOption, note, open_app, run_async, show, table

if TYPE_CHECKING:
    from payonce.engine.messages.ports import QueuedMessage


def trace(
    what: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="A trace, message or correlation id, an idempotency key, or an id of a service's own.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show one message or payment: finished runs and waiting messages.

    Example: payonce trace 0199a3c4-7d1e-7c3b-9a1f-2f6f1f0e8a11
    """
    found = run_async(_trace(what))
    in_redis = found.pop("in_redis")
    rows = [
        (
            one["at"],
            one["queue"],
            one["action"],
            one["status"],
            one["attempts"],
            one["worker"],
            one["last_error"] or one["info"],
        )
        for one in found["entries"]
    ]
    columns = ("time", "queue", "action", "status", "attempts", "worker", "what it says")
    show(found, as_json, *([table(f"Trace of {what}", columns, rows, right=("attempts",))] if rows else []))
    if found["truncated"]:
        note("older entries were omitted")
    if not rows:
        note(f"nothing was found for {what!r}; check that it is of this database and newer than PAYONCE_JOB_LOG_DAYS")
        if in_redis:
            note("messages put directly into Redis are found only by message id until their first run")
        raise typer.Exit(EXIT_FAILED)


async def _trace(what: str) -> dict[str, Any]:
    from dataclasses import asdict

    from payonce.app.logging import without_secrets
    from payonce.engine.messages import job_log
    from payonce.engine.messages.search import find_anywhere

    async with open_app() as app:
        found = await job_log.trace(app.read, what)
        for known in () if found.entries else await app.known_as(what):
            found = await job_log.trace(app.read, known)
        waiting = None if found.entries else await find_anywhere(app.admin, what)
        in_redis = app.backend.name == "redis"
    entries = [
        {
            **asdict(entry),
            "last_error": without_secrets(entry.last_error),
            "info": without_secrets(entry.info),
            "live": entry.live,
        }
        for entry in found.entries
    ]
    trace_ids = list(found.trace_ids)
    if waiting is not None:
        entries.append(_described(waiting))
        trace_ids.append(waiting.message.trace)
    return {
        "what": what,
        "trace_ids": trace_ids,
        "entries": entries,
        "truncated": found.truncated,
        "in_redis": in_redis,
    }


def _described(stored: "QueuedMessage") -> dict[str, Any]:
    """A message that has not run yet, as an entry."""
    from payonce.app.logging import without_secrets

    message = stored.message
    return {
        "at": message.created_at,
        "queue": message.queue,
        "action": message.action,
        "message_id": message.id,
        "trace_id": message.trace,
        "correlation_id": message.correlation_id,
        "idempotency_key": message.idempotency_key,
        "status": stored.state.value,
        "attempts": message.attempts,
        "worker": stored.worker,
        "last_error": without_secrets(stored.last_error),
        "info": None,
        "live": True,
    }
