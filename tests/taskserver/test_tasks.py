"""Tasks over the API: created, looked at, listed, deleted; names that are taken, and every refusal."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.api_core.exceptions import AlreadyExists, InvalidArgument, MethodNotImplemented, NotFound
from google.cloud import tasks_v2

from tests.taskserver.api import NOWHERE, Api, only_here
from tests.taskserver.testbed import QUEUE, TaskServerTestbed

View = tasks_v2.Task.View


async def test_a_task_is_answered_with_what_google_fills_in(api: Api) -> None:
    queue = await api.queue()
    task = await api.put(queue)
    assert task.name.startswith(f"{queue}/tasks/")
    assert task.name.rpartition("/")[2].isdigit()
    assert task.http_request.url == NOWHERE
    assert task.http_request.http_method == tasks_v2.HttpMethod.POST
    assert task.http_request.headers["User-Agent"] == "Google-Cloud-Tasks"
    assert task.dispatch_deadline == timedelta(minutes=10)
    assert task.create_time.microsecond == 0
    assert task.schedule_time >= task.create_time
    assert (task.dispatch_count, task.response_count, task.view) == (0, 0, View.BASIC)
    assert not task.first_attempt.dispatch_time
    assert (await api.client.get_task(name=task.name)) == task


async def test_the_body_is_in_the_full_view_alone(api: Api) -> None:
    queue = await api.queue()
    task = {"http_request": {"url": NOWHERE, "body": b"secret", "headers": {"A": "b"}}}
    for view, body in ((View.VIEW_UNSPECIFIED, b""), (View.BASIC, b""), (View.FULL, b"secret")):
        shown = {"response_view": view}
        created = await api.client.create_task({"parent": queue, "task": task, **shown})
        found = await api.client.get_task({"name": created.name, **shown})
        listed = [each async for each in await api.client.list_tasks({"parent": queue, **shown})]
        assert {each.http_request.body for each in (created, found, *listed)} == {body}
        assert {each.view for each in (created, found, *listed)} == {view or View.BASIC}
        assert found.http_request.headers["A"] == "b"


async def test_tasks_are_listed_in_pages(api: Api) -> None:
    queue = await api.queue()
    made = {f"task-{number}" for number in range(7)}
    for task_id in made:
        await api.put(queue, task_id)
    pages = [page async for page in (await api.client.list_tasks({"parent": queue, "page_size": 3})).pages]
    assert [len(page.tasks) for page in pages] == [3, 3, 1]
    assert {task.name.rpartition("/")[2] for page in pages for task in page.tasks} == made
    assert not pages[-1].next_page_token


@pytest.mark.parametrize(
    "task_id", ["dot.dot", "a" * 501, "space space", "ümlaut", "a/b", "colon:colon"], ids=lambda each: each[:12]
)
async def test_a_task_name_that_breaks_the_pattern_is_refused(api: Api, task_id: str) -> None:
    queue = await api.queue()
    with pytest.raises(InvalidArgument):
        await api.put(queue, task_id)


async def test_a_task_name_of_another_queue_is_refused(api: Api) -> None:
    queue, other = await api.queue(), await api.queue()
    with pytest.raises(InvalidArgument):
        await api.put(queue, name=f"{other}/tasks/t")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"http_request": {"url": "ftp://example.com/"}}, "ftp://example.com/"),
        ({"http_request": {"url": "http://"}}, "http://"),
        ({"http_request": {"url": ""}}, "http"),
        ({"http_request": {"url": "https://example.com/" + "x" * 2_083}}, "2083"),
        ({"http_request": {"url": "https://example.com/" + " " * 700}}, "2120 characters once encoded"),
        ({"http_request": {"url": NOWHERE, "http_method": "GET", "body": b"x"}}, "GET"),
        ({"http_request": {"url": NOWHERE, "headers": {"A": "x" * 81_920}}}, "headers"),
        ({"dispatch_deadline": {"seconds": 14}}, "14"),
        ({"dispatch_deadline": {"seconds": 1_801}}, "1801"),
        ({"schedule_time": datetime.now(UTC) + timedelta(days=31)}, "30 days"),
        ({"retry_config": {"max_attempts": -2}}, "-2"),
        ({"http_request": None}, ""),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_a_task_out_of_bounds_is_refused_with_its_value(api: Api, task: dict[str, Any], said: str) -> None:
    queue = await api.queue()
    with pytest.raises(InvalidArgument) as refused:
        await api.put(queue, **task)
    assert api.stage is None or said in refused.value.message
    assert await api.ids(queue) == []


async def test_a_url_that_no_attempt_could_send_is_refused_with_its_value(api: Api) -> None:
    queue = await api.queue()
    for url in (
        "http://example.com/\0",
        "http://exa\x7fmple.com/",
        "http://example.com/\r\nHost: other",
        "http://a\tb/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:-1/",
        "http://example.com:http/",
        "http://",
        "http://:80/",
        "http://@/",
        "http:///path",
        "http://[::1/",
        "http://a b/",
        "http://../",
        "http://a..b/",
        f"http://{'a' * 64}.com/",
        f"http://{'a.' * 127}/",
        "file:///etc/passwd",
        "example.com",
        "//example.com/",
    ):
        with pytest.raises(InvalidArgument) as refused:
            await api.put(queue, http_request={"url": url})
        assert api.stage is None or repr(url)[1:100].rstrip("'") in refused.value.message
    assert await api.ids(queue) == []


async def test_a_header_that_would_be_another_to_its_reader_is_refused(api: Api) -> None:
    """Some servers cut off the blank and read a length; others take the line for the end of the one before."""
    if api.stage is None:
        pytest.skip("asks our own server")
    queue = await api.queue()
    for name in ("Content-Length ", "Transfer-Encoding\t", " X-CloudTasks-TaskName", "X:Y", "X\r\nY", ""):
        with pytest.raises(InvalidArgument, match="is not a valid header"):
            await api.put(queue, http_request={"url": NOWHERE, "headers": {name: "7"}})
    for value in ("a\r\nX-Other: b", "a\nb", "a\0"):
        with pytest.raises(InvalidArgument, match="is not a valid header"):
            await api.put(queue, http_request={"url": NOWHERE, "headers": {"X-Own": value}})
    assert await api.ids(queue) == []


async def test_a_url_that_can_be_sent_is_taken_at_its_bounds_too(api: Api) -> None:
    queue = await api.queue()
    taken = (
        "http://[::1]:65535/a b",
        "http://b\u00fccher.example:1/",
        "http://my_worker",
        f"{'https://example.com/':x<2083}",
    )
    for url in taken:
        assert (await api.put(queue, http_request={"url": url})).http_request.url == url
    assert len(await api.ids(queue)) == len(taken)


@pytest.mark.parametrize("seconds", [15, 1_800])
async def test_a_deadline_at_its_bounds_is_taken(api: Api, seconds: int) -> None:
    queue = await api.queue()
    created = await api.put(queue, dispatch_deadline={"seconds": seconds})
    assert created.dispatch_deadline == timedelta(seconds=seconds)


async def test_a_task_above_the_size_is_refused_and_one_below_is_taken(api: Api) -> None:
    queue = await api.queue()
    with pytest.raises(InvalidArgument, match="size too large"):
        await api.put(queue, http_request={"url": NOWHERE, "body": b"x" * (1024 * 1024 + 1)})
    created = await api.put(queue, http_request={"url": NOWHERE, "body": b"x" * (1024 * 1024 - 1_000)})
    full = await api.client.get_task({"name": created.name, "response_view": View.FULL})
    assert len(full.http_request.body) == 1024 * 1024 - 1_000


async def test_a_name_is_accepted_once(api: Api) -> None:
    queue = await api.queue()
    await api.put(queue, "once")
    with pytest.raises(AlreadyExists, match="Requested entity already exists"):
        await api.put(queue, "once")
    assert await api.ids(queue) == ["once"]


async def test_many_callers_with_one_name_make_one_task(api: Api) -> None:
    queue = await api.queue()
    outcomes = await asyncio.gather(*(api.put(queue, "race") for _ in range(20)), return_exceptions=True)
    assert len([each for each in outcomes if isinstance(each, AlreadyExists)]) == 19
    assert await api.ids(queue) == ["race"]


async def test_the_name_of_a_deleted_task_is_free_after_a_day(api: Api) -> None:
    queue = await api.queue()
    name = (await api.put(queue, "again")).name
    await api.client.delete_task(name=name)
    with pytest.raises(AlreadyExists, match="existed too recently"):
        await api.put(queue, "again")
    with pytest.raises(NotFound, match="existed recently"):
        await api.client.get_task(name=name)
    await api.moved(86_399)
    with pytest.raises(AlreadyExists):
        await api.put(queue, "again")
    await api.moved(2)
    await api.put(queue, "again")


async def test_the_name_of_a_done_task_is_free_a_day_after_it_was_done(still: TaskServerTestbed) -> None:
    await still.queue()
    await still.put("done")
    await still.s.clock.advance(3_600)
    assert await still.steps() == 1
    await still.s.clock.advance(86_399)
    with pytest.raises(AlreadyExists, match="existed too recently"):
        await still.put("done")
    await still.s.clock.advance(1)
    await still.put("done")
    assert await still.steps() == 1


async def test_a_task_is_looked_at_and_deleted_once(api: Api) -> None:
    queue = await api.queue()
    name = (await api.put(queue, "here")).name
    await api.client.delete_task(name=name)
    for call in ("get_task", "delete_task", "run_task"):
        with pytest.raises(NotFound):
            await getattr(api.client, call)(name=name)
        with pytest.raises(NotFound):
            await getattr(api.client, call)(name=f"{queue}/tasks/never")


async def test_the_first_and_the_last_attempt_are_shown(still: TaskServerTestbed) -> None:
    minute = {"min_backoff": {"seconds": 60}, "max_backoff": {"seconds": 60}}
    await still.queue(retry_config=minute)
    still.worker.answers(500)
    began_at = await still.s.clock.now()
    name = (await still.put("seen")).name
    await still.steps()
    await still.s.clock.advance(60)
    await still.steps()
    task = await still.client.get_task(name=name)
    [listed] = [each async for each in await still.client.list_tasks(parent=QUEUE)]
    assert task == listed
    assert (task.dispatch_count, task.response_count) == (2, 2)
    assert task.first_attempt.dispatch_time == began_at
    assert not task.first_attempt.response_time, "Google keeps no more of it"
    assert task.last_attempt.schedule_time == task.last_attempt.dispatch_time == began_at + timedelta(seconds=60)
    assert task.last_attempt.response_time == began_at + timedelta(seconds=60)
    assert task.last_attempt.response_status.code == 13
    assert task.schedule_time == began_at + timedelta(seconds=120)


async def test_an_attempt_under_way_has_no_response_yet(still: TaskServerTestbed) -> None:
    await still.queue()
    name = (await still.put("running")).name
    await still.claims(limit=1)
    task = await still.client.get_task(name=name)
    assert (task.dispatch_count, task.response_count) == (1, 0)
    assert task.last_attempt.dispatch_time
    assert not task.last_attempt.response_time


@only_here("Google serves it")
@pytest.mark.parametrize(
    "task",
    [
        {"app_engine_http_request": {"relative_uri": "/"}, "http_request": None},
        {"http_request": {"url": NOWHERE, "oauth_token": {"service_account_email": "a@b"}}},
    ],
    ids=["app engine", "oauth"],
)
async def test_what_is_not_served_of_a_task_is_said(api: Api, task: dict[str, Any]) -> None:
    queue = await api.queue()
    wanted = {name: value for name, value in {"http_request": {"url": NOWHERE}, **task}.items() if value is not None}
    with pytest.raises(MethodNotImplemented, match="not served by this Cloud Tasks server"):
        await api.client.create_task(parent=queue, task=wanted)


async def test_a_task_older_than_31_days_is_gone(still: TaskServerTestbed) -> None:
    from payonce.taskserver.retention import prune

    await still.queue()
    await still.client.pause_queue(name=QUEUE)
    await still.put("old")
    await still.s.clock.advance(31 * 86_400 - 1)
    await prune(still.s.database)
    assert (await still.client.get_task(name=f"{QUEUE}/tasks/old")).name
    await still.s.clock.advance(1)
    await prune(still.s.database)
    with pytest.raises(NotFound, match="existed recently"):
        await still.client.get_task(name=f"{QUEUE}/tasks/old")
