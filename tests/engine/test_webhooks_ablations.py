"""With a safeguard of webhooks removed, named tests fail. A check that cannot fail is none."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from payonce.engine.webhooks import deliver, delivery_attempt, receiver, registry, replays
from payonce.engine.webhooks.delivery_attempt import AttemptResult
from payonce.kit.crypto import Keyring
from payonce.kit.http import sockets, target, transport
from payonce.testing import OpenStage
from tests.ablations import Ablation, Ablations, cases, given, missed, patched
from tests.conformance.wire import without
from tests.engine import (
    test_webhooks,
    test_webhooks_crashes,
    test_webhooks_endpoints,
    test_webhooks_incoming,
    test_webhooks_replays,
    webhooks_stage,
)
from tests.engine import test_webhooks_targets as targets

refuses_url = test_webhooks_endpoints.test_a_url_that_could_never_be_sent_to_is_refused


def taking(pattern: str, replacement: str, within: str) -> Ablation:
    return lambda: without(pattern, replacement, within)


async def never(*_: Any, **__: Any) -> None:
    return None


async def always(*_: Any, **__: Any) -> bool:
    return True


def judge_nobody(host: str, addresses: Any) -> None:
    return None


def take_any_answer(status: int, latency_s: float, excerpt: str, retry_after_s: int | None) -> AttemptResult:
    return AttemptResult(status, latency_s, None, excerpt)


def obey(policy: Any, work: Any, came: AttemptResult) -> float | None:
    return came.retry_after_s


@contextmanager
def without_judges() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (sockets, target, transport):
            stack.enter_context(patched(module, "judge", judge_nobody)())
        yield


ABLATIONS: Ablations = {
    "a fresh timestamp for each attempt": (
        taking(r"payonce\.due_now\(\) as now", "d.created_at as now", "webhook_deliveries d"),
        [test_webhooks.test_each_attempt_has_the_same_id_and_bytes_and_a_fresh_timestamp],
    ),
    "one lane per endpoint": (
        patched(webhooks_stage, "deliver", replace(deliver, policy=replace(deliver.policy, lanes=False))),
        [test_webhooks.test_a_slow_endpoint_does_not_hold_up_the_others],
    ),
    "disabling by itself": (
        patched(delivery_attempt, "_disable", never),
        [
            test_webhooks.test_gone_disables_the_endpoint_at_once_with_its_reason,
            test_webhooks.test_an_endpoint_that_only_fails_is_disabled_after_days_and_a_success_saves_it,
        ],
    ),
    "forgiving after a success": (
        taking(
            r"case when \$2 then null else payonce\.due_now\(\) end",
            "coalesce(failing_since, payonce.due_now())",
            "failing_since is null",
        ),
        [test_webhooks.test_an_endpoint_that_only_fails_is_disabled_after_days_and_a_success_saves_it],
    ),
    "looking whether the endpoint is enabled": (
        taking(r"e\.state as endpoint_state", "'enabled' as endpoint_state", "webhook_deliveries d"),
        [test_webhooks.test_a_disabled_endpoint_is_left_alone_whatever_was_announced_before],
    ),
    "taking nothing but 2xx for a success": (
        patched(delivery_attempt, "_result_of", take_any_answer),
        [
            given(test_webhooks.test_a_redirect_is_a_failure_and_is_not_followed, 302),
            test_webhooks.test_the_schedule_is_followed_to_its_end_and_the_delivery_is_given_up,
        ],
    ),
    "Retry-After": (
        patched(delivery_attempt, "_after_s", lambda *_: None),
        [given(test_webhooks.test_a_receiver_that_asks_for_patience_gets_it, 429)],
    ),
    "the bounds of Retry-After": (
        patched(delivery_attempt, "_after_s", obey),
        [
            given(test_webhooks.test_patience_is_bounded_and_never_haste, 503, "0", 5, 11),
            given(test_webhooks.test_patience_is_bounded_and_never_haste, 503, "999999999", 43_200, 43_201),
        ],
    ),
    "giving up as failed": (
        patched(delivery_attempt, "_end", never),
        [test_webhooks.test_the_schedule_is_followed_to_its_end_and_the_delivery_is_given_up],
    ),
    "judging addresses": (
        without_judges,
        [
            given(targets.test_a_name_that_leads_to_a_private_address_is_not_told, "127.0.0.1", "loopback"),
            targets.test_a_name_that_changes_its_answer_between_attempts_is_judged_each_time,
            given(targets.test_an_address_that_is_on_record_is_judged_again_when_its_turn_comes, "127.0.0.1"),
            given(refuses_url, "https://10.0.0.8", "private"),
        ],
    ),
    "the sealing of secrets": (
        patched(Keyring, "seal", lambda self, plaintext, aad: plaintext),
        [test_webhooks_endpoints.test_the_database_does_not_know_the_secret],
    ),
    "binding a secret to its endpoint": (
        patched(registry, "_bound_to", lambda endpoint_id: b""),
        [test_webhooks_endpoints.test_a_secret_opens_for_its_own_endpoint_alone],
    ),
    "the end of an exchanged secret": (
        taking(r"and \(expires_at is null or expires_at > payonce\.due_now\(\)\)", "", "order by number desc"),
        [
            test_webhooks_endpoints.test_an_exchanged_secret_signs_along_until_its_time_is_over,
            test_webhooks_endpoints.test_a_leaked_secret_ends_at_once_also_when_it_was_to_stay,
        ],
    ),
    "the earlier of two ends": (
        taking(
            r"least\(expires_at, payonce\.due_now\(\) \+ make_interval\(secs => \$2\)\)",
            "payonce.due_now() + make_interval(secs => $2)",
            "webhook_secrets",
        ),
        [test_webhooks_endpoints.test_a_longer_overlap_does_not_bring_an_ended_secret_back],
    ),
    "counting endpoints one after the other": (
        taking(r"pg_advisory_xact_lock\(.*\)", "$1::text", "webhook endpoints of"),
        [test_webhooks_endpoints.test_a_tenant_has_a_bounded_number_of_endpoints_also_when_added_at_once],
    ),
    "taking in once": (
        patched(receiver, "accept", always),
        [
            given(test_webhooks_incoming.test_a_webhook_that_comes_often_is_taken_in_once, receiver)
            for receiver in (test_webhooks_incoming.RECEIVER, test_webhooks_incoming.OLDER)
        ],
    ),
    "the fence of a delivery": (
        patched(delivery_attempt, "_record", never),
        [test_webhooks_crashes.test_what_was_sent_and_not_recorded_is_sent_again_under_the_same_id],
    ),
    "leaving out what is delivered or under way": (
        taking(
            r"(?s)and not exists \( select from payonce\.webhook_deliveries later .*?\) and \(\$7",
            "and $6::text[] is not null and ($7",
            "later.event_id",
        ),
        [test_webhooks_replays.test_what_was_missed_in_a_time_is_replayed_each_event_once],
    ),
    "the cursor of a range": (
        patched(
            replays,
            "_arguments",
            lambda which, after: (
                which.endpoint_id,
                which.since,
                which.until,
                [*map(str, which.states)],
                which.event_type,
                [],
                None,
            ),
        ),
        [test_webhooks_replays.test_a_range_of_successes_ends_although_workers_deliver_meanwhile],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_a_safeguard_its_tests_fail(stage: OpenStage, name: str, number: int) -> None:
    # The table itself refuses a second delivery in progress.
    await missed(ABLATIONS, name, number, stage, asyncpg.UniqueViolationError)
