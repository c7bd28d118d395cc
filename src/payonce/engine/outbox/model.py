"""The relay port, and the pure function that decides what follows a delivery.

A relay delivers entries to an external queue or log. Its guarantees and duties:

1. An entry is delivered at least once if its transaction committed, and never if it did not.
2. An entry may be delivered again, even after a successful delivery. The receiver's inbox, or another store of message
   ids there, discards repetitions.
3. While a batch is being delivered, no other process has its entries. No order is promised.
4. There is one answer per entry. An exception means that nothing is known about any of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from payonce.engine.messages.model import DELAY_MAX_S, NAME_MAX_LENGTH, Message, clean_text
from payonce.engine.messages.policy import Exponential
from payonce.kit.outcomes import Invalid
from payonce.kit.redact import redact

EVENTS: Final = "events"
"""The relay for events: to the log, until another relay of that name delivers them elsewhere."""
REPEAT_FOR_S: Final = 25 * 86_400.0
"""How long an entry without a durable copy is repeated, from its first attempt. Later a receiver may have forgotten
that it accepted it, so it is parked instead."""
ON_ITS_WAY_MAX_S: Final = 5 * 86_400.0
"""How long a delivered message may wait in an external queue before its receiver sees it."""
BATCH_MAX: Final = 1_000
LEASE_MAX_S: Final = 3_600.0
REFUSALS_MAX: Final = 1_000
DELAY_LEAST_S: Final = 0.1
"""A relay that answers "later" without a delay must not make its process spin."""


class State(StrEnum):
    """The state of an entry. A delivered entry without a durable copy has no row, nor has a settled one."""

    WAITING = "waiting"
    LEASED = "leased"
    DELIVERED = "delivered"
    """The destination has it; the durable copy lives here until it is settled."""
    PARKED = "parked"


TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.WAITING: frozenset({State.LEASED, State.PARKED}),
    State.LEASED: frozenset({State.WAITING, State.DELIVERED, State.PARKED}),
    State.DELIVERED: frozenset({State.WAITING, State.PARKED}),
    State.PARKED: frozenset({State.WAITING}),
}
"""Rows are also deleted: LEASED ones when delivered without a durable copy, PARKED ones by an operator, all by a
settle."""


@dataclass(frozen=True)
class RelayConfig:
    """How the entries of one relay are treated."""

    keeps: bool = False
    """Entries are durable copies that live until settled, so that lost messages can be put back; otherwise they are
    deleted once delivered."""
    ahead_s: float = 0.0
    """How long before its due time an entry may be delivered, for queues that implement delays themselves."""
    batch: int = 100
    timeout_s: float = 20.0
    lease_s: float = 30.0
    refusals_max: int = 5
    """This many refusals, the first included, park an entry. Deferrals are not refusals and have no limit."""
    backoff: Exponential = field(default_factory=lambda: Exponential(1.0, 2.0, 300.0))

    def __post_init__(self) -> None:
        most = {"batch": BATCH_MAX, "timeout_s": LEASE_MAX_S, "lease_s": LEASE_MAX_S, "refusals_max": REFUSALS_MAX}
        for name, limit in most.items():
            if not 0 < getattr(self, name) <= limit:
                raise Invalid(f"{name} of a relay is {getattr(self, name)}; it must be above 0 and at most {limit:g}")
        if not 0 <= self.ahead_s <= DELAY_MAX_S:
            raise Invalid(f"ahead_s of a relay is {self.ahead_s}; it must be 0 to {DELAY_MAX_S} seconds")
        if self.timeout_s >= self.lease_s:
            raise Invalid(
                f"timeout_s of a relay is {self.timeout_s:g} and its lease_s {self.lease_s:g}; a delivery must "
                "end before its lease, or another process would deliver at the same time"
            )


class Entry(msgspec.Struct, frozen=True):
    """A message as passed to its relay."""

    message: Message
    ready_at: datetime
    """When it falls due. In the future only for relays that take messages ahead of time."""
    tries: int
    """Failed deliveries so far."""
    due_in_s: float = 0.0
    """Seconds until it falls due, for a queue with a clock of its own; negative when it is past due."""
    first_attempt_at: datetime | None = None
    """When a run of it first began; only for durable entries that are put back."""
    delivery: int = 0
    """Grows when it is to be delivered anew; unchanged while it is only unknown whether the last delivery arrived."""


@dataclass(frozen=True)
class Delivered:
    """The destination has it."""

    name: str | None = None
    """The name it has there, by which a refill can look it up."""


@dataclass(frozen=True)
class Refusal:
    """The destination refuses this entry. It is retried a few times, then parked with the reason."""

    reason: str


@dataclass(frozen=True)
class Deferred:
    """Retried later, without limit: the destination is unavailable, full or busy."""

    reason: str
    after_s: float | None = None


Answer = Delivered | Refusal | Deferred


class Relay(Protocol):
    """The way to one destination, named after the destination, not after the product behind it."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> RelayConfig: ...

    async def deliver(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        """Returns one answer per entry, in order. Called outside any transaction, within `config.timeout_s`."""
        ...


class Claimed(msgspec.Struct, frozen=True):
    """A relay's claim on one entry, valid while its token is the newest."""

    entry: Entry
    token: int
    refusals: int
    suspect: bool


@dataclass(frozen=True)
class DeliveryDecision:
    """What happens to a claimed entry. With `to` None it is deleted."""

    outcome: str
    to: State | None
    reason: str | None = None
    delay_s: float = 0.0
    tries: int = 0
    refusals: int = 0
    suspect: bool = False
    name: str | None = None


def decide(config: RelayConfig, claimed: Claimed, answer: Answer) -> DeliveryDecision:
    """Pure and total: what an answer means for an entry."""
    tries = claimed.entry.tries + 1
    match answer:
        case Delivered(name):
            return DeliveryDecision("delivered", State.DELIVERED if config.keeps else None, name=name)
        case Deferred(reason, after_s):
            delay_s = config.backoff.delay_s(tries, 0.0) if after_s is None else after_s
            return DeliveryDecision(
                "not_now",
                State.WAITING,
                stored_reason(reason),
                min(max(delay_s, DELAY_LEAST_S), DELAY_MAX_S),
                tries,
                claimed.refusals,
                claimed.suspect,
            )
        case Refusal(reason):
            refusals = claimed.refusals + 1
            if refusals >= config.refusals_max:
                why = stored_reason(f"refused {refusals} times: {reason}")
                return DeliveryDecision("parked", State.PARKED, why, 0.0, tries, refusals, claimed.suspect)
            delay_s = max(config.backoff.delay_s(tries, 0.0), DELAY_LEAST_S)
            return DeliveryDecision(
                "refused", State.WAITING, stored_reason(reason), delay_s, tries, refusals, claimed.suspect
            )


def decide_suspect(config: RelayConfig, claimed: Claimed, reason: str) -> DeliveryDecision:
    """For an entry of a batch that failed, which may be the one that makes every batch fail."""
    tries = claimed.entry.tries + 1
    delay_s = max(config.backoff.delay_s(tries, 0.0), DELAY_LEAST_S)
    return DeliveryDecision(
        "failed", State.WAITING, stored_reason(reason), delay_s, tries, claimed.refusals, suspect=True
    )


def stored_reason(reason: str) -> str:
    """A reason as it may be stored and shown."""
    return clean_text(redact(reason))


def wake_name(relay: str) -> str:
    """The name notified for a relay. No queue's name has this prefix."""
    return f"*outbox:{relay}"


def check_relay_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or len(name) > NAME_MAX_LENGTH:
        raise Invalid(f"relay name {name[:40]!r} must be 1 to {NAME_MAX_LENGTH} letters, digits, '.', '_' or '-'")
