"""Queues as stored and as shown by the API: settings, with Google's defaults and bounds."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from google.cloud import tasks_v2

from payonce.taskserver.arithmetic import (
    ATTEMPTS_DEFAULT,
    CONCURRENCY_DEFAULT,
    CONCURRENCY_MAX,
    DOUBLINGS_DEFAULT,
    MAX_BACKOFF_DEFAULT_S,
    MIN_BACKOFF_DEFAULT_S,
    RATE_DEFAULT,
    RATE_MAX,
    UNLIMITED,
    Retrying,
    burst_of,
)
from payonce.taskserver.refusals import invalid, unimplemented

QueuePb: Final[Any] = tasks_v2.Queue.pb()
RetryPb: Final[Any] = tasks_v2.RetryConfig.pb()

STATES: Final = {"RUNNING": 1, "PAUSED": 2}
DURATION_MAX_S: Final = 315_576_000_000
"""Maximum of google.protobuf.Duration: ten thousand years."""
DOUBLINGS_MAX: Final = 2**31 - 1
_NANOS: Final = 1_000_000_000


@dataclass(frozen=True)
class Config:
    """A queue's settings."""

    rate: float = RATE_DEFAULT
    concurrency: int = CONCURRENCY_DEFAULT
    retrying: Retrying = field(default_factory=Retrying)
    logging_ratio: float | None = None

    @property
    def burst(self) -> int:
        return burst_of(self.rate)


@dataclass(frozen=True)
class QueueRow:
    """A stored queue."""

    id: int
    name: str
    state: str
    config: Config
    purged_at: datetime | None


def config_of(queue: Any) -> Config:
    """The settings in a message; zero fields are unset and get Google's defaults."""
    if queue.HasField("app_engine_routing_override"):
        unimplemented("Routing to App Engine (app_engine_routing_override)")
    if queue.HasField("http_target"):
        unimplemented("A queue's own target (http_target)")
    limits = queue.rate_limits
    logging = queue.stackdriver_logging_config.sampling_ratio if queue.HasField("stackdriver_logging_config") else None
    return checked(
        Config(
            limits.max_dispatches_per_second or RATE_DEFAULT,
            limits.max_concurrent_dispatches or CONCURRENCY_DEFAULT,
            retrying_of(queue.retry_config),
            logging,
        )
    )


def retrying_of(retry: Any) -> Retrying:
    """A retry config with defaults for unset fields."""
    min_backoff_s = seconds(retry.min_backoff) if retry.HasField("min_backoff") else None
    max_backoff_s = seconds(retry.max_backoff) if retry.HasField("max_backoff") else MAX_BACKOFF_DEFAULT_S
    return _checked_retrying(
        Retrying(
            retry.max_attempts or ATTEMPTS_DEFAULT,
            seconds(retry.max_retry_duration),
            min(MIN_BACKOFF_DEFAULT_S, max_backoff_s) if min_backoff_s is None else min_backoff_s,
            max_backoff_s,
            retry.max_doublings or DOUBLINGS_DEFAULT,
        )
    )


def updated(known: Config, queue: Any, paths: Iterable[str]) -> Config:
    """The known settings, with the masked ones taken from the message. An explicitly masked zero counts where it has a
    meaning: this is how to set no doublings."""
    wanted = config_of(queue)
    for path in paths:
        if path not in _PATHS:
            raise invalid(f"update_mask names {path!r}; it may name: {', '.join(sorted(_PATHS))}.")
    chosen = set(paths)
    retrying = known.retrying
    for path, attribute in _RETRY_PATHS.items():
        if path in chosen or "retry_config" in chosen:
            retrying = replace(retrying, **{attribute: getattr(wanted.retrying, attribute)})
    if "retry_config.max_doublings" in chosen:
        retrying = replace(retrying, max_doublings=queue.retry_config.max_doublings)
    for path, attribute in _LIMIT_PATHS.items():
        if path in chosen or "rate_limits" in chosen:
            known = replace(known, **{attribute: getattr(wanted, attribute)})
    if any(path.startswith("stackdriver_logging_config") for path in chosen):
        known = replace(known, logging_ratio=wanted.logging_ratio)
    return checked(replace(known, retrying=retrying))


