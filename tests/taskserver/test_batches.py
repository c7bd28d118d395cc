"""Batches: operations that are done when they are answered, in part where part was refused, and remembered."""

import asyncio
from typing import Any

import pytest
from google.api_core.exceptions import AlreadyExists, GoogleAPICallError, InvalidArgument, NotFound
from google.cloud import tasks_v2
from google.longrunning import operations_pb2

from tests.taskserver.api import NOWHERE, Api, only_here

Created = tasks_v2.BatchCreateTasksMetadata
Deleted = tasks_v2.BatchDeleteTasksMetadata


def requests(queue: str, *task_ids: str, **task: Any) -> list[dict[str, Any]]:
    return [
        {"parent": queue, "task": {"http_request": {"url": NOWHERE}, "name": f"{queue}/tasks/{each}", **task}}
        for each in task_ids
    ]


async def create(api: Api, queue: str, *task_ids: str, **request: Any) -> Any:
    return await api.client.batch_create_tasks({"parent": queue, "requests": requests(queue, *task_ids), **request})


async def test_a_batch_creates_all_of_its_tasks(api: Api) -> None:
    queue = await api.queue()
    operation = await create(api, queue, "a", "b", "c")
    made = await operation.result()
    assert [task.name.rpartition("/")[2] for task in made.tasks] == ["a", "b", "c"]
    assert operation.metadata.state == Created.State.SUCCEEDED
    assert not operation.metadata.failed_requests
    assert sorted(await api.ids(queue)) == ["a", "b", "c"]


async def test_what_is_refused_of_a_batch_is_named_and_the_rest_is_created(api: Api) -> None:
    queue = await api.queue()
    await api.put(queue, "taken")
    asked = requests(queue, "new", "taken", "bad.name", "new")
    operation = await api.client.batch_create_tasks({"parent": queue, "requests": asked})
    made = await operation.result()
    assert [task.name.rpartition("/")[2] for task in made.tasks] == ["new"]
    metadata = operation.metadata
    assert metadata.state == Created.State.PARTIALLY_SUCCEEDED
    assert {place: status.code for place, status in metadata.failed_requests.items()} == {1: 6, 2: 3, 3: 6}
    assert metadata.start_time
    assert metadata.end_time


async def test_a_batch_of_which_nothing_succeeds_is_an_error(api: Api) -> None:
    queue = await api.queue()
    await api.put(queue, "taken")
    operation = await create(api, queue, "taken")
    with pytest.raises(GoogleAPICallError, match="None of the requests succeeded"):
        await operation.result()
    assert operation.metadata.failed_requests[0].code == 6


@pytest.mark.parametrize("count", [0, 101])
async def test_a_batch_has_1_to_100_tasks(api: Api, count: int) -> None:
    queue = await api.queue()
    with pytest.raises(InvalidArgument):
        await create(api, queue, *(f"t{number}" for number in range(count)))


async def test_a_batch_for_a_missing_queue_is_refused(api: Api) -> None:
    with pytest.raises(NotFound):
        await create(api, api.name(), "t")


async def test_a_batch_for_two_queues_is_refused(api: Api) -> None:
    queue, other = await api.queue(), await api.queue()
    with pytest.raises(InvalidArgument):
        await api.client.batch_create_tasks({"parent": queue, "requests": requests(other, "t")})


@only_here("its words differ")
async def test_a_request_id_is_done_once(api: Api) -> None:
    queue = await api.queue()
    unnamed = {"parent": queue, "requests": [{"parent": queue, "task": {"http_request": {"url": NOWHERE}}}] * 3}
    first = await api.client.batch_create_tasks({**unnamed, "request_id": "r-1"})
    again = await api.client.batch_create_tasks({**unnamed, "request_id": "r-1"})
    assert first.operation.name == again.operation.name
    assert (await first.result()) == (await again.result())
    assert len(await api.ids(queue)) == 3
    with pytest.raises(AlreadyExists, match="another request"):
        await create(api, queue, "t", request_id="r-1")


@only_here("its words differ")
async def test_a_request_id_sent_many_times_at_once_is_done_once(api: Api) -> None:
    queue = await api.queue()
    request = {"parent": queue, "requests": [{"parent": queue, "task": {"http_request": {"url": NOWHERE}}}]}
    await asyncio.gather(*(api.client.batch_create_tasks({**request, "request_id": "r-2"}) for _ in range(8)))
    assert len(await api.ids(queue)) == 1


async def test_an_operation_is_remembered(api: Api) -> None:
    queue = await api.queue()
    operation = await create(api, queue, "a")
    known = await api.client.get_operation(operations_pb2.GetOperationRequest(name=operation.operation.name))
    assert known.done
    assert known.name == operation.operation.name
    with pytest.raises(NotFound):
        await api.client.get_operation(operations_pb2.GetOperationRequest(name=f"{api.location}/operations/none"))


async def test_a_batch_deletes_what_is_there_and_names_what_is_not(api: Api) -> None:
    queue = await api.queue()
    for task_id in ("a", "b", "kept"):
        await api.put(queue, task_id)
    names = [f"{queue}/tasks/{each}" for each in ("a", "missing", "b")]
    operation = await api.client.batch_delete_tasks(parent=queue, names=names)
    await operation.result()
    assert operation.metadata.state == Deleted.State.PARTIALLY_SUCCEEDED
    assert {place: status.code for place, status in operation.metadata.failed_requests.items()} == {1: 5}
    assert await api.ids(queue) == ["kept"]
    with pytest.raises(AlreadyExists, match="existed too recently"):
        await api.put(queue, "a")


async def test_a_batch_that_deletes_all_succeeds_and_one_that_deletes_nothing_is_an_error(api: Api) -> None:
    queue = await api.queue()
    await api.put(queue, "a")
    deleted = await api.client.batch_delete_tasks(parent=queue, names=[f"{queue}/tasks/a"])
    await deleted.result()
    assert deleted.metadata.state == Deleted.State.SUCCEEDED
    again = await api.client.batch_delete_tasks(parent=queue, names=[f"{queue}/tasks/a"])
    with pytest.raises(GoogleAPICallError, match="refer to BatchDeleteTasksMetadata"):
        await again.result()
