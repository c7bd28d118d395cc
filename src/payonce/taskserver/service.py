"""The API: one method per call of google.cloud.tasks.v2.CloudTasks."""

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.cloud import tasks_v2
from google.protobuf import empty_pb2

from payonce.kit.microbatch import MicroBatch
from payonce.taskserver import names
from payonce.taskserver.metrics import count_created
from payonce.taskserver.operations import Operations
from payonce.taskserver.queue_store import QueueStore
from payonce.taskserver.queues import STATES, QueueRow, config_of, shown_queue, updated
from payonce.taskserver.refusals import (
    NOT_FOUND,
    QUEUE_EXISTED,
    QUEUE_EXISTS,
    QUEUE_NOT_FOUND,
    TASK_GONE,
    Refusal,
    exists,
    invalid,
    not_found,
)
from payonce.taskserver.task_store import TaskStore, name_taken
from payonce.taskserver.tasks import NewTask, new_task, shown_new_task, shown_task

QUEUES_PAGE_MAX: Final = 9_800
TASKS_PAGE_MAX: Final = 1_000
PUT_BATCH: Final = 200
PUT_PAUSE_S: Final = 0.003
"""Under load, calls within this time share one statement."""
_FILTER: Final = re.compile(r"\s*state\s*(?P<sign>!?=|:)\s*\"?(?P<state>[A-Z]+)\"?\s*")
_ListQueues: Final[Any] = tasks_v2.ListQueuesResponse.pb()
_ListTasks: Final[Any] = tasks_v2.ListTasksResponse.pb()


@dataclass(frozen=True)
class Wakeups:
    """Callbacks on changes, for this and other processes."""

    queues_changed: Callable[[], None]
    has_tasks: Callable[[str], None]
    has_forced: Callable[[str], None]


