"""Lookup of objects by whatever a person has: an id, an address, an e-mail, a transaction hash, a queue's name.

Each service registers a `Lookup` for its own objects; the engine looks up queues, messages and effects.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from payonce.engine.ledger.model import Reads
from payonce.engine.messages.ports import Admin

MATCHES_MAX: Final = 20
"""Per lookup."""


@dataclass(frozen=True)
class LookupResult:
    kind: str
    """In words: transfer, order, customer."""
    name: str
    """The name people use for it."""
    path: str
    """Its console page, below the console's root."""
    state: str | None = None
    matched: str = "id"
    """Which of its fields matched the search text."""
    correlation_id: str | None = None
    """The correlation id of its messages; None if it has none of its own."""


Lookup = Callable[[Reads, str], Awaitable[Sequence[LookupResult]]]
"""Returns nothing in a database without the service's tables. Newest first, at most MATCHES_MAX."""


async def engine_matches(read: Reads, admin: Admin, what: str) -> list[LookupResult]:
    """Queues with a matching name, the message and the effect with this id, and effects with this vendor reference."""
    return [*await _queues(admin, what), *await _message(read, what), *await _effects(read, what)]


async def _queues(admin: Admin, what: str) -> list[LookupResult]:
    lowered = what.lower()
    found = sorted((queue for queue in await admin.queues() if lowered in queue.lower()), key=lambda q: (q != what, q))
    return [LookupResult("queue", queue, f"/queues/{queue}", None, "name") for queue in found[:MATCHES_MAX]]


async def _message(read: Reads, what: str) -> list[LookupResult]:
    """A live message. A message put directly into Redis is not found before its first run."""
    rows = await read.fetch("select id, queue, state from payonce.live_messages where id = $1 limit 1", _parsed(what))
    return [
        LookupResult(
            "message",
            f"{row['id']} in {row['queue']}",
            f"/queues/{row['queue']}/messages/{row['id']}",
            row["state"],
            "id",
            str(row["id"]),
        )
        for row in rows
    ]


async def _effects(read: Reads, what: str) -> list[LookupResult]:
    """Uses the index on vendor references, kind by kind: there are few kinds and many effects."""
    rows = await read.fetch(
        """
        with recursive kinds as (
            (select kind from payonce.effects where vendor_ref is not null order by kind limit 1)
            union all
            select (select e.kind from payonce.effects e where e.vendor_ref is not null and e.kind > k.kind
                    order by e.kind limit 1)
            from kinds k where k.kind is not null)
        select id, kind, key, generation, state, message_id, 'id' as matched from payonce.effects where id = $2
        union all
        select e.id, e.kind, e.key, e.generation, e.state, e.message_id, 'reference at the vendor'
        from kinds k join payonce.effects e on e.kind = k.kind and e.vendor_ref = $1
        limit $3
        """,
        what,
        _parsed(what),
        MATCHES_MAX,
    )
    return [
        LookupResult(
            "effect",
            f"{row['kind']} {row['key']}:{row['generation']}",
            f"/effects/{row['id']}",
            row["state"],
            row["matched"],
            str(row["message_id"]),
        )
        for row in rows
    ]


def _parsed(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
