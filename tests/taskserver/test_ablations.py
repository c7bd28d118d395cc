"""With a safeguard of the server taken out, named tests fail. A check that cannot fail is none."""

import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from payonce.taskserver import operations
from payonce.testing import OpenStage
from tests.conformance.wire import without
from tests.taskserver import test_batches, test_dispatching, test_leases, test_limits, test_tasks
from tests.taskserver.api import Api
from tests.taskserver.testbed import TaskServerTestbed, open_testbed

Check = Callable[[TaskServerTestbed], Awaitable[None]]
Ablation = Callable[[TaskServerTestbed], Awaitable[AbstractContextManager[None]]]


def in_function(name: str, pattern: str, replacement: str) -> Ablation:
    """Spaces in patterns stand for any white space."""

    async def take_out(testbed: TaskServerTestbed) -> AbstractContextManager[None]:
        source = await testbed.s.owner.fetchval(f"select pg_get_functiondef('cloudtasks.{name}'::regproc)")
        altered, count = re.subn(re.sub(r" +", r"\\s+", pattern), replacement, source)
        assert count, f"{name} holds no {pattern!r} any more: the ablation takes nothing out"
        await testbed.s.owner.execute(altered)
        return nullcontext()

    return take_out


def on_the_wire(pattern: str, replacement: str, within: str) -> Ablation:
    async def take_out(testbed: TaskServerTestbed) -> AbstractContextManager[None]:
        return without(pattern, replacement, within)

    return take_out


async def no_memory_of_operations(testbed: TaskServerTestbed) -> AbstractContextManager[None]:
    async def begin(*_: object) -> None:
        return None

    patch = pytest.MonkeyPatch()
    patch.setattr(operations, "_begin", begin)
    return _undone(patch)


class _undone(AbstractContextManager[None]):  # noqa: N801 - reads as what it does
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def given(check: Callable[..., Awaitable[None]], *arguments: Any) -> Check:
    return lambda testbed: check(testbed, *arguments)


def at_api(check: Callable[[Api], Awaitable[None]]) -> Check:
    return lambda testbed: check(Api(testbed.client, "projects/payonce-test/locations/us-central1", testbed.s))


ABLATIONS: dict[str, tuple[Ablation, list[Check]]] = {
    "spending of the bucket": (
        in_function("claim", r"set arrival_at = greatest\(.*", "set arrival_at = arrival_at"),
        [
            given(test_limits.test_no_second_sees_more_than_rate_and_burst, 10.0, 10),
            test_limits.test_the_rate_is_the_queues_and_not_a_servers,
        ],
    ),
    "count of live leases": (
        in_function("claim", r"q\.concurrency - live", "q.concurrency"),
        [test_limits.test_concurrency_counts_live_leases],
    ),
    "lock of the queue's row": (
        in_function("claim", "deleted_at is null for no key update", "deleted_at is null"),
        [test_limits.test_claims_at_the_same_moment_keep_the_concurrency],
    ),
    "slower pace": (
        in_function("claim", r"speed_share := case", "speed_share := case when true then 1.0"),
        [given(test_limits.test_an_overloaded_worker_slows_its_queue_which_recovers, 429)],
    ),
    "lease of a claim": (
        in_function("claim", "w.lease_until is null and w.schedule_at <= moment", "w.schedule_at <= moment"),
        [test_leases.test_a_leased_task_is_nobody_elses_until_its_lease_has_ended],
    ),
    "end of a lease": (
        in_function("claim", r"t\.lease_until <= payonce\.lease_now\(\)", "t.lease_until is not null"),
        [test_leases.test_a_leased_task_is_nobody_elses_until_its_lease_has_ended],
    ),
    "taking over from the dead": (
        in_function("claim", r"t\.lease_until <= payonce\.lease_now\(\)", "false"),
        [test_leases.test_a_leased_task_is_nobody_elses_until_its_lease_has_ended],
    ),
    "time of a task": (
        in_function("claim", r"and w\.schedule_at <= moment", ""),
        [
            test_dispatching.test_a_later_task_waits_for_its_time,
            test_dispatching.test_a_task_that_fails_comes_again_after_its_backoff_and_not_before,
        ],
    ),
    "pause": (
        in_function("claim", r"q\.state = 'RUNNING'", "true"),
        [test_leases.test_a_paused_queue_dispatches_nothing_and_loses_nothing],
    ),
    "memory of names": (
        in_function("put", r"d\.until > moment", "false"),
        [
            test_tasks.test_the_name_of_a_done_task_is_free_a_day_after_it_was_done,
            test_leases.test_a_name_is_not_free_while_its_task_is_just_being_done,
        ],
    ),
    "end of that memory": (
        in_function("put", r"d\.until > moment", "true"),
        [test_tasks.test_the_name_of_a_done_task_is_free_a_day_after_it_was_done],
    ),
    "fence of a late success": (
        on_the_wire(r"t\.token = ended\.token", "true", within="delete from"),
        [given(test_leases.test_a_late_answer_changes_nothing, test_leases.DONE)],
    ),
    "fence of a late failure": (
        on_the_wire(r"t\.token = ended\.token", "true", within="set lease_until = null"),
        [test_leases.test_a_late_answer_does_not_end_the_dispatch_that_runs],
    ),
    "fence of a renewal": (
        on_the_wire(
            r"t\.token (from unnest\(.*\n.* and t\.id = asked\.id) and t\.token = asked\.token",
            r"asked.token \1",
            within="as is_late",
        ),
        [test_leases.test_a_lost_claim_is_not_kept_and_a_live_one_is],
    ),
    "memory of operations": (no_memory_of_operations, [at_api(test_batches.test_a_request_id_is_done_once)]),
}

CASES = [
    pytest.param(ablation, check, id=f"{name}: {number}")
    for name, (ablation, checks) in ABLATIONS.items()
    for number, check in enumerate(checks, start=1)
]


@pytest.mark.parametrize(("ablation", "check"), CASES)
async def test_a_check_fails_without_its_safeguard(stage: OpenStage, ablation: Ablation, check: Check) -> None:
    failed = False
    async with open_testbed(stage, dispatching=False, frozen=True) as testbed:
        with await ablation(testbed):
            try:
                await check(testbed)
            except (Exception, pytest.fail.Exception):
                failed = True
    assert failed, "the check passed although its safeguard was taken out"
