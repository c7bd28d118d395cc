"""The webhook for charge and refund events from payments: verified, applied once, and answered after the commit."""

from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payonce.engine.webhooks import Receiver
from payonce.http.kit.context import AppContextDep, context_of, trace_of
from payonce.http.kit.json_bodies import refuse_repeated
from payonce.http.kit.problems import Problem, not_found
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks import Refusal, Scheme
from payonce.services.billing.api.callers import BillingCaller, require_operator, require_resource
from payonce.services.billing.scopes import READ
from payonce.services.billing.signed_requests import TOKEN_VERSION_PATH, SharedSecrets, read_signed
from payonce.services.billing.subscriptions.api.common_routes import READS
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.handlers import payment_events
from payonce.services.billing.subscriptions.store.accounts import token_version
from payonce.services.billing.wire import Notification, TokenVersion, TokenVersionQuery, read_notification

PREFIX: Final = "/v1/webhooks"
CONSUMER: Final = "billing.subscriptions"


class StatusDocument(BaseModel):
    """A received event, with the column names of `payment_webhook_requests`."""

    id: int
    event_id: str
    processed: bool
    processed_at: datetime | None
    error_message: str | None = Field(
        description="Why the event did not match; the money is booked separately, and an operator decides."
    )
    retry_count: int = Field(description="Number of repeated deliveries.")
    created_at: datetime
    updated_at: datetime


def webhook_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["payment events"])

    @routes.get("/status/{event_id}", summary="Get the status of a payment event", responses=READS)
    async def show_event_status(
        event_id: Annotated[str, Path(pattern=r"^[!-~]{1,200}$")],
        context: AppContextDep,
        caller: Annotated[BillingCaller, require_operator(READ)],
    ) -> StatusDocument:
        require_resource(context, SubscriptionConfig)
        row: Any = await context.read.fetchrow(
            """
            select id, event_id, processed, processed_at, error_message, retry_count, created_at, updated_at
            from subscriptions.payment_webhook_requests where event_id = $1
            """,
            event_id,
        )
        if row is None:
            raise not_found(f"event {event_id!r}; it has not arrived, or was rolled back")
        return StatusDocument(**row)

    return routes


def short_webhook_routes() -> Sequence[Route]:
    """Short routes, since every charge passes through here. Not in the OpenAPI document of routes for tokens and API
    keys: payments signs its requests, and the README describes them."""
    return [
        Route(f"{PREFIX}/payment", take_payment_event, methods=["POST"], include_in_schema=False),
        Route(TOKEN_VERSION_PATH, show_token_version, methods=["POST"], include_in_schema=False),
    ]


async def take_payment_event(request: Request) -> Response:
    """Receives a completed charge or refund: answers `processed`, or `duplicate` for an event that was applied
    before."""
    context = context_of(request)
    config = require_resource(context, SubscriptionConfig)
    # Only one scheme: the other has its id in another header, so a captured request could be replayed under the other
    # scheme.
    receiver = Receiver(CONSUMER, config.webhook_secrets, Scheme.OLDER, config.tolerance_s)
    body = await request.body()
    received = await receiver.receive(context.read, request.headers.items(), body)
    if isinstance(received, Refusal):
        raise Problem(received.status, received.detail)
    refuse_repeated(body)
    notification = _read(body)
    async with context.begin(trace_of(request)) as tx:
        applied = await payment_events.apply(tx, notification)
    return Response(msgspec.json.encode({"status": applied.status}), media_type="application/json")


async def show_token_version(request: Request) -> Response:
    """For payments, which has no accounts: the current token version of an account."""
    context = context_of(request)
    config = require_resource(context, SubscriptionConfig)
    body = await read_signed(request, context, SharedSecrets(config.webhook_secrets, config.tolerance_s), CONSUMER)
    try:
        asked = msgspec.json.decode(body, type=TokenVersionQuery)
    except msgspec.DecodeError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body names no account: {error}") from error
    found = TokenVersion(version=await token_version(context.read, asked.account_id))
    return Response(msgspec.json.encode(found), media_type="application/json")


def _read(body: bytes) -> Notification:
    try:
        return read_notification(body)
    except Invalid as refusal:
        raise Problem(HTTPStatus.BAD_REQUEST, str(refusal)) from refusal
