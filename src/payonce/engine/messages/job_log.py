"""The job log: the SQL that writes ended runs, and queries over ended runs and live messages.

Every insert into payonce.job_logs is made here. A queue embeds `insert_runs` in the statement that ends the runs, so
that logging shares its round trip.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from payonce.engine.database.connections import Connection, Database
from payonce.engine.messages.model import NAME_MAX_LENGTH, Message, clean_text
from payonce.kit.outcomes import Invalid

RECENT_DEFAULT: Final = 100
RECENT_MAX: Final = 1_000
RUNS_MAX: Final = 1_000
"""Per message or trace, the newest: a message retried for months has more runs than anybody reads."""
TRACES_MAX: Final = 20
"""Traces per correlation id or key; the newest."""
INFO_MAX_LENGTH: Final = 500
"""A sentence or two; the table refuses more."""


class Status(StrEnum):
    """The first two are derived from live rows. The others end a run, and are also shown while the message waits."""

    RECEIVED = "received"
    PROCESSING = "processing"
    SUCCESS = "success"
    RETRY = "retry"
    FAILED = "failed"
    PARKED = "parked"


LOGGED: Final = (Status.SUCCESS, Status.RETRY, Status.FAILED, Status.PARKED)
ERRORS: Final = (Status.FAILED, Status.PARKED)
"""Runs that failed for good."""


def insert_runs(
    source: str,
    run: str,
    *,
    status: str,
    attempts: str,
    last_error: str = "null",
    info: str = "null",
    next_retry_at: str = "null",
    worker: str = "null",
    started_at: str = "null",
) -> str:
    """SQL that logs one ended run for every row of `source`, a FROM clause in which `run` names the message's row. The
    other arguments are SQL expressions."""
    return f"""
        insert into payonce.job_logs (queue, message_id, correlation_id, idempotency_key, trace_id, action, status,
            attempts, last_error, info, next_retry_at, worker, started_at, created_at, updated_at)
        select {run}.queue, {run}.id, {run}.correlation_id, {run}.idempotency_key, {run}.trace_id, {run}.action,
            {status}, {attempts}, {last_error}, {info}, {next_retry_at}, {worker}, {started_at}, payonce.due_now(),
            payonce.due_now()
        from {source}"""


class EndedRun(msgspec.Struct, frozen=True):
    """One row of the job log; the store's clock says when it was written."""

    message: Message
    status: str
    attempts: int
    last_error: str | None = None
    next_retry_at: datetime | None = None
    worker: str | None = None
    started_at: datetime | None = None
    info: str | None = None


_WRITE_RUNS: Final = insert_runs(
    """unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::integer[],
             $9::text[], $10::text[], $11::timestamptz[], $12::text[], $13::timestamptz[])
            as run (queue, id, correlation_id, idempotency_key, trace_id, action, status, attempts, last_error, info,
                    next_retry_at, worker, started_at)""",
    "run",
    status="run.status",
    attempts="run.attempts",
    last_error="run.last_error",
    info="run.info",
    next_retry_at="run.next_retry_at",
    worker="run.worker",
    started_at="run.started_at",
)


async def write_runs(source: Database | Connection, runs: Sequence[EndedRun]) -> None:
    """Logs runs that end outside PostgreSQL, in one statement."""
    if not runs:
        return
    columns = zip(*map(_row_of, runs), strict=True)
    await (source.engine if isinstance(source, Database) else source).execute(_WRITE_RUNS, *map(list, columns))


def _row_of(run: EndedRun) -> tuple[object, ...]:
    """Directly pushed messages may hold text that PostgreSQL refuses; it is cleaned here."""
    message = run.message
    names = (message.correlation_id, message.idempotency_key, message.trace_id, message.action)
    return (
        message.queue,
        message.id,
        *(None if text is None else clean_text(text) for text in names),
        run.status,
        run.attempts,
        run.last_error,
        None if run.info is None else run.info[:INFO_MAX_LENGTH],
        run.next_retry_at,
        run.worker,
        run.started_at,
    )


class Readable(Protocol):
    """A pool, a connection or a Reader."""

    async def fetch(self, query: str, /, *args: Any) -> list[Any]: ...


