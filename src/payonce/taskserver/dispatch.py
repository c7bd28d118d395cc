"""The dispatcher: claims what is due, sends it, keeps its leases while it runs, and settles how it ended.

Its promises hold for all processes on one database together, since every one of them is kept by the store: one live
lease per task, no more leases than the queue's concurrency, no more dispatches than its rate and burst.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from payonce.engine.database.connections import Database, is_transient
from payonce.engine.database.notifier import Notifier
from payonce.kit.log import get_logger
from payonce.taskserver import metrics
from payonce.taskserver.arithmetic import (
    ERRORS_HIGH_SHARE,
    ERRORS_LOOKED_AT,
    PACE_LEAST,
    SLOWING_STATUSES,
    is_success,
)
from payonce.taskserver.delivery import Answer, Sender, ending_of
from payonce.taskserver.microbatch import Gathering
from payonce.taskserver.queue_store import QueueStore
from payonce.taskserver.queues import QueueRow
from payonce.taskserver.task_store import Claim, Ending, TaskStore

LEASE_S: Final = 30.0
RENEW_S: Final = LEASE_S / 3
CLAIM_BATCH: Final = 100
"""Bounds how much a process that dies leaves to its leases at once."""
CLAIM_PAUSE_S: Final = 0.008
"""Between two claims under load: what comes in meanwhile is claimed together."""
RUNNING_MAX: Final = 5_000
"""Requests that one process has under way."""
SETTLE_BATCH: Final = 500
SETTLE_PAUSE_S: Final = 0.015
"""Nobody waits for a settlement but a queue at its concurrency."""
POLL_S: Final = 1.0
"""A lost ring and a dead process's leases are noticed within this."""
SLOT_REST_S: Final = 0.05
"""What a claim says of a queue that has no slot free, since another process may have freed one."""
ERROR_REST_S: Final = 0.5
SLOWED_ONCE_IN_S: Final = 1.0
DRAIN_S: Final = 10.0
QUEUES_BELL: Final = "cloudtasks"
"""Rung when a queue was created, changed or deleted."""

log = get_logger(__name__)


def notifier_of(queue: str) -> str:
    """Rung when a queue has something new to dispatch."""
    return f"cloudtasks:{queue}"


@dataclass
class Running:
    """An attempt under way."""

    task: "asyncio.Task[None]"
    deadline: asyncio.Timeout
    has_answer: bool = False
    """It is being settled: its lease is still kept, but there is nothing left to call off."""


