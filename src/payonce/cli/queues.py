"""`queues`: inspect and control queues."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from payonce.cli import changes, operations, pushed_queues, redis_queues
from payonce.cli.arguments import ByOption, QueueArgument, StateOption, operator_name, parsed_id
from payonce.cli.output import JsonOption, command_settings, open_app, run_async, show, table
from payonce.cli.queue_depths import stored_depths
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.app.process import App
    from payonce.engine.messages.model import Message
    from payonce.engine.messages.ports import Depth, QueuedMessage

INPUT_MAX_BYTES: Final = 1024 * 1024
"""Of standard input: four times the limit of a payload, whose own error can then name that limit."""
PEEK_DEFAULT: Final = 20
PAYLOAD_SHOWN: Final = 120

HELP: Final = """Inspect and control queues.

\b
Examples:
  payonce queues list
  payonce queues peek tally-changes --state parked
  payonce queues redrive tally-changes --error-contains 'is not there yet'
  echo '{"row_id": 1}' | payonce queues put tally-changes -
  payonce queues refill
  payonce queues move --to redis
  payonce queues sync --to cloudtasks --dry-run
  payonce queues tune
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
commands.command("redrive")(changes.redrive)
commands.command("purge")(changes.purge)
commands.command("operations")(operations.operations)
commands.command("stop")(operations.stop)
commands.command("refill")(redis_queues.refill)
commands.command("move")(redis_queues.move)
commands.command("sync")(pushed_queues.sync)
commands.command("tune")(pushed_queues.tune)


@commands.command("list")
def list_queues(as_json: JsonOption = False) -> None:
    """List queues with message counts by state, age of the oldest message and pause status."""

    async def act() -> None:
        depths = await stored_depths(command_settings())
        if depths is None:
            async with open_app() as app:
                await redis_queues.warn(app)
                depths = [await app.admin.depth(name) for name in await app.admin.queues()]
        show({"queues": [asdict(depth) for depth in depths]}, as_json, _depth_table(depths))

    run_async(act())


@commands.command("show")
def show_queue(queue: QueueArgument, as_json: JsonOption = False) -> None:
    """Show a queue: message counts, pause reason, and its policy with tuned values."""

    async def act() -> None:
        async with open_app() as app:
            await redis_queues.warn(app, queue)
            depth = await app.admin.depth(queue)
            declared = await _declared(app, queue)
        policy = declared["policy"]
        rows = [(name, value) for name, value in policy.items() if name != "backoff"]
        rows += [(f"backoff.{name}", value) for name, value in policy.get("backoff", {}).items()]
        rows += [("paused_reason", declared["paused_reason"])] if depth.paused else []
        policy_table = table("Policy", ("field", "value"), rows)
        show({**asdict(depth), **declared}, as_json, _depth_table([depth]), policy_table)

    run_async(act())


