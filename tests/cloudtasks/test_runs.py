"""What a task may find when it comes, and what the task service hears: PostgreSQL decides, whatever was brought."""

import asyncio
from dataclasses import replace

from payonce.engine.messages.model import Ending, Message, SettleAnswer, Settlement, State
from payonce.engine.messages.ports import Filter
from payonce.queues.cloudtasks import deliveries
from payonce.testing import OpenStage, eventually
from tests.cloudtasks.testbed import POLICY, QUEUE, open_runs, staged_runs


async def test_a_task_brings_a_run_and_its_end_is_answered_after_it_is_stored(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({"wei": 10**30})
        claim, delivery = await runs.begin(message_id)
        assert claim.message.payload == {"wei": 10**30}
        row = await runs.row(message_id)
        assert (row["holder"], row["worker"]) == (claim.token, "worker-1")
        assert await runs.settle(claim, Ending.SUCCESS) is SettleAnswer.SETTLED
        assert await runs.told(delivery) == deliveries.DONE
        assert await runs.has_ended(message_id)
        assert await runs.statuses(message_id) == ["success"]


async def test_a_task_that_comes_again_after_the_end_changes_nothing(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        claim, _ = await runs.begin(message_id)
        await runs.settle(claim, Ending.SUCCESS)
        again = runs.bring(message_id)
        assert await runs.told(again) == deliveries.KNOWN
        assert await runs.statuses(message_id) == ["success"]


async def test_a_task_that_comes_again_after_a_commit_changes_nothing(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        claim, _ = await runs.begin(message_id)
        async with runs.s.database.transaction() as connection:
            assert await runs.queue.settle_within(connection, Settlement(claim, Ending.FAILED, "no such account"))
        again = runs.bring(message_id)
        assert await runs.told(again) == deliveries.KNOWN
        assert await runs.statuses(message_id) == ["failed"]


async def test_a_task_that_comes_twice_at_once_runs_once(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs, open_runs(runs.s, worker="worker-2") as others:
        [message_id] = await runs.put({})
        first, second = runs.bring(message_id), runs.bring(message_id)
        elsewhere = others.bring(message_id)
        [claim] = (await runs.queue.exchange([], 10)).claims
        assert await others.told(elsewhere) == deliveries.HELD
        assert await runs.told(second) == deliveries.HELD
        await runs.settle(claim, Ending.SUCCESS)
        assert await runs.told(first) == deliveries.DONE


async def test_a_run_is_taken_over_when_its_lease_has_ended_and_the_old_one_is_stale(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs, open_runs(runs.s, worker="worker-2") as others:
        [message_id] = await runs.put({})
        old, old_delivery = await runs.begin(message_id)
        await runs.s.clock.advance_leases(POLICY.lease_s + 1)
        new, _ = await others.begin(message_id)
        assert new.crashes == 1
        assert await runs.queue.extend([old]) == [old]
        assert await runs.told(old_delivery) == deliveries.STALE
        assert await runs.settle(old, Ending.SUCCESS) is SettleAnswer.STALE
        assert await others.settle(new, Ending.RETRY, "not yet", 60.0) is SettleAnswer.SETTLED
        # The row is free now, and still not the old run's.
        assert await runs.settle(old, Ending.SUCCESS) is SettleAnswer.STALE
        assert (await runs.row(message_id))["attempts"] == 1
        assert not await runs.has_ended(message_id)


async def test_a_stale_run_commits_nothing_and_begins_no_effect(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs, open_runs(runs.s, worker="worker-2") as others:
        [message_id] = await runs.put({})
        old, _ = await runs.begin(message_id)
        await runs.s.clock.advance_leases(POLICY.lease_s + 1)
        new, _ = await others.begin(message_id)
        async with runs.s.database.transaction() as connection:
            assert not await runs.queue.hold_within(connection, old)
            assert not await runs.queue.settle_within(connection, Settlement(old, Ending.SUCCESS))
            assert await others.queue.hold_within(connection, new)
            assert await others.queue.settle_within(connection, Settlement(new, Ending.SUCCESS))


async def test_a_settlement_that_a_transaction_recorded_is_answered_when_it_is_committed(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        claim, delivery = await runs.begin(message_id)
        settlement = Settlement(claim, Ending.SUCCESS)
        async with runs.s.database.transaction() as connection:
            assert await runs.queue.settle_within(connection, settlement)
        exchange = await runs.queue.exchange([replace_recorded(settlement)], 0)
        assert list(exchange.answers) == [SettleAnswer.SETTLED]
        assert await runs.told(delivery) == deliveries.DONE
        assert await runs.has_ended(message_id)


def replace_recorded(settlement: Settlement) -> Settlement:
    return Settlement(settlement.claim, settlement.ending, settlement.reason, settlement.delay_s, recorded=True)


async def test_a_retry_by_the_queues_backoff_is_left_to_the_task_service(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        claim, delivery = await runs.begin(message_id)
        await runs.settle(claim, Ending.RETRY, "busy", 60.0)
        assert await runs.told(delivery) == deliveries.RETRIED
        row = await runs.row(message_id)
        assert (row["state"], row["attempts"], row["delivery"], row["last_error"]) == ("delivered", 1, 0, "busy")
        early = runs.bring(message_id, retries=1)
        assert await runs.told(early) == deliveries.EARLY
        await runs.s.clock.advance(60)
        claim, _ = await runs.begin(message_id, retries=1)
        assert claim.message.attempts == 1
        assert await runs.statuses(message_id) == ["retry"]


async def test_a_retry_at_another_time_waits_for_a_new_task(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        claim, delivery = await runs.begin(message_id)
        await runs.settle(claim, Ending.RETRY, "poll again", 3_600.0)
        assert await runs.told(delivery) == deliveries.PUT_OFF
        row = await runs.row(message_id)
        assert (row["state"], row["attempts"], row["delivery"]) == ("waiting", 1, 1)
        assert (row["ready_at"] - await runs.s.clock.now()).total_seconds() == 3_600
        assert row["try_at"] <= await runs.s.clock.now(), "the task service takes it ahead"
        again = runs.bring(message_id, number=0)
        assert await runs.told(again) == deliveries.SUPERSEDED


async def test_a_released_message_comes_as_a_new_task_and_no_attempt_is_used_up(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        claim, delivery = await runs.begin(message_id)
        await runs.settle(claim, Ending.RELEASED, "frozen", 5.0)
        assert await runs.told(delivery) == deliveries.PUT_OFF
        row = await runs.row(message_id)
        assert (row["state"], row["attempts"], row["first_attempt_at"]) == ("waiting", 0, None)
        assert await runs.statuses(message_id) == []


async def test_what_a_stopping_process_gives_back_is_the_task_services_again(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id, waiting_id] = await runs.put({}, {})
        claim, delivery = await runs.begin(message_id)
        waiting = runs.bring(waiting_id)
        runs.buffer.close()
        await runs.settle(claim, Ending.RELEASED)
        assert await runs.told(delivery) == deliveries.CLOSING
        assert await waiting.answered(0.0) == deliveries.CLOSING
        assert await runs.told(runs.bring(message_id)) == deliveries.CLOSING
        assert (await runs.row(message_id))["delivery"] == 0


async def test_a_parked_message_is_told_done_and_waits_for_a_person(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        claim, delivery = await runs.begin(message_id)
        await runs.settle(claim, Ending.PARKED, "gave up")
        assert await runs.told(delivery) == deliveries.PARKED
        assert await runs.told(runs.bring(message_id)) == deliveries.PARKED
        [found] = await runs.tasks.admin.peek(QUEUE, State.PARKED, 10)
        assert (found.message.id, found.last_error) == (message_id, "gave up")
        assert await runs.tasks.admin.redrive(QUEUE, Filter()) == 1
        row = await runs.row(message_id)
        assert (row["state"], row["delivery"], row["attempts"]) == ("waiting", 1, 0)


async def test_a_moment_early_waits_and_a_long_time_early_goes_back(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [soon, later] = [(await runs.put({}, delay_s=delay_s))[0] for delay_s in (0.05, 600.0)]
        patient, refused = runs.bring(soon), runs.bring(later)
        assert not (await runs.queue.exchange([], 10)).claims
        assert await refused.answered(0.0) == deliveries.EARLY
        await runs.s.clock.advance(1.0)

        async def begun() -> bool:
            return bool((await runs.queue.exchange([], 10)).claims)

        await eventually(begun, what="the early one is offered again")
        patient.answer(deliveries.DONE)


async def test_nothing_begins_while_the_queue_is_paused(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        await runs.tasks.admin.pause(QUEUE, "maintenance")
        assert await runs.told(runs.bring(message_id)) == deliveries.PAUSED
        theirs = Message(queue=QUEUE)
        assert await runs.told(runs.bring(theirs.id, message=theirs)) == deliveries.PAUSED
        assert await runs.row(theirs.id) is None, "a stranger's task has begun nothing"
        await runs.tasks.admin.resume(QUEUE)
        claim, _ = await runs.begin(message_id)
        assert claim.message.id == message_id


async def test_a_task_of_a_message_that_nobody_knows_is_told_loudly(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        unknown = Message(queue=QUEUE)
        assert await runs.told(runs.bring(unknown.id)) == deliveries.UNKNOWN


async def test_a_task_at_another_queues_door_begins_nothing(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs, open_runs(runs.s, replace(POLICY, queue="others")) as others:
        [message_id] = await runs.put({})
        assert await others.told(others.bring(message_id)) == deliveries.ELSEWHERE
        assert (await runs.row(message_id))["holder"] is None


async def test_a_message_of_a_stranger_gets_its_record_with_its_first_run(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        theirs = Message(queue="as they call it", payload={"amount": "1"})
        delivery = runs.bring(theirs.id, message=theirs, task="projects/p/locations/l/queues/q/tasks/theirs")
        [claim] = (await runs.queue.exchange([], 10)).claims
        row = await runs.row(theirs.id)
        assert (row["queue"], row["state"], row["holder"]) == (QUEUE, "delivered", claim.token)
        assert row["delivered_as"] == "projects/p/locations/l/queues/q/tasks/theirs"
        assert await runs.told(runs.bring(theirs.id, message=theirs)) == deliveries.HELD
        await runs.settle(claim, Ending.SUCCESS)
        assert await runs.told(delivery) == deliveries.DONE
        assert await runs.told(runs.bring(theirs.id, message=theirs)) == deliveries.KNOWN


async def test_a_task_may_come_before_its_relay_has_recorded_it(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({}, delivered=False)
        claim, _ = await runs.begin(message_id)
        await runs.settle(claim, Ending.SUCCESS)
        assert await runs.has_ended(message_id)


async def test_a_row_that_is_locked_for_a_moment_is_waited_for(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        async with runs.s.database.transaction() as connection:
            await connection.execute("select from payonce.outbox where id = $1 for update", message_id)
            delivery = runs.bring(message_id)
            assert not (await runs.queue.exchange([], 10)).claims
            assert delivery.looks == 1, "it was found locked, and is kept for another look"

        async def begun() -> bool:
            return bool((await runs.queue.exchange([], 10)).claims)

        await eventually(begun, what="it is looked at again")
        delivery.answer(deliveries.DONE)


async def test_a_message_that_kills_its_processes_runs_alone_and_is_parked_when_it_kills_again(
    stage: OpenStage,
) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        for _ in range(2):
            await runs.begin(message_id)
            await runs.s.clock.advance_leases(POLICY.lease_s + 1)
        suspect = runs.bring(message_id)
        assert not (await runs.queue.exchange([], 10)).claims
        claim = await runs.queue.claim_alone()
        assert claim is not None
        assert claim.crashes == 2
        assert await runs.queue.mark_alone(claim)
        await runs.s.clock.advance_leases(POLICY.lease_s + 1)
        assert await runs.told(runs.bring(message_id)) == deliveries.PARKED
        row = await runs.row(message_id)
        assert (row["state"], row["holder"]) == ("parked", None)
        assert "ran alone" in row["last_error"]
        assert await runs.statuses(message_id) == ["parked"]
        suspect.answer(deliveries.STALE)


async def test_a_run_that_ends_in_order_clears_the_suspicion(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        await runs.begin(message_id)
        await runs.s.clock.advance_leases(POLICY.lease_s + 1)
        claim, _ = await runs.begin(message_id)
        await runs.settle(claim, Ending.RETRY, "busy", 60.0)
        assert (await runs.row(message_id))["run_crashes"] == 0


async def test_runs_whose_beginning_was_not_answered_are_given_back(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        claim, _ = await runs.begin(message_id)
        runs.queue._doubtful.append((message_id, claim.token))
        assert await runs.queue.give_back([]) == 1
        assert (await runs.row(message_id))["holder"] is None


async def test_heartbeats_keep_a_run_through_a_long_commit(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        claim, _ = await runs.begin(message_id)
        async with runs.s.database.transaction() as connection:
            await connection.execute("select from payonce.outbox where id = $1 for update", message_id)
            async with asyncio.timeout(30):
                assert await runs.queue.extend([claim]) == []
        await runs.s.clock.advance_leases(POLICY.lease_s - 1)
        assert await runs.queue.extend([claim]) == []
        await runs.s.clock.advance_leases(POLICY.lease_s - 1)
        assert await runs.told(runs.bring(message_id)) == deliveries.HELD


async def test_an_unreadable_row_is_parked_and_holds_up_nobody(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [broken, sound] = await runs.put({}, {"row": 2})
        await runs.s.owner.execute("update payonce.outbox set extra = '[1e999]' where id = $1", broken)
        refused = runs.bring(broken)
        claim, _ = await runs.begin(sound)
        assert claim.message.id == sound
        assert await runs.told(refused) == deliveries.PARKED
        assert "cannot be read" in (await runs.row(broken))["last_error"]


async def test_a_worker_without_room_does_not_spin_on_what_waits(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        ids = await runs.put({}, {}, {})
        waiting = [runs.bring(message_id) for message_id in ids]
        await runs.queue.wait(0.0)
        assert not (await runs.queue.exchange([], 0)).claims
        looked = asyncio.create_task(runs.queue.wait(60.0))
        await asyncio.sleep(0)
        assert not looked.done(), "it waits for the end of a run, although there is something to take"
        runs.queue.wake()
        await looked
        [_] = (await runs.queue.exchange([], 1)).claims
        async with asyncio.timeout(30):
            await runs.queue.wait(60.0)
        assert len((await runs.queue.exchange([], 10)).claims) == 2
        deliveries.answer_all(waiting, deliveries.DONE)


async def test_a_full_box_sends_the_rest_back(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        runs.buffer._limit = 1
        ids = await runs.put({}, {})
        first, second = (runs.bring(message_id) for message_id in ids)
        assert await second.answered(0.0) == deliveries.FULL
        first.answer(deliveries.DONE)
