"""The loops of one worker process: its queues, the heartbeat, the sweep, and isolated messages."""

import asyncio
import time
from collections.abc import Callable, Container, Sequence
from typing import Final

from payonce.engine.database.clock_steps import ClockWatch
from payonce.engine.database.connections import Database, is_transient
from payonce.engine.effects.send import IntentCheck, outcomes_written
from payonce.engine.messages.maintenance import Task
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import PullQueue
from payonce.engine.messages.runs import Gate, Run
from payonce.engine.messages.transaction import NotifyingFeed
from payonce.engine.messages.work import Handler
from payonce.engine.messages.worker import FLUSH_LOOK_S, LEASE_MARGIN, Bound, QueueServer
from payonce.engine.monitoring.metrics import MAINTENANCE_MOVES, REAPED
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid
from payonce.kit.redact import redact

SWEEP_EVERY_S: Final = 0.5
"""With the wake-up that follows, a dead worker's message is claimed within a second after its lease."""
PUMP_LOG_EVERY_S: Final = 5.0
"""Pumped messages within this time make one entry of the job log."""
MAINTENANCE_LOG_LIMIT_S: Final = 2.0
"""Writing a log entry delays neither the sweep nor the end of a process for longer."""
HEARTBEAT_MAX_S: Final = 1.0
DEFAULT_SLOTS: Final = 100
DEFAULT_GRACE_S: Final = 20.0
ABANDON_AFTER_S: Final = 5.0

log = get_logger(__name__)


class Worker:
    """Serves the handlers' queues until stopped. One per process."""

    def __init__(
        self,
        handlers: Sequence[Handler],
        database: Database,
        feed: NotifyingFeed,
        open_queue: Callable[[Policy], PullQueue],
        resources: Sequence[object] = (),
        slots: int = DEFAULT_SLOTS,
        checks: Sequence[IntentCheck] = (),
    ) -> None:
        self._gate = Gate()
        self._database = database
        self._servers: list[QueueServer] = []
        for queue_name, bound in _bound_by_queue(handlers, resources).items():
            policy = _policy_of(queue_name, handlers)
            room = slots if policy.concurrency is None else min(slots, policy.concurrency)
            service = next(handler.service for handler in handlers if handler.policy.queue == queue_name)
            self._servers.append(
                QueueServer(open_queue(policy), bound, database, feed, self._gate, room, service, checks)
            )

    @property
    def running(self) -> int:
        return sum(len(server.runs) for server in self._servers)

    async def step(self, among: Container[str] | None = None) -> bool:
        """Claims, runs and settles one message of each queue that has one (or of each queue in `among`), one after the
        other, without background tasks. False when there was none."""
        servers = [server for server in self._servers if among is None or server.policy.queue in among]
        return any([await server.step() for server in servers])

    async def reap(self) -> int:
        """Runs one sweep: messages of dead workers become claimable again."""
        return sum([await server.queue.reap() for server in self._servers])

    async def run(self) -> None:
        """Returns after stop(), when everything in flight is settled or left to its lease."""
        loops = (self._watch(), self._heartbeat(), self._sweep(), self._log_pump(), self._look_for_suspects())
        keepers = [asyncio.create_task(loop) for loop in loops]
        try:
            async with asyncio.TaskGroup() as group:
                for server in self._servers:
                    group.create_task(server.serve())
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await self.log_pumped()
            await outcomes_written()

    async def stop(self, grace_s: float = DEFAULT_GRACE_S) -> None:
        """Stops claiming. Running messages may finish within the grace; the rest is cancelled and left to its lease."""
        self._gate.stopping = True
        tasks = [run.task for server in self._servers for run in server.runs.values() if run.task is not None]
        for server in self._servers:
            server.queue.wake()
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for server in self._servers:
            for run in list(server.runs.values()):
                _cancel(run, f"the worker stopped before the run ended ({grace_s:g} s of grace)")
            server.queue.wake()

    async def _watch(self) -> None:
        """Separate from the renewals, which may hang on a store that does not answer."""
        shortest_s = min((server.policy.lease_s for server in self._servers), default=HEARTBEAT_MAX_S)
        while True:
            await asyncio.sleep(min(HEARTBEAT_MAX_S, shortest_s / 20))
            for server in self._servers:
                cancel_overdue(server)

    async def _heartbeat(self) -> None:
        shortest_s = min((server.policy.lease_s for server in self._servers), default=HEARTBEAT_MAX_S)
        while True:
            await asyncio.sleep(min(HEARTBEAT_MAX_S, shortest_s / 6))
            for server in self._servers:
                try:
                    # One queue's unresponsive store must not keep the other queues' leases from being renewed.
                    async with asyncio.timeout(server.policy.lease_s / 3):
                        await renew_leases(server)
                except Exception as error:
                    _log_failure("heartbeat_failed", server, error)

    async def _sweep(self) -> None:
        hold_off_until: dict[int, float] = {}
        clock = ClockWatch(self._database)
        while True:
            if await _has_stepped(clock):
                # Leases of living workers have not ended, only the clock advanced: they get one lease to renew them.
                for server in self._servers:
                    hold_off_until[id(server)] = time.monotonic() + server.policy.lease_s
            for server in self._servers:
                try:
                    if time.monotonic() < hold_off_until.get(id(server), 0.0):
                        continue
                    if reaped := await server.queue.reap():
                        REAPED.labels(server.policy.queue).inc(reaped)
                        await _log_maintenance(server, Task.SWEEP, reaped)
                except Exception as error:
                    # Living workers could not renew either: they get one lease to do so.
                    hold_off_until[id(server)] = time.monotonic() + server.policy.lease_s
                    _log_failure("sweep_failed", server, error)
            await asyncio.sleep(SWEEP_EVERY_S)

    async def _log_pump(self) -> None:
        while True:
            await asyncio.sleep(PUMP_LOG_EVERY_S)
            await self.log_pumped()

    async def log_pumped(self) -> None:
        """Logs the messages pumped from the delayed ones of each queue since the last time."""
        for server in self._servers:
            pumped, server.pumped = server.pumped, 0
            if pumped:
                await _log_maintenance(server, Task.PUMP, pumped)

    async def _look_for_suspects(self) -> None:
        while True:
            for server in self._servers:
                try:
                    await self._run_suspects(server)
                except Exception as error:
                    _log_failure("suspects_not_run", server, error)
            await asyncio.sleep(SWEEP_EVERY_S)

    async def _run_suspects(self, server: QueueServer) -> None:
        while self._gate.open:
            sent_at = time.monotonic()
            claim = await server.queue.claim_alone()
            if claim is None:
                return
            self._gate.closed = True
            try:
                await server.run_alone(claim, sent_at, self._quiet)
            finally:
                self._gate.closed = False
                for each in self._servers:
                    each.queue.wake()

    async def _quiet(self) -> None:
        """Returns when nothing runs in this process and no claim is in flight that could begin a run. Bounded: runs end
        by their limit or are abandoned."""
        while any(server.claiming for server in self._servers) or any(
            run.task is not None for server in self._servers for run in server.runs.values()
        ):
            for server in self._servers:
                server.queue.wake()
            await asyncio.sleep(FLUSH_LOOK_S)
        for server in self._servers:
            await server.flushed()


