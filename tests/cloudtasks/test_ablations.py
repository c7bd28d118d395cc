"""Each safeguard of pushed queues, taken out: a named test must notice."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

from payonce.engine.messages.model import Ending, SettleAnswer, Settlement
from payonce.queues.cloudtasks import deliveries, queue, refill, relay, statements
from payonce.queues.cloudtasks.oidc import Verifier
from payonce.queues.cloudtasks.queue import CloudTasksQueue
from payonce.testing import OpenStage
from tests.ablations import Ablation, Ablations, cases, missed, patched
from tests.cloudtasks import test_endpoint, test_refill, test_relay, test_runs
from tests.cloudtasks.testbed import staged_runs


@contextmanager
def answered_first() -> Iterator[None]:
    """The task service hears of an end before it is stored."""
    settle = CloudTasksQueue._settle

    async def hasty(self: CloudTasksQueue, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        for settlement in settlements:
            self._answer(settlement.claim.message.id, settlement.claim.token, deliveries.DONE)
        return await settle(self, settlements)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CloudTasksQueue, "_settle", hasty)
        yield


async def an_end_that_is_not_stored_is_not_answered(stage: OpenStage) -> None:
    async with staged_runs(stage) as runs:
        [message_id] = await runs.put({})
        claim, delivery = await runs.begin(message_id)
        await runs.s.owner.execute("alter table payonce.inbox rename to inbox_away")
        with pytest.raises(Exception, match="inbox"):
            await runs.queue._settle([Settlement(claim, Ending.SUCCESS)])
        await runs.s.owner.execute("alter table payonce.inbox_away rename to inbox")
        assert not delivery._reply.done()
        delivery.answer(deliveries.STALE)


async def test_an_end_that_is_not_stored_is_not_answered(stage: OpenStage) -> None:
    await an_end_that_is_not_stored_is_not_answered(stage)


async def let_in(self: Verifier, authorization: str, audience: str) -> None:
    """Anybody."""


async def nobody_elses(database: object, service: object) -> None:
    """Skips the check of the server's installation."""


async def lost_nothing(self: Any, late_s: float = 0.0) -> int:
    return 0


def beginning_without(text: str, instead: str = "") -> Ablation:
    assert text in statements.BEGIN
    return patched(queue, "BEGIN", statements.BEGIN.replace(text, instead))


def settling_without(text: str, instead: str = "") -> Ablation:
    assert text in statements.SETTLE
    return patched(queue, "SETTLE", statements.SETTLE.replace(text, instead))


def committing_without(text: str, instead: str) -> Ablation:
    assert text in statements.SETTLE_ONE
    return patched(queue, "SETTLE_ONE", statements.SETTLE_ONE.replace(text, instead))


ABLATIONS: Final[Ablations] = {
    "the run's token at its end": (
        settling_without("and entry.holder = input.token"),
        [test_runs.test_a_run_is_taken_over_when_its_lease_has_ended_and_the_old_one_is_stale],
    ),
    "the run's token in its commit": (
        committing_without("and entry.holder = $3", "and $3::bigint is not null"),
        [test_runs.test_a_stale_run_commits_nothing_and_begins_no_effect],
    ),
    "the inbox in the commit": (
        committing_without("id::text from gone\n", "id::text from gone where false\n"),
        [test_runs.test_a_task_that_comes_again_after_a_commit_changes_nothing],
    ),
    "the run's token at its beginning": (
        beginning_without("when entry.held then 'held'"),
        [test_runs.test_a_task_that_comes_twice_at_once_runs_once],
    ),
    "the fence of an effect": (
        patched(queue, "HOLD", statements.HOLD.replace("and holder = $3", "and $3::bigint is not null")),
        [test_runs.test_a_stale_run_commits_nothing_and_begins_no_effect],
    ),
    "storing before answering": (answered_first, [an_end_that_is_not_stored_is_not_answered]),
    "the inbox at the end": (
        settling_without("id::text from gone\n", "id::text from gone where false\n"),
        [
            test_runs.test_a_task_that_comes_again_after_the_end_changes_nothing,
            test_runs.test_a_message_of_a_stranger_gets_its_record_with_its_first_run,
        ],
    ),
    "the refill": (
        patched(refill.TaskMaintenance, "refill", lost_nothing),
        [test_refill.test_a_lost_task_comes_anew_under_another_name_with_attempts_as_they_are],
    ),
    "a new name for a new delivery": (
        patched(relay, "task_id", lambda message_id, delivery: f"always-{message_id.hex}"),
        [
            test_refill.test_a_lost_task_comes_anew_under_another_name_with_attempts_as_they_are,
            test_relay.test_what_is_repeated_is_known_there_and_what_is_brought_anew_is_new,
        ],
    ),
    "knowing the task service": (
        patched(Verifier, "check", let_in),
        [test_endpoint.test_only_the_task_service_may_knock],
    ),
    "knowing whose server it is": (
        patched(refill, "refuse_foreign", nobody_elses),
        [test_refill.test_the_queues_of_another_payonces_server_are_left_alone],
    ),
    "the pause in the store": (
        beginning_without("when paused.paused then 'paused'"),
        [test_runs.test_nothing_begins_while_the_queue_is_paused],
    ),
    "waiting for the time": (
        beginning_without("when entry.due_in_s > $9 then 'early'", "when $9::float8 > 9 then ''"),
        [test_runs.test_a_retry_by_the_queues_backoff_is_left_to_the_task_service],
    ),
    "the queue of the row": (
        beginning_without("when entry.queue <> $6 then 'elsewhere'", "when $6 = '' then ''"),
        [test_runs.test_a_task_at_another_queues_door_begins_nothing],
    ),
    "telling deliveries apart": (
        beginning_without("when requested.delivery < entry.delivery then 'superseded'"),
        [test_runs.test_a_retry_at_another_time_waits_for_a_new_task],
    ),
    "a moment for locked rows": (
        patched(queue, "LOCKED_LOOKS", 0),
        [test_runs.test_a_row_that_is_locked_for_a_moment_is_waited_for],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_a_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage, ValueError)
