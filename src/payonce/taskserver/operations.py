"""Batches of tasks: long-running operations that are finished, and stored, when they are answered."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import uuid4

from google.cloud import tasks_v2
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2
from google.rpc import status_pb2

from payonce.engine.database.connections import Connection, Database
from payonce.kit.microbatch import MicroBatch
from payonce.taskserver import names
from payonce.taskserver.metrics import count_created
from payonce.taskserver.queues import QueueRow, write_time
from payonce.taskserver.refusals import TASK_GONE, Refusal, exists, invalid, not_found
from payonce.taskserver.task_store import TaskStore
from payonce.taskserver.tasks import NewTask, new_task, shown_new_task

CREATE_MAX: Final = 100
DELETE_MAX: Final = 1_000
REMEMBER_BATCH: Final = 100
OPERATION_KEPT_S: Final = 7 * 86_400.0
_SUCCEEDED: Final = 2
_ABORTED: Final = 10
_CREATED_IN_PART: Final = 5
_DELETED_IN_PART: Final = 3
_CreateMetadata: Final[Any] = tasks_v2.BatchCreateTasksMetadata.pb()
_CreateResponse: Final[Any] = tasks_v2.BatchCreateTasksResponse.pb()
_DeleteMetadata: Final[Any] = tasks_v2.BatchDeleteTasksMetadata.pb()


PutTogether = Callable[[Sequence[NewTask]], Awaitable[Sequence[datetime | Refusal]]]


class Operations:
    """Runs batches. With a caller's request id, tasks and operation are stored in one transaction. Otherwise nobody
    knows the operation's name before the response, so it is enough to store it by then."""

    def __init__(self, database: Database, tasks: TaskStore) -> None:
        self.database = database
        self.tasks = tasks
        self._remembering = MicroBatch(self._remember_all, REMEMBER_BATCH, 0.0)

    async def create(self, request: Any, put_together: PutTogether) -> Any:
        """Creates tasks; `put_together` puts them in one batch with those of other calls."""
        parent = names.check_queue(request.parent)
        if not 1 <= len(request.requests) <= CREATE_MAX:
            raise invalid(
                f"BatchCreateTasksRequest.requests has {len(request.requests)}; it must have 1 to {CREATE_MAX}."
            )
        for position, each in enumerate(request.requests):
            if each.parent not in ("", parent):
                raise invalid(
                    f"requests[{position}].parent is {names.shown(each.parent)}; it must be {parent!r} as well."
                )
        name = names.operation_name(parent, request.request_id or str(uuid4()))
        digest = _digest(request)
        if not request.request_id:
            operation, created = await self._create(put_together, parent, request, name)
            await self._remembering.add((name, digest, operation.SerializeToString()))
        else:
            async with self.database.transaction() as connection:
                if (known := await _begin(connection, name, digest, may_be_known=True)) is not None:
                    return known
                put = partial(self.tasks.put, within=connection)
                operation, created = await self._create(put, parent, request, name)
                await _remember(connection, name, operation)
        count_created(parent, created)
        return operation

    async def _create(self, put: PutTogether, parent: str, request: Any, name: str) -> tuple[Any, int]:
        """Returns the operation and the number of tasks it created."""
        outcomes: dict[int, Refusal] = {}
        tasks: dict[int, NewTask] = {}
        for position, each in enumerate(request.requests):
            try:
                tasks[position] = new_task(parent, each.task)
            except Refusal as refusal:
                outcomes[position] = refusal
        added = await put(list(tasks.values())) if tasks else []
        response, now = _CreateResponse(), None
        for (position, task), outcome in zip(tasks.items(), added, strict=True):
            if isinstance(outcome, Refusal):
                outcomes[position] = outcome
            else:
                now = outcome
                response.tasks.append(shown_new_task(task, outcome, request.requests[position].response_view))
        if len(outcomes) == len(request.requests) and (missing := _queue_missing(outcomes)):
            raise missing
        if now is None:
            now = await self.database.engine.fetchval("select payonce.due_now()")
        metadata = _CreateMetadata(state=_CREATED_IN_PART if outcomes else _SUCCEEDED)
        return _done(name, metadata, outcomes, len(request.requests), now, response), len(response.tasks)

    async def _remember_all(self, operations: Sequence[tuple[str, bytes, bytes]]) -> Sequence[None]:
        names, digests, done = zip(*operations, strict=True)
        await self.database.engine.execute(
            """
            insert into cloudtasks.operations (name, digest, operation)
            select * from unnest($1::text[], $2::bytea[], $3::bytea[])
            """,
            names,
            digests,
            done,
        )
        return [None] * len(operations)

    async def drained(self) -> None:
        await self._remembering.drained()

    async def delete(self, queue: QueueRow, request: Any) -> Any:
        if not 1 <= len(request.names) <= DELETE_MAX:
            raise invalid(f"BatchDeleteTasksRequest.names has {len(request.names)}; it must have 1 to {DELETE_MAX}.")
        name = names.operation_name(queue.name, request.request_id or str(uuid4()))
        async with self.database.transaction() as connection:
            if (known := await _begin(connection, name, _digest(request), bool(request.request_id))) is not None:
                return known
            operation = await self._delete(connection, queue, request.names, name)
            await _remember(connection, name, operation)
        return operation

    async def _delete(self, connection: Connection, queue: QueueRow, requested: Sequence[str], name: str) -> Any:
        outcomes: dict[int, Refusal] = {}
        ids: dict[int, str] = {}
        for position, each in enumerate(requested):
            try:
                parent, task_id = names.split_task(each)
                if parent != queue.name:
                    raise invalid(f"names[{position}] is of queue {parent!r}; it must be of {queue.name!r}.")
                ids[position] = task_id
            except Refusal as refusal:
                outcomes[position] = refusal
        gone = await self.tasks.delete(queue.id, list(ids.values()), within=connection) if ids else set()
        for position, task_id in ids.items():
            if task_id not in gone:
                outcomes[position] = not_found(TASK_GONE)
        now = await connection.fetchval("select payonce.due_now()")
        metadata = _DeleteMetadata(state=_DELETED_IN_PART if outcomes else _SUCCEEDED)
        return _done(name, metadata, outcomes, len(requested), now, None)

    async def find(self, name: str) -> Any:
        stored = await self.database.engine.fetchval(
            "select operation from cloudtasks.operations where name = $1", name
        )
        if stored is None:
            raise not_found()
        return operations_pb2.Operation.FromString(stored)


