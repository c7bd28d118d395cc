"""The names of a queue's keys in Redis. Operators type them."""

from typing import Final

PREFIX: Final = "q:"
JOB_LOG: Final = "q:log:jobs"
TEST_CLOCK: Final = "payonce:test_clock"


def main_key(queue: str) -> str:
    """The list that producers push to; all other keys of the queue are named after it."""
    return queue if queue.startswith(PREFIX) else f"{PREFIX}{queue}"


def paused_key(queue: str) -> str:
    return f"{main_key(queue)}:paused"
