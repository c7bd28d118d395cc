"""Conversion of rows with an envelope to messages."""

import json
from typing import Any, Final

import msgspec
from asyncpg import Record

from payonce.engine.messages.model import Message

MESSAGE_COLUMNS: Final = """id, queue, action, correlation_id, idempotency_key, trace_id, created_at, attempts,
    max_attempts, lane, payload, extra"""

MESSAGE_STARTS_OVER: Final = """state = 'ready', ready_at = payonce.due_now(), token = m.token + 1, attempts = 0,
    crashes = 0, first_attempt_at = null, last_error = null"""
"""Sets a row `m` of payonce.messages that a person, or an answer, restarts."""

UNREADABLE: Final = (ValueError, RecursionError, OverflowError)
"""Errors in reading a row that was written directly; `put` accepts no such message."""

_decode = msgspec.json.Decoder().decode


def message_of(row: Record) -> Message:
    extra = row["extra"]
    return Message(
        id=row["id"],
        queue=row["queue"],
        action=row["action"],
        correlation_id=row["correlation_id"],
        idempotency_key=row["idempotency_key"],
        trace_id=row["trace_id"],
        created_at=row["created_at"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        lane=row["lane"],
        payload=_payload(row["payload"]),
        extra={} if extra is None else _decode(extra),
    )


def message_shown(row: Record) -> Message:
    """For display: of an unreadable row, as much as can be shown."""
    try:
        return message_of(row)
    except UNREADABLE as error:
        note = {"unreadable": str(error), "begins": row["payload"][:200]}
        return Message(id=row["id"], queue=row["queue"], action=row["action"], attempts=row["attempts"], payload=note)


def _payload(text: str) -> dict[str, Any]:
    try:
        payload = _decode(text)
    except msgspec.DecodeError:
        # A row written directly may hold JSON that only the lenient parser reads (lone surrogates, huge floats).
        payload = json.loads(text)
    return payload if isinstance(payload, dict) else {"value": payload}
