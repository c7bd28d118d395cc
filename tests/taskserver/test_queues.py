"""Queues over the API: settings, defaults, bounds, masks, paging, and every refusal."""

from datetime import timedelta
from typing import Any

import pytest
from google.api_core.exceptions import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    MethodNotImplemented,
    NotFound,
)
from google.cloud import tasks_v2

from payonce.testing import OpenStage
from tests.taskserver.api import Api, only_here
from tests.taskserver.testbed import LOCATION, QUEUE, open_testbed

State = tasks_v2.Queue.State


async def test_a_queue_gets_googles_defaults(api: Api) -> None:
    name = await api.queue(paused=False)
    queue = await api.client.get_queue(name=name)
    assert (queue.name, queue.state) == (name, State.RUNNING)
    assert queue.rate_limits.max_dispatches_per_second == 500
    assert queue.rate_limits.max_concurrent_dispatches == 1_000
    assert queue.rate_limits.max_burst_size > 0
    assert queue.retry_config.max_attempts == 100
    assert queue.retry_config.max_doublings == 16
    assert queue.retry_config.min_backoff == timedelta(seconds=0.1)
    assert queue.retry_config.max_backoff == timedelta(hours=1)
    assert not queue.purge_time


async def test_a_queue_keeps_what_was_set(api: Api) -> None:
    name = api.name()
    await api.client.create_queue(
        parent=api.location,
        queue={
            "name": name,
            "rate_limits": {"max_dispatches_per_second": 10, "max_concurrent_dispatches": 50},
            "retry_config": {
                "max_attempts": -1,
                "max_retry_duration": {"seconds": 86_400},
                "min_backoff": {"seconds": 60},
                "max_backoff": {"seconds": 60},
                "max_doublings": 3,
            },
            "stackdriver_logging_config": {"sampling_ratio": 0.5},
        },
    )
    queue = await api.client.get_queue(name=name)
    assert (queue.rate_limits.max_dispatches_per_second, queue.rate_limits.max_concurrent_dispatches) == (10, 50)
    retry = queue.retry_config
    assert (retry.max_attempts, retry.max_doublings) == (-1, 3)
    assert retry.max_retry_duration == timedelta(days=1)
    assert retry.min_backoff == retry.max_backoff == timedelta(minutes=1)
    assert queue.stackdriver_logging_config.sampling_ratio == 0.5


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({"rate_limits": {"max_dispatches_per_second": 501}}, "501"),
        ({"rate_limits": {"max_dispatches_per_second": -1}}, "-1"),
        ({"rate_limits": {"max_concurrent_dispatches": 5_001}}, "5001"),
        ({"rate_limits": {"max_concurrent_dispatches": -1}}, "-1"),
        ({"retry_config": {"max_attempts": -2}}, "-2"),
        ({"retry_config": {"max_doublings": -1}}, "-1"),
        ({"retry_config": {"min_backoff": {"seconds": 61}, "max_backoff": {"seconds": 60}}}, "61"),
        ({"retry_config": {"min_backoff": {"seconds": -1}}}, "-1"),
        ({"retry_config": {"max_retry_duration": {"seconds": -5}}}, "-5"),
        ({"stackdriver_logging_config": {"sampling_ratio": 2}}, "2"),
    ],
)
async def test_a_setting_out_of_bounds_is_refused_with_its_value(
    api: Api, settings: dict[str, Any], value: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await api.client.create_queue(parent=api.location, queue={"name": api.name(), **settings})
    assert api.stage is None or value in refused.value.message


@pytest.mark.parametrize("queue_id", ["", "under_score", "dot.dot", "a" * 101, "ümlaut", "slash/slash"])
async def test_a_name_that_breaks_the_pattern_is_refused(api: Api, queue_id: str) -> None:
    with pytest.raises(InvalidArgument):
        await api.client.create_queue(parent=api.location, queue={"name": f"{api.location}/queues/{queue_id}"})


async def test_a_queue_of_another_location_than_the_parent_is_refused(api: Api) -> None:
    elsewhere = f"{api.location}-elsewhere/queues/q"
    with pytest.raises(InvalidArgument):
        await api.client.create_queue(parent=api.location, queue={"name": elsewhere})


async def test_a_name_is_taken_once(api: Api) -> None:
    name = await api.queue()
    with pytest.raises(AlreadyExists, match="Queue already exists"):
        await api.client.create_queue(parent=api.location, queue={"name": name})


async def test_a_missing_queue_is_reported(api: Api) -> None:
    name = api.name()
    for call in ("get_queue", "delete_queue", "purge_queue", "pause_queue", "resume_queue"):
        with pytest.raises(NotFound):
            await getattr(api.client, call)(name=name)
    with pytest.raises(NotFound):
        await api.client.list_tasks(parent=name)
    with pytest.raises(NotFound):
        await api.put(name)


@only_here("Google may hold queues of others")
async def test_queues_are_listed_in_pages_and_by_location(api: Api) -> None:
    made = sorted([await api.queue() for _ in range(7)])
    elsewhere = f"{api.location}2"
    await api.client.create_queue(parent=elsewhere, queue={"name": f"{elsewhere}/queues/other"})
    pages = [page async for page in (await api.client.list_queues({"parent": api.location, "page_size": 3})).pages]
    assert [len(page.queues) for page in pages] == [3, 3, 1]
    assert [queue.name for page in pages for queue in page.queues] == made


@only_here("Google may hold queues of others")
async def test_queues_are_filtered_by_state(api: Api) -> None:
    paused, running = await api.queue(), await api.queue(paused=False)

    async def listed(text: str) -> list[str]:
        return [each.name async for each in await api.client.list_queues({"parent": api.location, "filter": text})]

    assert await listed("state: PAUSED") == [paused]
    assert await listed("state = RUNNING") == [running]
    assert await listed("state != PAUSED") == [running]
    with pytest.raises(InvalidArgument, match="rate_limits"):
        await listed("rate_limits.max_burst_size > 3")


async def test_a_bad_page_is_refused(api: Api) -> None:
    for page in ({"page_token": "no token of ours!"}, {"page_size": -1}):
        with pytest.raises(InvalidArgument):
            await api.client.list_queues({"parent": api.location, **page})


async def test_a_mask_changes_what_it_names_and_nothing_else(api: Api) -> None:
    name = await api.queue(rate_limits={"max_dispatches_per_second": 10}, retry_config={"max_attempts": 7})
    wanted = {"rate_limits": {"max_dispatches_per_second": 20}, "retry_config": {"max_attempts": 9}}
    changed = await api.client.update_queue(
        queue={"name": name, **wanted}, update_mask={"paths": ["rate_limits.max_dispatches_per_second"]}
    )
    assert (changed.rate_limits.max_dispatches_per_second, changed.retry_config.max_attempts) == (20, 7)
    assert changed.state == State.PAUSED, "only pause and resume change the state"
    changed = await api.client.update_queue(queue={"name": name, **wanted}, update_mask={"paths": ["retry_config"]})
    assert changed.retry_config.max_attempts == 9


async def test_no_doublings_are_asked_for_by_a_mask(api: Api) -> None:
    """Without one, 0 and unset look alike on the wire, and mean the default."""
    name = await api.queue(retry_config={"max_attempts": 7, "max_doublings": 0})
    assert (await api.client.get_queue(name=name)).retry_config.max_doublings == 16
    changed = await api.client.update_queue(queue={"name": name}, update_mask={"paths": ["retry_config.max_doublings"]})
    assert (changed.retry_config.max_doublings, changed.retry_config.max_attempts) == (0, 7)


async def test_an_update_without_a_mask_sets_everything(api: Api) -> None:
    name = await api.queue(rate_limits={"max_dispatches_per_second": 10}, retry_config={"max_attempts": 7})
    changed = await api.client.update_queue(queue={"name": name, "retry_config": {"max_attempts": 8}})
    assert (changed.rate_limits.max_dispatches_per_second, changed.retry_config.max_attempts) == (500, 8)


async def test_an_update_of_a_missing_queue_makes_it(api: Api) -> None:
    name = api.name()
    await api.client.update_queue(queue={"name": name, "rate_limits": {"max_dispatches_per_second": 3}})
    assert (await api.client.get_queue(name=name)).rate_limits.max_dispatches_per_second == 3


async def test_a_mask_of_what_is_not_there_is_refused(api: Api) -> None:
    name = await api.queue()
    with pytest.raises(InvalidArgument):
        await api.client.update_queue(queue={"name": name}, update_mask={"paths": ["no_such_field"]})


async def test_pause_and_resume_may_be_repeated(api: Api) -> None:
    name = await api.queue(paused=False)
    for call, state in (("pause_queue", State.PAUSED), ("resume_queue", State.RUNNING)):
        for _ in range(2):
            assert (await getattr(api.client, call)(name=name)).state == state


async def test_a_purge_removes_what_was_there_and_says_when(api: Api) -> None:
    name = await api.queue()
    for task_id in ("one", "two"):
        await api.put(name, task_id)
    purged = await api.client.purge_queue(name=name)
    assert purged.purge_time
    if api.stage is not None:
        assert await api.ids(name) == []
        await api.put(name, "three")
        assert await api.ids(name) == ["three"]
        with pytest.raises(AlreadyExists, match="existed too recently"):
            await api.put(name, "one")


@only_here("its names are locked for days")
async def test_a_deleted_queue_is_gone_with_its_tasks_and_its_name_is_free(api: Api) -> None:
    name = await api.queue()
    await api.put(name, "one")
    await api.client.delete_queue(name=name)
    with pytest.raises(NotFound):
        await api.client.get_queue(name=name)
    with pytest.raises(NotFound):
        await api.client.get_task(name=f"{name}/tasks/one")
    await api.client.create_queue(parent=api.location, queue={"name": name})
    assert await api.ids(name) == []
    await api.put(name, "one")


async def test_the_name_of_a_deleted_queue_is_locked_where_the_server_is_told_to(stage: OpenStage) -> None:
    async with open_testbed(stage, dispatching=False, frozen=True, name_lock_s=3 * 86_400) as testbed:
        await testbed.queue()
        await testbed.client.delete_queue(name=QUEUE)
        for wait_s in (3 * 86_400 - 1, 1):
            with pytest.raises(FailedPrecondition, match="existed too recently"):
                await testbed.client.create_queue(parent=LOCATION, queue={"name": QUEUE})
            await testbed.s.clock.advance(wait_s)
        await testbed.queue()


@only_here("Google serves it")
@pytest.mark.parametrize(
    "settings",
    [{"app_engine_routing_override": {"service": "s"}}, {"http_target": {"http_method": "POST"}}],
    ids=["app engine", "http target"],
)
async def test_what_is_not_served_of_a_queue_is_said(api: Api, settings: dict[str, Any]) -> None:
    with pytest.raises(MethodNotImplemented, match="not served by this Cloud Tasks server"):
        await api.client.create_queue(parent=api.location, queue={"name": api.name(), **settings})


@only_here("Google serves it")
async def test_calls_that_are_not_served_are_said(api: Api) -> None:
    name = await api.queue()
    for call in ("get_iam_policy", "test_iam_permissions", "set_iam_policy"):
        with pytest.raises(MethodNotImplemented, match="is not served"):
            await getattr(api.client, call)(request={"resource": name})
    with pytest.raises(MethodNotImplemented, match="GetCmekConfig"):
        await api.client.get_cmek_config(name=f"{api.location}/cmekConfig")
