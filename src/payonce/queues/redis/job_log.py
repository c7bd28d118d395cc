"""The job log of runs that end in Redis: a line there for each, and a row in PostgreSQL for those that did not
succeed."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

import msgspec

from payonce.engine.database.connections import Connection, Database, is_transient
from payonce.engine.messages.model import Message, clean_text
from payonce.kit.log import get_logger

_encode = msgspec.json.Encoder().encode

log = get_logger(__name__)


class EndedRun(msgspec.Struct, frozen=True):
    """One row of payonce.job_logs; the database sets the times of writing."""

    message: Message
    status: str
    attempts: int
    last_error: str | None
    next_retry_at: datetime | None
    worker: str | None
    started_at: datetime | None


@lru_cache(maxsize=1_024)
def _beginning(queue: str, action: str, status: str) -> str:
    return f'"queue":{_text(queue)},"action":{_text(action)},"status":"{status}","message_id":"'


def line(message: Message, status: str, attempts: int, info: str | None = None) -> str:
    """A line of q:log:jobs without its timestamp, which the script prepends."""
    detail = "null" if info is None else _text(info)
    return f'{_beginning(message.queue, message.action, status)}{message.id}","attempts":{attempts},"info":{detail}}}'


def as_json(text: str) -> str:
    """The JSON escape of a text, without quotes."""
    return _text(text)[1:-1]


def _text(text: str) -> str:
    return _encode(text).decode()


async def write_runs(source: Database | Connection, runs: Sequence[EndedRun]) -> None:
    if not runs:
        return
    columns = zip(
        *(
            (
                run.message.queue,
                run.message.id,
                _clean(run.message.correlation_id),
                _clean(run.message.idempotency_key),
                _clean(run.message.trace_id),
                run.status,
                run.attempts,
                run.last_error,
                run.next_retry_at,
                _clean(run.message.action),
                run.worker,
                run.started_at,
            )
            for run in runs
        ),
        strict=True,
    )
    await (source.engine if isinstance(source, Database) else source).execute(_INSERT, *map(list, columns))


def _clean(text: str | None) -> str | None:
    """Removes what PostgreSQL cannot store and a manually pushed message may contain."""
    return None if text is None else clean_text(text)


async def try_to_write_runs(database: Database, runs: Sequence[EndedRun]) -> None:
    """Writes rows for runs that have ended in Redis, where they are logged as well. A failure is only logged:
    PostgreSQL's refusal must not make them run again."""
    try:
        await write_runs(database, runs)
    except Exception as error:
        if len(runs) > 1 and not is_transient(error):
            middle = len(runs) // 2
            await try_to_write_runs(database, runs[:middle])
            await try_to_write_runs(database, runs[middle:])
            return
        log.error("job_log_not_written", runs=len(runs), error=str(error))


_INSERT: Final = """
    insert into payonce.job_logs (queue, message_id, correlation_id, idempotency_key, trace_id, status, attempts,
                                  last_error, next_retry_at, action, worker, started_at, created_at, updated_at)
    select *, payonce.due_now(), payonce.due_now()
    from unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[], $8::text[],
                $9::timestamptz[], $10::text[], $11::text[], $12::timestamptz[])"""
