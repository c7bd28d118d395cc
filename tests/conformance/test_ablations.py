"""With a safeguard removed, named conformance tests fail. A check that cannot fail is none."""

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from typing import Any

import asyncpg
import pytest

from payonce.queues.postgres import PostgresQueue, pull
from payonce.testing import OpenStage, ScratchDatabase
from tests.conformance import (
    test_claiming_and_settling,
    test_commit,
    test_crashes,
    test_delays,
    test_idempotency,
    test_limits,
    test_operators,
    test_order,
    test_refused_rows,
)
from tests.conformance.backend import Backend, retry, success
from tests.conformance.postgres_backend import PostgresBackend, open_postgres_backend
from tests.conformance.wire import without

Check = Callable[[Backend], Awaitable[None]]
Ablation = Callable[[], AbstractContextManager[None]]


def taking_out(pattern: str, replacement: str = "", within: str = "") -> Ablation:
    return lambda: without(pattern, replacement, within)


def given(check: Callable[..., Awaitable[None]], *arguments: Any) -> Check:
    async def bound(backend: Backend) -> None:
        await check(backend, *arguments)

    return bound


def at_stage(check: Callable[[OpenStage], Awaitable[None]]) -> Callable[[PostgresBackend], Awaitable[None]]:
    """For checks that need the store and not only the backend."""
    return lambda backend: check(lambda: nullcontext(backend.stage))


@contextmanager
def no_bisecting() -> Iterator[None]:
    async def refuse_all(*_: object) -> None:
        raise AssertionError("the whole batch was refused for one row")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresQueue, "_bisect", refuse_all)
        yield


@contextmanager
def no_cleaning_of_texts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pull, "clean_text", lambda text: text)
        yield


CLAIM = "set state = 'leased'"
REAP = "with dead as"

