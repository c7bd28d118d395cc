"""With a safeguard removed from a script or a step, named conformance tests fail. A check that cannot fail is none."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
import redis.exceptions

from payonce.embedded.redis import RedisServer
from payonce.engine.outbox import SettleOutcome
from payonce.queues.redis import RedisQueue, scripts
from payonce.queues.redis.scripts import Script
from payonce.queues.redis.wait import ArrivalWatcher
from payonce.testing import ScratchDatabase
from tests.conformance import (
    test_claiming_and_settling,
    test_crashes,
    test_delays,
    test_idempotency,
    test_limits,
    test_operators,
    test_order,
    test_redis_catching,
    test_redis_commit,
    test_redis_losses,
    test_redis_lost_limits,
    test_redis_repair,
)
from tests.conformance.backend import retry, success
from tests.conformance.redis_backend import Flavour, RedisBackend, open_redis_backend

Check = Callable[..., Awaitable[None]]
Ablation = Callable[[], AbstractContextManager[None]]

settling, crashes, delays, repair = test_claiming_and_settling, test_crashes, test_delays, test_redis_repair


def taking_out(script: Script, text: str, instead: str = "") -> Ablation:
    @contextmanager
    def without() -> Iterator[None]:
        assert text in script.body, f"{script.name} does not hold {text!r} any more: the ablation takes nothing out"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(script, "body", script.body.replace(text, instead))
            yield

    return without


def together(*ablations: Ablation) -> Ablation:
    """One safeguard behind another: the check notices when both are missing."""

    @contextmanager
    def without() -> Iterator[None]:
        with ExitStack() as stack:
            for ablation in ablations:
                stack.enter_context(ablation())
            yield

    return without


def replacing(target: object, name: str, replacement: Any) -> Ablation:
    @contextmanager
    def without() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target, name, replacement)
            yield

    return without


def given(check: Check, *arguments: Any) -> Check:
    return lambda backend: check(backend, *arguments)


async def nobody(*_: object) -> set[object]:
    return set()


async def nothing_done(*_: object) -> None: ...


async def all_run(self: RedisQueue, claims: list[object], _: object) -> list[object]:
    return list(claims)


async def nothing_known(self: RedisQueue, _: object) -> dict[object, SettleOutcome]:
    return {}


EXCHANGE, REAP, PUT, REPAIR, MEND = scripts.EXCHANGE, scripts.REAP, scripts.PUT, scripts.REPAIR, scripts.MEND
PUMPED = "'-inf', due_now / 1000, 'LIMIT', 0, CHUNK"
LANE_GOES_LAST = "redis.call('RPUSH', LANES, lane) end\n            if bytes"
PARKS_UNREADABLE = "redis.call('LPUSH', FAILED, body)\n    redis.call('HSET', IDS, id, meta_text('deP'"
HOLDS = "return record and string.sub(record, 1, #token + 1) == token .. ' '"

ABLATIONS: dict[str, tuple[Flavour, Ablation, list[Check]]] = {
    "token of a settle": (
        "direct",
        taking_out(EXCHANGE, HOLDS, "return record"),
        [
            given(settling.test_a_stale_settle_changes_nothing_and_says_so, success),
            given(settling.test_a_stale_settle_changes_nothing_and_says_so, retry),
        ],
    ),
    "token of an extend": (
        "direct",
        taking_out(scripts.EXTEND, HOLDS, "return record"),
        [settling.test_a_stale_extend_changes_nothing_and_names_the_lost_claim],
    ),
    "token of running alone": (
        "direct",
        taking_out(scripts.MARK_ALONE, HOLDS, "return record"),
        [crashes.test_a_lost_claim_cannot_be_marked_alone],
    ),
    "end of the lease": (
        "direct",
        together(
            taking_out(scripts.DEAD, "'-inf', lease_now / 1000", "'-inf', '+inf'"),
            taking_out(REAP, "and deadline and tonumber(deadline) <= lease_now / 1000", ""),
        ),
        [crashes.test_a_dead_claimer_is_replaced_only_after_its_lease],
    ),
    "crash counter": (
        "direct",
        taking_out(REAP, "record.crashes + 1", "record.crashes"),
        [
            crashes.test_crashes_are_counted_apart_from_attempts,
            crashes.test_after_two_crashes_a_message_is_not_given_out_among_others,
        ],
    ),
    "parking of what died alone": (
        "direct",
        taking_out(REAP, "if record.alone then", "if false then"),
        [crashes.test_dying_alone_parks_exactly_one_copy],
    ),
    "record of running alone": (
        "direct",
        taking_out(REAP, "if record.alone then", "if record.crashes >= SUSPICIOUS then"),
        [crashes.test_dying_before_being_alone_does_not_park],
    ),
    "time ready": (
        "direct",
        taking_out(EXCHANGE, PUMPED, PUMPED.replace("due_now / 1000", "'+inf'")),
        [delays.test_a_delayed_message_is_not_claimable_a_moment_early, delays.test_a_retry_waits_for_its_delay],
    ),
    "two clocks": (
        "direct",
        taking_out(EXCHANGE, PUMPED, PUMPED.replace("due_now", "lease_now")),
        [delays.test_the_lease_clock_makes_nothing_due],
    ),
    "age without the time of a release": (
        "direct",
        taking_out(EXCHANGE, "+ due_now - record.claimed + delay_us", ""),
        [delays.test_the_time_of_a_release_does_not_age_a_message],
    ),
    "pause": (
        "direct",
        taking_out(EXCHANGE, "redis.call('EXISTS', PAUSED) == 1", "false"),
        [
            test_operators.test_a_paused_queue_gives_out_nothing_and_loses_nothing,
            crashes.test_a_paused_queue_gives_out_no_suspects,
        ],
    ),
    "count of live leases": (
        "direct",
        taking_out(EXCHANGE, "bound.concurrency - held_under_limit()", "bound.concurrency - 0"),
        [test_limits.test_workers_together_hold_no_more_than_the_limit],
    ),
    "shared limits": (
        "direct",
        taking_out(EXCHANGE, "if key and (", "if key == MAIN and ("),
        [test_limits.test_queues_that_share_a_limit_share_its_room],
    ),
    "spending of the rate": (
        "direct",
        taking_out(EXCHANGE, "if limit ~= '' then spend(#processing) end", ""),
        [test_limits.test_a_rate_limited_worker_is_told_when_to_ask_again],
    ),
    "order by time ready": (
        "direct",
        taking_out(PUT, "\npump()\n", "\n"),
        [test_order.test_what_is_ready_first_is_claimed_first],
    ),
    "turns of lanes": (
        "direct",
        taking_out(EXCHANGE, LANE_GOES_LAST, LANE_GOES_LAST.replace("RPUSH", "LPUSH")),
        [test_order.test_single_claims_go_round_the_lanes],
    ),
    "idempotency": (
        "direct",
        taking_out(PUT, "taken[at[from + i - 1]] = id", "taken[0] = id"),
        [test_idempotency.test_a_second_put_of_a_key_answers_with_the_first_id],
    ),
    "end of a key's time": (
        "direct",
        taking_out(PUT, "tonumber(expiry) > due_now", "false"),
        [given(test_idempotency.test_a_key_outlives_its_settled_message_by_a_day, success)],
    ),
    "one message of one id": (
        "direct",
        together(taking_out(PUT, "not known[i] and", ""), taking_out(EXCHANGE, "and not claimed[id]", "")),
        [test_idempotency.test_a_retried_put_of_the_same_message_is_one_message],
    ),
    "one claim of one message": (
        "direct",
        taking_out(EXCHANGE, "not held[i] and not claimed[id]", "not claimed[id]"),
        [test_redis_losses.test_a_second_copy_of_what_is_worked_on_does_not_run_beside_it],
    ),
    "ids given once": (
        "direct",
        taking_out(EXCHANGE, "named = named + 1", ""),
        [test_redis_losses.test_two_identical_raw_objects_are_two_messages],
    ),
    "parking of what cannot be read": (
        "direct",
        taking_out(EXCHANGE, PARKS_UNREADABLE, PARKS_UNREADABLE.partition("    ")[2]),
        [given(test_redis_losses.test_what_cannot_be_read_is_parked_with_its_reason_and_holds_up_nobody, "not json")],
    ),
    "state of what is redriven": (
        "direct",
        taking_out(scripts.REDRIVE, "redis.call('LREM', FAILED, -1, ARGV[at + 1]) == 1", "true"),
        [test_operators.test_a_redriven_message_starts_over],
    ),
    "log of a purge": (
        "direct",
        taking_out(scripts.PURGE, "write_log(lines)\nreturn gone", "return gone"),
        [test_operators.test_what_is_purged_leaves_a_line_in_the_log],
    ),
    "staleness of a commit": (
        "direct",
        replacing(RedisQueue, "_taken_over", nobody),
        [test_redis_commit.test_a_stale_commit_writes_nothing],
    ),
    "PostgreSQL first": (
        "transactional",
        replacing(RedisQueue, "_record", nothing_known),
        [
            test_redis_losses.test_a_run_that_ends_in_a_wiped_server_ends_in_postgresql,
            test_redis_losses.test_what_is_parked_stays_parked_through_a_wipe,
        ],
    ),
    "look into the outbox at a claim": (
        "transactional",
        replacing(RedisQueue, "_checked", all_run),
        [test_redis_losses.test_a_copy_of_what_is_settled_does_not_run],
    ),
    "return of what was caught": (
        "direct",
        replacing(ArrivalWatcher, "return_unused", nothing_done),
        [
            test_redis_catching.test_one_that_has_no_room_any_more_gives_back_what_it_caught,
            test_redis_catching.test_one_that_stops_with_something_caught_gives_it_back,
        ],
    ),
    "end of a look": (
        "direct",
        replacing(ArrivalWatcher, "close", nothing_done),
        [test_redis_catching.test_one_that_stops_while_it_looks_takes_nothing_with_it],
    ),
    "memory of what was given back": (
        "direct",
        together(
            replacing(ArrivalWatcher, "discard", lambda _: None),
            replacing(ArrivalWatcher, "return_released", nothing_done),
        ),
        [test_redis_catching.test_what_the_store_was_told_to_take_back_is_not_run_from_memory],
    ),
    "look that began while all was given back": (
        "direct",
        replacing(ArrivalWatcher, "return_released", nothing_done),
        [test_redis_catching.test_what_a_look_catches_while_its_worker_gives_all_back_is_run_by_one],
    ),
    "mark of a message that may have a row": (
        "direct",
        taking_out(scripts.HOLD, "meta_text('a'", "meta_text('k'"),
        [test_redis_commit.test_a_hold_that_rolled_back_leaves_a_message_that_runs],
    ),
    "pause and limits after a wipe": (
        "transactional",
        taking_out(scripts.DECLARE, "if ARGV[2] ~= '' then", "if false then"),
        [test_redis_losses.test_a_pause_and_a_limit_survive_a_wipe],
    ),
    "search for incomplete claims": (
        "direct",
        taking_out(scripts.DEAD, "claims_are_whole() and 0 or 1", "0"),
        [
            given(repair.test_what_a_dead_worker_held_comes_back_after_a_loss, ("leases",)),
            given(repair.test_what_a_dead_worker_held_comes_back_after_a_loss, ("claims",)),
            repair.test_raw_objects_that_were_moved_by_hand_come_back,
        ],
    ),
    "lease for a claim without one": (
        "direct",
        taking_out(REPAIR, "if not leases[i] and not known[id] then give_lease(id) end", ""),
        [given(repair.test_what_a_dead_worker_held_comes_back_after_a_loss, ("leases",))],
    ),
    "length of a restored lease": (
        "direct",
        taking_out(REPAIR, "local deadline = (lease_now + declared[3]) / 1000", "local deadline = 0"),
        [repair.test_a_run_that_renews_in_time_is_not_put_back_by_the_repair],
    ),
    "wait for the lease of a lost claim": (
        "direct",
        taking_out(REPAIR, "or tonumber(leases[i]) > lease_now / 1000", ""),
        [repair.test_without_its_claim_a_message_waits_for_the_lease_and_its_late_run_is_stale],
    ),
    "body from the claim": (
        "direct",
        taking_out(REPAIR, "redis.call('LPUSH', PROCESSING, record.body)", ""),
        [repair.test_a_refill_forgets_nothing_that_is_in_work],
    ),
    "doubt about what Redis has forgotten": (
        "transactional",
        taking_out(REPAIR, "meta_text('aec'", "meta_text('dec'"),
        [
            repair.test_what_ended_in_postgresql_does_not_run_again_after_a_loss,
            repair.test_a_parked_message_does_not_run_after_a_loss,
        ],
    ),
    "reaping of what Redis has forgotten": (
        "direct",
        taking_out(REAP, "redis.call('HGET', IDS, id) or unknown()", "redis.call('HGET', IDS, id)"),
        [repair.test_a_dead_workers_message_comes_back_when_nothing_else_is_known_of_it],
    ),
    "parking of a copy in work": (
        "direct",
        taking_out(REPAIR, "if string.sub(meta.flags, 3) == 'P' then", "if false then"),
        [
            given(repair.test_a_copy_of_what_is_parked_in_redis_is_parked_once, True),
            given(repair.test_a_copy_of_what_is_parked_in_redis_is_parked_once, False),
        ],
    ),
    "suspicion of a lost claim": (
        "direct",
        taking_out(REPAIR, "if meta.crashes >= SUSPICIOUS then", "if false then"),
        [repair.test_a_suspect_that_lost_its_claim_is_not_given_out_among_others],
    ),
    "one copy in work": (
        "direct",
        taking_out(REPAIR, "if record and (known[id] or body ~= record.body)", "if false"),
        [repair.test_of_two_copies_in_work_one_remains],
    ),
    "claims at a refill": (
        "transactional",
        taking_out(MEND, "redis.call('HKEYS', CLAIMS)) do there[id] = true end", "{}) do end"),
        [repair.test_a_refill_forgets_nothing_that_is_in_work],
    ),
    "leases at a refill": (
        "transactional",
        taking_out(MEND, "'(' .. string.format('%.17g', lease_now / 1000), '+inf'", "'+inf', '+inf'"),
        [
            repair.test_a_refill_forgets_nothing_that_is_in_work,
            given(repair.test_the_limit_holds_while_leases_are_rebuilt, ("processing", "claims")),
        ],
    ),
    "count of what lost its lease": (
        "direct",
        taking_out(EXCHANGE, "+ math.max(0, in_work - redis.call('ZCARD', leases))", ""),
        [
            given(repair.test_the_limit_holds_while_leases_are_rebuilt, ("leases",)),
            given(repair.test_the_limit_holds_while_leases_are_rebuilt, ("leases", "claims")),
            test_redis_lost_limits.test_a_shared_limit_holds_after_a_loss,
        ],
    ),
    "closing of a lost limit": (
        "transactional",
        taking_out(scripts.DECLARE, "ARGV[9] ~= '1' and redis.call('EXISTS', limit) == 0", "false"),
        [
            given(test_redis_lost_limits.test_under_a_lost_limit_nothing_is_claimed_for_one_lease, "everything"),
            given(test_redis_lost_limits.test_under_a_lost_limit_nothing_is_claimed_for_one_lease, "the limit"),
        ],
    ),
    "opening of a new limit": (
        "direct",
        taking_out(scripts.DECLARE, "ARGV[9] ~= '1' and", ""),
        [test_redis_lost_limits.test_a_limit_that_is_new_is_open_at_once],
    ),
    "queues that a limit has forgotten": (
        "direct",
        taking_out(EXCHANGE, "if declared[2] == limit and not bound[MEMBER .. MAIN]", "if false"),
        [test_redis_lost_limits.test_a_shared_limit_holds_after_a_loss],
    ),
}


CASES = [(name, number) for name, (_, _, checks) in ABLATIONS.items() for number in range(len(checks))]


@pytest.fixture
def unguarded(
    scratch: ScratchDatabase, redis_server: RedisServer, request: pytest.FixtureRequest
) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, ABLATIONS[request.node.callspec.params["name"]][0])


@pytest.mark.parametrize(("name", "number"), CASES)
async def test_a_check_fails_without_its_safeguard(unguarded: RedisBackend, name: str, number: int) -> None:
    _, ablation, checks = ABLATIONS[name]
    failure: BaseException | None = None
    with ablation():
        try:
            await checks[number](unguarded)
        except redis.exceptions.ResponseError:
            # A script broken by the ablation itself proves nothing.
            raise
        except (Exception, pytest.fail.Exception) as noticed:
            failure = noticed
    assert failure is not None, "the check passed although its safeguard was taken out"
