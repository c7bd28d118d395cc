"""Relays messages from the outbox of subscriptions to payments with a database of its own."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from payonce.engine.ledger.model import Reads
from payonce.engine.outbox import Answer, Deferred, Delivered, Entry, Refusal, RelayConfig
from payonce.services.billing.signed_requests import MESSAGES_PATH, SignedClient
from payonce.services.billing.wire import ForwardedAnswer, ForwardedMessage, ForwardedMessages

RELAY: Final = "payments"
BATCH: Final = 50


class PaymentsRelay:
    """Payments responds after its commit. Messages with an unknown result are sent again, and recognised by their
    id."""

    name = RELAY
    config = RelayConfig(batch=BATCH)

    def __init__(self, client: SignedClient | None) -> None:
        """Without a client nothing is delivered."""
        self._client = client

    async def deliver(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        if self._client is None:
            return [Deferred("this process has no secret to sign with; set WEBHOOK_SIGNING_SECRET")] * len(entries)
        answer = await self._client.post(MESSAGES_PATH, ForwardedMessages(messages=[_of(each) for each in entries]))
        if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and len(entries) > 1:
            # Messages that were accepted before the rest fails are recognised by their id.
            middle = len(entries) // 2
            return [*await self.deliver(entries[:middle]), *await self.deliver(entries[middle:])]
        if not answer.is_success:
            # An operator must correct a wrong secret or URL; until then messages are neither parked nor lost.
            return [Deferred(f"payments answered {answer.status}: {answer.excerpt()}")] * len(entries)
        refused = msgspec.json.decode(answer.body, type=ForwardedAnswer).refused
        return [
            Refusal(why) if (why := refused.get(str(each.message.id))) is not None else Delivered() for each in entries
        ]


async def waiting_for_payments(read: Reads) -> int:
    found: int = await read.fetchval("select count(*) from payonce.outbox where relay = $1", RELAY)
    return found


def _of(entry: Entry) -> ForwardedMessage:
    message = entry.message
    return ForwardedMessage(
        id=message.id,
        queue=message.queue,
        action=message.action,
        payload=message.payload,
        correlation_id=message.correlation_id,
        idempotency_key=message.idempotency_key,
        trace_id=message.trace,
        created_at=message.created_at,
    )
