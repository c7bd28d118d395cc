"""Endpoints, deliveries and attempts, page by page, for people to look at."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from payonce.engine.ledger.model import Reads
from payonce.engine.webhooks.model import Attempt, Delivery, DeliveryState, Endpoint, EndpointState, as_endpoint
from payonce.kit.outcomes import Invalid

PAGE: Final = 50
PAGE_MAX: Final = 500
ATTEMPTS_MAX: Final = 200
"""Shown per delivery, the newest."""

_DELIVERY: Final = """
    d.id, d.event_id, v.type, d.endpoint_id, v.tenant, e.url, d.state, d.reason, d.attempts, d.last_status, d.replay_of,
    d.created_at, d.ended_at, v.trace_id
"""
_JOINED: Final = """
    payonce.webhook_deliveries d join payonce.webhook_events v on v.id = d.event_id
    join payonce.webhook_endpoints e on e.id = d.endpoint_id
"""


async def endpoints(
    read: Reads,
    *,
    tenant: str | None = None,
    state: EndpointState | None = None,
    removed: bool = False,
    before: UUID | None = None,
    limit: int = PAGE,
) -> list[Endpoint]:
    """Newest first; removed endpoints only on request. `before` is the last id of the previous page."""
    rows = await read.fetch(
        """
        select * from payonce.webhook_endpoints
        where ($1::text is null or tenant = $1) and ($2::text is null or state = $2)
          and ($3 or state <> 'removed' or $2 = 'removed') and ($4::uuid is null or id < $4)
        order by id desc limit $5
        """,
        tenant,
        state,
        removed,
        before,
        _page(limit),
    )
    return [as_endpoint(row) for row in rows]


async def deliveries(
    read: Reads,
    *,
    endpoint_id: UUID | None = None,
    event_id: str | None = None,
    event_type: str | None = None,
    state: DeliveryState | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: UUID | None = None,
    limit: int = PAGE,
) -> list[Delivery]:
    """Newest first, from `since` to before `until`; `before` is the last id of the previous page."""
    rows = await read.fetch(
        f"""
        select {_DELIVERY} from {_JOINED}
        where ($1::uuid is null or d.endpoint_id = $1) and ($2::text is null or d.event_id = $2)
          and ($3::text is null or v.type = $3) and ($4::text is null or d.state = $4)
          and d.created_at >= coalesce($5::timestamptz, '-infinity')
          and d.created_at < coalesce($6::timestamptz, 'infinity')
          and ($7::uuid is null or (d.created_at, d.id) <
              (select created_at, id from payonce.webhook_deliveries where id = $7))
        order by d.created_at desc, d.id desc limit $8
        """,
        endpoint_id,
        event_id,
        event_type,
        state,
        since,
        until,
        before,
        _page(limit),
    )
    return [as_delivery(row) for row in rows]


async def delivery(read: Reads, delivery_id: UUID) -> Delivery:
    row = await read.fetchrow(f"select {_DELIVERY} from {_JOINED} where d.id = $1", delivery_id)
    if row is None:
        raise Invalid(f"there is no delivery {delivery_id}; see: payonce webhooks deliveries list")
    return as_delivery(row)


async def event_body(read: Reads, event_id: str) -> bytes:
    """The exact bytes that are sent."""
    body: bytes | None = await read.fetchval("select body from payonce.webhook_events where id = $1", event_id)
    if body is None:
        raise Invalid(f"there is no event {event_id[:60]!r}; it may be older than the retention")
    return body


async def attempts(read: Reads, delivery_id: UUID) -> Sequence[Attempt]:
    """In the order in which they were made."""
    rows = await read.fetch(
        """
        select number, at, status, latency_ms, error, excerpt from payonce.webhook_attempts
        where delivery_id = $1 order by id desc limit $2
        """,
        delivery_id,
        ATTEMPTS_MAX,
    )
    return [Attempt(*row) for row in reversed(rows)]


def as_delivery(row: Any) -> Delivery:
    return Delivery(
        row["id"],
        row["event_id"],
        row["type"],
        row["endpoint_id"],
        row["tenant"],
        row["url"],
        DeliveryState(row["state"]),
        row["reason"],
        row["attempts"],
        row["last_status"],
        row["replay_of"],
        row["created_at"],
        row["ended_at"],
        row["trace_id"],
    )


def _page(limit: int) -> int:
    if not 1 <= limit <= PAGE_MAX:
        raise Invalid(f"limit is {limit}; a page has 1 to {PAGE_MAX} rows")
    return limit