@dataclass(frozen=True)
class Entry:
    """One ended run, or one live message."""

    id: int | None
    """Position in the log; None for a live message."""
    at: datetime
    """Position in time: when a run ended, or when a message was put, claimed or parked, or will be retried."""
    queue: str
    message_id: UUID
    trace_id: str
    status: Status
    attempts: int
    action: str
    correlation_id: str | None
    idempotency_key: str | None
    last_error: str | None
    info: str | None
    """A remark of the run that is not an error."""
    next_retry_at: datetime | None
    worker: str | None
    started_at: datetime | None
    created_at: datetime
    updated_at: datetime

    @property
    def live(self) -> bool:
        return self.id is None


@dataclass(frozen=True)
class Trace:
    """All entries of one request, in time order."""

    trace_ids: tuple[str, ...]
    entries: tuple[Entry, ...]
    truncated: bool
    """True when older entries or further traces were left out."""


async def recent(
    reader: Readable,
    *,
    queue: str | None = None,
    queues: Sequence[str] | None = None,
    status: Status | str | Sequence[Status] | None = None,
    action: str | None = None,
    correlation_id: str | None = None,
    idempotency_key: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = RECENT_DEFAULT,
    before_id: int | None = None,
) -> list[Entry]:
    """Ended runs, newest first, of one queue or several. For the next page, pass the last id as `before_id`."""
    if not 1 <= limit <= RECENT_MAX:
        raise Invalid(f"limit is {limit}; it must be between 1 and {RECENT_MAX}")
    if before_id is not None and not 0 < before_id < 2**63:
        raise Invalid(f"before_id is {before_id}; give the id of the last entry of the previous page")
    _check_moments(since, until)
    texts = {"queue": queue, "action": action, "correlation_id": correlation_id, "idempotency_key": idempotency_key}
    conditions: list[str] = []
    arguments: list[object] = [limit]
    # Only given filters are in the statement: a condition that may be absent would keep the planner from the index.
    for name, text in texts.items():
        if text is not None:
            arguments.append(_checked_text(name, text))
            conditions.append(f"{name} = ${len(arguments)}")
    if queues is not None:
        arguments.append(list(queues))
        conditions.append(f"queue = any(${len(arguments)}::text[])")
    for comparison, value in (("created_at >=", since), ("created_at <", until), ("id <", before_id)):
        if value is not None:
            arguments.append(value)
            conditions.append(f"{comparison} ${len(arguments)}")
    if status is not None:
        statuses = [status] if isinstance(status, str) else status
        # Written as literals, because the planner chooses the index of failures only if it sees these values.
        conditions.append(f"status in ({', '.join(repr(_logged_status(each).value) for each in statuses)})")
    where = "where " + " and ".join(conditions) if conditions else ""
    rows = await reader.fetch(
        f"select {_LOG_COLUMNS} from payonce.job_logs {where} order by id desc limit $1", *arguments
    )
    return [_entry(row) for row in rows]


async def of_message(reader: Readable, message_id: UUID) -> list[Entry]:
    """The history of one message in time order: its ended runs, and the message itself while it lives."""
    rows = await reader.fetch(
        f"select {_LOG_COLUMNS} from payonce.job_logs where message_id = $1 order by id desc limit {RUNS_MAX}",
        message_id,
    )
    rows += await reader.fetch(f"select {_LIVE_COLUMNS} from payonce.live_messages where id = $1", message_id)
    return _in_time_order(rows)


async def trace(reader: Readable, what: str) -> Trace:
    """All entries for a trace id, message id, correlation id or idempotency key; empty when it is unknown."""
    what = _checked_text("id", what)
    trace_ids = await _traces_behind(reader, what)
    shown = trace_ids[:TRACES_MAX]
    message_ids = [parsed for parsed in map(_parsed_id, shown) if parsed is not None]
    # One more than is shown, to detect that there is more.
    rows = await reader.fetch(
        f"""
        select {_LOG_COLUMNS} from payonce.job_logs
        where trace_id = any($1::text[]) or (message_id = any($2::uuid[]) and trace_id is null)
        order by created_at desc, id desc limit {RUNS_MAX + 1}
        """,
        shown,
        message_ids,
    )
    live = await reader.fetch(
        f"""
        select {_LIVE_COLUMNS} from payonce.live_messages
        where trace_id = any($1::text[]) or (id = any($2::uuid[]) and trace_id is null)
        order by created_at desc, id desc limit {RUNS_MAX + 1}
        """,
        shown,
        message_ids,
    )
    truncated = len(trace_ids) > TRACES_MAX or len(rows) > RUNS_MAX or len(live) > RUNS_MAX
    return Trace(tuple(shown), tuple(_in_time_order(rows[:RUNS_MAX] + live[:RUNS_MAX])), truncated)


