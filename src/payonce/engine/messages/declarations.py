"""Queues as declared by their services, and whether they are paused. PostgreSQL's record applies, wherever a queue's
messages are stored."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

from payonce.engine.audit import Severity, note
from payonce.engine.database.connections import Connection
from payonce.engine.messages.model import clean_text
from payonce.engine.messages.policy import Policy, policy_as_described
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.engine.ledger.model import Reads

log = get_logger(__name__)


class UnknownQueue(Invalid):
    """No service has declared a queue with this name."""


@dataclass(frozen=True)
class QueueDeclaration:
    policy: Policy | None
    """None when a release declared it whose description this one cannot read."""
    on_give_up: str
    paused_reason: str | None


async def queue_declaration(read: "Reads", queue: str) -> QueueDeclaration | None:
    """The queue's declaration; None when no service has declared it in this database."""
    row = await read.fetchrow("select policy, paused_reason from payonce.queues where name = $1", queue)
    if row is None:
        return None
    description: dict[str, Any] = msgspec.json.decode(row["policy"])
    try:
        policy = policy_as_described(description)
    except (Invalid, TypeError):
        policy = None
    return QueueDeclaration(policy, str(description.get("on_give_up", "park")), row["paused_reason"])


async def queue_names(source: asyncpg.Pool | Connection) -> list[str]:
    return [row["name"] for row in await source.fetch("select name from payonce.queues order by name")]


async def check_known(source: asyncpg.Pool | Connection, queue: str) -> None:
    if not await source.fetchval("select exists (select from payonce.queues where name = $1)", queue):
        raise await unknown_queue(source, queue)


async def unknown_queue(source: asyncpg.Pool | Connection, queue: str) -> UnknownQueue:
    names = await queue_names(source)
    listed = f"known are: {', '.join(names)}" if names else "none is declared yet: start a service first"
    return UnknownQueue(f"there is no queue {queue!r}; {listed}")


async def set_paused(
    connection: Connection, queue: str, reason: str | None, by: str, severity: Severity = Severity.INFO
) -> None:
    """Pauses the queue with the reason, or resumes it with None, in the caller's transaction. Until that ends, nobody
    else changes or declares the queue."""
    await check_known(connection, queue)
    await connection.execute(
        "update payonce.queues set paused = $2, paused_reason = $3 where name = $1", queue, reason is not None, reason
    )
    text = "resumed" if reason is None else f"paused: {reason}"
    await note(connection, "queues.pause", queue, text, actor=by, severity=severity)


async def pause_loudly(connection: Connection, queue: str, reason: str, by: str) -> bool:
    """Pauses the queue of a service that cannot continue without a person. False when it is already paused; the first
    reason stays."""
    if await connection.fetchval("select paused from payonce.queues where name = $1 for no key update", queue):
        return False
    why = f"{reason}; after the repair: payonce queues resume {queue}"
    await set_paused(connection, queue, clean_text(why), by, Severity.ERROR)
    log.error("queue_paused", queue=queue, reason=reason, by=by)
    return True
