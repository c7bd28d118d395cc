"""From the outbox to the task service: a task for each entry, under a name that makes a repeated one known there."""

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
    Errand,
    Said,
    TaskService,
)
from payonce.queues.cloudtasks.names import RELAY, task_id
from payonce.queues.cloudtasks.pushed import Pushed
from payonce.queues.cloudtasks.queue import AHEAD_S

BATCH: Final = 500
CALLS_MAX: Final = 8
"""Calls of one delivery that are under way at once."""
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
        pushed: Mapping[str, Pushed],
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
        ready: defaultdict[str, list[tuple[int, Errand]]] = defaultdict(list)
        for position, entry in enumerate(entries):
            errand = self._errand(entry)
            if isinstance(errand, Errand):
                ready[entry.message.queue].append((position, errand))
            else:
                answers[position] = errand
        parts = [(queue, part) for queue, errands in ready.items() for part in _parts(errands)]
        for part_answers in await asyncio.gather(*(self._create(queue, part) for queue, part in parts)):
            answers |= part_answers
        return [answers[position] for position in range(len(entries))]

    def _errand(self, entry: Entry) -> Errand | Answer:
        message = entry.message
        pushed = self._pushed.get(message.queue)
        reached = None if pushed is None else pushed.reached_at(self._own_address())
        if pushed is None or reached is None:
            return Deferred(f"queue {message.queue} is served elsewhere, and this process does not know where", LATER_S)
        try:
            body = pushed.target.codec.encode(message)
        except Invalid as error:
            return Refusal(str(error))
        name = self._service.config.place.task(pushed.there, task_id(message.id, entry.delivery))
        not_before = entry.ready_at if entry.due_in_s > 0 else None
        return Errand(name, reached[1], reached[0], body, pushed.answers_within_s, not_before)

    async def _create(self, queue: str, part: Sequence[tuple[int, Errand]]) -> dict[int, Answer]:
        try:
            async with self._calls:
                said = await self._service.create(self._pushed[queue].there, [errand for _, errand in part])
        except Unavailable as error:
            return {position: Deferred(str(error)) for position, _ in part}
        if any(each.code == NOT_FOUND for each in said):
            self._queue_missing()
        return {
            position: self._answer(queue, errand, each) for (position, errand), each in zip(part, said, strict=True)
        }

    def _answer(self, queue: str, errand: Errand, said: Said) -> Answer:
        if said.code in (OK, ALREADY_EXISTS):
            return Delivered(errand.name)
        if said.code == NOT_FOUND:
            return Deferred(f"the task service has no queue {queue}; {SYNC_HINT}", LATER_S)
        if said.code in _LOUD:
            log.error("tasks_not_permitted", queue=queue, account=self._service.config.account, said=said.text)
            return Deferred(f"the task service does not let us make tasks in {queue}: {said.text}")
        if said.code in _NOT_NOW:
            return Deferred(f"the task service said {said.code}: {said.text}")
        return Refusal(f"the task service said {said.code}: {said.text}")


def _parts(errands: Sequence[tuple[int, Errand]]) -> list[list[tuple[int, Errand]]]:
    parts: list[list[tuple[int, Errand]]] = []
    size = 0
    for each in errands:
        size += len(each[1].body)
        if not parts or len(parts[-1]) >= BATCH_MAX or size > BATCH_MAX_BYTES:
            parts.append([])
            size = len(each[1].body)
        parts[-1].append(each)
    return parts
