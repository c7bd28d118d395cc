"""Publishing events: one event and a delivery for each subscribed endpoint, in the caller's commit."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from payonce.engine.messages.model import Message, encode_payloads
from payonce.engine.messages.transaction import Tx
from payonce.engine.webhooks.delivery_attempt import DELIVERIES
from payonce.engine.webhooks.model import (
    DEFAULT_TENANT,
    DeliveryState,
    EndpointState,
    checked_tenant,
    checked_type,
)
from payonce.engine.webhooks.registry import endpoint
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Invalid


async def announce(
    tx: Tx,
    event_type: str,
    data: dict[str, Any],
    *,
    tenant: str = DEFAULT_TENANT,
    trace_id: str | None = None,
) -> str:
    """Publishes an event to the tenant's endpoints subscribed to `event_type`, at least once, if and only if this
    transaction commits.

    Returns the event's id, by which receivers recognise repetitions. Enabled endpoints get a delivery. For disabled
    ones a skipped delivery is recorded, which can be replayed once they are enabled.
    """
    event_id = f"evt_{new_id().hex}"
    encoded = _encoded(data)
    rows = await tx.fetch(
        """
        select id, state, reason, payonce.due_now() as now from payonce.webhook_endpoints
        where tenant = $1 and state <> 'removed' and exists (
            select from unnest(events) wanted
            where wanted = $2 or (right(wanted, 1) = '*' and starts_with($2, left(wanted, -1)))
        )
        order by id
        """,
        checked_tenant(tenant),
        checked_type(event_type),
    )
    if rows:
        await _store_event(tx, event_id, tenant, event_type, rows[0]["now"], encoded, trace_id)
    for row in rows:
        if row["state"] == EndpointState.ENABLED:
            await send_delivery(tx, event_id, event_type, row["id"], trace_id=trace_id)
        else:
            await _skip(tx, event_id, row["id"], f"the endpoint is {row['state']}: {row['reason']}")
    return event_id


async def announce_to(
    tx: Tx,
    endpoint_id: UUID,
    event_type: str,
    data: dict[str, Any],
) -> str:
    """Publishes an event to this endpoint only, whatever its subscriptions, to test it."""
    found = await endpoint(tx, endpoint_id)
    if found.state is not EndpointState.ENABLED:
        raise Invalid(f"endpoint {endpoint_id} is {found.state}: {found.reason}; enable it first")
    event_id = f"evt_{new_id().hex}"
    now = await tx.fetchval("select payonce.due_now()")
    await _store_event(tx, event_id, found.tenant, checked_type(event_type), now, _encoded(data), None)
    await send_delivery(tx, event_id, event_type, endpoint_id)
    return event_id


async def send_delivery(
    tx: Tx,
    event_id: str,
    event_type: str,
    endpoint_id: UUID,
    *,
    replay_of: UUID | None = None,
    trace_id: str | None = None,
) -> UUID:
    """Creates a pending delivery and its message with the same id. Each endpoint has its own lane, so that a slow one
    delays no other."""
    about = {"event": event_id, "type": event_type, "endpoint": str(endpoint_id)}
    delivery_id = await tx.send(
        DELIVERIES, about, action="deliver", lane=str(endpoint_id), correlation_id=event_id, trace_id=trace_id
    )
    await _store_delivery(tx, delivery_id, event_id, endpoint_id, DeliveryState.PENDING, None, replay_of)
    return delivery_id


async def _skip(tx: Tx, event_id: str, endpoint_id: UUID, reason: str) -> None:
    await _store_delivery(tx, new_id(), event_id, endpoint_id, DeliveryState.SKIPPED, reason, None)


async def _store_event(
    tx: Tx,
    event_id: str,
    tenant: str,
    event_type: str,
    at: datetime,
    encoded: bytes,
    trace_id: str | None,
) -> None:
    head = msgspec.json.encode({"id": event_id, "type": event_type, "timestamp": at.astimezone(UTC)})
    body = head[:-1] + b',"data":' + encoded + b"}"
    await tx.execute(
        """
        insert into payonce.webhook_events (id, tenant, type, body, trace_id, created_at)
        values ($1, $2, $3, $4, $5, $6)
        """,
        event_id,
        tenant,
        event_type,
        body,
        trace_id or tx.trace_id,
        at,
    )


async def _store_delivery(
    tx: Tx,
    delivery_id: UUID,
    event_id: str,
    endpoint_id: UUID,
    state: DeliveryState,
    reason: str | None,
    replay_of: UUID | None,
) -> None:
    await tx.execute(
        """
        insert into payonce.webhook_deliveries (id, event_id, endpoint_id, state, reason, replay_of, ended_at)
        values ($1, $2, $3, $4, $5, $6, case when $4 <> 'pending' then payonce.due_now() end)
        """,
        delivery_id,
        event_id,
        endpoint_id,
        state,
        reason,
        replay_of,
    )


def _encoded(data: dict[str, Any]) -> bytes:
    """Encoded once, so that every attempt sends the same bytes. The rules of message payloads apply."""
    if not isinstance(data, dict):
        raise Invalid(f"the data of an event must be an object, not {data.__class__.__name__}; wrap it in one")
    [text] = encode_payloads([Message(queue=DELIVERIES.queue, payload=data)])
    return text.encode()