_RETRY_PATHS: Final = {
    "retry_config.max_attempts": "max_attempts",
    "retry_config.max_retry_duration": "max_retry_duration_s",
    "retry_config.min_backoff": "min_backoff_s",
    "retry_config.max_backoff": "max_backoff_s",
    "retry_config.max_doublings": "max_doublings",
}
_LIMIT_PATHS: Final = {
    "rate_limits.max_dispatches_per_second": "rate",
    "rate_limits.max_concurrent_dispatches": "concurrency",
}
# Output-only fields may be named, and are ignored.
_PATHS: Final = frozenset(
    {
        *_RETRY_PATHS,
        *_LIMIT_PATHS,
        "retry_config",
        "rate_limits",
        "rate_limits.max_burst_size",
        "name",
        "state",
        "purge_time",
        "stackdriver_logging_config",
        "stackdriver_logging_config.sampling_ratio",
    }
)


def checked(config: Config) -> Config:
    if not 0 < config.rate <= RATE_MAX:
        raise invalid(
            f"RateLimits.max_dispatches_per_second is {config.rate:g}; it must be above 0 and at most {RATE_MAX:g}."
        )
    if not 1 <= config.concurrency <= CONCURRENCY_MAX:
        raise invalid(
            f"RateLimits.max_concurrent_dispatches is {config.concurrency}; it must be from 1 to {CONCURRENCY_MAX}."
        )
    if config.logging_ratio is not None and not 0 <= config.logging_ratio <= 1:
        raise invalid(f"sampling_ratio is {config.logging_ratio:g}; it must be from 0 to 1.")
    _checked_retrying(config.retrying)
    return config


def _checked_retrying(retrying: Retrying) -> Retrying:
    if retrying.max_attempts < UNLIMITED:
        raise invalid(
            f"RetryConfig.max_attempts is {retrying.max_attempts}; it must be at least 1, or -1 for no limit."
        )
    for name in ("max_retry_duration", "min_backoff", "max_backoff"):
        value = getattr(retrying, f"{name}_s")
        if not 0 <= value <= DURATION_MAX_S:
            raise invalid(f"RetryConfig.{name} is {value:g}s; it must not be negative.")
    if retrying.min_backoff_s > retrying.max_backoff_s:
        raise invalid(
            f"RetryConfig.min_backoff is {retrying.min_backoff_s:g}s; it must not be above max_backoff, which is "
            f"{retrying.max_backoff_s:g}s."
        )
    if not 0 <= retrying.max_doublings <= DOUBLINGS_MAX:
        raise invalid(f"RetryConfig.max_doublings is {retrying.max_doublings}; it must not be negative.")
    return retrying


def shown_queue(row: QueueRow) -> Any:
    """google.cloud.tasks.v2.Queue."""
    config = row.config
    queue = QueuePb(name=row.name, state=STATES[row.state])
    queue.rate_limits.max_dispatches_per_second = config.rate
    queue.rate_limits.max_burst_size = config.burst
    queue.rate_limits.max_concurrent_dispatches = config.concurrency
    write_retrying(queue.retry_config, config.retrying)
    if row.purged_at is not None:
        write_time(queue.purge_time, row.purged_at)
    if config.logging_ratio is not None:
        queue.stackdriver_logging_config.sampling_ratio = config.logging_ratio
    return queue


def write_retrying(target: Any, retrying: Retrying) -> None:
    target.max_attempts = retrying.max_attempts
    target.max_doublings = retrying.max_doublings
    write_seconds(target.min_backoff, retrying.min_backoff_s)
    write_seconds(target.max_backoff, retrying.max_backoff_s)
    if retrying.max_retry_duration_s:
        write_seconds(target.max_retry_duration, retrying.max_retry_duration_s)


def seconds(duration: Any) -> float:
    return float(duration.seconds + duration.nanos / _NANOS)


def write_seconds(duration: Any, value_s: float) -> None:
    duration.seconds, duration.nanos = divmod(round(value_s * _NANOS), _NANOS)


def write_time(timestamp: Any, moment: datetime) -> None:
    timestamp.FromDatetime(moment)
