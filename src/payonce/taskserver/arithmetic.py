"""Retry delays, the last attempt and burst sizes: pure functions, with Google's defaults."""

import math
from dataclasses import dataclass
from typing import Final

RATE_DEFAULT: Final = 500.0
RATE_MAX: Final = 500.0
CONCURRENCY_DEFAULT: Final = 1_000
CONCURRENCY_MAX: Final = 5_000
ATTEMPTS_DEFAULT: Final = 100
UNLIMITED: Final = -1
MIN_BACKOFF_DEFAULT_S: Final = 0.1
MAX_BACKOFF_DEFAULT_S: Final = 3_600.0
DOUBLINGS_DEFAULT: Final = 16
RETRY_AFTER_MAX_S: Final = 3_600.0
"""Upper limit for a worker's Retry-After."""

SLOWING_STATUSES: Final = frozenset({429, 503})
PACE_LEAST: Final = 1 / 16
PACE_RECOVERY_S: Final = 10.0
"""After this time without a bad response the pace doubles, and again after each further interval."""
ERROR_WINDOW: Final = 20
ERRORS_HIGH_SHARE: Final = 0.5

_LARGEST_POWER: Final = 64


@dataclass(frozen=True)
class Retrying:
    """google.cloud.tasks.v2.RetryConfig with every field set."""

    max_attempts: int = ATTEMPTS_DEFAULT
    max_retry_duration_s: float = 0.0
    min_backoff_s: float = MIN_BACKOFF_DEFAULT_S
    max_backoff_s: float = MAX_BACKOFF_DEFAULT_S
    max_doublings: int = DOUBLINGS_DEFAULT


def backoff_s(retry: int, retrying: Retrying) -> float:
    """The delay before retry number `retry`, counted from 1: doubles, then grows by the last step, then stays."""
    if retry <= retrying.max_doublings + 1:
        wait_s = retrying.min_backoff_s * 2.0 ** min(retry - 1, _LARGEST_POWER)
    else:
        steps = retry - retrying.max_doublings
        wait_s = retrying.min_backoff_s * 2.0 ** min(retrying.max_doublings, _LARGEST_POWER) * steps
    return min(wait_s, retrying.max_backoff_s)


def is_exhausted(attempts: int, age_s: float, retrying: Retrying) -> bool:
    """Whether a failed task has used up its attempts. With two limits both must be reached; unlimited attempts with a
    duration end by the duration, and a duration of 0 means no limit."""
    out_of_time = 0 < retrying.max_retry_duration_s <= age_s
    if retrying.max_attempts == UNLIMITED:
        return out_of_time
    return attempts >= retrying.max_attempts and (out_of_time or retrying.max_retry_duration_s == 0)


def next_wait_s(attempts: int, age_s: float, retrying: Retrying, retry_after_s: float | None) -> float | None:
    """The delay before a failed task's next attempt; None after its last."""
    if is_exhausted(attempts, age_s, retrying):
        return None
    return max(backoff_s(attempts, retrying), min(retry_after_s or 0.0, RETRY_AFTER_MAX_S))


def burst_of(rate: float) -> int:
    """The burst size. Google documents at least the rate; here it is exactly the rate, so that no second has more than
    twice the rate."""
    return max(1, math.ceil(rate))


def counts_as_execution(status: int | None) -> bool:
    """Whether X-CloudTasks-TaskExecutionCount counts a response: all but server errors."""
    return status is not None and not 500 <= status <= 599


def is_success(status: int | None) -> bool:
    return status is not None and 200 <= status <= 299
