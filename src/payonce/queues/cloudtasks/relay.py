"""Creates tasks from outbox entries, named so that the task service recognises repetitions."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from payonce.engine.outbox import Answer, Deferred, Delivered, Entry, Refusal, RelayConfig
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.queues.cloudtasks.client import (
    ALREADY_EXISTS,
    BATCH_MAX,
    BATCH_MAX_BYTES,
    NOT_FOUND,
    OK,
    CallStatus,
    TaskRequest,
    TaskService,
)
from payonce.queues.cloudtasks.names import RELAY, task_id
from payonce.queues.cloudtasks.pushed import PushedQueue
from payonce.queues.cloudtasks.queue import AHEAD_S

BATCH: Final = 500
CALLS_MAX: Final = 8
"""Limit of concurrent calls in one delivery."""
LATER_S: Final = 1.0
SYNC_HINT: Final = "run: payonce queues sync --to cloudtasks"
_NOT_NOW: Final = (
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "ABORTED",
    "INTERNAL",
    "CANCELLED",
    "UNKNOWN",
)
_LOUD: Final = ("PERMISSION_DENIED", "UNAUTHENTICATED")

log = get_logger(__name__)


class CloudTasksRelay:
    name = RELAY
    config = RelayConfig(keeps=True, ahead_s=AHEAD_S, batch=BATCH)

    def __init__(
        self,
        service: TaskService,
        pushed: Mapping[str, PushedQueue],
        own_address: Callable[[], str | None],
        queue_missing: Callable[[], None],
    ) -> None:
        self._service = service
        self._pushed = pushed
        self._own_address = own_address
        self._queue_missing = queue_missing
        self._calls = asyncio.Semaphore(CALLS_MAX)

    async def deliver(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        answers: dict[int, Answer] = {}
        ready: defaultdict[str, list[tuple[int, TaskRequest]]] = defaultdict(list)
        for position, entry in enumerate(entries):
            task = self._task_request(entry)
            if isinstance(task, TaskRequest):
                ready[entry.message.queue].append((position, task))
            else:
                answers[position] = task
        parts = [(queue, part) for queue, tasks in ready.items() for part in _parts(tasks)]
        for part_answers in await asyncio.gather(*(self._create(queue, part) for queue, part in parts)):
            answers |= part_answers
        return [answers[position] for position in range(len(entries))]

    def _task_request(self, entry: Entry) -> TaskRequest | Answer:
        message = entry.message
        pushed = self._pushed.get(message.queue)
        reached = None if pushed is None else pushed.reached_at(self._own_address())
        if pushed is None or reached is None:
            return Deferred(
                f"queue {message.queue} is served by another process, whose address is unknown here", LATER_S
            )
        try:
            body = pushed.target.codec.encode(message)
        except Invalid as error:
            return Refusal(str(error))
        name = self._service.config.location.task(pushed.remote_name, task_id(message.id, entry.delivery))
        not_before = entry.ready_at if entry.due_in_s > 0 else None
        return TaskRequest(name, reached[1], reached[0], body, pushed.answers_within_s, not_before)

    async def _create(self, queue: str, part: Sequence[tuple[int, TaskRequest]]) -> dict[int, Answer]:
        try:
            async with self._calls:
                statuses = await self._service.create(self._pushed[queue].remote_name, [task for _, task in part])
        except Unavailable as error:
            return {position: Deferred(str(error)) for position, _ in part}
        if any(each.code == NOT_FOUND for each in statuses):
            self._queue_missing()
        return {
            position: self._answer(queue, task, each) for (position, task), each in zip(part, statuses, strict=True)
        }

    def _answer(self, queue: str, task: TaskRequest, status: CallStatus) -> Answer:
        if status.code in (OK, ALREADY_EXISTS):
            return Delivered(task.name)
        if status.code == NOT_FOUND:
            return Deferred(f"the task service has no queue {queue}; {SYNC_HINT}", LATER_S)
        if status.code in _LOUD:
            log.error("tasks_not_permitted", queue=queue, account=self._service.config.account, reason=status.text)
            return Deferred(f"the task service does not permit creating tasks in {queue}: {status.text}")
        if status.code in _NOT_NOW:
            return Deferred(f"the task service answered {status.code}: {status.text}")
        return Refusal(f"the task service answered {status.code}: {status.text}")


def _parts(tasks: Sequence[tuple[int, TaskRequest]]) -> list[list[tuple[int, TaskRequest]]]:
    parts: list[list[tuple[int, TaskRequest]]] = []
    size = 0
    for each in tasks:
        size += len(each[1].body)
        if not parts or len(parts[-1]) >= BATCH_MAX or size > BATCH_MAX_BYTES:
            parts.append([])
            size = len(each[1].body)
        parts[-1].append(each)
    return parts
