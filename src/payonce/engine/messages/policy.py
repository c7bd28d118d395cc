"""Policies: one declaration per queue, and the pure function that decides what follows a run."""

import hashlib
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final, Generic, Literal
from uuid import UUID

from typing_extensions import TypeVar

from payonce.engine.messages.contract import Contract, struct_of
from payonce.engine.messages.model import ATTEMPTS_MAX, DELAY_MAX_S, NAME_MAX_LENGTH, Ending, Message
from payonce.kit.outcomes import Invalid

DATABASE_RETRY_S: Final = 1.0
"""Delay after which a give-up is repeated that the database could not record. An answer given meanwhile cannot wake a
message in another store."""
RELEASE_DELAY_S: Final = 5.0
"""How long a message unknown to this worker waits before any worker sees it again."""
RELEASED_MAX_S: Final = 86_400.0
"""The age at which a message that only another release knows is parked: longer than a rolling deploy."""


@dataclass(frozen=True)
class Exponential:
    """Before retry n: min(base · multiplier^(n−1), max) + uniform(0, jitter)."""

    base_delay_seconds: float = 1.0
    backoff_multiplier: float = 2.0
    max_delay_seconds: float = 3600.0
    jitter_seconds: float = 0.0
    max_doublings: int | None = None
    """Google Cloud Tasks' rule: double this often, then grow by the last step."""
    steps_seconds: tuple[float, ...] = ()
    """Explicit delays in place of the formula; the last one repeats. Jitter is added."""

    def delay_s(self, retry: int, roll: float) -> float:
        if self.steps_seconds:
            return self.steps_seconds[min(retry, len(self.steps_seconds)) - 1] + roll * self.jitter_seconds
        return min(self._growth(retry), self.max_delay_seconds) + roll * self.jitter_seconds

    def _growth(self, retry: int) -> float:
        if self.base_delay_seconds == 0:
            return 0.0
        try:
            if self.max_doublings is None:
                return self.base_delay_seconds * self.backoff_multiplier ** (retry - 1)
            if retry <= self.max_doublings + 1:
                return self.base_delay_seconds * 2.0 ** (retry - 1)
            return self.base_delay_seconds * 2.0**self.max_doublings * (retry - self.max_doublings)
        except OverflowError:
            return self.max_delay_seconds


def Fixed(delay_s: float, jitter_s: float = 0.0) -> Exponential:  # noqa: N802 - reads as a kind of backoff
    """The same delay before every retry."""
    return Exponential(delay_s, 1.0, delay_s, jitter_s)


def Steps(*delays_s: float, jitter_s: float = 0.0) -> Exponential:  # noqa: N802 - reads as a kind of backoff
    """These delays in order, the last one repeated."""
    return Exponential(jitter_seconds=jitter_s, steps_seconds=delays_s)


LEAST_RATE: Final = 1 / 86_400
_MOST: Final = {
    "max_attempts": ATTEMPTS_MAX,
    "give_up_after_s": DELAY_MAX_S,
    "lease_s": 86_400,
    "run_limit_s": 7 * 86_400,
    "concurrency": 1_000_000,
    "rate": 1_000_000,
    "burst": 1_000_000,
}

PayloadT = TypeVar("PayloadT", default=Any)
GiveUp = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True)
class Policy(Generic[PayloadT]):
    """A queue. `Policy("pay", payload=PayOrder)` declares what its messages carry: `work.payload` is a PayOrder, and
    `tx.send` takes nothing else."""

    queue: str
    max_attempts: int | None = 6
    """Executions, the first included; None: unlimited."""
    give_up_after_s: float | None = None
    """Age from the first attempt, without the time for which a control held the message. Reaching either limit
    ends it."""
    backoff: Exponential = field(default_factory=lambda: Exponential(60.0, 2.0, 3600.0, 10.0))
    lease_s: float = 30.0
    """Renewed at a third of it while the handler runs."""
    run_limit_s: float = 300.0
    """Hard limit of one run, renewals included."""
    concurrency: int | None = None
    """Across all processes."""
    rate: float | None = None
    """Dispatches per second, across all processes."""
    burst: int = 1
    limit: str | None = None
    """Queues that name the same limit share its concurrency and rate."""
    lanes: bool = False
    """Claim round-robin over the messages' lanes, so that one tenant cannot delay the others."""
    log: Literal["all", "failures"] = "all"
    on_give_up: Literal["park"] | GiveUp = "park"
    payload: type[PayloadT] | None = field(default=None, compare=False, kw_only=True)
    """The msgspec struct of every message, for a queue without actions: short for a contract of one type."""
    contract: Contract | None = field(default=None, compare=False)
    """The messages that the queue accepts; others are parked before a handler sees them. None accepts everything."""

    def __post_init__(self) -> None:
        if self.payload is not None:
            contract = Contract({"": struct_of(self.payload, self.queue)})
            # A copy made with dataclasses.replace has both.
            if self.contract not in (None, contract):
                raise Invalid(f"{self.queue}: give payload or contract, not both; a contract types each action")
            object.__setattr__(self, "contract", contract)
        _check(self)

    @property
    def limit_name(self) -> str | None:
        """None when nothing is limited. A named limit also applies to a queue that states no numbers of its own."""
        if self.limit is None and self.concurrency is None and self.rate is None:
            return None
        return self.limit or self.queue

    @property
    def key_retention_s(self) -> float:
        """How long an idempotency key outlives its message."""
        return (self.give_up_after_s or 0.0) + 86_400.0

    def described(self) -> dict[str, object]:
        """Plain values, for people and for other processes."""
        plain = {
            item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("contract", "payload")
        }
        plain["backoff"] = {item.name: getattr(self.backoff, item.name) for item in fields(self.backoff)}
        if callable(self.on_give_up):
            plain["on_give_up"] = getattr(self.on_give_up, "__qualname__", "handler")
        if self.contract is not None:
            plain["actions"] = self.contract.actions
        return plain


