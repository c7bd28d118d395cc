"""Messages from a subscription service with a database of its own: each is accepted once, in the commit that enqueues
it."""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payonce.engine.messages.inbox import accept
from payonce.engine.messages.model import Message, check_message
from payonce.engine.messages.transaction import Tx
from payonce.http.kit.context import context_of, trace_of
from payonce.http.kit.problems import Problem
from payonce.kit.outcomes import Invalid
from payonce.services.billing.api.callers import require_resource
from payonce.services.billing.policies import (
    CHARGE_INITIATION,
    CREDIT_HOLD,
    REFUND_INITIATION,
    SUBSCRIPTION_UPDATE,
)
from payonce.services.billing.signed_requests import MESSAGES_PATH, SharedSecrets, read_signed
from payonce.services.billing.wire import ForwardedAnswer, ForwardedMessage, ForwardedMessages

CONSUMER: Final = "billing.payments"
MESSAGES_MAX: Final = 200
OPEN_QUEUES: Final = frozenset({CHARGE_INITIATION.queue, REFUND_INITIATION.queue, CREDIT_HOLD.queue})
"""The queues that accept requests from subscriptions; the others are internal to payments."""
ASKED_AGAIN: Final = frozenset({CHARGE_INITIATION.queue, REFUND_INITIATION.queue})
"""On these queues subscriptions repeats requests, without a key, that have had no answer for a while."""


def build_short_routes() -> Sequence[Route]:
    """Not in the OpenAPI document of routes for tokens and API keys: subscriptions signs its requests."""
    return [Route(MESSAGES_PATH, take_messages, methods=["POST"], include_in_schema=False)]


async def take_messages(request: Request) -> Response:
    context = context_of(request)
    body = await read_signed(request, context, require_resource(context, SharedSecrets), CONSUMER)
    try:
        given = msgspec.json.decode(body, type=ForwardedMessages).messages
    except msgspec.DecodeError as error:
        raise Problem(400, f"the body contains no messages from subscriptions: {error}") from error
    if len(given) > MESSAGES_MAX:
        raise Problem(413, f"{len(given)} messages in one request; send at most {MESSAGES_MAX}")
    refused: dict[str, str] = {}
    async with context.begin(trace_of(request)) as tx:
        fresh = []
        for each in given:
            try:
                message = _checked(each)
            except Invalid as refusal:
                refused[str(each.id)] = str(refusal)
                continue
            if await accept(tx, CONSUMER, each.id) and not await _is_under_way(tx, message):
                fresh.append(message)
        if fresh:
            await tx.send_all(fresh)
    return Response(msgspec.json.encode(ForwardedAnswer(refused=refused)), media_type="application/json")


async def _is_under_way(tx: Tx, message: Message) -> bool:
    """Whether this is a repeated request whose first message, or the message with its answer, still exists, even if
    parked: subscriptions cannot read these queues."""
    if message.queue not in ASKED_AGAIN or message.idempotency_key is not None or message.correlation_id is None:
        return False
    found: bool = await tx.fetchval(
        """
        select exists (
            select from payonce.live_messages where correlation_id = $1 and queue = any($2::text[]) and action = $3)
        """,
        message.correlation_id,
        [message.queue, SUBSCRIPTION_UPDATE.queue],
        message.action,
    )
    return found


def _checked(given: ForwardedMessage) -> Message:
    if given.queue not in OPEN_QUEUES:
        raise Invalid(f"queue {given.queue[:100]!r} accepts nothing from subscriptions")
    message = Message(
        id=given.id,
        queue=given.queue,
        action=given.action,
        payload=given.payload,
        correlation_id=given.correlation_id,
        idempotency_key=given.idempotency_key,
        trace_id=given.trace_id,
        created_at=given.created_at,
    )
    check_message(message)
    return message
