"""Converts rows of payonce.messages to the engine's types."""

from asyncpg import Record

from payonce.engine.messages.model import Claim, State
from payonce.engine.messages.ports import QueuedMessage
from payonce.engine.messages.rows import message_of, message_shown


def claim_of(row: Record) -> Claim:
    return Claim(message_of(row), row["token"], row["crashes"], row["claimed_at"], row["first_attempt_at"])


def stored_of(row: Record) -> QueuedMessage:
    return QueuedMessage(
        message=message_shown(row),
        state=State(row["state"]),
        ready_at=row["ready_at"],
        crashes=row["crashes"],
        lease_until=row["lease_until"],
        worker=row["worker"],
        last_error=row["last_error"],
    )
