"""Why messages are parked and effects are open, over all queues, read in bounds."""

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
"""Messages of one queue, or effects of one state, whose reasons are read."""
QUEUES_MAX: Final = 20
"""Queues that are read; those with the most parked messages."""


@dataclass(frozen=True)
class ParkedCause:
    """Parked messages of one queue that wait for one cause."""

    queue: str
    cause: Cause
    oldest: datetime


@dataclass(frozen=True)
class ParkedCauses:
    found: Sequence[ParkedCause]
    """The most frequent first."""
    read: int
    """Messages that were read."""


async def parked_causes(context: Context, depths: Sequence[Depth]) -> ParkedCauses:
    """Of the queues that have parked messages. A queue that is gone, or whose server does not answer, has none."""
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
    """The most frequent cause of what is parked, in review and unknown; without what has none."""
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