@dataclass(frozen=True)
class Ended:
    """The result of a run, in the policy's terms."""

    ending: Ending
    reason: str | None = None
    after_s: float | None = None


@dataclass(frozen=True)
class Step:
    """What happens to the message. With `give_up`, the policy's on_give_up is called before it is parked."""

    ending: Ending
    reason: str | None
    delay_s: float = 0.0
    give_up: bool = False
    cause: str | None = None
    """When giving up: how the last run ended, without the words about giving up."""


def next_step(policy: Policy, message: Message, first_attempt_at: datetime, now: datetime, ended: Ended) -> Step:
    """Pure and total: the same arguments give the same step, jitter included (drawn from id and attempt)."""
    if ended.ending in (Ending.SUCCESS, Ending.FAILED, Ending.PARKED):
        return Step(ended.ending, ended.reason)
    if ended.ending is Ending.RELEASED:
        rest_s = RELEASE_DELAY_S if ended.after_s is None else _bounded_s(ended.after_s)
        return Step(Ending.RELEASED, ended.reason, rest_s)
    run = message.attempts + 1
    limit = message.max_attempts if message.max_attempts is not None else policy.max_attempts
    if limit is not None and run >= limit:
        return _gave_up(ended, f"gave up after {run} of {limit} attempts")
    delay_s = planned_delay_s(policy, message.id, run)
    if ended.after_s is not None:
        delay_s = _bounded_s(ended.after_s)
    age_s = (now - first_attempt_at).total_seconds()
    if policy.give_up_after_s is not None and age_s + delay_s > policy.give_up_after_s:
        return _gave_up(ended, f"gave up {age_s:.0f} s after the first attempt, limit {policy.give_up_after_s:g} s")
    return Step(Ending.RETRY, ended.reason, delay_s)


def _gave_up(ended: Ended, how: str) -> Step:
    """The cause comes first, since lists and notices truncate a long reason."""
    cause = ended.reason or "no reason given"
    return Step(Ending.PARKED, f"{cause} ({how})", give_up=True, cause=cause)


def planned_delay_s(policy: Policy, message_id: UUID, run: int) -> float:
    """The delay before the retry that follows this run, jitter included; always the same for the same run."""
    return policy.backoff.delay_s(run, _roll(message_id, run))


def policy_as_described(described: Mapping[str, Any]) -> Policy:
    """The policy that `described` described. A handler for giving up is reduced to its name, and parks. The contract is
    reduced to its actions, and is not enforced."""
    known = {item.name for item in fields(Policy)} - {"on_give_up", "contract"}
    plain = {name: value for name, value in described.items() if name in known}
    return Policy(**{**plain, "backoff": Exponential(**described.get("backoff", {}))})


def _bounded_s(after_s: float) -> float:
    """A vendor's Retry-After may say anything; the store must be able to keep the result."""
    return min(max(0.0, after_s), DELAY_MAX_S)


_SEED_NAMES: Final = {
    "lock_ttl_seconds": "lease_s",
    "visibility_timeout_seconds": "run_limit_s",
    "max_concurrent_dispatches": "concurrency",
    "max_dispatches_per_second": "rate",
    "max_retry_duration": "give_up_after_s",
}
_BACKOFF_NAMES: Final = frozenset(item.name for item in fields(Exponential))
_WHOLE: Final = frozenset({"max_attempts", "max_retries", "max_doublings", "concurrency", "burst"})
_TEXT: Final = frozenset({"limit", "log"})
_MAY_BE_NONE: Final = frozenset(
    {"max_attempts", "max_retries", "give_up_after_s", "concurrency", "rate", "max_doublings", "limit"}
)
_FLAGS: Final = frozenset({"lanes"})
_LISTS: Final = frozenset({"steps_seconds"})
_NOT_FROM_OUTSIDE: Final = frozenset({"queue", "backoff", "on_give_up", "contract", "payload"})


