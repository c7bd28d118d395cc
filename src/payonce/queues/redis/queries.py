"""Messages stored in Redis, for display and selection."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from payonce.engine.messages.model import State
from payonce.engine.messages.ports import Filter, QueuedMessage
from payonce.queues.redis.codec import UNREADABLE_KEYS, id_text, shown
from payonce.queues.redis.durable_copy import KEPT, MAYBE_KEPT

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KNOWN: Final = re.compile(rb"(\w{3}) (\d+) (\d+) (\S+) (\d+) ")


@dataclass(frozen=True)
class StoredCopy:
    """A message with the bytes by which scripts find it."""

    id: str
    """The id that the scripts use."""
    stored: QueuedMessage
    body: bytes
    known: bytes
    readable: bool

    @property
    def mark(self) -> str:
        """How it was put: kept, directly into Redis, or in transition; empty if never claimed."""
        return self.known[:1].decode("ascii", "replace")

    @property
    def named(self) -> bool:
        """Whether the body has its id where scripts expect it."""
        return self.id == id_text(self.body)

    @property
    def kept(self) -> bool:
        """Whether PostgreSQL has, or may have, a row for it."""
        return self.mark in (KEPT, MAYBE_KEPT)

    @property
    def first_attempt_at(self) -> datetime | None:
        match = _KNOWN.match(self.known)
        return _moment(int(match[4])) if match and match[4].isdigit() else None


def stored_copy_of(
    queue: str, state: State, body: bytes, message_id: bytes, known: bytes, record: bytes, deadline: bytes
) -> StoredCopy:
    identity = _uuid(message_id)
    message = shown(queue, identity, body)
    crashes, ready_at, error = 0, EPOCH, None
    if match := _KNOWN.match(known):
        crashes, ready_at = int(match[3]), _moment(int(match[2]))
        error = known[match.end() + int(match[5]) :].decode("utf-8", "replace") or None
    fields = record.decode("utf-8", "replace").split(" ")
    if state is State.LEASED and len(fields) == 6 and fields[3].isdecimal():
        crashes = int(fields[3])
    until = _moment(round(float(deadline) * 1_000)) if deadline else None
    worker = fields[5] if len(fields) == 6 else None
    readable = message.payload.keys() != UNREADABLE_KEYS
    stored = QueuedMessage(
        message, state, ready_at, crashes, until, worker, error, readable, due_known=match is not None
    )
    return StoredCopy(message_id.decode("utf-8", "replace"), stored, body, known, readable)


def matches(stored: QueuedMessage, which: Filter) -> bool:
    message = stored.message
    return (
        (not which.ids or message.id in which.ids)
        and (which.action is None or message.action == which.action)
        and (which.correlation_id is None or message.correlation_id == which.correlation_id)
        and (which.error_contains is None or which.error_contains in (stored.last_error or ""))
        and (which.parked_after is None or stored.ready_at >= which.parked_after)
        and (which.parked_before is None or stored.ready_at < which.parked_before)
    )


def _moment(since_1970_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=since_1970_us)


def _uuid(text: bytes) -> UUID:
    """The id as a UUID; foreign bodies may have 36 characters that are none."""
    try:
        return UUID(text.decode("ascii", "replace"))
    except ValueError:
        return UUID(bytes=text[:16].ljust(16, b"\0"))
