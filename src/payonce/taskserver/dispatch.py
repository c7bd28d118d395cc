"""The dispatcher: claims due tasks, sends them, renews their leases, and settles the results.

Its guarantees hold across all processes on one database, since the store enforces them: one live lease per task, no
more leases than the queue's concurrency, no more dispatches than its rate and burst.
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
from payonce.kit.microbatch import MicroBatch
from payonce.taskserver import metrics
from payonce.taskserver.arithmetic import (
    ERROR_WINDOW,
    ERRORS_HIGH_SHARE,
    PACE_LEAST,
    SLOWING_STATUSES,
    is_success,
)
from payonce.taskserver.delivery import Answer, Sender, ending_of
from payonce.taskserver.queue_store import QueueStore
from payonce.taskserver.queues import QueueRow
from payonce.taskserver.task_store import Claim, Ending, TaskStore

LEASE_S: Final = 30.0
RENEW_S: Final = LEASE_S / 3
CLAIM_BATCH: Final = 100
"""Limits how many tasks wait for their leases to end when a process dies."""
CLAIM_PAUSE_S: Final = 0.008
"""Pause between claims under load, so that tasks are claimed in batches."""
RUNNING_MAX: Final = 5_000
"""Limit of concurrent requests per process."""
SETTLE_BATCH: Final = 500
SETTLE_PAUSE_S: Final = 0.015
"""Only a queue at its concurrency limit waits for settlements."""
POLL_S: Final = 1.0
"""Interval within which a lost notification and a dead process's leases are noticed."""
SLOT_REST_S: Final = 0.05
"""The delay that a claim returns for a queue without a free slot, since another process may free one."""
ERROR_REST_S: Final = 0.5
SLOWED_ONCE_IN_S: Final = 1.0
DRAIN_S: Final = 10.0
QUEUES_CHANNEL: Final = "cloudtasks"
"""Notified when a queue was created, changed or deleted."""

log = get_logger(__name__)


def channel_of(queue: str) -> str:
    """The channel notified when a queue has new tasks to dispatch."""
    return f"cloudtasks:{queue}"


@dataclass
class Running:
    """An attempt in progress."""

    task: "asyncio.Task[None]"
    deadline: asyncio.Timeout
    has_answer: bool = False
    """Whether it is being settled: its lease is still renewed, but there is nothing left to cancel."""


