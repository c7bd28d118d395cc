"""Incoming webhooks: verified over the raw bytes, parsed only then, and accepted once by the event's id.

received = await receiver.receive(read, request.headers, await request.body())
if isinstance(received, Refusal):
    ...                                  # answer with received.status and received.problem()
async with begin() as tx:
    if await received.first_time(tx):
        ...                              # business rows and the id commit together
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from payonce.engine.database.connections import Connection
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.inbox import accept
from payonce.engine.messages.model import NAME_MAX_LENGTH, clean_text
from payonce.engine.messages.transaction import Tx
from payonce.engine.monitoring import metrics
from payonce.kit.money import loads_exact
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks import TOLERANCE_S, Refusal, RefusalReason, Scheme, Secret, Verified, verify
from payonce.kit.webhooks.verification import Headers

ID_FIELDS: Final = ("id", "event_id")
"""Where the older scheme has the event's id: in the signed body, never in an unsigned header."""


@dataclass(frozen=True)
class Received:
    """A webhook with a valid signature. Its body is not part of its repr."""

    consumer: str
    id: str
    at: datetime
    scheme: Scheme
    body: bytes = field(repr=False)
    event: dict[str, Any] = field(repr=False)
    """The body as JSON, with exact numbers."""

    async def first_time(self, tx: Tx | Connection) -> bool:
        """False when this consumer has accepted it before: then change nothing and answer as before."""
        return await accept(tx, self.consumer, self.id)


@dataclass(frozen=True)
class Receiver:
    """One sender's webhooks for one consumer. `consumer` names the inbox that remembers their ids.

    Only one scheme is accepted. The two have their ids in different places, so a captured request, stripped of the
    headers of one scheme, could be accepted a second time by the other.
    """

    consumer: str
    secrets: Sequence[Secret] = field(repr=False)
    scheme: Scheme
    tolerance_s: int = TOLERANCE_S

    async def receive(self, read: Reads, headers: Headers, body: bytes) -> Received | Refusal:
        """Verifies by the store's clock. Any request of a stranger gets an answer, and nothing of it is stored."""
        return self.read_at(await read.fetchval("select payonce.due_now()"), headers, body)

    def read_at(self, now: datetime, headers: Headers, body: bytes) -> Received | Refusal:
        verified = verify(headers, body, self.secrets, now, tolerance_s=self.tolerance_s, schemes=(self.scheme,))
        answer = verified if isinstance(verified, Refusal) else self._read(verified, body)
        if isinstance(answer, Refusal):
            metrics.SIGNATURE_FAILURES.labels(self.consumer, answer.why.value).inc()
        return answer

    def _read(self, verified: Verified, body: bytes) -> Received | Refusal:
        try:
            event = loads_exact(body)
        except Invalid:
            event = None
        if not isinstance(event, dict):
            return Refusal(RefusalReason.MALFORMED, "the body is not a JSON object")
        event_id = verified.id or next((event[name] for name in ID_FIELDS if name in event), None)
        if (
            not isinstance(event_id, str)
            or not 1 <= len(event_id) <= NAME_MAX_LENGTH
            or clean_text(event_id) != event_id
        ):
            return Refusal(RefusalReason.MALFORMED, f"the body has no id of 1 to {NAME_MAX_LENGTH} characters")
        return Received(self.consumer, event_id, verified.at, verified.scheme, body, event)
