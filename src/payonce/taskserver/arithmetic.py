"""When a task is tried again and when no more, and how fast a queue may go: pure functions, with Google's defaults."""

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
"""A worker's Retry-After may say anything; its task waits no longer than this for it."""

SLOWING_STATUSES: Final = frozenset({429, 503})
PACE_LEAST: Final = 1 / 16
PACE_RECOVERY_S: Final = 10.0
"""So long after the last bad answer the pace doubles, and again after as long."""
ERRORS_LOOKED_AT: Final = 20
ERRORS_HIGH_SHARE: Final = 0.5

_LARGEST_POWER: Final = 64


@dataclass(frozen=True)
class Retrying:
    """google.cloud.tasks.v2.RetryConfig with every field known."""

    max_attempts: int = ATTEMPTS_DEFAULT
    max_retry_duration_s: float = 0.0
    min_backoff_s: float = MIN_BACKOFF_DEFAULT_S
    max_backoff_s: float = MAX_BACKOFF_DEFAULT_S
    max_doublings: int = DOUBLINGS_DEFAULT


def backoff_s(retry: int, retrying: Retrying) -> float:
    """The wait before retry number `retry`, which begins at 1: doubles, then grows by the last step, then stays."""
    if retry <= retrying.max_doublings + 1:
        wait_s = retrying.min_backoff_s * 2.0 ** min(retry - 1, _LARGEST_POWER)
    else:
        steps = retry - retrying.max_doublings
        wait_s = retrying.min_backoff_s * 2.0 ** min(retrying.max_doublings, _LARGEST_POWER) * steps
    return min(wait_s, retrying.max_backoff_s)


def is_exhausted(attempts: int, age_s: float, retrying: Retrying) -> bool:
    """Whether a task that failed has had its attempts. With two limits both must be reached; unlimited attempts with a
    duration end by the duration, and a duration of 0 is none."""
    out_of_time = 0 < retrying.max_retry_duration_s <= age_s
    if retrying.max_attempts == UNLIMITED:
        return out_of_time
    return attempts >= retrying.max_attempts and (out_of_time or retrying.max_retry_duration_s == 0)


def next_wait_s(attempts: int, age_s: float, retrying: Retrying, retry_after_s: float | None) -> float | None:
    """How long a task that failed waits for its next attempt; None when it has had its last."""
    if is_exhausted(attempts, age_s, retrying):
        return None
    return max(backoff_s(attempts, retrying), min(retry_after_s or 0.0, RETRY_AFTER_MAX_S))


def burst_of(rate: float) -> int:
    """Google: generally at least the rate. Exactly that here, so that no second sees more than twice the rate."""
    return max(1, math.ceil(rate))


def counts_as_execution(status: int | None) -> bool:
    """X-CloudTasks-TaskExecutionCount counts answers, but not those in which the worker said it is broken."""
    return status is not None and not 500 <= status <= 599


def is_success(status: int | None) -> bool:
    return status is not None and 200 <= status <= 299
