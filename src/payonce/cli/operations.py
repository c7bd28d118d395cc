"""`queues operations` and `queues stop`: redrives and purges in batches, with their progress."""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from payonce.cli.arguments import ByOption, operator_name
from payonce.cli.output import JsonOption, note, open_app, run_async, show, table

if TYPE_CHECKING:
    from payonce.app.process import App
    from payonce.engine.messages.bulk import Operation

LISTED: Final = 20
STALLED_S: Final = 1.0
"""Wait when another process has locked the remaining messages, or is about to record its progress."""

OptionalQueue = Annotated[str | None, typer.Argument(help="Only operations on this queue.")]
OperationArgument = Annotated[int, typer.Argument(help="Its number, from `payonce queues operations`.")]


def operations(queue: OptionalQueue = None, as_json: JsonOption = False) -> None:
    """List redrives and purges of more than 50,000 messages, newest first, with their progress.

    Example: payonce queues operations q:sub:payment_initiation
    """

    async def act() -> None:
        from payonce.engine.messages import bulk
        from payonce.engine.messages.declarations import check_known

        async with open_app() as app:
            if queue is not None:
                await check_known(app.database.engine, queue)
            found = await bulk.operations(app.read, queue, LISTED)
        rows = [
            (each.id, each.kind, each.queue, each.status, each.changed, each.kept, each.total, each.asked_by)
            for each in found
        ]
        columns = ("operation", "kind", "queue", "status", "changed", "kept", "of", "asked by")
        listed = table("Operations", columns, rows, ("changed", "kept", "of")) if rows else "no operation"
        show({"operations": [described(each) for each in found]}, as_json, listed)

    run_async(act())


def stop(operation: OperationArgument, by: ByOption = None, as_json: JsonOption = False) -> None:
    """Stop an operation. Changes already made are kept.

    Example: payonce queues stop 12
    """

    async def act() -> None:
        from payonce.engine.messages import bulk

        async with open_app() as app, app.begin() as tx:
            stopped = await bulk.stop(tx, operation, operator_name(by))
        show(described(stopped), as_json, stopped.text)

    run_async(act())


async def follow(app: "App", operation_id: int) -> "Operation":
    """Runs the operation here in batches and prints its progress. If interrupted, the leading process continues it."""
    from payonce.engine.messages import bulk

    operation = await bulk.operation_of(app.read, operation_id)
    assert operation is not None
    while operation.status is bulk.Status.RUNNING:
        before = operation.changed
        operation = await bulk.step(app.database, app.admin, app.feed, operation)
        note(f"operation {operation.id}: {operation.text}")
        if operation.status is bulk.Status.RUNNING and operation.changed == before:
            await asyncio.sleep(STALLED_S)
    if operation.status is bulk.Status.DONE and operation.changed + operation.kept < operation.total:
        # The leading process helps, and may have changed the last messages without having recorded them.
        await asyncio.sleep(STALLED_S)
        operation = await bulk.operation_of(app.read, operation_id) or operation
    return operation


def described(operation: "Operation") -> dict[str, Any]:
    plain = asdict(operation)
    del plain["which"]
    return plain