class Dispatcher:
    """Sends the due tasks of every queue. `run` does so until `stop`; `step` sends a few and settles them."""

    def __init__(self, database: Database, notifier: Notifier, sender: Sender, grace_s: float = DRAIN_S) -> None:
        self._queues = QueueStore(database)
        self._tasks = TaskStore(database)
        self._notifier = notifier
        self._sender = sender
        self._grace_s = grace_s
        self._settling = MicroBatch(self._settle, SETTLE_BATCH, SETTLE_PAUSE_S)
        self._lanes: dict[str, Lane] = {}
        self._running: dict[Claim, Running] = {}
        self._changed = asyncio.Event()
        self._wakeup = asyncio.Event()
        self._is_stopping = False

    async def step(self, of_queue: str | None = None, most: int = 1) -> bool:
        """Sends up to `most` tasks of one queue at once, and settles them, without background work. Returns False when
        nothing is due."""
        for queue in await self._queues.live():
            if of_queue not in (None, queue.name):
                continue
            claims = (await self._tasks.claim({queue: True}, most, LEASE_S)).tasks
            if claims:
                answers = await asyncio.gather(*(self._send(claim, _deadline_of(claim)) for claim in claims))
                await self._settle([ending_of(claim, answer) for claim, answer in zip(claims, answers, strict=True)])
                for claim, answer in zip(claims, answers, strict=True):
                    await self._slow_down_on_errors(claim, answer)
                return True
        return False

    async def run(self) -> None:
        """Dispatches until `stop`: one loop follows the queues, one claims, one renews leases."""
        self._notifier.subscribe(QUEUES_CHANNEL, self._changed)
        claiming = asyncio.create_task(self._claim_for_ever())
        renewing = asyncio.create_task(self._renew_for_ever())
        try:
            while not self._is_stopping:
                self._changed.clear()
                rest_s = POLL_S if await self._succeeds(self._open_lanes()) else ERROR_REST_S
                await _wait_for(self._changed, rest_s)
        finally:
            self._notifier.unsubscribe(QUEUES_CHANNEL, self._changed)
            claiming.cancel()
            await asyncio.gather(claiming, return_exceptions=True)
            await self._drain()
            for lane in self._lanes.values():
                lane.close()
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    def stop(self) -> None:
        """Stops claiming. Running attempts may finish within the grace period; the others keep their lease until it
        ends."""
        self._is_stopping = True
        self._changed.set()

    def wake(self, queue: str, *, thoroughly: bool = False) -> bool:
        """Wakes the queue's lane. Returns False if another process has to do it."""
        lane = self._lanes.get(queue)
        if lane is None or self._is_stopping or len(self._running) >= RUNNING_MAX:
            return False
        if thoroughly:
            lane.thorough_at = 0.0
        lane.wakeup.set()
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
                self._lanes[name].wakeup.set()

    async def _claim_for_ever(self) -> None:
        while True:
            self._wakeup.clear()
            rest_s = CLAIM_PAUSE_S
            if not await self._succeeds(self._claim()):
                rest_s = ERROR_REST_S
            elif self._lanes:
                rest_s = min(lane.due_at for lane in self._lanes.values()) - _now()
            # Always pauses, then waits for a wakeup.
            await asyncio.sleep(CLAIM_PAUSE_S)
            await _wait_for(self._wakeup, rest_s - CLAIM_PAUSE_S)

    async def _claim(self) -> None:
        """Claims from every queue that may have due tasks."""
        wanted = {lane.queue: lane for lane in self._lanes.values() if lane.wakeup.is_set() or lane.due_at <= _now()}
        free = RUNNING_MAX - len(self._running)
        if not wanted or free < len(wanted):
            return
        thoroughly = {queue: lane.begin_claim() for queue, lane in wanted.items()}
        claims = await self._tasks.claim(thoroughly, min(CLAIM_BATCH, free // len(wanted)), LEASE_S)
        for claim in claims.tasks:
            deadline = _deadline_of(claim)
            self._running[claim] = Running(asyncio.create_task(self._attempt(claim, deadline)), deadline)
        for queue, lane in wanted.items():
            rest_s = claims.rests_s.get(queue.id)
            lane.due_at = _now() + (POLL_S if rest_s is None else min(POLL_S, rest_s))
            lane.is_held_up = rest_s is not None and rest_s <= SLOT_REST_S

    async def _attempt(self, claim: Claim, deadline: asyncio.Timeout) -> None:
        try:
            answer = await self._send(claim, deadline)
            self._running[claim].has_answer = True
            ending = ending_of(claim, answer)
            await self._settling.add(ending)
            self._reschedule(ending)
            await self._slow_down_on_errors(claim, answer)
        except Exception as error:
            # The lease will end, and the task be sent again.
            _log_error("cloudtasks_attempt_failed", error, queue=claim.queue.name, task=claim.id)
        finally:
            self._running.pop(claim, None)

    async def _send(self, claim: Claim, deadline: asyncio.Timeout) -> Answer:
        answer = await self._sender.send(claim, deadline)
        metrics.count_sent(claim.queue.name, answer)
        return answer

    def _reschedule(self, ending: Ending) -> None:
        """Claims again when the retry is due; at once if the queue waited for a slot. An empty claim is not free."""
        lane = self._lanes.get(ending.claim.queue.name)
        if lane is None:
            return
        if ending.wait_s is not None:
            lane.due_at = min(lane.due_at, _now() + ending.wait_s)
            self._wakeup.set()
        if lane.is_held_up:
            lane.wakeup.set()

    async def _settle(self, endings: Sequence[Ending]) -> Sequence[bool]:
        """Retries until the store has the results: a lost one would make its task be sent again."""
        while True:
            try:
                settled = await self._tasks.settle(endings)
            except Exception as error:
                if not is_transient(error) or self._is_stopping:
                    raise
                _log_error("cloudtasks_settle_failed", error, endings=len(endings))
                await asyncio.sleep(ERROR_REST_S)
                continue
            for ending in endings:
                _log_ending(ending, ending.claim.key in settled)
            metrics.count_settled(ending for ending in endings if ending.claim.key in settled)
            return [ending.claim.key in settled for ending in endings]

    async def _slow_down_on_errors(self, claim: Claim, answer: Answer) -> None:
        """Slows down a queue whose worker reports overload, or mostly fails."""
        lane = self._lanes.get(claim.queue.name)
        mostly_fails = lane is not None and lane.note(is_success(answer.status))
        if answer.status not in SLOWING_STATUSES and not mostly_fails:
            return
        if await self._queues.slow_down(claim.queue.id, PACE_LEAST, SLOWED_ONCE_IN_S):
            log.warning("cloudtasks_queue_slowed", queue=claim.queue.name, status=answer.status)

    async def _renew_for_ever(self) -> None:
        moved = asyncio.Event()
        self._notifier.subscribe(QUEUES_CHANNEL, moved)
        try:
            while True:
                moved.clear()
                rest_s = RENEW_S if await self._succeeds(self._renew()) else ERROR_REST_S
                await _wait_for(moved, rest_s)
        finally:
            self._notifier.unsubscribe(QUEUES_CHANNEL, moved)

    async def _renew(self) -> None:
        if not self._running:
            return
        lost, late = await self._tasks.extend(list(self._running), LEASE_S)
        waiting = {claim for claim, running in self._running.items() if not running.has_answer}
        for claim in lost & waiting:
            # Another process has the task, or it was deleted: the response would have no effect.
            log.warning("cloudtasks_lease_lost", queue=claim.queue.name, task=claim.id)
            self._running[claim].task.cancel()
        for claim in late & waiting:
            self._running[claim].deadline.reschedule(_now())

    async def _succeeds(self, work: "Work") -> bool:
        try:
            await work
        except Exception as error:
            _log_error("cloudtasks_loop_failed", error)
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
    """One queue in this process."""

    def __init__(self, queue: QueueRow, notifier: Notifier, shared: asyncio.Event) -> None:
        self.queue = queue
        self.wakeup = Wakeup(shared)
        self.due_at = 0.0
        """When to claim next without a wakeup, by the event loop's clock, as is `thorough_at`."""
        self.thorough_at = 0.0
        self.is_held_up = False
        """Whether it has due tasks, but perhaps no free slot."""
        self._notifier = notifier
        self._answers: deque[bool] = deque(maxlen=ERROR_WINDOW)
        notifier.subscribe(channel_of(queue.name), self.wakeup)

    def close(self) -> None:
        self._notifier.unsubscribe(channel_of(self.queue.name), self.wakeup)

    def begin_claim(self) -> bool:
        """Marks the beginning of a claim; returns whether it should be thorough."""
        self.wakeup.clear()
        is_thorough = self.thorough_at <= _now()
        if is_thorough:
            self.thorough_at = _now() + POLL_S
        return is_thorough

    def note(self, succeeded: bool) -> bool:
        """Records a result; returns whether too many of the last ones were errors."""
        self._answers.append(succeeded)
        errors = len(self._answers) - sum(self._answers)
        return len(self._answers) == ERROR_WINDOW and errors > ERROR_WINDOW * ERRORS_HIGH_SHARE


class Wakeup(asyncio.Event):
    """A queue's event that also sets the event shared by all queues."""

    def __init__(self, shared: asyncio.Event) -> None:
        super().__init__()
        self._shared = shared

    def set(self) -> None:
        super().set()
        self._shared.set()


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


def _log_ending(ending: Ending, is_settled: bool) -> None:
    """Logs results that an operator needs to know: a late response, a task after its last attempt."""
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


def _log_error(event: str, error: BaseException, **about: object) -> None:
    """Logs transient errors as warnings, others as errors."""
    write = log.warning if is_transient(error) else log.error
    write(event, error=f"{type(error).__name__}: {error}", **about)
