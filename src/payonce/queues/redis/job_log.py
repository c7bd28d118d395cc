"""The job log of runs that end in Redis: a line there for each, and a row in PostgreSQL for those that did not
succeed."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from payonce.engine.database.connections import Database, is_transient
from payonce.engine.messages.job_log import EndedRun, write_runs
from payonce.engine.messages.model import Message
from payonce.kit.log import get_logger

_encode = msgspec.json.Encoder().encode

log = get_logger(__name__)


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
