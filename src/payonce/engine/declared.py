"""Queues as their services declared them, for people to read."""

from dataclasses import dataclass
from typing import Any

import msgspec

from payonce.engine.ledger.model import Reads
from payonce.engine.policy import Policy, policy_as_described
from payonce.kit.outcomes import Invalid


@dataclass(frozen=True)
class Declared:
    policy: Policy | None
    """None when it was declared by a payonce whose words this one does not know."""
    on_give_up: str
    paused_reason: str | None


async def declared(read: Reads, queue: str) -> Declared | None:
    """None when no service has declared the queue in this database."""
    row = await read.fetchrow("select policy, paused_reason from payonce.queues where name = $1", queue)
    if row is None:
        return None
    said: dict[str, Any] = msgspec.json.decode(row["policy"])
    try:
        policy = policy_as_described(said)
    except (Invalid, TypeError):
        policy = None
    return Declared(policy, str(said.get("on_give_up", "park")), row["paused_reason"])