class Dispatcher:
    """Sends the due tasks of every queue. `run` does so until told to stop; `step` sends a few and settles them."""

    def __init__(self, database: Database, notifier: Notifier, sender: Sender, grace_s: float = DRAIN_S) -> None:
        self._queues = QueueStore(database)
        self._tasks = TaskStore(database)
        self._notifier = notifier
        self._sender = sender
        self._grace_s = grace_s
        self._settling = Gathering(self._settle, SETTLE_BATCH, SETTLE_PAUSE_S)
        self._lanes: dict[str, Lane] = {}
        self._running: dict[Claim, Running] = {}
        self._changed = asyncio.Event()
        self._wakeup = asyncio.Event()
        self._is_stopping = False

    async def step(self, of_queue: str | None = None, most: int = 1) -> bool:
        """One task, or so many of one queue at once, from claim to settlement, with nothing in the background. False
        when nothing is due."""
        for queue in await self._queues.live():
            if of_queue not in (None, queue.name):
                continue
            claims = (await self._tasks.claim({queue: True}, most, LEASE_S)).tasks
            if claims:
                answers = await asyncio.gather(*(self._send(claim, _deadline_of(claim)) for claim in claims))
                await self._settle([ending_of(claim, answer) for claim, answer in zip(claims, answers, strict=True)])
                for claim, answer in zip(claims, answers, strict=True):
                    await self._watch(claim, answer)
                return True
        return False

    async def run(self) -> None:
        """Until `stop`: one loop follows the queues, one claims, one keeps the leases."""
        self._notifier.subscribe(QUEUES_BELL, self._changed)
        claiming = asyncio.create_task(self._claim_for_ever())
        renewing = asyncio.create_task(self._renew_for_ever())
        try:
            while not self._is_stopping:
                self._changed.clear()
                rest_s = POLL_S if await self._tried(self._open_lanes()) else ERROR_REST_S
                await _wait_for(self._changed, rest_s)
        finally:
            self._notifier.unsubscribe(QUEUES_BELL, self._changed)
            claiming.cancel()
            await asyncio.gather(claiming, return_exceptions=True)
            await self._drain()
            for lane in self._lanes.values():
                lane.close()
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    def stop(self) -> None:
        """Claims nothing more; what runs may finish within the grace, the rest is left to its lease."""
        self._is_stopping = True
        self._changed.set()

    def wake(self, queue: str, *, thoroughly: bool = False) -> bool:
        """Something of this queue may be due. False when somebody else has to see to it."""
        lane = self._lanes.get(queue)
        if lane is None or self._is_stopping or len(self._running) >= RUNNING_MAX:
            return False
        if thoroughly:
            lane.thorough_at = 0.0
        lane.rung.set()
        return True

    async def _open_lanes(self) -> None:
        live = {queue.name: queue for queue in await self._queues.live()}
        for name, lane in list(self._lanes.items()):
            if name not in live or live[name].id != lane.queue.id:
                self._lanes.pop(name).close()
                metrics.forget(name)
        for name, queue in live.items():
            if name not in self._lanes:
                self._lanes[name] = Lane(queue, self._notifier, self._wakeup)
                self._wakeup.set()
            elif self._lanes[name].queue != queue:
                self._lanes[name].queue = queue
                self._lanes[name].rung.set()

    async def _claim_for_ever(self) -> None:
        while True:
            self._wakeup.clear()
            rest_s = CLAIM_PAUSE_S
            if not await self._tried(self._claim()):
                rest_s = ERROR_REST_S
            elif self._lanes:
                rest_s = min(lane.due_at for lane in self._lanes.values()) - _now()
            # A pause whatever happens, then until rung.
            await asyncio.sleep(CLAIM_PAUSE_S)
            await _wait_for(self._wakeup, rest_s - CLAIM_PAUSE_S)

    async def _claim(self) -> None:
        """Of every queue that may have something."""
        asked = {lane.queue: lane for lane in self._lanes.values() if lane.rung.is_set() or lane.due_at <= _now()}
        free = RUNNING_MAX - len(self._running)
        if not asked or free < len(asked):
            return
        thoroughly = {queue: lane.begin_claim() for queue, lane in asked.items()}
        claims = await self._tasks.claim(thoroughly, min(CLAIM_BATCH, free // len(asked)), LEASE_S)
        for claim in claims.tasks:
            deadline = _deadline_of(claim)
            self._running[claim] = Running(asyncio.create_task(self._attempt(claim, deadline)), deadline)
        for queue, lane in asked.items():
            rest_s = claims.rests_s.get(queue.id)
            lane.due_at = _now() + (POLL_S if rest_s is None else min(POLL_S, rest_s))
            lane.is_held_up = rest_s is not None and rest_s <= SLOT_REST_S

    async def _attempt(self, claim: Claim, deadline: asyncio.Timeout) -> None:
        try:
            answer = await self._send(claim, deadline)
            self._running[claim].has_answer = True
            ending = ending_of(claim, answer)
            await self._settling.add(ending)
            self._look_again(ending)
            await self._watch(claim, answer)
        except Exception as error:
            # The lease ends, and the task is sent again.
            _tell("cloudtasks_attempt_failed", error, queue=claim.queue.name, task=claim.id)
        finally:
            self._running.pop(claim, None)

    async def _send(self, claim: Claim, deadline: asyncio.Timeout) -> Answer:
        answer = await self._sender.send(claim, deadline)
        metrics.count_sent(claim.queue.name, answer)
        return answer

    def _look_again(self, ending: Ending) -> None:
        """When the retry is due; at once if the queue waited for a slot. A claim that finds nothing is not free."""
        lane = self._lanes.get(ending.claim.queue.name)
        if lane is None:
            return
        if ending.wait_s is not None:
            lane.due_at = min(lane.due_at, _now() + ending.wait_s)
            self._wakeup.set()
        if lane.is_held_up:
            lane.rung.set()

    async def _settle(self, endings: Sequence[Ending]) -> Sequence[bool]:
        """Tries until the store has them: an answer that is lost here is a task that is sent again."""
        while True:
            try:
                settled = await self._tasks.settle(endings)
            except Exception as error:
                if not is_transient(error) or self._is_stopping:
                    raise
                _tell("cloudtasks_settle_failed", error, endings=len(endings))
                await asyncio.sleep(ERROR_REST_S)
                continue
            for ending in endings:
                _tell_ending(ending, ending.claim.key in settled)
            metrics.count_settled(ending for ending in endings if ending.claim.key in settled)
            return [ending.claim.key in settled for ending in endings]

    async def _watch(self, claim: Claim, answer: Answer) -> None:
        """Slows a queue down whose worker says that it is overloaded, or mostly fails."""
        lane = self._lanes.get(claim.queue.name)
        mostly_fails = lane is not None and lane.note(is_success(answer.status))
        if answer.status not in SLOWING_STATUSES and not mostly_fails:
            return
        if await self._queues.slow_down(claim.queue.id, PACE_LEAST, SLOWED_ONCE_IN_S):
            log.warning("cloudtasks_queue_slowed", queue=claim.queue.name, status=answer.status)

    async def _renew_for_ever(self) -> None:
        moved = asyncio.Event()
        self._notifier.subscribe(QUEUES_BELL, moved)
        try:
            while True:
                moved.clear()
                rest_s = RENEW_S if await self._tried(self._renew()) else ERROR_REST_S
                await _wait_for(moved, rest_s)
        finally:
            self._notifier.unsubscribe(QUEUES_BELL, moved)

    async def _renew(self) -> None:
        if not self._running:
            return
        lost, late = await self._tasks.extend(list(self._running), LEASE_S)
        waiting = {claim for claim, running in self._running.items() if not running.has_answer}
        for claim in lost & waiting:
            # Somebody else has it, or it was deleted: whatever it would answer changes nothing.
            log.warning("cloudtasks_lease_lost", queue=claim.queue.name, task=claim.id)
            self._running[claim].task.cancel()
        for claim in late & waiting:
            self._running[claim].deadline.reschedule(_now())

    async def _tried(self, work: "Work") -> bool:
        try:
            await work
        except Exception as error:
            _tell("cloudtasks_loop_failed", error)
            return False
        return True

    async def _drain(self) -> None:
        tasks = [running.task for running in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=self._grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._settling.drained()


class Lane:
    """One queue as this process serves it."""

    def __init__(self, queue: QueueRow, notifier: Notifier, anything: asyncio.Event) -> None:
        self.queue = queue
        self.rung = Wakeup(anything)
        self.due_at = 0.0
        """When to claim next if nothing rings before; by the loop's clock, as the next."""
        self.thorough_at = 0.0
        self.is_held_up = False
        """It has something due, and perhaps no slot for it."""
        self._notifier = notifier
        self._answers: deque[bool] = deque(maxlen=ERRORS_LOOKED_AT)
        notifier.subscribe(notifier_of(queue.name), self.rung)

    def close(self) -> None:
        self._notifier.unsubscribe(notifier_of(self.queue.name), self.rung)

    def begin_claim(self) -> bool:
        """Whether it is to be a thorough one."""
        self.rung.clear()
        is_thorough = self.thorough_at <= _now()
        if is_thorough:
            self.thorough_at = _now() + POLL_S
        return is_thorough

    def note(self, succeeded: bool) -> bool:
        """Whether too many of the last answers were errors."""
        self._answers.append(succeeded)
        errors = len(self._answers) - sum(self._answers)
        return len(self._answers) == ERRORS_LOOKED_AT and errors > ERRORS_LOOKED_AT * ERRORS_HIGH_SHARE


class Wakeup(asyncio.Event):
    """A queue's own event, which is also one of all queues'."""

    def __init__(self, anything: asyncio.Event) -> None:
        super().__init__()
        self._anything = anything

    def set(self) -> None:
        super().set()
        self._anything.set()


Work = Coroutine[object, object, None]


def _now() -> float:
    return asyncio.get_running_loop().time()


def _deadline_of(claim: Claim) -> asyncio.Timeout:
    return asyncio.timeout(claim.deadline_ms / 1_000)


async def _wait_for(event: asyncio.Event, within_s: float) -> None:
    if within_s > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await event.wait()


def _tell_ending(ending: Ending, is_settled: bool) -> None:
    """What an operator would ask about: an answer that came too late, a task that had its last attempt."""
    claim = ending.claim
    if not is_settled:
        log.warning("cloudtasks_late_answer", queue=claim.queue.name, task=claim.id, reason=ending.reason)
    elif ending.wait_s is None and not ending.succeeded:
        log.error(
            "cloudtasks_task_given_up",
            queue=claim.queue.name,
            task=claim.id,
            attempts=claim.attempts,
            reason=ending.reason,
        )


def _tell(event: str, error: BaseException, **about: object) -> None:
    """What passes by itself is a warning; anything else is ours to mend."""
    say = log.warning if is_transient(error) else log.error
    say(event, error=f"{type(error).__name__}: {error}", **about)
