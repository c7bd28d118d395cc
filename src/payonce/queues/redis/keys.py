"""The names of a queue's keys in Redis, which operators can type."""

from collections.abc import Iterable
from typing import Final

from payonce.engine.messages.policy import Policy
from payonce.kit.outcomes import Invalid

PREFIX: Final = "q:"
JOB_LOG: Final = "q:log:jobs"
TEST_CLOCK: Final = "payonce:test_clock"
OWNER: Final = "payonce:installation"
"""The owner of the queues: payonce.installation.id of its database."""

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
"""Suffixes of a queue's keys other than its main list."""


def main_key(queue: str) -> str:
    """The list that producers push to; its name prefixes all other keys of the queue."""
    return queue if queue.startswith(PREFIX) else f"{PREFIX}{queue}"


def paused_key(queue: str) -> str:
    return f"{main_key(queue)}:paused"


def unlogged_key(queue: str) -> str:
    """A list of messages that were parked as unreadable and are not in PostgreSQL's job log yet."""
    return f"{main_key(queue)}:unlogged"


def check_names(policies: Iterable[Policy], known: Iterable[str]) -> None:
    """Raises Invalid for queues and limits whose keys collide with others. `known` are queues declared before."""
    name_by_key = {main_key(queue): queue for queue in known}
    for policy in policies:
        key = main_key(policy.queue)
        last = key.rpartition(":")[2]
        if key == JOB_LOG:
            raise Invalid(f"queue {policy.queue!r} would use the key {JOB_LOG}, which holds the job log; rename it")
        if last in BESIDE or ":lane:" in key:
            part = last if last in BESIDE else "lane"
            raise Invalid(f"queue {policy.queue!r} would use a key in which another queue keeps its {part}; rename it")
        if (other := name_by_key.setdefault(key, policy.queue)) != policy.queue:
            raise Invalid(
                f"queues {other!r} and {policy.queue!r} would both use the key {key} in Redis; rename one of them"
            )
        if policy.limit_name is not None and policy.limit_name.endswith(":leases"):
            raise Invalid(
                f"limit {policy.limit_name!r} would use a key in which another limit keeps its leases; rename it"
            )