def override(policy: Policy, values: Mapping[str, object]) -> Policy:
    changed: dict[str, Any] = {}
    backoff: dict[str, Any] = {}
    for name, value in values.items():
        target = _SEED_NAMES.get(name, name)
        if target == "max_retries":
            retries = _parsed(policy.queue, target, value)
            changed["max_attempts"] = None if retries is None else retries + 1
        elif target in _BACKOFF_NAMES:
            backoff[target] = _parsed(policy.queue, target, value)
        elif target in {item.name for item in fields(Policy)} - _NOT_FROM_OUTSIDE:
            changed[target] = _parsed(policy.queue, target, value)
        else:
            known = sorted(
                ({item.name for item in fields(Policy)} - _NOT_FROM_OUTSIDE) | _BACKOFF_NAMES | _SEED_NAMES.keys()
            )
            raise Invalid(f"policy of {policy.queue} has no field {name!r}; known are: max_retries, {', '.join(known)}")
    if backoff:
        changed["backoff"] = replace(policy.backoff, **backoff)
    return replace(policy, **changed)


def override_from_environment(policy: Policy, environ: Mapping[str, str] | None = None) -> Policy:
    """QUEUE_POLICY__SUB_PAYMENT_INITIATION__MAX_RETRIES=7 changes q:sub:payment_initiation."""
    environ = os.environ if environ is None else environ
    prefix = f"QUEUE_POLICY__{environment_name(policy.queue)}__"
    return override(
        policy, {name[len(prefix) :].lower(): value for name, value in environ.items() if name.startswith(prefix)}
    )


def environment_name(queue: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", queue.removeprefix("q:").upper()).strip("_")


def _parsed(queue: str, name: str, value: object) -> Any:
    text = str(value).strip()
    try:
        if text.lower() in ("none", "null", "") and name in _MAY_BE_NONE:
            return None
        if name in _FLAGS:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if name in _TEXT:
            return text
        if name in _LISTS:
            return tuple(float(part) for part in text.split(",")) if text else ()
        return int(text) if name in _WHOLE else float(text)
    except (ValueError, KeyError) as error:
        raise Invalid(f"policy of {queue}: {name} is {text!r}, which is not a valid value for it") from error


def _check(policy: Policy) -> None:
    def refuse(name: str, rule: str) -> Invalid:
        return Invalid(f"policy of {policy.queue}: {name} is {getattr(policy, name, None)!r}; {rule}")

    if not policy.queue or len(policy.queue) > NAME_MAX_LENGTH or not re.fullmatch(r"[A-Za-z0-9:._-]+", policy.queue):
        raise Invalid(
            f"queue name {policy.queue!r} must be 1 to {NAME_MAX_LENGTH} letters, digits, ':', '.', '_' or '-'"
        )
    for name, most in _MOST.items():
        value = getattr(policy, name)
        if value is not None and not 0 < value <= most:
            raise refuse(name, f"it must be above 0 and at most {most:,}")
    if policy.rate is not None and policy.rate < LEAST_RATE:
        raise refuse("rate", f"it must be at least {LEAST_RATE} per second; use a schedule for lower rates")
    if policy.lease_s < 1:
        raise refuse("lease_s", "a lease below one second cannot be kept alive")
    _check_backoff(policy)
    if policy.log not in ("all", "failures"):
        raise refuse("log", "it is 'all' or 'failures'")
    if policy.on_give_up != "park" and not callable(policy.on_give_up):
        raise refuse("on_give_up", "it is 'park' or a handler")


def _check_backoff(policy: Policy) -> None:
    backoff = policy.backoff
    for name in ("base_delay_seconds", "backoff_multiplier", "max_delay_seconds", "jitter_seconds"):
        value = getattr(backoff, name)
        if not 0 <= value <= DELAY_MAX_S / 2:
            raise Invalid(
                f"policy of {policy.queue}: {name} is {value!r}; it must be 0 or more, and less than five years"
            )
    if not all(0 <= step <= DELAY_MAX_S / 2 for step in backoff.steps_seconds):
        raise Invalid(
            f"policy of {policy.queue}: steps_seconds is {backoff.steps_seconds!r}; each must be 0 or more, "
            "and less than five years"
        )
    if backoff.max_doublings is not None and backoff.max_doublings < 0:
        raise Invalid(f"policy of {policy.queue}: max_doublings is {backoff.max_doublings}; it must be 0 or more")


def _roll(message_id: UUID, run: int) -> float:
    digest = hashlib.blake2b(message_id.bytes + run.to_bytes(8, "big"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