def _queue_missing(outcomes: Mapping[int, Refusal]) -> Refusal | None:
    """The refusal of a batch for a missing queue: it fails as a whole, before it becomes an operation."""
    texts = {outcome.text for outcome in outcomes.values()}
    first = next(iter(outcomes.values()))
    return first if len(texts) == 1 and first.text.startswith("Queue does not exist") else None


async def _begin(connection: Connection, name: str, digest: bytes, may_be_known: bool) -> Any:
    """Reserves the operation's name; returns the operation if it exists."""
    taken = await connection.fetchval(
        "insert into cloudtasks.operations (name, digest) values ($1, $2) on conflict do nothing returning true",
        name,
        digest,
    )
    if taken or not may_be_known:
        return None
    known = await connection.fetchrow("select digest, operation from cloudtasks.operations where name = $1", name)
    if known is None or known["digest"] != digest:
        raise exists(f"The operation {name!r} belongs to another request; use a new request_id.")
    return operations_pb2.Operation.FromString(known["operation"])


async def _remember(connection: Connection, name: str, operation: Any) -> None:
    await connection.execute(
        "update cloudtasks.operations set operation = $2 where name = $1", name, operation.SerializeToString()
    )


def _done(name: str, metadata: Any, outcomes: Mapping[int, Refusal], count: int, now: datetime, response: Any) -> Any:
    """A google.longrunning.Operation with its outcome; an error only if all requests failed."""
    write_time(metadata.start_time, now)
    write_time(metadata.end_time, now)
    for position, refusal in outcomes.items():
        metadata.failed_requests[position].CopyFrom(_status(refusal))
    operation = operations_pb2.Operation(name=name, done=True)
    operation.metadata.Pack(metadata)
    if len(outcomes) == count:
        kind = metadata.DESCRIPTOR.name
        operation.error.code = _ABORTED
        operation.error.message = (
            f"None of the requests succeeded, refer to {kind}.failed_requests for individual error details"
        )
    elif response is None:
        operation.response.Pack(empty_pb2.Empty())
    else:
        operation.response.Pack(response)
    return operation


def _status(refusal: Refusal) -> Any:
    return status_pb2.Status(code=refusal.code.value[0], message=refusal.text)


def _digest(request: Any) -> bytes:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
