"""The queue ports and the promises of every backend. The conformance suite tests these promises.

1. A message put and committed is handled at least once until settled; kill −9 anywhere loses none.
2. At most one live lease per message; a stale settle or extend changes nothing and says so.
3. A dead worker is replaced after the lease ends. Crashes are counted apart from attempts: after two the message runs
   isolated in a worker, and it is parked only after an isolated crash. A parked message has exactly one copy.
4. Delays follow the policy by the store's clock; nothing runs early.
5. Concurrency limits apply across processes and survive kill −9. Dispatches in any second ≤ rate + burst.
6. Pause stops claims at once and loses nothing; resume, redrive and purge do exactly what was previewed. A paused or
   limited queue never makes a waiter spin.
7. An idempotency key is accepted once while its message lives (parked included) and for give_up_after + 24 h after
   that; a second put returns the first id.
8. Messages run in order of their due times; none starves; round-robin over lanes where declared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol
from uuid import UUID

from payonce.engine.database.connections import Connection
from payonce.engine.messages.maintenance import Task
from payonce.engine.messages.model import Claim, Message, SettleAnswer, Settlement, State
from payonce.engine.messages.policy import Policy

POLL_S: Final = 0.25
"""The longest a waiting worker goes without checking; a wake-up only makes it sooner."""


@dataclass(frozen=True)
class Exchange:
    """The result of one round trip that settles and claims."""

    answers: Sequence[SettleAnswer] = ()
    """One per settlement, in order."""
    claims: Sequence[Claim] = ()
    rest_s: float | None = None
    """Set when the queue is paused or limited: do not ask again sooner."""
    asked_at: float | None = None
    """Set when some messages were claimed before they were requested, after a wait: the time of that claim or later, by
    this process's clock."""
    more: bool = False
    """There may be more messages than were claimed."""


@dataclass(frozen=True)
class Depth:
    """Messages of one queue by state. Counts stop at a bound, which keeps them cheap."""

    queue: str
    ready: int = 0
    delayed: int = 0
    alone: int = 0
    leased: int = 0
    parked: int = 0
    oldest_ready_s: float = 0.0
    paused: bool = False


@dataclass(frozen=True)
class Filter:
    """The parked messages that a redrive or purge applies to; an empty filter matches all."""

    ids: Sequence[UUID] = ()
    action: str | None = None
    correlation_id: str | None = None
    error_contains: str | None = None
    parked_after: datetime | None = None
    parked_before: datetime | None = None


@dataclass(frozen=True)
class QueuedMessage:
    """A message as stored, for people to look at."""

    message: Message
    state: State
    ready_at: datetime
    crashes: int
    lease_until: datetime | None = None
    worker: str | None = None
    last_error: str | None = None
    readable: bool = True
    """False: it is not a valid message and can only be purged."""
    due_known: bool = True
    """False: it was pushed directly, and `ready_at` is unknown until it is first claimed."""


@dataclass(frozen=True)
class Preview:
    """What a redrive or purge would affect."""

    count: int
    samples: Sequence[QueuedMessage] = field(default_factory=tuple)
    with_open_effects: int = 0
    """Messages for which money may be under way; a purge leaves them."""
    in_review: int = 0
    """Messages with an effect in review. Redriven, they go straight back to waiting; the answer wakes them."""
    unreadable: int = 0
    """Entries that are not valid messages; a redrive leaves them."""


class Feed(Protocol):
    """Accepts messages; implemented by every backend."""

    async def put(self, messages: Sequence[Message], within: Connection | None = None) -> list[UUID]:
        """Stores all messages or none. Returns each message's id, or the first id of its idempotency key. With `within`
        an open transaction, they become visible with its commit."""
        ...


class PullQueue(Protocol):
    """One queue from which workers claim."""

    policy: Policy
    mirrors: bool
    """Whether the queue keeps a copy of messages that settle_within ends. If so, the settlement is passed to `exchange`
    again after the commit, marked as recorded."""

    async def exchange(self, settlements: Sequence[Settlement], limit: int) -> Exchange:
        """Settles, then claims up to `limit` messages, in one round trip where the backend can."""
        ...

    async def claim_alone(self) -> Claim | None:
        """Claims a message suspected of killing its workers. It must not run before `mark_alone`."""
        ...

    async def mark_alone(self, claim: Claim) -> bool:
        """Records that the claimed message now runs isolated. False: the claim is lost."""
        ...

    async def extend(self, claims: Sequence[Claim]) -> list[Claim]:
        """Renews leases; returns the claims that are lost."""
        ...

    async def give_back(self, running: Sequence[Claim]) -> int:
        """Releases what this worker holds in the store but does not run: claims whose answer was lost."""
        ...

    async def settle_within(self, connection: Connection, settlement: Settlement) -> bool:
        """Ends a run, parked ones included, inside its business transaction, behind the fence; False when stale. A
        queue may leave the fence to the next statement of the transaction, COMMIT included, which then raises Stale."""
        ...

    async def hold_within(self, connection: Connection, claim: Claim) -> bool:
        """The fence of a transaction that does not end the run: False unless the claim is live. A take-over cannot
        commit before that transaction, and the lease begins anew, so a vendor has a whole lease to answer in."""
        ...

    async def reap(self) -> int:
        """Takes messages from claims with an expired lease. Returns their number."""
        ...

    async def log_maintenance(self, task: Task, moved: int) -> None:
        """Logs a maintenance run of this queue, wherever operators read its log."""
        ...

    async def wait(self, timeout_s: float, room: int = 0) -> None:
        """Returns when something may have become claimable, at the latest after the time-out. With room for it, one
        message may be claimed at once; the next `exchange` that requests messages returns it."""
        ...

    async def stop_waiting(self) -> None:
        """Ends all waiting: messages claimed during a wait are returned."""
        ...

    def wake(self) -> None:
        """Ends a wait of this process."""
        ...


class Admin(Protocol):
    """What an operator may do to any queue of a backend, by name."""

    async def queues(self) -> list[str]: ...

    async def depth(self, queue: str) -> Depth: ...

    async def peek(self, queue: str, state: State, limit: int, after: UUID | None = None) -> list[QueuedMessage]: ...

    async def pause(self, queue: str, reason: str, by: str = ...) -> None: ...

    async def resume(self, queue: str, by: str = ...) -> None: ...

    async def preview(self, queue: str, state: State, which: Filter) -> Preview: ...

    async def choose(
        self, queue: str, state: State, which: Filter, limit: int, within: Connection | None = None
    ) -> list[UUID]:
        """The ids that the filter matches now, in order of their times. Unreadable entries are left out."""
        ...

    async def redrive(self, queue: str, which: Filter, within: Connection | None = None) -> int:
        """With `within` an open transaction it takes effect with the commit; waking the workers is then up to the
        caller."""
        ...

    async def purge(
        self,
        queue: str,
        state: State,
        which: Filter,
        by: str,
        *,
        limit: int | None = None,
        put_before: datetime | None = None,
    ) -> int:
        """Messages with open effects stay, since without them nobody would find out what became of the money. With a
        limit, about that many at most are purged, and none only when none is left. Messages put later than
        `put_before`, or than now, stay too."""
        ...
