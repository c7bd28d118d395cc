"""Deliveries of one queue waiting for a run in this process, and the responses that the task service waits for."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from payonce.engine.messages.model import Message

BUFFER_MAX: Final = 1_000
"""Limit of waiting deliveries per queue and process; the task service keeps the others."""


class Reply(NamedTuple):
    """The HTTP response to the task service, which takes any 2xx as done and retries after anything else."""

    status: int
    outcome: str
    retry_after_s: int | None = None


DONE: Final = Reply(200, "settled")
KNOWN: Final = Reply(200, "already_settled")
PARKED: Final = Reply(200, "parked")
SUPERSEDED: Final = Reply(200, "superseded")
PUT_OFF: Final = Reply(200, "put_off")
"""The message waits in PostgreSQL and comes back as a new task when due, so that waiting does not slow the queue
down."""
RETRIED: Final = Reply(500, "retried")
"""Retried with the queue's own backoff. Not 503, which makes Google slow the queue down."""
HELD: Final = Reply(503, "held", 5)
STALE: Final = Reply(503, "stale", 5)
EARLY: Final = Reply(503, "early", 5)
PAUSED: Final = Reply(503, "paused", 60)
FULL: Final = Reply(503, "full", 5)
CLOSING: Final = Reply(503, "closing", 5)
GIVEN_BACK: Final = Reply(503, "given_back", 1)
"""Its run could not begin in time, and no process holds it."""
AWAY: Final = Reply(503, "database_away", 10)
OVERDUE: Final = Reply(503, "no_end_in_time", 5)
UNKNOWN: Final = Reply(404, "unknown")
ELSEWHERE: Final = Reply(400, "wrong_queue")


class Delivery:
    """A delivered task that has not been answered yet."""

    __slots__ = ("_reply", "id", "looks", "message", "number", "retries", "task")

    def __init__(
        self, message_id: UUID, number: int = 0, retries: int = 0, message: Message | None = None, task: str = ""
    ) -> None:
        self.id = message_id
        self.number = number
        """The number of this delivery of its message."""
        self.retries = retries
        """The task service's retry count, from which its next delay follows."""
        self.message = message
        """Given when the sender keeps no record in this database."""
        self.task = task
        self.looks = 0
        """How many times its row was found locked."""
        self._reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def answer(self, reply: Reply) -> None:
        """The first answer counts; the task service may have disconnected meanwhile."""
        if not self._reply.done():
            self._reply.set_result(reply)

    async def answered(self, within_s: float) -> Reply:
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(self._reply)
        except TimeoutError:
            self.answer(OVERDUE)
            return self._reply.result()


class DeliveryBuffer:
    def __init__(self, queue: str, limit: int = BUFFER_MAX) -> None:
        self.queue = queue
        self.wakeup = asyncio.Event()
        self._limit = limit
        self._waiting: deque[Delivery] = deque()
        self._suspects: deque[Delivery] = deque()
        self._resting: dict[Delivery, asyncio.TimerHandle] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def offer(self, delivery: Delivery) -> None:
        if self._closed:
            delivery.answer(CLOSING)
        elif len(self._waiting) + len(self._suspects) + len(self._resting) >= self._limit:
            delivery.answer(FULL)
        else:
            self._waiting.append(delivery)
            self.wakeup.set()

    def take(self, limit: int) -> list[Delivery]:
        """Takes up to `limit` deliveries. A second delivery of one message stays until the first is decided."""
        taken: dict[UUID, Delivery] = {}
        left: list[Delivery] = []
        while self._waiting and len(taken) < limit:
            delivery = self._waiting.popleft()
            if delivery.id in taken:
                left.append(delivery)
            else:
                taken[delivery.id] = delivery
        self._waiting.extendleft(reversed(left))
        if taken and self._waiting:
            # More is waiting. Where nothing was taken, the end of a run sets the event: a full worker must not spin.
            self.wakeup.set()
        return list(taken.values())

    def rest(self, delivery: Delivery, for_s: float) -> None:
        """Offers a delivery that came slightly early again when it is due."""
        self._resting[delivery] = asyncio.get_running_loop().call_later(for_s, self._wake, delivery)

    def suspect(self, delivery: Delivery) -> None:
        self._suspects.append(delivery)

    def take_suspect(self) -> Delivery | None:
        return self._suspects.popleft() if self._suspects else None

    def close(self) -> None:
        """Accepts no further deliveries; waiting ones are returned to the task service."""
        self._closed = True
        for timer in self._resting.values():
            timer.cancel()
        for delivery in (*self._waiting, *self._suspects, *self._resting):
            delivery.answer(CLOSING)
        self._waiting.clear()
        self._suspects.clear()
        self._resting.clear()

    async def wait(self, timeout_s: float) -> None:
        """Waits for a delivery or a free slot. Waits also while deliveries are queued: the caller has no room for
        them."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.wakeup.wait()
        except TimeoutError:
            pass
        self.wakeup.clear()

    def _wake(self, delivery: Delivery) -> None:
        del self._resting[delivery]
        self.offer(delivery)


def answer_all(deliveries: Sequence[Delivery], reply: Reply) -> None:
    for delivery in deliveries:
        delivery.answer(reply)