ABLATIONS: dict[str, tuple[Ablation, list[Check]]] = {
    "state of what is claimed": (
        taking_out("state = 'ready' and ready_at", "state in ('ready', 'leased') and ready_at", within=CLAIM),
        [
            test_claiming_and_settling.test_each_of_many_messages_is_claimed_exactly_once_by_many_claimers,
            test_claiming_and_settling.test_a_leased_message_is_nobody_elses,
        ],
    ),
    "skip locked": (
        taking_out("skip locked"),
        [test_claiming_and_settling.test_a_claim_does_not_wait_for_messages_that_others_hold],
    ),
    "skip locked of an extend": (
        taking_out("skip locked", within="as requested"),
        [test_claiming_and_settling.test_an_open_business_transaction_does_not_hold_up_the_renewal_of_others],
    ),
    "token of a success": (
        taking_out(r"m\.token = (\(\$2::bigint\[\]\)\S+ \S+)", r"\1 is not null", within="'success', gone.attempts"),
        [given(test_claiming_and_settling.test_a_stale_settle_changes_nothing_and_says_so, success)],
    ),
    "token of another ending": (
        taking_out(r"m\.token = s\.token", "true", within="s.ending"),
        [given(test_claiming_and_settling.test_a_stale_settle_changes_nothing_and_says_so, retry)],
    ),
    "token of an extend": (
        taking_out(r"m\.token = requested\.token", "true"),
        [test_claiming_and_settling.test_a_stale_extend_changes_nothing_and_names_the_lost_claim],
    ),
    "token of running alone": (
        taking_out(r"token = \$2", "$2::bigint is not null", within="set running_alone = true"),
        [test_crashes.test_a_lost_claim_cannot_be_marked_alone],
    ),
    "age without the time of a release": (
        taking_out(r"\(\$3::text\[\]\)\S+ \S+ <> 'released' then m\.first_attempt_at", "true then m.first_attempt_at"),
        [
            test_delays.test_a_message_that_was_only_released_has_no_age,
            test_delays.test_the_time_of_a_release_does_not_age_a_message,
        ],
    ),
    "end of the lease": (
        taking_out(r"lease_until <= payonce\.lease_now\(\)", "true"),
        [
            test_crashes.test_a_dead_claimer_is_replaced_only_after_its_lease,
            test_claiming_and_settling.test_extending_keeps_a_lease,
            test_claiming_and_settling.test_a_leased_message_is_nobody_elses,
        ],
    ),
    "crash counter": (
        taking_out(r"crashes = m\.crashes \+ 1", "crashes = m.crashes", within=REAP),
        [
            test_crashes.test_crashes_are_counted_apart_from_attempts,
            test_crashes.test_after_two_crashes_a_message_is_not_given_out_among_others,
        ],
    ),
    "parking of what died alone": (
        taking_out(r"when m\.running_alone then 'parked'", "", within=REAP),
        [test_crashes.test_dying_alone_parks_exactly_one_copy, test_crashes.test_sigkill_while_alone_parks_the_suspect],
    ),
    "record of running alone": (
        taking_out(r"when m\.running_alone then 'parked'", "when m.crashes >= 2 then 'parked'", within=REAP),
        [test_crashes.test_dying_before_being_alone_does_not_park],
    ),
    "time ready": (
        taking_out(r"ready_at <= payonce\.due_now\(\)", "true", within=CLAIM),
        [
            test_delays.test_a_delayed_message_is_not_claimable_a_moment_early,
            test_delays.test_a_retry_waits_for_its_delay,
            test_delays.test_not_before_is_an_earliest_time,
        ],
    ),
    "two clocks": (
        taking_out(r"payonce\.due_now\(\)", "payonce.lease_now()", within=CLAIM),
        [test_delays.test_the_lease_clock_makes_nothing_due],
    ),
    "spending of the rate": (
        taking_out(r"set arrival_at = .*", "set arrival_at = arrival_at"),
        [given(test_limits.test_no_second_sees_more_than_rate_and_burst, 10.0, 5)],
    ),
    "pause": (
        taking_out(r"and not exists \(select from payonce\.queues where name = \$\d and paused\)", "", within=CLAIM),
        [
            test_operators.test_a_paused_queue_gives_out_nothing_and_loses_nothing,
            test_crashes.test_a_paused_queue_gives_out_no_suspects,
        ],
    ),
    "state of what is redriven": (
        taking_out(r"state = \$2", "(state = $2 or true)", within="set state = 'ready', ready_at"),
        [test_operators.test_a_redrive_touches_only_parked_messages],
    ),
    "attempts of what is redriven": (
        taking_out(r"attempts = 0, crashes = 0", "crashes = 0", within="set state = 'ready', ready_at"),
        [test_operators.test_a_redriven_message_starts_over],
    ),
    "log of a purge": (
        taking_out(r"from gone returning message_id", "from gone where false returning message_id"),
        [test_operators.test_what_is_purged_leaves_a_line_in_the_log],
    ),
    "idempotency": (
        taking_out(r"where idempotency_key is null or id in \(select message_id from fresh\)", ""),
        [
            test_idempotency.test_a_second_put_of_a_key_answers_with_the_first_id,
            test_idempotency.test_many_connections_that_put_one_key_at_once_get_one_message,
            given(test_idempotency.test_a_key_is_taken_wherever_its_message_is, "parked"),
        ],
    ),
    "end of a key's time": (
        taking_out(r"where known\.expires_at <= payonce\.due_now\(\)", "where known.expires_at is not null"),
        [given(test_idempotency.test_a_key_outlives_its_settled_message_by_a_day, success)],
    ),
    "order": (
        taking_out("order by ready_at, id", "order by ready_at desc, id", within=CLAIM),
        [test_order.test_what_is_ready_first_is_claimed_first],
    ),
    "bisecting of a refused batch": (
        no_bisecting,
        [given(test_refused_rows.test_one_refused_settlement_does_not_block_its_batch, 7)],
    ),
    "cleaning of texts": (
        no_cleaning_of_texts,
        [given(test_refused_rows.test_any_reason_can_be_settled, "NUL \x00 inside")],
    ),
}

