"""Causes of parked messages and open effects over all queues, from bounded samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from payonce.console.context import Context
from payonce.engine.messages.model import State
from payonce.engine.messages.ports import Depth
from payonce.engine.monitoring.causes import Cause, cause_key, causes
from payonce.kit.outcomes import Invalid, QueueAway

READ_MAX: Final = 200
"""Messages per queue, or effects per state, that are read."""
QUEUES_MAX: Final = 20
"""Queues that are read: those with the most parked messages."""


@dataclass(frozen=True)
class ParkedCause:
    """Parked messages of one queue with the same cause."""

    queue: str
    cause: Cause
    oldest: datetime


@dataclass(frozen=True)
class ParkedCauses:
    found: Sequence[ParkedCause]
    """Most frequent first."""
    read: int
    """Number of messages read."""


async def parked_causes(context: Context, depths: Sequence[Depth]) -> ParkedCauses:
    """Causes per queue. Removed queues, and queues whose server is unavailable, are omitted."""
    wanted = sorted((depth for depth in depths if depth.parked), key=lambda depth: (-depth.parked, depth.queue))
    found, read = [], 0
    for depth in wanted[:QUEUES_MAX]:
        try:
            stored = await context.admin.peek(depth.queue, State.PARKED, READ_MAX)
        except (Invalid, QueueAway):
            continue
        read += len(stored)
        for cause in causes(each.last_error for each in stored):
            key = cause_key(cause.example)
            oldest = min(each.ready_at for each in stored if cause_key(each.last_error) == key)
            found.append(ParkedCause(depth.queue, cause, oldest))
    return ParkedCauses(sorted(found, key=lambda each: (-each.cause.count, each.queue)), read)


async def leading_causes(context: Context, depths: Sequence[Depth]) -> Mapping[str, str]:
    """The most frequent cause of parked messages, effects in review and unknown effects, if there are any."""
    found = {}
    if parked := (await parked_causes(context, depths)).found:
        found["parked"] = parked[0].cause.example
    rows = await context.read.fetch(
        f"""
        (select state, reason from payonce.effects where state = 'review' order by id desc limit {READ_MAX})
        union all
        (select state, reason from payonce.effects where state = 'unknown' order by id desc limit {READ_MAX})
        """
    )
    for state in ("review", "unknown"):
        if reasons := [row["reason"] for row in rows if row["state"] == state]:
            found[state] = causes(reasons)[0].example
    return found
