"""The interface of a queue backend as the conformance tests need it.

A backend is opened with frozen clocks: nothing falls due and no lease ends unless a test moves them.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

from payonce.engine.database.connections import Connection
from payonce.engine.messages.model import Claim, Ending, Message, SettleAnswer, Settlement, State
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Admin, Feed, PullQueue, QueuedMessage

T = TypeVar("T")

QUEUE = "payments"
LEASE_S = 30.0
PLAIN = Policy(QUEUE, lease_s=LEASE_S)


@dataclass(frozen=True)
class Logged:
    """One line of the job log."""

    status: str
    attempts: int
    last_error: str | None
    next_retry_at: datetime | None


class Time(Protocol):
    async def now(self) -> datetime: ...

    async def advance(self, due_s: float) -> datetime: ...

    async def advance_leases(self, lease_s: float) -> None: ...


Moment = Literal["claimed", "marked alone", "before commit", "before put is committed"]
"""Where a worker process is when it is killed with SIGKILL."""


class Backend(Protocol):
    @property
    def feed(self) -> Feed: ...

    @property
    def admin(self) -> Admin: ...

    @property
    def time(self) -> Time: ...

    async def queue(self, policy: Policy, worker: str = "worker-1") -> PullQueue:
        """The queue, declared, as a worker of that name sees it."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """A business transaction to put messages within."""
        ...

    async def log_of(self, message_id: UUID) -> list[Logged]: ...

    async def refuse_to_log(self, message_id: UUID) -> None:
        """From now on the store refuses every settlement of this message."""
        ...

    async def forget_expired_keys(self) -> None:
        """Runs the work that lets idempotency keys of settled messages expire."""
        ...

    async def kill_a_worker(self, policy: Policy, at: Moment) -> None:
        """A separate process claims everything claimable and is killed with SIGKILL at that moment."""
        ...

    def locked(self, message_ids: Sequence[UUID]) -> AbstractAsyncContextManager[None]:
        """While entered, another transaction holds these messages."""
        ...

    async def waits(self, task: asyncio.Task[Any]) -> bool:
        """Whether it waits for a lock; returns as soon as it does, or has ended."""
        ...


async def claim(queue: PullQueue, limit: int = 10) -> list[Claim]:
    return list((await queue.exchange([], limit)).claims)


async def claim_one(queue: PullQueue) -> Claim:
    [claimed] = await claim(queue)
    return claimed


async def settle(queue: PullQueue, *settlements: Settlement) -> list[SettleAnswer]:
    return list((await queue.exchange(settlements, 0)).answers)


def success(claimed: Claim) -> Settlement:
    return Settlement(claimed, Ending.SUCCESS)


def retry(claimed: Claim, delay_s: float = 0.0) -> Settlement:
    return Settlement(claimed, Ending.RETRY, "not now", delay_s)


def parked(claimed: Claim, reason: str = "gave up") -> Settlement:
    return Settlement(claimed, Ending.PARKED, reason)


def failed(claimed: Claim) -> Settlement:
    return Settlement(claimed, Ending.FAILED, "rejected")


def released(claimed: Claim) -> Settlement:
    return Settlement(claimed, Ending.RELEASED, "unknown action")


def message(**fields: object) -> Message:
    return Message(**{"queue": QUEUE, **fields})  # type: ignore[arg-type]


def ids(claims: Sequence[Claim]) -> list[UUID]:
    return [claimed.message.id for claimed in claims]


async def let_leases_end(backend: Backend, queue: PullQueue, lease_s: float = LEASE_S) -> int:
    """The claimers are dead: nobody renews, and the sweep runs."""
    await backend.time.advance_leases(lease_s + 0.001)
    return await queue.reap()


async def beside_a_lock(backend: Backend, message_ids: Sequence[UUID], work: Coroutine[Any, Any, T]) -> T:
    """Its result while another transaction holds these messages, for which it must not wait."""
    async with backend.locked(message_ids):
        task = asyncio.create_task(work)
        waits = await backend.waits(task)
    answer = await task
    assert not waits, "it waited for what somebody else holds"
    return answer


async def stored(backend: Backend, state: State, queue: str = QUEUE) -> list[QueuedMessage]:
    return await backend.admin.peek(queue, state, 1_000)


async def park_all(queue: PullQueue, reason: str = "gave up") -> list[UUID]:
    """Claims everything that is due and parks it."""
    claims = await claim(queue, 1_000)
    await settle(queue, *(parked(claimed, reason) for claimed in claims))
    return ids(claims)


async def crash_until_alone(backend: Backend, queue: PullQueue) -> None:
    """Two workers die with the claimable message, which makes it a suspect."""
    for _ in range(2):
        await claim(queue, 1_000)
        await let_leases_end(backend, queue)