def cancel_overdue(server: QueueServer) -> None:
    """Cancels runs over their limit and those whose lease is about to end unrenewed. Makes no request."""
    policy, now = server.policy, time.monotonic()
    for run in list(server.runs.values()):
        if run.cancelled_because is not None:
            _cancel_again(run, server)
        elif run.task is not None and now - run.started_at > policy.run_limit_s:
            _cancel(run, f"the run limit of {policy.run_limit_s:g} s was reached")
        elif now > run.renewed_at + policy.lease_s * (1 - LEASE_MARGIN):
            _lose(run, "its lease could not be renewed in time", server)


async def renew_leases(server: QueueServer) -> None:
    """Renews leases that are a third used up; cancels runs whose lease is lost."""
    policy, now = server.policy, time.monotonic()
    due = [run for run in server.runs.values() if not run.lost and now - run.renewed_at > policy.lease_s / 3]
    if not due:
        return
    lost = {id(claim) for claim in await server.queue.extend([run.claim for run in due])}
    for run in due:
        if id(run.claim) not in lost:
            run.renewed_at = now
        elif id(run) in server.runs:
            run.passed_on = True
            _lose(run, "its lease passed to another worker", server)


def _cancel(run: Run, because: str) -> None:
    if run.cancelled_because is None and run.task is not None:
        run.cancelled_because, run.cancelled_at = because, time.monotonic()
        run.task.cancel()


def _cancel_again(run: Run, server: QueueServer) -> None:
    """Cancels again when a handler swallowed its cancellation, and finally leaves the run to its lease."""
    assert run.task is not None
    if time.monotonic() - run.cancelled_at < ABANDON_AFTER_S:
        run.task.cancel()
    elif server.runs.pop(id(run), None) is not None:
        log.error(
            "run_abandoned",
            queue=server.policy.queue,
            message_id=str(run.claim.message.id),
            reason=f"the handler did not end within {ABANDON_AFTER_S:g} s after its cancellation",
        )
        server.queue.wake()


def _lose(run: Run, because: str, server: QueueServer) -> None:
    if not run.lost:
        run.lost = True
        log.warning("lease_lost", queue=server.policy.queue, message_id=str(run.claim.message.id), reason=because)
        _cancel(run, because)


async def _has_stepped(clock: ClockWatch) -> bool:
    try:
        by_s = await clock.stepped_s()
    except Exception as error:
        # A store that does not answer this does not answer the sweep either, which then waits.
        log.debug("clock_not_read", error=redact(str(error)))
        return False
    if by_s:
        log.warning("store_clock_stepped", by_s=round(by_s, 3))
    return by_s > 0


async def _log_maintenance(server: QueueServer, task: Task, moved: int) -> None:
    """The work is done already; a failure to log it undoes nothing."""
    MAINTENANCE_MOVES.labels(task.value, server.policy.queue).inc(moved)
    try:
        async with asyncio.timeout(MAINTENANCE_LOG_LIMIT_S):
            await server.queue.log_maintenance(task, moved)
    except Exception as error:
        _log_failure("upkeep_not_logged", server, error)


def _policy_of(queue_name: str, handlers: Sequence[Handler]) -> Policy:
    first, *others = [handler.policy for handler in handlers if handler.policy.queue == queue_name]
    if any(other != first for other in others):
        raise Invalid(f"queue {queue_name} is declared with two different policies; keep one in its policies.py")
    return first


def _bound_by_queue(handlers: Sequence[Handler], resources: Sequence[object]) -> dict[str, dict[str | None, Bound]]:
    bound: dict[str, dict[str | None, Bound]] = {}
    for handler in handlers:
        actions = bound.setdefault(handler.policy.queue, {})
        if handler.action in actions:
            what = "all actions" if handler.action is None else f"action {handler.action!r}"
            raise Invalid(f"queue {handler.policy.queue} has two handlers for {what}; keep one")
        actions[handler.action] = handler.bind(resources)
    return bound


def _log_failure(event: str, server: QueueServer, error: Exception) -> None:
    level = log.warning if is_transient(error) else log.error
    level(event, queue=server.policy.queue, error=redact(f"{type(error).__name__}: {error}"))
