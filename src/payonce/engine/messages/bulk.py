"""Redrives and purges of more messages than one transaction changes: in batches, with recorded progress.

The leader carries them out, a command that waits for one helps, and after a crash they continue. When two processes
work on the same operation, each message is changed once: messages taken by one are no longer there for the other.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from payonce.engine.audit import Severity, note
from payonce.engine.database.connections import Database
from payonce.engine.messages.model import State, clean_text
from payonce.engine.messages.ports import Admin, Filter
from payonce.engine.messages.transaction import NotifyingFeed, Reader, Tx
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid
from payonce.kit.redact import redact

BULK_MAX: Final = 50_000
"""Messages that one transaction redrives; more make an operation."""
BATCH: Final = 2_000
BATCHES_AT_ONCE: Final = 25
"""Per tick of the leader, so that several operations take turns."""
LISTED_MAX: Final = 100

log = get_logger(__name__)


class Kind(StrEnum):
    REDRIVE = "redrive"
    PURGE = "purge"


class Status(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """It cannot continue, for the recorded reason; changes made so far stay."""
    STOPPED = "stopped"
    """By a person; changes made so far stay."""


TRANSITIONS: Final = {
    Status.RUNNING: frozenset({Status.DONE, Status.FAILED, Status.STOPPED}),
    Status.DONE: frozenset[Status](),
    Status.FAILED: frozenset[Status](),
    Status.STOPPED: frozenset[Status](),
}


@dataclass(frozen=True)
class Operation:
    """One redrive or purge and its progress."""

    id: int
    kind: Kind
    queue: str
    state: State
    which: Filter
    asked_by: str
    why: str
    total: int
    """Matching messages at the start; counting stops at a million."""
    changed: int
    kept: int
    """Messages with open effects, which a purge leaves."""
    status: Status
    error: str | None
    created_at: datetime
    updated_at: datetime

    @property
    def share(self) -> float:
        if self.status is Status.DONE or not self.total:
            return 1.0
        return min(1.0, (self.changed + self.kept) / self.total)

    @property
    def text(self) -> str:
        """A summary for people."""
        verb = "redriven" if self.kind is Kind.REDRIVE else "purged"
        kept = f", {self.kept:,} stay because money may be under way" if self.kept else ""
        error = f": {self.error}" if self.error else ""
        return f"{self.changed:,} of {self.total:,} messages of {self.queue} {verb}{kept} ({self.status}{error})"


async def start(
    tx: Tx, kind: Kind, queue: str, state: State, which: Filter, total: int, by: str, why: str
) -> Operation:
    """Starts the operation with the commit of the caller's transaction. Messages parked after that are not included."""
    if state is State.PARKED:
        end: datetime = await tx.fetchval("select payonce.due_now() + interval '1 microsecond'")
        which = replace(which, parked_before=end if which.parked_before is None else min(which.parked_before, end))
    row = await tx.fetchrow(
        f"""
        insert into payonce.queue_operations (kind, queue, message_state, which, asked_by, why, total)
        values ($1, $2, $3, $4::text::json, $5, $6, $7) returning {_COLUMNS}
        """,
        kind,
        queue,
        state,
        msgspec.json.encode(which).decode(),
        clean_text(by),
        clean_text(why),
        total,
    )
    operation = _operation(row)
    text = f"operation {operation.id}: {kind} of {total:,} {state} messages in batches: {why}"
    await note(tx.connection, f"queues.{kind}", queue, clean_text(text), actor=by, severity=Severity.WARNING)
    return operation


async def operation_of(read: Reader | Tx, operation_id: int) -> Operation | None:
    row = await read.fetchrow(f"select {_COLUMNS} from payonce.queue_operations where id = $1", operation_id)
    return None if row is None else _operation(row)


async def operations(read: Reader | Tx, queue: str | None = None, limit: int = 20) -> list[Operation]:
    """Newest first."""
    rows = await read.fetch(
        f"""
        select {_COLUMNS} from payonce.queue_operations where $1::text is null or queue = $1
        order by id desc limit $2
        """,
        queue,
        min(limit, LISTED_MAX),
    )
    return [_operation(row) for row in rows]


