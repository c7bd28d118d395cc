"""The queue ports and what each backend promises. The conformance suite is these promises, run.

1. A message put and committed is handled at least once until settled; kill −9 anywhere loses none.
2. At most one live lease per message; a stale settle or extend changes nothing and says so.
3. A dead claimer is replaced after the lease ends. Crashes are counted apart from attempts: after two the message
   runs alone in a worker, and it is parked only after dying alone. Parked: exactly one copy.
4. Delays follow the policy by the store's clock; nothing runs early.
5. Concurrency holds across processes and survives kill −9. Dispatches in any second ≤ rate + burst.
6. Pause stops claims at once and loses nothing; resume, redrive and purge do what they say. A paused or limited
   queue never makes a waiter spin.
7. An idempotency key is accepted once while its message lives (parked included) and for give_up_after + 24 h after;
   a second put answers with the first id.
8. Order is by time ready; no message starves; round-robin over lanes where declared.
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
"""The longest a waiting worker goes without looking; a wake-up only makes it sooner."""


@dataclass(frozen=True)
class Exchange:
    """The answer to one round trip that settles and claims."""

    answers: Sequence[SettleAnswer] = ()
    """One per settlement, in order."""
    claims: Sequence[Claim] = ()
    rest_s: float | None = None
    """Set when the queue is paused or limited: do not ask again sooner."""
    asked_at: float | None = None
    """Set when some of it was claimed before it was asked for, behind a wait: then, or later, by our own clock."""
    more: bool = False
    """There may be more than was given."""


@dataclass(frozen=True)
class Depth:
    """Messages of one queue by state. Counts stop at a bound, so that asking stays cheap."""

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
    """Which parked messages a redrive or purge means; everything left empty matches all."""

    ids: Sequence[UUID] = ()
    action: str | None = None
    correlation_id: str | None = None
    error_contains: str | None = None
    parked_after: datetime | None = None
    parked_before: datetime | None = None


@dataclass(frozen=True)
class QueuedMessage:
    """A message as it lies in the store, for people to look at."""

    message: Message
    state: State
    ready_at: datetime
    crashes: int
    lease_until: datetime | None = None
    worker: str | None = None
    last_error: str | None = None
    readable: bool = True
    """False: it is no message, and can only be purged."""
    due_known: bool = True
    """False: somebody pushed it by hand, and `ready_at` is told when it is first claimed."""


@dataclass(frozen=True)
class Preview:
    """What a redrive or purge would touch."""

    count: int
    samples: Sequence[QueuedMessage] = field(default_factory=tuple)
    with_open_effects: int = 0
    """Of these money may be under way: a purge leaves them."""
    in_review: int = 0
    """An effect of these waits for a person's answer: redriven, they run into it and go straight back to waiting. The
    answer wakes them."""
    unreadable: int = 0
    """These are no messages: a redrive leaves them."""


class Feed(Protocol):
    """Every backend takes messages."""

    async def put(self, messages: Sequence[Message], within: Connection | None = None) -> list[UUID]:
        """Stores all or none. Answers with each message's id, or the first id of its idempotency key.
        `within` an open transaction they become visible with its commit."""
        ...


class PullQueue(Protocol):
    """One queue that workers take from."""

    policy: Policy
    mirrors: bool
    """Whether it has a copy of its own of what settle_within ends. Then the settlement is given to `exchange` once more
    after the commit, as recorded."""

    async def exchange(self, settlements: Sequence[Settlement], limit: int) -> Exchange:
        """Settles, then claims up to `limit`, in one round trip where the backend can."""
        ...

    async def claim_alone(self) -> Claim | None:
        """A message suspected of killing its workers. It is not to run before `mark_alone`."""
        ...

    async def mark_alone(self, claim: Claim) -> bool:
        """Records that the claimed message now runs with nothing beside it. False: the claim is lost."""
        ...

    async def extend(self, claims: Sequence[Claim]) -> list[Claim]:
        """Renews leases; answers with the claims that are lost."""
        ...

    async def give_back(self, running: Sequence[Claim]) -> int:
        """Frees what this worker holds in the store but does not run: claims whose answer was lost."""
        ...

    async def settle_within(self, connection: Connection, settlement: Settlement) -> bool:
        """The fenced end of a run, parked ones included, inside its business transaction; False when stale. A queue may
        leave that to the next statement of the transaction, its COMMIT included, which then raises Stale."""
        ...

    async def hold_within(self, connection: Connection, claim: Claim) -> bool:
        """The fence of a transaction that does not end the run: False unless the claim is live. Take-over cannot commit
        before that transaction, and the lease begins anew: a vendor then has a whole lease to answer in."""
        ...

    async def reap(self) -> int:
        """Takes messages from claimers whose lease ended. Answers how many."""
        ...

    async def log_maintenance(self, task: Task, moved: int) -> None:
        """A line of the job log on what was done to keep this queue moving, wherever people read that log."""
        ...

    async def wait(self, timeout_s: float, room: int = 0) -> None:
        """Returns when something may have become claimable, at the latest after the time-out. With room for it, one
        message may be claimed at once; the next `exchange` that asks for any brings it."""
        ...

    async def stop_waiting(self) -> None:
        """Nobody waits any more: what was claimed behind a wait goes back."""
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
        """The ids of what a filter means now, in the order of their times. What cannot be read is left out."""
        ...

    async def redrive(self, queue: str, which: Filter, within: Connection | None = None) -> int:
        """`within` an open transaction it happens with its commit; waking the workers is then its caller's."""
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
        """Messages with open effects stay: without them nobody would find out what became of the money. With a limit,
        about so many at most, and none only when none is left. What was put later than `put_before`, or than now,
        stays too."""
        ...
