"""Deliveries of one queue that wait for a run in this process, and the answers that the task service waits for."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from payonce.engine.messages.model import Message

BOX_MAX: Final = 1_000
"""Deliveries of one queue that may wait in a process; the task service keeps the others."""


class Reply(NamedTuple):
    """What the task service is told. It takes a task for done at any 2xx, and repeats it at anything else."""

    status: int
    outcome: str
    retry_after_s: int | None = None


DONE: Final = Reply(200, "settled")
KNOWN: Final = Reply(200, "already_settled")
PARKED: Final = Reply(200, "parked")
SUPERSEDED: Final = Reply(200, "superseded")
PUT_OFF: Final = Reply(200, "put_off")
"""It waits in PostgreSQL, and comes as a new task when its time has come: waiting must not slow the queue down."""
RETRIED: Final = Reply(500, "retried")
"""It is to come again by the queue's own backoff. Not 503, at which Google slows a queue down."""
HELD: Final = Reply(503, "held", 5)
STALE: Final = Reply(503, "stale", 5)
EARLY: Final = Reply(503, "early", 5)
PAUSED: Final = Reply(503, "paused", 60)
FULL: Final = Reply(503, "full", 5)
CLOSING: Final = Reply(503, "closing", 5)
GIVEN_BACK: Final = Reply(503, "given_back", 1)
"""Its run could not begin in time, and nobody has it."""
AWAY: Final = Reply(503, "database_away", 10)
OVERDUE: Final = Reply(503, "no_end_in_time", 5)
UNKNOWN: Final = Reply(404, "unknown")
ELSEWHERE: Final = Reply(400, "wrong_queue")


class Delivery:
    """One task that was brought, and is not answered yet."""

    __slots__ = ("_reply", "id", "looks", "message", "number", "retries", "task")

    def __init__(
        self, message_id: UUID, number: int = 0, retries: int = 0, message: Message | None = None, task: str = ""
    ) -> None:
        self.id = message_id
        self.number = number
        """Which delivery of its message it is."""
        self.retries = retries
        """How often the task service has repeated it, which decides when it would next."""
        self.message = message
        """Of a sender who keeps no record here."""
        self.task = task
        self.looks = 0
        """How often its row was found locked."""
        self._reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def answer(self, reply: Reply) -> None:
        """The first answer stands; the task service may have gone meanwhile."""
        if not self._reply.done():
            self._reply.set_result(reply)

    async def answered(self, within_s: float) -> Reply:
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(self._reply)
        except TimeoutError:
            self.answer(OVERDUE)
            return self._reply.result()


class Box:
    def __init__(self, queue: str, limit: int = BOX_MAX) -> None:
        self.queue = queue
        self.rung = asyncio.Event()
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
            self.rung.set()

    def take(self, limit: int) -> list[Delivery]:
        """Of two deliveries of one message the later one is left for the next time, when the first is known."""
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
            # There is more. Where nothing could be taken, the end of a run rings: a full worker must not spin.
            self.rung.set()
        return list(taken.values())

    def rest(self, delivery: Delivery, for_s: float) -> None:
        """It came a moment early: it is offered again then."""
        self._resting[delivery] = asyncio.get_running_loop().call_later(for_s, self._wake, delivery)

    def suspect(self, delivery: Delivery) -> None:
        self._suspects.append(delivery)

    def take_suspect(self) -> Delivery | None:
        return self._suspects.popleft() if self._suspects else None

    def close(self) -> None:
        """Nothing more is taken; what waits is the task service's again."""
        self._closed = True
        for timer in self._resting.values():
            timer.cancel()
        for delivery in (*self._waiting, *self._suspects, *self._resting):
            delivery.answer(CLOSING)
        self._waiting.clear()
        self._suspects.clear()
        self._resting.clear()

    async def wait(self, timeout_s: float) -> None:
        """Also while deliveries wait: whoever asks has no room for them, and is woken when a run has ended."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.rung.wait()
        except TimeoutError:
            pass
        self.rung.clear()

    def _wake(self, delivery: Delivery) -> None:
        del self._resting[delivery]
        self.offer(delivery)


def answer_all(deliveries: Sequence[Delivery], reply: Reply) -> None:
    for delivery in deliveries:
        delivery.answer(reply)