class Service:
    """Implements the calls with plain protobuf messages: the client's wrappers cost more than the store."""

    def __init__(
        self, queues: QueueStore, tasks: TaskStore, operations: Operations, wakeups: Wakeups, name_lock_s: float
    ) -> None:
        self._queues = queues
        self._tasks = tasks
        self._operations = operations
        self._wakeups = wakeups
        self._name_lock_s = name_lock_s
        self._putting = MicroBatch(tasks.put, PUT_BATCH, PUT_PAUSE_S)

    async def create_queue(self, request: Any) -> Any:
        location = names.check_location(request.parent)
        name = names.check_queue(request.queue.name)
        if names.location_of(name) != location:
            raise invalid(f"Queue.name is {name!r}; it must be in the request's parent, {location!r}.")
        return await self._create_queue(request.queue)

    async def _create_queue(self, queue: Any) -> Any:
        row = await self._queues.create(queue.name, config_of(queue), self._name_lock_s)
        if row is None:
            if await self._queues.find(queue.name) is not None:
                raise exists(QUEUE_EXISTS)
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, QUEUE_EXISTED)
        self._wakeups.queues_changed()
        return shown_queue(row)

    async def update_queue(self, request: Any) -> Any:
        """Updates the queue, or creates it as Google does."""
        known = await self._queues.find(names.check_queue(request.queue.name))
        if known is None:
            return await self._create_queue(request.queue)
        paths = list(request.update_mask.paths)
        config = updated(known.config, request.queue, paths) if paths else config_of(request.queue)
        return self._changed(await self._queues.change(known, config))

    async def get_queue(self, request: Any) -> Any:
        return shown_queue(await self._queue(request.name, NOT_FOUND))

    async def list_queues(self, request: Any) -> Any:
        location = names.check_location(request.parent)
        limit = _page_size(request.page_size, QUEUES_PAGE_MAX)
        rows = await self._queues.page(location, _states(request.filter), _after(request.page_token), limit + 1)
        answer = _ListQueues(queues=[shown_queue(row) for row in rows[:limit]])
        if len(rows) > limit:
            answer.next_page_token = _page_token(rows[limit - 1].name)
        return answer

    async def delete_queue(self, request: Any) -> Any:
        if not await self._queues.delete(names.check_queue(request.name)):
            raise not_found()
        self._wakeups.queues_changed()
        return empty_pb2.Empty()

    async def purge_queue(self, request: Any) -> Any:
        return self._changed(await self._queues.purge(names.check_queue(request.name)))

    async def pause_queue(self, request: Any) -> Any:
        return self._changed(await self._queues.set_state(names.check_queue(request.name), "PAUSED"))

    async def resume_queue(self, request: Any) -> Any:
        answer = self._changed(await self._queues.set_state(names.check_queue(request.name), "RUNNING"))
        self._wakeups.has_tasks(request.name)
        return answer

    async def create_task(self, request: Any) -> Any:
        task = new_task(names.check_queue(request.parent), request.task)
        outcome = await self._putting.add(task)
        if isinstance(outcome, Refusal):
            raise await self._explained(outcome, task)
        count_created(task.queue, 1)
        self._wakeups.has_tasks(task.queue)
        return shown_new_task(task, outcome, request.response_view)

    async def _explained(self, refusal: Refusal, task: NewTask) -> Refusal:
        """The refusal, which says whether the name is taken by a task or still reserved."""
        if refusal.code is not grpc.StatusCode.ALREADY_EXISTS:
            return refusal
        queue = await self._queue(task.queue, QUEUE_NOT_FOUND)
        return name_taken(await self._tasks.is_remembered(queue.id, task.id))

    async def batch_create_tasks(self, request: Any) -> Any:
        operation = await self._operations.create(request, self._putting.add_all)
        self._wakeups.has_tasks(request.parent)
        return operation

    async def batch_delete_tasks(self, request: Any) -> Any:
        return await self._operations.delete(await self._queue(request.parent, QUEUE_NOT_FOUND), request)

    async def get_operation(self, request: Any) -> Any:
        return await self._operations.find(request.name)

    async def get_task(self, request: Any) -> Any:
        name, queue = await self._task_queue(request.name)
        row = await self._tasks.find(queue.id, name.id)
        if row is None:
            raise await self._no_task(queue, name.id)
        return shown_task(queue.name, row, request.response_view)

    async def list_tasks(self, request: Any) -> Any:
        queue = await self._queue(request.parent, QUEUE_NOT_FOUND)
        limit = _page_size(request.page_size, TASKS_PAGE_MAX)
        rows = await self._tasks.page(queue.id, _after(request.page_token), limit + 1)
        answer = _ListTasks(tasks=[shown_task(queue.name, row, request.response_view) for row in rows[:limit]])
        if len(rows) > limit:
            answer.next_page_token = _page_token(rows[limit - 1]["id"])
        return answer

    async def delete_task(self, request: Any) -> Any:
        name, queue = await self._task_queue(request.name)
        if not await self._tasks.delete(queue.id, [name.id]):
            raise await self._no_task(queue, name.id)
        return empty_pb2.Empty()

    async def run_task(self, request: Any) -> Any:
        name, queue = await self._task_queue(request.name)
        row = await self._tasks.force(queue.id, name.id)
        if row is None:
            raise await self._no_task(queue, name.id)
        self._wakeups.has_forced(queue.name)
        return shown_task(queue.name, row, request.response_view)

    async def drained(self) -> None:
        await self._putting.drained()
        await self._operations.drained()

    async def _queue(self, name: str, missing: str) -> QueueRow:
        queue = await self._queues.find(names.check_queue(name))
        if queue is None:
            raise not_found(missing)
        return queue

    async def _task_queue(self, name: str) -> tuple[names.TaskName, QueueRow]:
        parts = names.split_task(name)
        return parts, await self._queue(parts.queue, QUEUE_NOT_FOUND)

    async def _no_task(self, queue: QueueRow, task_id: str) -> Refusal:
        return not_found(TASK_GONE if await self._tasks.is_remembered(queue.id, task_id) else NOT_FOUND)

    def _changed(self, row: QueueRow | None) -> Any:
        if row is None:
            raise not_found()
        self._wakeups.queues_changed()
        return shown_queue(row)


def _states(text: str) -> list[str]:
    if not text.strip():
        return list(STATES)
    match = _FILTER.fullmatch(text)
    if match is None or match["state"] not in (*STATES, "DISABLED"):
        raise invalid(f"filter is {names.shown(text)}; this server supports filters such as 'state: PAUSED' only.")
    return [state for state in STATES if (state == match["state"]) != (match["sign"] == "!=")]


def _page_size(requested: int, most: int) -> int:
    if requested < 0:
        raise invalid(f"page_size is {requested}; it must not be negative.")
    return min(requested or most, most)


def _page_token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()


def _after(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error) as error:
        raise invalid(f"page_token is {names.shown(token)}, which this server did not issue.") from error