CASES = [
    pytest.param(ablation, check, id=f"{name}: {number}")
    for name, (ablation, checks) in ABLATIONS.items()
    for number, check in enumerate(checks, start=1)
]


@pytest.fixture
def unguarded(scratch: ScratchDatabase) -> AbstractAsyncContextManager[PostgresBackend]:
    """A backend on the preferred version only: the subject is the check, not the server."""
    return open_postgres_backend(scratch)


@pytest.mark.parametrize(("ablation", "check"), CASES)
async def test_a_check_fails_without_its_safeguard(unguarded: Backend, ablation: Ablation, check: Check) -> None:
    with ablation():
        failure = await failure_of(check(unguarded))
    assert failure is not None, "the check passed although its safeguard was taken out"


IN_FUNCTIONS: dict[str, tuple[str, str, str, Callable[[PostgresBackend], Awaitable[None]]]] = {
    "lock of a limit": (
        "payonce.allowance",
        "for update",
        "",
        at_stage(test_limits.test_two_claims_at_the_same_moment_share_what_the_limit_leaves),
    ),
    "count of live leases": (
        "payonce.allowance",
        r"select count\(\*\)",
        "select 0 * count(*)",
        test_limits.test_workers_together_hold_no_more_than_the_limit,
    ),
    "shared limits": (
        "payonce.allowance",
        r"q\.limit_name = name_of_limit",
        "q.name = 'swaps'",
        test_limits.test_queues_that_share_a_limit_share_its_room,
    ),
}


@pytest.mark.parametrize("name", IN_FUNCTIONS)
async def test_a_check_fails_without_the_safeguard_in_a_function(unguarded: PostgresBackend, name: str) -> None:
    function, pattern, replacement, check = IN_FUNCTIONS[name]
    owner = unguarded.stage.owner
    definition = await owner.fetchval("select pg_get_functiondef($1::text::regproc)", function)
    altered, count = re.subn(pattern, replacement, definition)
    assert count, f"{function} does not hold {pattern!r} any more: the ablation takes nothing out"
    await owner.execute(altered)
    assert await failure_of(check(unguarded)) is not None, "the check passed although its safeguard was taken out"


FENCED: dict[str, tuple[Ablation, Callable[[OpenStage], Awaitable[None]]]] = {
    "token of a commit": (
        taking_out(r"m\.token = \$2", "$2::bigint is not null", within="select from gone"),
        test_commit.test_a_stale_commit_writes_nothing,
    ),
    "token of a commit beside another's": (
        taking_out(r"m\.token = \$2", "$2::bigint is not null", within="select from gone"),
        test_commit.test_of_two_runs_of_one_message_one_commits,
    ),
    "token of a transaction": (
        taking_out(r"select \$1::uuid where", "select $1::uuid where false and", within="payonce.commits"),
        lambda stage: test_commit.test_a_commit_whose_answer_was_lost_counts_as_committed(stage, TimeoutError),
    ),
    "look whether the old session is gone": (
        taking_out(r"and coalesce\(backend_start = \$2, true\)", "and $2::timestamptz is null"),
        test_commit.test_the_fate_of_a_commit_is_open_while_its_session_lives,
    ),
    "look whether the server is a standby": (
        taking_out(r"select (pg_is_in_recovery\(\)|true), exists", "select false, exists"),
        test_commit.test_the_fate_of_a_commit_is_open_while_the_server_is_a_standby,
    ),
}


@pytest.mark.parametrize("name", FENCED)
async def test_a_commit_check_fails_without_its_safeguard(stage: OpenStage, name: str) -> None:
    ablation, check = FENCED[name]
    with ablation():
        failure = await failure_of(check(stage))
    assert failure is not None, "the check passed although its safeguard was taken out"


async def failure_of(check: Awaitable[None]) -> BaseException | None:
    """The failure of the check. A statement broken by the ablation itself proves nothing."""
    try:
        await check
    except (asyncpg.SyntaxOrAccessError, asyncpg.InterfaceError):
        raise
    except (Exception, pytest.fail.Exception) as failure:
        return failure
    return None
