"""Replays: sending an event again under its own id, for one delivery or for all that an endpoint missed in a period."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from payonce.engine.audit import note
from payonce.engine.controls import texts
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.transaction import Tx
from payonce.engine.webhooks.events import send_delivery
from payonce.engine.webhooks.model import DeliveryState, EndpointState
from payonce.engine.webhooks.queries import delivery
from payonce.engine.webhooks.registry import locked_endpoint
from payonce.kit.outcomes import Invalid

LOCATION: Final = "webhooks.replay"
BATCH_MAX: Final = 500
"""Deliveries replayed by one transaction; a larger range takes several."""
MISSED: Final = (DeliveryState.FAILED, DeliveryState.SKIPPED)


@dataclass(frozen=True)
class Range:
    """An endpoint's deliveries from `since` to before `until`, by their final state."""

    endpoint_id: UUID
    since: datetime
    until: datetime
    states: Sequence[DeliveryState] = MISSED
    event_type: str | None = None

    def __post_init__(self) -> None:
        if self.since >= self.until:
            raise Invalid(f"the range ends at {self.until.isoformat()}, which is not after {self.since.isoformat()}")
        if not self.states or DeliveryState.PENDING in self.states:
            raise Invalid("a range replays failed, skipped or delivered deliveries; pending ones are under way")


async def replay(tx: Tx, delivery_id: UUID, *, by: str, why: str) -> UUID:
    """Sends the event of this delivery once more, whatever its result. Replaces a delivery that is still pending."""
    by, why = texts.name(by, "by"), texts.reason(why)
    found = await delivery(tx, delivery_id)
    await _must_be_enabled(tx, found.endpoint_id)
    await tx.execute(
        """
        update payonce.webhook_deliveries set state = 'skipped', reason = 'a replay took its place',
            ended_at = payonce.due_now()
        where event_id = $1 and endpoint_id = $2 and state = 'pending'
        """,
        found.event_id,
        found.endpoint_id,
    )
    replay_id = await send_delivery(
        tx, found.event_id, found.type, found.endpoint_id, replay_of=delivery_id, trace_id=found.trace_id
    )
    text = f"replayed {found.event_id} to {found.origin} as {replay_id}: {why}"
    await note(tx.connection, LOCATION, f"delivery {delivery_id}", text, actor=by)
    return replay_id


@dataclass(frozen=True)
class Batch:
    count: int
    last: UUID | None
    """The id after which the next batch begins; None when there is none."""


async def count_range(read: Reads, which: Range) -> int:
    """The total number of events that replay_range would send."""
    count: int = await read.fetchval(f"select count(*) from ({_CHOSEN}) chosen", *_arguments(which, None))
    return count


async def replay_range(
    tx: Tx, which: Range, *, by: str, why: str, after: UUID | None = None, batch: int = BATCH_MAX
) -> Batch:
    """Replays the oldest `batch` of them after `after`. Continue with `last` in the next transaction until it is None.

    Each event is sent once, for its last delivery in the range. It is left out when a later delivery is still pending,
    or has succeeded and successes are not requested.
    """
    by, why = texts.name(by, "by"), texts.reason(why)
    if not 1 <= batch <= BATCH_MAX:
        raise Invalid(f"batch is {batch}; one transaction replays 1 to {BATCH_MAX} deliveries")
    if which.until > (now := await tx.fetchval("select payonce.due_now()")):
        # The replayed deliveries would fall into their own range.
        raise Invalid(f"the range ends at {which.until.isoformat()}, which is in the future; it is {now.isoformat()}")
    place = await _must_be_enabled(tx, which.endpoint_id)
    rows = await tx.fetch(f"{_CHOSEN} order by d.created_at, d.id limit $8", *_arguments(which, after), batch)
    for row in rows:
        await send_delivery(
            tx, row["event_id"], row["type"], which.endpoint_id, replay_of=row["id"], trace_id=row["trace_id"]
        )
    if rows:
        span = f"{which.since.isoformat()} to {which.until.isoformat()}"
        text = f"replayed {len(rows)} events from {span} to {place}: {why}"
        await note(tx.connection, LOCATION, f"endpoint {which.endpoint_id}", text, actor=by)
    return Batch(len(rows), rows[-1]["id"] if len(rows) == batch else None)


_CHOSEN: Final = """
    select d.id, d.event_id, v.type, v.trace_id from payonce.webhook_deliveries d
    join payonce.webhook_events v on v.id = d.event_id
    where d.endpoint_id = $1 and d.created_at >= $2 and d.created_at < $3 and d.state = any($4::text[])
      and ($5::text is null or v.type = $5)
      and not exists (
          select from payonce.webhook_deliveries later
          where later.event_id = d.event_id and later.endpoint_id = d.endpoint_id
            and (later.created_at, later.id) > (d.created_at, d.id)
            and (later.created_at < $3 or later.state = 'pending' or later.state = any($6::text[]))
      )
      and ($7::uuid is null or (d.created_at, d.id) >
          (select created_at, id from payonce.webhook_deliveries where id = $7))
"""


def _arguments(which: Range, after: UUID | None) -> tuple[object, ...]:
    done = [] if DeliveryState.DELIVERED in which.states else [str(DeliveryState.DELIVERED)]
    states = [str(state) for state in which.states]
    return which.endpoint_id, which.since, which.until, states, which.event_type, done, after


async def _must_be_enabled(tx: Tx, endpoint_id: UUID) -> str:
    # A concurrent replay to the same endpoint waits, and then sees what was replayed.
    found = await locked_endpoint(tx, endpoint_id)
    if found.state is not EndpointState.ENABLED:
        raise Invalid(
            f"endpoint {endpoint_id} is {found.state}: {found.reason}; enable it first: "
            f"payonce webhooks endpoints enable {endpoint_id}"
        )
    return found.origin
