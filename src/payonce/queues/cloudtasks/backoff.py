"""The task service's own retry delays, from the retry settings of its queue."""

from typing import Final

from payonce.engine.messages.policy import Exponential

DOUBLINGS_DEFAULT: Final = 16
"""Google's default, which also applies where the setting is unset."""


def doublings(backoff: Exponential) -> int:
    if backoff.max_doublings is not None:
        return backoff.max_doublings
    return 0 if backoff.backoff_multiplier == 1 else DOUBLINGS_DEFAULT


def repeats_after_s(backoff: Exponential, retry: int) -> float:
    """The delay before the task service's n-th retry: doubling, then growing by the last step, up to the maximum."""
    times = doublings(backoff)
    least_s, most_s = backoff_bounds_s(backoff)
    grown = least_s * 2.0 ** min(retry - 1, times) * max(1, retry - times)
    return min(grown, most_s)


def backoff_bounds_s(backoff: Exponential) -> tuple[float, float]:
    if backoff.steps_seconds:
        return min(backoff.steps_seconds), max(backoff.steps_seconds)
    return min(backoff.base_delay_seconds, backoff.max_delay_seconds), backoff.max_delay_seconds