async def _traces_behind(reader: Readable, what: str) -> list[str]:
    """A trace id stands for itself; other ids lead to the traces of their messages. Newest first."""
    rows = await reader.fetch(
        # A message without a trace id began its own trace, under the message's id. Live messages have no index by key;
        # the table of keys leads to them, even when successes are not logged.
        f"""
        select trace, max(seen_at) as seen_at from (
            (select trace_id as trace, created_at as seen_at from payonce.job_logs
             where trace_id = $1 order by created_at desc limit 1)
            union all
            (select trace_id, created_at from payonce.live_messages where trace_id = $1 limit 1)
            union all
            (select coalesce(trace_id, message_id::text), created_at from payonce.job_logs
             where message_id = $2 order by created_at desc limit 1)
            union all
            select coalesce(trace_id, id::text), created_at from payonce.live_messages where id = $2
            union all
            (select coalesce(trace_id, message_id::text), max(created_at) from payonce.job_logs
             where correlation_id = $1 group by 1 order by 2 desc limit {TRACES_MAX + 1})
            union all
            (select coalesce(trace_id, id::text), max(created_at) from payonce.live_messages
             where correlation_id = $1 group by 1 order by 2 desc limit {TRACES_MAX + 1})
            union all
            (select coalesce(trace_id, message_id::text), max(created_at) from payonce.job_logs
             where idempotency_key = $1 group by 1 order by 2 desc limit {TRACES_MAX + 1})
            union all
            select coalesce(m.trace_id, m.id::text), m.created_at from payonce.queues q
            join payonce.idempotency_keys known on known.queue = q.name and known.key = $1
            join payonce.live_messages m on m.id = known.message_id
        ) found group by trace order by seen_at desc, trace limit {TRACES_MAX + 1}
        """,
        what,
        _parsed_id(what),
    )
    return [row["trace"] for row in rows]


# Before the column `info` existed, a success had its remark in last_error. Such rows are read until they are pruned,
# and written until the last worker of that version is gone.
_LOG_COLUMNS: Final = """id, created_at as at, queue, message_id, coalesce(trace_id, message_id::text) as trace_id,
    status, attempts, action, correlation_id, idempotency_key,
    case when status <> 'success' then last_error end as last_error,
    case when status = 'success' then coalesce(info, last_error) else info end as info,
    next_retry_at, worker, started_at, created_at, updated_at"""

# A crash is not an attempt, but a message that crashed has run. Released and redriven messages start over.
_LIVE_COLUMNS: Final = """null::bigint as id,
    case when state = 'leased' then claimed_at when state = 'parked' or attempts + crashes > 0 then ready_at
         else created_at end as at,
    queue, id as message_id, coalesce(trace_id, id::text) as trace_id,
    case when state = 'leased' then 'processing' when state = 'parked' then 'parked'
         when attempts + crashes > 0 then 'retry' else 'received' end as status,
    attempts, action, correlation_id, idempotency_key, last_error, null::text as info,
    case when state in ('ready', 'alone') then ready_at end as next_retry_at,
    case when state = 'leased' then worker end as worker,
    case when state = 'leased' then claimed_at end as started_at,
    created_at, coalesce(claimed_at, created_at) as updated_at"""


def _entry(row: Mapping[str, Any]) -> Entry:
    return Entry(**{**dict(row), "status": Status(row["status"])})


def _in_time_order(rows: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """At equal times, the live row comes last."""
    entries = [_entry(row) for row in rows]
    return sorted(entries, key=lambda entry: (entry.at, entry.live, entry.id or 0, entry.message_id))


def _parsed_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _logged_status(status: Status | str) -> Status:
    if status not in list(LOGGED):
        raise Invalid(f"status {status!r} is not in the job log; it has: {', '.join(LOGGED)}")
    return Status(status)


def _checked_text(name: str, text: str) -> str:
    if len(text) > NAME_MAX_LENGTH or text != clean_text(text):
        raise Invalid(f"{name} {text[:40]!r} must be at most {NAME_MAX_LENGTH} characters of valid text without NUL")
    return text


def _check_moments(since: datetime | None, until: datetime | None) -> None:
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.tzinfo is None:
            raise Invalid(f"{name} {moment.isoformat()} has no time zone; give one, such as +00:00")
    if since is not None and until is not None and since >= until:
        raise Invalid(f"since {since.isoformat()} is not before until {until.isoformat()}; no entry can be in between")