async def stop(tx: Tx, operation_id: int, by: str) -> Operation:
    """Stops an operation; changes made so far stay. An operation that has ended is not affected."""
    row = await tx.fetchrow(
        f"""
        update payonce.queue_operations set status = 'stopped', updated_at = payonce.due_now()
        where id = $1 and status = 'running' returning {_COLUMNS}
        """,
        operation_id,
    )
    if row is not None:
        stopped = _operation(row)
        text = f"operation {operation_id} stopped: {stopped.text}"
        await note(tx.connection, f"queues.{stopped.kind}", stopped.queue, text, actor=by)
        return stopped
    found = await operation_of(tx, operation_id)
    if found is None:
        raise Invalid(f"there is no operation {operation_id}; see: payonce queues operations")
    return found


async def carry_on(database: Database, admin: Admin, feed: NotifyingFeed) -> int:
    """Runs a few batches of every running operation. Returns the number of messages changed."""
    rows = await database.engine.fetch(
        f"select {_COLUMNS} from payonce.queue_operations where status = 'running' order by id limit {LISTED_MAX}"
    )
    return sum([await _some(database, admin, feed, _operation(row)) for row in rows])


async def _some(database: Database, admin: Admin, feed: NotifyingFeed, operation: Operation) -> int:
    before = operation.changed
    for _ in range(BATCHES_AT_ONCE):
        after = await step(database, admin, feed, operation)
        if after.status is not Status.RUNNING or after.changed == operation.changed:
            return after.changed - before
        operation = after
    return operation.changed - before


async def step(database: Database, admin: Admin, feed: NotifyingFeed, operation: Operation) -> Operation:
    """Runs one batch and returns the operation after it. A batch is not counted if the process ends before its progress
    is recorded."""
    try:
        changed, over = await _batch(admin, operation)
    except Invalid as error:
        log.error("operation_failed", operation=operation.id, queue=operation.queue, error=redact(str(error)))
        return await _ended(database, operation, Status.FAILED, clean_text(redact(str(error))))
    if changed:
        row = await database.engine.fetchrow(
            f"""
            update payonce.queue_operations set changed = changed + $2, updated_at = payonce.due_now()
            where id = $1 returning {_COLUMNS}
            """,
            operation.id,
            changed,
        )
        operation = _operation(row)
        if operation.kind is Kind.REDRIVE:
            feed.notify({operation.queue})
    if not over or operation.status is not Status.RUNNING:
        return operation
    kept = 0
    if operation.kind is Kind.PURGE:
        kept = (await admin.preview(operation.queue, operation.state, operation.which)).with_open_effects
    return await _ended(database, operation, Status.DONE, None, kept)


async def _batch(admin: Admin, operation: Operation) -> tuple[int, bool]:
    """The number of messages changed, and whether none is left."""
    queue, state, which = operation.queue, operation.state, operation.which
    if operation.kind is Kind.PURGE:
        by = f"{operation.asked_by}, operation {operation.id}: {operation.why}"
        gone = await admin.purge(queue, state, which, by, limit=BATCH, put_before=operation.created_at)
        return gone, not gone
    ids = await admin.choose(queue, state, which, BATCH)
    # Messages locked by others right now are found by the next batch.
    return (await admin.redrive(queue, Filter(ids=ids)) if ids else 0), not ids


async def _ended(
    database: Database, operation: Operation, status: Status, error: str | None, kept: int = 0
) -> Operation:
    """Ends the operation unless it has ended otherwise meanwhile."""
    row = await database.engine.fetchrow(
        f"""
        update payonce.queue_operations
        set status = case when status = 'running' then $2 else status end, error = coalesce($3, error),
            kept = greatest(kept, $4), updated_at = payonce.due_now()
        where id = $1 returning {_COLUMNS}
        """,
        operation.id,
        status,
        error,
        kept,
    )
    return _operation(row)


_COLUMNS: Final = """id, kind, queue, message_state, which, asked_by, why, total, changed, kept, status, error,
    created_at, updated_at"""


def _operation(row: Any) -> Operation:
    fields = dict(row)
    which = msgspec.json.decode(fields.pop("which"), type=Filter)
    return Operation(
        state=State(fields.pop("message_state")),
        kind=Kind(fields.pop("kind")),
        status=Status(fields.pop("status")),
        which=which,
        **fields,
    )
