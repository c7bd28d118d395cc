"""Script arguments for settlements, and the scripts' records of claims whose worker died."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from payonce.engine.messages.job_log import EndedRun
from payonce.engine.messages.model import Ending, Message, SettleAnswer, Settlement, State, clean_text
from payonce.engine.messages.rows import UNREADABLE
from payonce.engine.outbox import SettleOutcome
from payonce.kit.outcomes import Invalid
from payonce.queues.redis.codec import decode_any, encode_bodies
from payonce.queues.redis.durable_copy import KEPT, MAYBE_KEPT, IsolatedCrash
from payonce.queues.redis.job_log import as_json, line

US: Final = 1_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SUSPICIOUS: Final = 2
RECORD_FIELDS: Final = 6

ScriptArguments = tuple[str | bytes | int, ...]


def success_arguments(settlement: Settlement, *, logged: bool) -> ScriptArguments:
    """Id, token, idempotency key, log line."""
    claim, message = settlement.claim, settlement.claim.message
    log_line = line(message, "success", message.attempts + 1) if logged else ""
    return str(message.id), claim.token, message.idempotency_key or "", log_line


def ending_arguments(settlement: Settlement) -> ScriptArguments:
    """Id, token, ending, new body, delay, reason, idempotency key, log line."""
    claim, message, ending = settlement.claim, settlement.claim.message, settlement.ending
    reason = "" if settlement.reason is None else clean_text(settlement.reason)
    body: str | bytes = ""
    if ending in (Ending.RETRY, Ending.PARKED):
        try:
            [body] = encode_bodies([msgspec.structs.replace(message, attempts=message.attempts + 1)])
        except Invalid as error:
            # The handler has changed the payload. Such a message must not block the settlement of others.
            reason = clean_text(f"{reason}; it cannot be encoded again: {error}")
            log_line = line(message, "parked", message.attempts + 1, reason)
            return parking_arguments(str(message.id), claim.token, reason, log_line)
    elif ending is Ending.RELEASED and message.attempts:
        # A release keeps the body. Whether the message was tried before decides about its age.
        body = "+"
    log_line = "" if ending is Ending.RELEASED else line(message, ending.value, message.attempts + 1, reason or None)
    return (
        str(message.id),
        claim.token,
        ending.value,
        body,
        round(settlement.delay_s * US),
        reason,
        message.idempotency_key or "",
        log_line,
    )


def removal_arguments(message_id: UUID | str, token: int) -> ScriptArguments:
    """Arguments that delete Redis' copy; PostgreSQL has the outcome."""
    return str(message_id), token, Ending.FAILED.value, "", 0, "", "", ""


def parking_arguments(name: str, token: int, reason: str, log_line: str) -> ScriptArguments:
    """Arguments that park an unreadable message; its body stays unchanged."""
    return name, token, Ending.PARKED.value, "", 0, reason, "", log_line


def run_of(settlement: Settlement, now: datetime, worker: str) -> EndedRun | None:
    """The job-log row of a settlement; None for a release, which is not a run."""
    if settlement.ending is Ending.RELEASED:
        return None
    claim, retried = settlement.claim, settlement.ending is Ending.RETRY
    return EndedRun(
        claim.message,
        settlement.ending.value,
        claim.message.attempts + 1,
        None if settlement.reason is None else clean_text(settlement.reason),
        now + timedelta(seconds=settlement.delay_s) if retried else None,
        worker,
        claim.claimed_at,
    )


def answers_as_recorded(
    settlements: Sequence[Settlement], fates: dict[UUID, SettleOutcome], answers: Sequence[SettleAnswer]
) -> list[SettleAnswer]:
    """Answers by PostgreSQL's record, whether or not Redis still had its copy."""
    if not fates:
        return list(answers)
    by_fate = {
        SettleOutcome.RECORDED: SettleAnswer.SETTLED,
        SettleOutcome.GONE: SettleAnswer.ALREADY,
        SettleOutcome.UNKNOWN: SettleAnswer.ALREADY,
    }
    return [
        answer
        if settlement.ending is Ending.RELEASED
        else by_fate.get(fates.get(settlement.claim.message.id, SettleOutcome.STALE), answer)
        for settlement, answer in zip(settlements, answers, strict=True)
    ]


class DeadClaim:
    """A claim whose lease has ended, and the next state of its message."""

    def __init__(
        self, queue: str, now: datetime, message_id: bytes, fields: Sequence[str], body: bytes, kind: str
    ) -> None:
        token, claimed, _, crashes, alone, worker = fields
        self.name = message_id
        """The id as bytes: a foreign one need not be a UUID, nor text."""
        self.id, self.worker = message_id.decode("utf-8", "replace"), worker
        self.crashes = int(crashes) + 1
        self.alone = alone == "1"
        self.state = State.PARKED if self.alone else State.ALONE if self.crashes >= SUSPICIOUS else State.READY
        reason = f"worker {worker or '?'} died or stopped: its lease ended"
        self.reason = f"{reason} while this message ran alone" if self.alone else reason
        status = "parked" if self.alone else "retry"
        try:
            message = decode_any(queue, body)
        except UNREADABLE:
            message = Message(queue=queue)
            log_line = line(message, status, 0, self.reason).replace(str(message.id), as_json(self.id))
            self.run: EndedRun | None = None
        else:
            log_line = line(message, status, message.attempts, self.reason)
            self.run = EndedRun(
                message, status, message.attempts, self.reason, None if self.alone else now, worker, moment(claimed)
            )
        self.arguments = (message_id, token, self.reason, log_line)
        self.uuid = as_uuid(self.id)
        self.kept = kind in (KEPT, MAYBE_KEPT) and self.uuid is not None
        self.kind, self.token = kind, int(token)

    @property
    def death(self) -> IsolatedCrash:
        assert self.uuid is not None
        return IsolatedCrash(self.uuid, self.token, self.reason, self.run)


def dead_claim(queue: str, now: datetime, message_id: bytes, record: bytes, meta: bytes) -> DeadClaim | None:
    """Parses a record; None for foreign content."""
    head, _, body = record.partition(b"\n")
    fields = head.decode("utf-8", "replace").split(" ")
    if len(fields) != RECORD_FIELDS or not meta or not all(field.isdecimal() for field in fields[:-1]):
        return None
    return DeadClaim(queue, now, message_id, fields, body, meta[:1].decode("ascii", "replace"))


def as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def us_of(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def moment(since_1970_us: bytes | str | float) -> datetime:
    return EPOCH + timedelta(microseconds=int(since_1970_us))
