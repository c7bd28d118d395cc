"""The states of pushed messages, and how many messages are in each.

Reads PostgreSQL alone and imports little: a command that lists queues needs no client of the task service.
"""

from typing import Any, Final

from payonce.engine.messages.declarations import unknown_queue
from payonce.engine.messages.model import State
from payonce.engine.messages.ports import Depth
from payonce.queues.cloudtasks.names import RELAY
from payonce.queues.operations import COUNT_MAX

SUSPICIOUS: Final = 2
"""So many processes may die while a message runs beside others; then it runs isolated, and if its process dies again,
it is parked."""
HELD: Final = "coalesce(holder is not null and held_until > payonce.lease_now(), false)"
IN_STATE: Final = {
    State.PARKED: "state = 'parked'",
    State.LEASED: f"state <> 'parked' and {HELD}",
    State.ALONE: f"state <> 'parked' and not {HELD} and run_crashes >= {SUSPICIOUS}",
    State.READY: f"state <> 'parked' and not {HELD} and run_crashes < {SUSPICIOUS}",
}
"""The condition on payonce.outbox, by state."""


async def depth_of(connection: Any, queue: str) -> Depth:
    """Raises UnknownQueue."""
    row = await connection.fetchrow(_DEPTH, queue)
    if row is None:
        raise await unknown_queue(connection, queue)
    return Depth(
        queue,
        row["ready"],
        row["delayed"],
        row["alone"],
        row["leased"],
        row["parked"],
        max(0.0, row["oldest_ready_s"]),
        row["paused"],
    )


def _counted(state: State, also: str = "true") -> str:
    return f"""(select count(*) from (select from payonce.outbox
        where relay = '{RELAY}' and queue = q.name and {IN_STATE[state]} and {also} limit {COUNT_MAX}) counted)"""


_DEPTH: Final = f"""
    select q.paused,
        {_counted(State.READY, "ready_at <= payonce.due_now()")} as ready,
        {_counted(State.READY, "ready_at > payonce.due_now()")} as delayed,
        {_counted(State.ALONE)} as alone, {_counted(State.LEASED)} as leased, {_counted(State.PARKED)} as parked,
        coalesce((select extract(epoch from payonce.due_now() - ready_at)::float8 from payonce.outbox
            where relay = '{RELAY}' and queue = q.name and {IN_STATE[State.READY]} order by ready_at limit 1), 0)
            as oldest_ready_s
    from payonce.queues q where q.name = $1"""
