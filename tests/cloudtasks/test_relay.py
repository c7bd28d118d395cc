"""From the outbox to the task service: once each, whatever is lost on the way, each of its errors as it is meant."""

from datetime import timedelta
from typing import Any

import pytest
from google.api_core.exceptions import PermissionDenied

from payonce.engine.messages import job_log
from payonce.engine.messages.model import Message
from payonce.engine.messages.push import EnvelopeCodec
from payonce.engine.messages.work import Work, handles
from payonce.engine.outbox import Deferred, Delivered, Entry, Refusal
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Held, Invalid, Unavailable
from payonce.queues.cloudtasks.client import CallStatus, Config, TaskService
from payonce.queues.cloudtasks.names import LOCAL_ACCOUNT, delivery_of, task_id
from payonce.queues.cloudtasks.relay import CloudTasksRelay, _parts
from payonce.testing import OpenStage, eventually
from tests.cloudtasks.testbed import NOBODY, PLACE, POLICY, QUEUE, open_testbed, pushed


@handles(POLICY)
async def run(work: Work) -> None:
    pass


def entry_of(now: Any, **fields: Any) -> Entry:
    return Entry(Message(queue=QUEUE, payload={"n": 1}), now, 0, **fields)


class Answering(TaskService):
    """A task service with given responses; their evaluation is under test."""

    def __init__(self, *said: CallStatus) -> None:
        super().__init__(Config(PLACE, LOCAL_ACCOUNT, NOBODY))
        self.said = list(said)

    async def create(self, queue: str, tasks: Any) -> list[CallStatus]:
        return self.said


@pytest.mark.parametrize(
    ("code", "meant"),
    [
        ("OK", Delivered),
        ("ALREADY_EXISTS", Delivered),
        ("UNAVAILABLE", Deferred),
        ("DEADLINE_EXCEEDED", Deferred),
        ("RESOURCE_EXHAUSTED", Deferred),
        ("NOT_FOUND", Deferred),
        ("PERMISSION_DENIED", Deferred),
        ("UNAUTHENTICATED", Deferred),
        ("INVALID_ARGUMENT", Refusal),
        ("FAILED_PRECONDITION", Refusal),
    ],
)
async def test_each_answer_of_google_means_what_it_means(stage: OpenStage, code: str, meant: type) -> None:
    missing = []
    each = pushed(url="https://runner.example")
    relay = CloudTasksRelay(
        Answering(CallStatus(code, "as they say")), {QUEUE: each}, lambda: None, lambda: missing.append(1)
    )
    async with stage() as s:
        [answer] = await relay.deliver([entry_of(await s.clock.now())])
    assert isinstance(answer, meant)
    assert bool(missing) == (code == "NOT_FOUND")
    if code == "NOT_FOUND":
        assert isinstance(answer, Deferred)
        assert "payonce queues sync --to cloudtasks" in answer.reason


async def test_nobody_there_is_not_now(stage: OpenStage) -> None:
    service = TaskService(Config(PLACE, LOCAL_ACCOUNT, NOBODY))
    relay = CloudTasksRelay(service, {QUEUE: pushed()}, lambda: "http://127.0.0.1:1", lambda: None)
    async with stage() as s:
        answers = await relay.deliver([entry_of(await s.clock.now()) for _ in range(3)])
    await service.close()
    assert all(isinstance(answer, Deferred) for answer in answers)


async def test_what_is_repeated_is_known_there_and_what_is_brought_anew_is_new(stage: OpenStage) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        now = await context.s.clock.now()
        entries = [entry_of(now), entry_of(now)]
        for _ in range(2):
            answers = await context.tasks.relay.deliver(entries)
            assert all(isinstance(answer, Delivered) for answer in answers)
        assert await context.tasks_there() == 2
        [single] = await context.tasks.relay.deliver(entries[:1])
        assert isinstance(single, Delivered)
        assert await context.tasks_there() == 2
        anew = Entry(entries[0].message, now, 0, delivery=1)
        await context.tasks.relay.deliver([anew])
        assert await context.tasks_there() == 3