@commands.command("peek")
def peek(
    queue: QueueArgument,
    state: StateOption = "ready",
    limit: Annotated[int, typer.Option(help="At most this many, up to 1000.")] = PEEK_DEFAULT,
    after: Annotated[str | None, typer.Option(help="Continue after this message id, for the next page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List messages in the order they fall due.

    Example: payonce queues peek tally-changes --state parked --limit 5
    """
    from payonce.engine.messages.model import State

    behind = None if after is None else parsed_id(after)

    async def act() -> None:
        async with open_app() as app:
            await redis_queues.warn(app, queue)
            found = await app.admin.peek(queue, State(state), limit, behind)
        following = str(found[-1].message.id) if len(found) == limit else None
        result = {"queue": queue, "state": state, "messages": described(found), "next_after": following}
        nothing = f"no {'further ' if behind else ''}message of {queue} is {state}"
        show(result, as_json, message_table(f"{queue}: {state}", found) if found else nothing)

    run_async(act())


@commands.command("pause")
def pause(
    queue: QueueArgument,
    reason: Annotated[str, typer.Option(help="The reason, shown to other operators.")] = "paused by an operator",
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pause a queue. Runs in progress finish; nothing is lost."""
    _set_paused(queue, reason, by, as_json)


@commands.command("resume")
def resume(queue: QueueArgument, by: ByOption = None, as_json: JsonOption = False) -> None:
    """Resume a paused queue."""
    _set_paused(queue, None, by, as_json)


@commands.command("put")
def put(
    queue: QueueArgument,
    body: Annotated[str, typer.Argument(metavar="JSON|-", help="An envelope or a payload; - reads standard input.")],
    delay: Annotated[float | None, typer.Option(help="Seconds until the message is due.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: repeating it returns the first message's id.")
    ] = None,
    action: Annotated[str | None, typer.Option(help="The action, for queues that have several.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Correlation id, which `payonce trace` finds.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Put one message into a queue.

    Example: payonce queues put tally-changes '{"row_id": 1}' --delay 10 --key change:1
    """
    said = {"delay_s": delay, "idempotency_key": key, "action": action, "correlation_id": correlation_id}
    message = _message(queue, _read_body(body), said)

    async def act() -> None:
        async with open_app() as app:
            await redis_queues.refuse(app, queue)
            [accepted] = await app.feed.put([message])
        fresh = accepted == message.id
        result = {"queue": queue, "id": str(accepted), "accepted": fresh}
        show(
            result,
            as_json,
            f"put {accepted} into {queue}" if fresh else f"the idempotency key was used before, by message {accepted}",
        )

    run_async(act())


def described(found: "Sequence[QueuedMessage]") -> list[dict[str, Any]]:
    """Stored messages, with secrets redacted."""
    from payonce.app.logging import without_secrets

    return [
        {
            **{name: value for name, value in _plain_message(stored.message).items() if name != "payload"},
            "state": stored.state.value,
            "ready_at": stored.ready_at if stored.due_known else None,
            "crashes": stored.crashes,
            "lease_until": stored.lease_until,
            "worker": stored.worker,
            "last_error": without_secrets(stored.last_error),
            "payload": without_secrets(stored.message.payload),
        }
        for stored in found
    ]


def message_table(title: str, found: "Sequence[QueuedMessage]") -> Any:
    rows = [
        (
            one["id"],
            one["action"],
            one["ready_at"] or "not known yet",
            one["attempts"],
            one["crashes"],
            one["last_error"],
            str(one["payload"])[:PAYLOAD_SHOWN],
        )
        for one in described(found)
    ]
    columns = ("id", "action", "due", "attempts", "crashes", "last error", "payload")
    return table(title, columns, rows, right=("attempts", "crashes"))


def _plain_message(message: "Message") -> dict[str, Any]:
    names = ("id", "queue", "action", "correlation_id", "idempotency_key", "created_at", "attempts", "max_attempts")
    return {**{name: getattr(message, name) for name in names}, "trace_id": message.trace, "lane": message.lane}


def _depth_table(depths: "Sequence[Depth]") -> Any:
    columns = ("queue", "ready", "delayed", "alone", "leased", "parked", "oldest s", "paused")
    rows = [(d.queue, d.ready, d.delayed, d.alone, d.leased, d.parked, d.oldest_ready_s, d.paused) for d in depths]
    return table("Queues", columns, rows, right=columns[1:7])


def _set_paused(queue: str, reason: str | None, by: str | None, as_json: bool) -> None:
    paused = reason is not None

    async def act() -> None:
        async with open_app() as app:
            await redis_queues.refuse(app, queue)
            if reason is not None:
                await app.admin.pause(queue, reason, operator_name(by))
            else:
                await app.admin.resume(queue, operator_name(by))
        show({"queue": queue, "paused": paused}, as_json, f"{queue} is {'paused' if paused else 'running'}")

    run_async(act())


async def _declared(app: "App", queue: str) -> dict[str, Any]:
    import msgspec

    row = await app.read.fetchrow(
        "select policy, paused_reason, tuned_rate, tuned_concurrency from payonce.queues where name = $1", queue
    )
    policy = msgspec.json.decode(row["policy"])
    # Values of `queues tune --apply` replace the policy's.
    tuned = {"rate": row["tuned_rate"], "concurrency": row["tuned_concurrency"]}
    policy |= {name: value for name, value in tuned.items() if value is not None}
    return {"policy": policy, "paused_reason": row["paused_reason"]}


def _read_body(body: str) -> bytes:
    if body != "-":
        return body.encode(errors="surrogateescape")
    read = sys.stdin.buffer.read(INPUT_MAX_BYTES + 1)
    if len(read) > INPUT_MAX_BYTES:
        raise Invalid(
            f"standard input has more than {INPUT_MAX_BYTES:,} bytes; store the object elsewhere and send its key"
        )
    return read


def _message(queue: str, body: bytes, given: dict[str, Any]) -> "Message":
    """Validated before connecting, so that bad input writes nothing."""
    import msgspec

    from payonce.engine.messages.model import check_message, encode_payloads, message_from_wire
    from payonce.kit.ids import new_id

    message = message_from_wire(queue, body)
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if _is_made_from_bytes(message.id):
        # Putting the same object twice means two messages, unless --key is given.
        changes["id"] = new_id()
    message = msgspec.structs.replace(message, **changes)
    check_message(message)
    encode_payloads([message])
    return message


def _is_made_from_bytes(message_id: UUID) -> bool:
    return message_id.version == 8
