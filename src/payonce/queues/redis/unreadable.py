"""Parked messages that only Redis has, and that belong in PostgreSQL's job log: unreadable bodies, and messages put
directly into Redis.

Parking one leaves an entry in `…:unlogged`. The next sweep of any worker writes the row and removes the entry, so
nothing stays unlogged if a worker dies in between.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from payonce.engine.database.connections import is_transient
from payonce.engine.messages.job_log import EndedRun, write_runs
from payonce.engine.messages.model import Message, clean_text
from payonce.kit.log import get_logger
from payonce.queues.redis.codec import id_of_bytes, id_text
from payonce.queues.redis.job_log import as_json, line
from payonce.queues.redis.keys import unlogged_key
from payonce.queues.redis.settlement import ScriptArguments, as_uuid, moment, parking_arguments
from payonce.queues.redis.store import RedisStore

LOGGED_MAX: Final = 500
"""Limit per sweep."""

log = get_logger(__name__)


async def park_unreadable(
    store: RedisStore, queue: str, body: bytes, token: int, now_us: int, error: str
) -> ScriptArguments:
    """Leaves the entry; returns the arguments that park the claimed body."""
    name, reason = id_text(body), clean_text(f"this message cannot be read: {error}")
    log.error("message_unreadable", queue=queue, message_id=name, error=error)
    known_as = as_uuid(name) or id_of_bytes(body)
    await store.command("LPUSH", unlogged_key(queue), f"{known_as} {now_us} {reason}")
    nameless = Message(queue=queue)
    log_line = line(nameless, "parked", 0, reason).replace(str(nameless.id), as_json(name))
    return parking_arguments(name, token, reason, log_line)


async def log_unreadable(store: RedisStore, queue: str, worker: str) -> None:
    """Writes missing rows to PostgreSQL. While it is unreachable the entries stay."""
    entries: list[bytes] = await store.command("LRANGE", unlogged_key(queue), -LOGGED_MAX, -1)
    if not entries:
        return
    try:
        await _log(store, queue, entries, worker)
    except Exception as error:
        if not is_transient(error):
            raise
        log.warning("job_log_not_written", queue=queue, runs=len(entries), error=str(error))
        return
    for entry in entries:
        await store.command("LREM", unlogged_key(queue), -1, entry)


async def _log(store: RedisStore, queue: str, entries: Sequence[bytes], worker: str) -> None:
    found = {entry: _read(queue, entry, worker) for entry in entries}
    runs = {(run.message.id, run.started_at): run for run in found.values() if run is not None}
    async with store.database.engine.acquire() as connection, connection.transaction():
        # Serialises sweeps: the second one finds the rows of the first.
        await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", f"payonce unreadable {queue}")
        rows = await connection.fetch(
            """
            select message_id, started_at from payonce.job_logs
            where queue = $1 and message_id = any($2) and status = 'parked'
            """,
            queue,
            [message_id for message_id, _ in runs],
        )
        known = {(row["message_id"], row["started_at"]) for row in rows}
        missing = [run for key, run in runs.items() if key not in known]
        await write_runs(connection, missing)


def _read(queue: str, entry: bytes, worker: str) -> EndedRun | None:
    """Parses an entry; None for foreign content."""
    name, _, rest = entry.decode("utf-8", "replace").partition(" ")
    parked_us, _, reason = rest.partition(" ")
    message_id: UUID | None = as_uuid(name)
    if message_id is None or not parked_us.isdecimal():
        return None
    parked_at: datetime = moment(parked_us)
    return EndedRun(Message(id=message_id, queue=queue), "parked", 0, clean_text(reason), None, worker, parked_at)