async def test_a_batch_that_fails_in_part_is_told_apart(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        now = await context.s.clock.now()
        good, bad, known = entry_of(now), entry_of(now), entry_of(now)
        await context.tasks.relay.deliver([known])

        class Odd(EnvelopeCodec):
            def encode(self, message: Message) -> bytes:
                if message.id == bad.message.id:
                    return b"x" * 1_100_000
                return super().encode(message)

        each = pushed(codec=Odd())
        relay = CloudTasksRelay(context.tasks.service, {QUEUE: each}, lambda: context.url, lambda: None)
        answers = await relay.deliver([good, bad, known])
        assert [type(answer) for answer in answers] == [Delivered, Refusal, Delivered]


async def test_a_server_without_batches_gets_one_by_one(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        service = context.tasks.service

        async def without(*_: Any) -> None:
            service._batches = False

        monkeypatch.setattr(TaskService, "_create_batch", without)
        now = await context.s.clock.now()
        answers = await context.tasks.relay.deliver([entry_of(now) for _ in range(5)])
        assert all(isinstance(answer, Delivered) for answer in answers)
        assert await context.tasks_there() == 5


async def test_a_batch_that_nobody_may_look_at_is_made_one_by_one(stage: OpenStage) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        client = context.tasks.service._connected()
        batch = client.batch_create_tasks

        async def not_at_once(**how: Any) -> Any:
            """As Google may answer: the operation goes on, and its caller has no permission to ask for it."""
            operation = await batch(**how)
            operation.operation.done = False

            async def refused(*_: object, **__: object) -> None:
                raise PermissionDenied("The caller does not have permission")

            operation._refresh = refused
            return operation

        client.batch_create_tasks = not_at_once
        now = await context.s.clock.now()
        answers = await context.tasks.relay.deliver([entry_of(now) for _ in range(5)])
        assert all(isinstance(answer, Delivered) for answer in answers), answers
        assert await context.tasks_there() == 5


async def test_a_task_carries_its_time_its_address_and_whom_to_sign_for(stage: OpenStage) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        [message_id] = await context.put({"n": 1}, delay_s=3_600.0)
        name = await context.s.owner.fetchval("select delivered_as from payonce.outbox where id = $1", message_id)
        task = await context.tasks.service._connected().get_task(request={"name": name, "response_view": "FULL"})
        ready_at = await context.s.owner.fetchval("select ready_at from payonce.outbox where id = $1", message_id)
        assert abs(task.schedule_time - ready_at) < timedelta(milliseconds=1)
        assert task.http_request.url == f"{context.url}/errands/runner/{QUEUE}"
        assert task.http_request.oidc_token.audience == context.url
        assert task.http_request.oidc_token.service_account_email == LOCAL_ACCOUNT
        assert task.http_request.headers["Content-Type"] == "application/json"
        assert task.dispatch_deadline.total_seconds() == pushed().answers_within_s


async def test_what_is_due_after_more_than_a_month_waits_in_the_outbox(stage: OpenStage) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        await context.put({"n": 1}, delay_s=40 * 86_400.0)
        assert await context.tasks_there() == 0
        await context.s.clock.advance(12 * 86_400)
        await context.relay()
        assert await context.tasks_there() == 1


@handles(POLICY)
async def hold(work: Work) -> None:
    raise Held("the wallet holds too little; fill it up", 300.0)


async def test_what_a_run_waits_for_is_still_said_when_its_next_task_is_handed_over(stage: OpenStage) -> None:
    async with open_testbed(stage, [hold]) as context:
        [message_id] = await context.put({"n": 1})

        async def released() -> bool:
            return bool(await context.s.owner.fetchval("select delivery from payonce.outbox where id = $1", message_id))

        await eventually(released, 20.0, "the run is released")
        await context.relay()
        [waiting] = (await job_log.trace(context.s.read, str(message_id))).entries
        assert waiting.last_error == "the wallet holds too little; fill it up"
        state = await context.s.owner.fetchval("select state from payonce.outbox where id = $1", message_id)
        assert state == "delivered"


async def test_what_a_codec_refuses_is_refused(stage: OpenStage) -> None:
    class Refusing(EnvelopeCodec):
        def encode(self, message: Message) -> bytes:
            raise Invalid("the address is longer than the token takes")

    each = pushed(url="https://runner.example", codec=Refusing())
    relay = CloudTasksRelay(Answering(), {QUEUE: each}, lambda: None, lambda: None)
    async with stage() as s:
        [answer] = await relay.deliver([entry_of(await s.clock.now())])
    assert answer == Refusal("the address is longer than the token takes")


async def test_without_googles_packages_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "google.cloud.tasks_v2", None)
    with pytest.raises(Unavailable, match=r"extra gcp"):
        TaskService(Config(PLACE, LOCAL_ACCOUNT, NOBODY))._connected()


def test_parts_are_bounded_in_number_and_bytes() -> None:
    from payonce.queues.cloudtasks.client import BATCH_MAX, BATCH_MAX_BYTES, TaskRequest

    small = [(place, TaskRequest("n", "u", "a", b"x", 15.0)) for place in range(250)]
    assert [len(part) for part in _parts(small)] == [100, 100, 50]
    large = [(place, TaskRequest("n", "u", "a", b"x" * (BATCH_MAX_BYTES // 2), 15.0)) for place in range(5)]
    assert [len(part) for part in _parts(large)] == [2, 2, 1]
    assert BATCH_MAX == 100


def test_a_name_tells_its_delivery_and_begins_evenly() -> None:
    ids = [new_id() for _ in range(100)]
    assert all(delivery_of(each, task_id(each, 7)) == 7 for each in ids)
    assert delivery_of(ids[0], task_id(ids[1], 7)) == 0
    assert delivery_of(ids[0], None) == 0
    assert len({task_id(each, 0)[:2] for each in ids}) > 50
