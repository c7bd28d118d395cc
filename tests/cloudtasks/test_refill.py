"""What the task service loses, forgets or says otherwise is put right from PostgreSQL; what lives is left alone."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from payonce.engine.messages.model import Ending
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Invalid
from payonce.queues.cloudtasks.client import OK, TaskRequest
from payonce.queues.cloudtasks.names import task_id
from payonce.queues.cloudtasks.refill import LATE_S, TaskMaintenance
from payonce.queues.cloudtasks.sync import differences
from payonce.testing import OpenStage
from tests.cloudtasks.testbed import PLACE, POLICY, QUEUE, AppContext, open_runs, open_testbed, pushed


@handles(POLICY)
async def run(work: Work) -> None:
    pass


async def lose(context: AppContext, message_id: UUID) -> None:
    """As Google deletes a task when its limits are reached: without a word."""
    await context.s.owner.execute("delete from cloudtasks.tasks where id = $1", task_id(message_id, 0))


async def row(context: AppContext, message_id: UUID) -> Any:
    return await context.s.owner.fetchrow("select * from payonce.outbox where id = $1", message_id)


async def test_a_lost_task_comes_anew_under_another_name_with_attempts_as_they_are(stage: OpenStage) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        lost, alive = await context.put({"n": 1}, {"n": 2})
        await context.s.owner.execute("update payonce.outbox set attempts = 3 where id = $1", lost)
        await lose(context, lost)
        assert await context.tasks.maintenance.refill() == 0, "not before it is late"
        await context.s.clock.advance(LATE_S + 1)
        assert await context.tasks.maintenance.refill() == 1
        await context.relay()
        found = await row(context, lost)
        assert (found["attempts"], found["delivery"]) == (3, 1)
        assert found["delivered_as"].endswith(task_id(lost, 1))
        assert (await row(context, alive))["delivery"] == 0
        assert await context.tasks_there() == 2
        assert await context.tasks.maintenance.refill() == 0


async def test_a_task_is_not_taken_for_lost_while_its_message_is_held(stage: OpenStage) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        [message_id] = await context.put({"n": 1})
        await lose(context, message_id)
        async with open_runs(context.s) as runs:
            claim, _ = await runs.begin(message_id)
            await context.s.clock.advance(LATE_S + 1)
            assert await context.tasks.maintenance.refill() == 0
            await runs.settle(claim, Ending.RETRY, "busy", 60.0)
        await context.s.clock.advance(60 + LATE_S + 1)
        assert await context.tasks.maintenance.refill() == 1


async def test_a_message_that_has_ended_is_not_brought_again(stage: OpenStage) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        [message_id] = await context.put({"n": 1})
        await lose(context, message_id)
        await context.s.owner.execute("insert into payonce.inbox values ($1, $2)", f"queue {QUEUE}", str(message_id))
        await context.s.clock.advance(LATE_S + 1)
        assert await context.tasks.maintenance.refill() == 0
        assert await row(context, message_id) is None


async def test_a_task_that_goes_where_nobody_listens_any_more_is_made_anew(stage: OpenStage) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        [message_id] = await context.put({"n": 1})
        here, context.tasks.address = context.tasks.address, "http://127.0.0.1:1"
        await context.s.clock.advance(LATE_S + 1)
        assert await context.tasks.maintenance.refill() == 1
        assert await context.tasks_there() == 0
        context.tasks.address = here
        await context.relay()
        assert await context.tasks_there() == 1
        assert (await row(context, message_id))["delivery"] == 1


async def test_a_task_that_another_service_made_is_left_to_it(stage: OpenStage) -> None:
    """An older service writes its address otherwise than we do, and reads no task of ours."""
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        [message_id] = await context.put({"n": 1})
        theirs = PLACE.task(QUEUE, "of-an-older-service")
        [said] = await context.tasks.service.create(
            QUEUE, [TaskRequest(theirs, f"{context.url}/else", context.url, b"{}", 30.0)]
        )
        assert said.code == OK
        await context.s.owner.execute("update payonce.outbox set delivered_as = $2 where id = $1", message_id, theirs)
        await context.s.clock.advance(LATE_S + 1)
        assert await context.tasks.maintenance.refill() == 0
        assert await context.tasks.service.find(theirs) is not None
        await context.tasks.service.delete(theirs)
        assert await context.tasks.maintenance.refill() == 1, "gone, it is made anew as one of ours"


async def test_our_own_server_gets_its_queues_and_their_changes_by_itself(stage: OpenStage) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        changed = pushed(replace(POLICY, rate=7, concurrency=3))
        [first, *_] = await differences(context.tasks.service, [changed])
        assert first.queue == QUEUE
        maintenance = TaskMaintenance(
            context.s.database, context.s.notifier, context.tasks.service, {QUEUE: changed}, lambda: None
        )
        await maintenance.check_queues()
        assert await differences(context.tasks.service, [changed]) == []


async def test_the_queues_of_another_payonces_server_are_left_alone(stage: OpenStage) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        await context.s.owner.execute("update payonce.installation set id = gen_random_uuid()")
        await context.s.owner.execute("update payonce.queues set paused = true where name = $1", QUEUE)
        changed = pushed(replace(POLICY, rate=7, concurrency=3))
        maintenance = TaskMaintenance(
            context.s.database, context.s.notifier, context.tasks.service, {QUEUE: changed}, lambda: None
        )
        with pytest.raises(Invalid, match="belongs to another payonce"):
            await maintenance.check_queues()
        assert await differences(context.tasks.service, [pushed()]) == []
        there = await context.tasks.service.queue(QUEUE)
        assert there is not None
        assert not there.paused


async def test_the_relay_notices_a_missing_queue(stage: OpenStage) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        await context.tasks.maintenance.check_queues()
        await context.tasks.service._connected().delete_queue(name=context.tasks.service.config.location.queue(QUEUE))
        await context.put({"n": 1}, {"n": 2})
        assert await context.tasks_there() == 0
        await context.tasks.maintenance.check_queues()
        await context.s.clock.advance(2)
        await context.relay()
        assert await context.tasks_there() == 2


async def test_a_pause_that_the_task_service_did_not_hear_is_repaired(stage: OpenStage) -> None:
    async with open_testbed(stage, [run], working=False, dispatching=False) as context:
        await context.s.owner.execute("update payonce.queues set paused = true where name = $1", QUEUE)
        await context.tasks.maintenance.check_queues()
        there = await context.tasks.service.queue(QUEUE)
        assert there is not None
        assert there.paused
