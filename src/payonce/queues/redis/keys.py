"""The names of a queue's keys in Redis. Operators type them."""

from collections.abc import Iterable
from typing import Final

from payonce.engine.messages.policy import Policy
from payonce.kit.outcomes import Invalid

PREFIX: Final = "q:"
JOB_LOG: Final = "q:log:jobs"
TEST_CLOCK: Final = "payonce:test_clock"
OWNER: Final = "payonce:installation"
"""Whose queues lie there: payonce.installation.id of their database."""

BESIDE: Final = (
    "processing",
    "delayed",
    "failed",
    "alone",
    "leases",
    "claims",
    "ids",
    "policy",
    "paused",
    "seen",
    "lanes",
    "unlogged",
)
"""What the keys beside a queue's main list end with."""


def main_key(queue: str) -> str:
    """The list that producers push to; all other keys of the queue are named after it."""
    return queue if queue.startswith(PREFIX) else f"{PREFIX}{queue}"


def paused_key(queue: str) -> str:
    return f"{main_key(queue)}:paused"


def unlogged_key(queue: str) -> str:
    """A list of what was parked because it cannot be read, and is not in PostgreSQL's job log yet."""
    return f"{main_key(queue)}:unlogged"


def check_names(policies: Iterable[Policy], known: Iterable[str]) -> None:
    """Refuses queues and limits whose keys would be those of others. `known` are queues that were declared before."""
    name_by_key = {main_key(queue): queue for queue in known}
    for policy in policies:
        key = main_key(policy.queue)
        last = key.rpartition(":")[2]
        if key == JOB_LOG:
            raise Invalid(f"queue {policy.queue!r} would lie in {JOB_LOG}, where Redis has the job log; rename it")
        if last in BESIDE or ":lane:" in key:
            part = last if last in BESIDE else "lane"
            raise Invalid(f"queue {policy.queue!r} would lie where another queue keeps its {part} in Redis; rename it")
        if (other := name_by_key.setdefault(key, policy.queue)) != policy.queue:
            raise Invalid(f"queues {other!r} and {policy.queue!r} would both lie in {key} in Redis; rename one of them")
        if policy.limit_name is not None and policy.limit_name.endswith(":leases"):
            raise Invalid(f"limit {policy.limit_name!r} would lie where another limit keeps its leases; rename it")
