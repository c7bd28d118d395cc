"""With a safeguard of the outbox or the inbox removed, named tests fail. A check that cannot fail is none."""

import pytest

from payonce.engine.outbox import Deferred, relay_steps
from payonce.engine.outbox.model import Claimed, DeliveryDecision, RelayConfig, decide
from payonce.testing import OpenStage
from tests.ablations import Ablation, Ablations, cases, missed, patched
from tests.conformance.wire import without
from tests.engine import (
    outbox_stage,
    test_inbox,
    test_outbox,
    test_outbox_durable_copy,
    test_outbox_fences,
    test_outbox_operators,
)
from tests.engine.test_outbox_against_model import accept_always, claim_and_delete


def suspect_nobody(config: RelayConfig, claimed: Claimed, reason: str) -> DeliveryDecision:
    return decide(config, claimed, Deferred(reason))


def taking(pattern: str, replacement: str, within: str) -> Ablation:
    return lambda: without(pattern, replacement, within)


ABLATIONS: Ablations = {
    "the inbox": (
        patched(outbox_stage, "accept", accept_always),
        [test_outbox_fences.test_the_receivers_inbox_makes_it_once],
    ),
    "delivering before deleting": (
        patched(relay_steps, "claim", claim_and_delete),
        [
            test_outbox_fences.test_what_a_dead_relay_held_is_delivered_again_after_its_lease,
            lambda stage: test_outbox.test_a_broker_that_is_away_makes_nobody_suspect_and_parks_nothing(
                stage, OSError()
            ),
        ],
    ),
    "the token": (
        taking(r"entry\.token = \$3", "$3::bigint is not null", "entry.lease_until is not null"),
        [test_outbox_fences.test_a_stale_refusal_parks_nothing_that_a_successor_holds],
    ),
    "the whole fence": (
        taking(
            r"entry\.token = \$3 and entry\.lease_until is not null",
            "entry.token <> $3 - 1",
            "entry.lease_until is not null",
        ),
        [test_outbox_fences.test_a_stale_relay_changes_nothing],
    ),
    "the lease": (
        taking(r"state = 'waiting' and suspect", "state in ('waiting', 'leased') and suspect", "with due as"),
        [
            test_outbox_fences.test_relays_at_once_never_deliver_the_same_within_the_lease,
            test_outbox_fences.test_a_batch_in_flight_is_left_alone_by_others,
        ],
    ),
    "taking away what a dead relay held": (
        taking(r"lease_until <= payonce\.lease_now\(\)", "false", "with dead as"),
        [test_outbox_fences.test_what_a_dead_relay_held_is_delivered_again_after_its_lease],
    ),
    "suspicion after a broken batch": (
        patched(relay_steps, "decide_suspect", suspect_nobody),
        [test_outbox.test_an_entry_that_breaks_its_batch_is_found_and_parked_alone],
    ),
    "suspicion after deaths": (
        patched(relay_steps, "CRASHES_SUSPICIOUS", 1_000),
        [test_outbox_fences.test_an_entry_that_kills_its_relays_goes_alone_and_is_then_parked],
    ),
    "the end of repeating": (
        patched(relay_steps, "REPEAT_FOR_S", 1e9),
        [test_outbox_fences.test_what_was_first_tried_long_ago_is_parked_and_not_repeated],
    ),
    "the memory of the inbox": (
        taking(r"accepted_at <= payonce\.due_now\(\) - make_interval\(secs => \$1::float8\)", "$1 > 0", "with over as"),
        [test_inbox.test_an_id_is_remembered_for_as_long_as_it_may_come_again],
    ),
    "the known relays": (
        taking(r"select exists \(select from payonce\.relays where name = \$1\)$", "select true", "with entries as"),
        [test_outbox.test_an_entry_for_a_relay_that_nobody_declared_is_refused],
    ),
    "the due time": (
        taking(r"and try_at <= payonce\.due_now\(\)", "", "with due as"),
        [test_outbox.test_nothing_is_delivered_before_it_falls_due],
    ),
    "the pause": (
        taking(r"where name = \$1 and paused", "where false", "with due as"),
        [test_outbox_operators.test_a_paused_relay_delivers_nothing_and_loses_nothing],
    ),
    "the comparison of a kept entry's attempts": (
        taking(r"entry\.attempts = said\.attempts", "true", "as said"),
        [test_outbox_durable_copy.test_a_run_that_was_taken_over_neither_retries_nor_parks],
    ),
    "the holder of a kept entry, where it is settled": (
        taking(r"entry\.holder = said\.token", "true", "as said"),
        [test_outbox_durable_copy.test_what_holds_a_message_keeps_everybody_else_from_settling_it],
    ),
    "the holder of a kept entry, where it is held": (
        taking(r"entry\.holder = \$3", "true", "held_until"),
        [test_outbox_durable_copy.test_what_holds_a_message_keeps_everybody_else_from_settling_it],
    ),
    "the end of a hold": (
        taking(r"entry\.held_until <= payonce\.lease_now\(\)", "false", "held_until"),
        [test_outbox_durable_copy.test_a_hold_ends_with_its_lease],
    ),
    "the inbox of what is settled": (
        taking(r"id::text from gone", "id::text from gone where false", "payonce.inbox"),
        [
            test_outbox_durable_copy.test_a_kept_entry_lives_until_it_is_settled_with_its_business,
            test_outbox_durable_copy.test_a_message_that_only_its_queue_knows_gets_an_entry_before_anything_is_sent_for_it,
        ],
    ),
    "the look for an entry before a message is accepted without one": (
        taking(
            r"where not exists \(select from payonce\.outbox",
            "where true or not exists (select from payonce.outbox",
            "payonce.inbox",
        ),
        [test_outbox_durable_copy.test_a_message_with_an_entry_is_not_accepted_beside_it],
    ),
    "the key of a message for a queue elsewhere": (
        taking(r"where known\.expires_at <= payonce\.due_now\(\)", "", "as keyed"),
        [test_outbox_durable_copy.test_each_key_is_accepted_once_for_a_queue_elsewhere_too],
    ),
    "the comparison of a refill": (
        taking(r"entry\.attempts = lost\.attempts and entry\.ready_at = lost\.ready_at", "true", "as lost"),
        [test_outbox_durable_copy.test_what_was_settled_or_retried_since_it_was_looked_at_is_not_put_back],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage)
