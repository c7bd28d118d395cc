"""With a safeguard of the audit log or of orphaned effects removed, named tests fail."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any

import asyncpg
import pytest

from payonce.engine.audit import seals
from payonce.kit.outcomes import PayonceError
from payonce.testing import OpenStage, ScratchDatabase
from tests.ablations import Ablation, Ablations, Check, cases, given, missed, patched
from tests.conformance.wire import without
from tests.engine import audit_notes, test_audit_seals, test_audit_verify, test_orphans

FINAL_NOTES = "order by l.xact, l.id limit"
BELOW_XMIN = r"l\.xact < pg_snapshot_xmin\(pg_current_snapshot\(\)\)"


def a_horizon_of_ids() -> AbstractContextManager[None]:
    """The common mistake: everything after the highest sealed id."""
    stack = ExitStack()
    behind = "($1::text is not null and l.id > coalesce((select max(note) from payonce.audit_sealed), 0))"
    stack.enter_context(without(BELOW_XMIN, "true", within=FINAL_NOTES))
    stack.enter_context(without(r"l\.xact >= \$1::text::xid8", behind, within=FINAL_NOTES))
    return stack  # type: ignore[return-value]


def orphans_of(pattern: str, replacement: str) -> Ablation:
    return lambda: without(pattern, replacement, within="payonce.effects e")


def encoding_without_lengths(*fields: str) -> bytes:
    return "".join(fields).encode()


def fence_nothing(*_: Any) -> Any:
    async def passed() -> None:
        return None

    return passed()


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safeguard the awaited event never happens."""
    monkeypatch.setattr(audit_notes, "SEALED_WITHIN_S", 2.0)


async def redriven_after_the_first_look(stage: OpenStage) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await test_orphans.test_a_message_redriven_after_the_first_look_keeps_its_effect(stage, patch)


ABLATIONS: Ablations = {
    "the horizon of transactions": (
        a_horizon_of_ids,
        [test_audit_seals.test_a_transaction_that_is_open_while_a_seal_is_made_is_in_the_next_one_once],
    ),
    "the fence of the leader": (
        patched(seals, "fence", fence_nothing),
        [test_audit_seals.test_a_leader_whose_lease_passed_on_seals_nothing],
    ),
    "the list of what is sealed": (
        lambda: without(
            r"and not exists \(select from payonce\.audit_sealed s where s\.note = l\.id\)", "", FINAL_NOTES
        ),
        [
            test_audit_seals.test_a_transaction_of_more_notes_than_a_seal_takes_is_sealed_whole,
            test_audit_seals.test_a_log_restored_into_a_younger_server_is_sealed_on_and_verified,
        ],
    ),
    "the notice of a move to another server": (
        patched(seals._Place, "moved", False),
        [
            test_audit_seals.test_a_log_restored_into_a_younger_server_is_sealed_on_and_verified,
            test_audit_seals.test_a_move_is_sealed_in_batches_and_recorded_even_without_a_note,
        ],
    ),
    "the lengths in the encoding": (
        patched(seals, "encoded", encoding_without_lengths),
        [given(test_audit_verify.test_tampering_is_found_and_named, "text moves from one field into the next")],
    ),
    "the deadline of a try, for orphans": (
        orphans_of(r"e\.busy_until <= payonce\.due_now\(\)", "true"),
        [test_orphans.test_a_try_that_may_still_be_under_way_is_left_alone],
    ),
    "the look at the message, for orphans": (
        orphans_of(r"m\.state <> 'parked'", "false"),
        [
            given(test_orphans.test_effects_whose_message_lives_are_left_alone, "ready"),
            given(test_orphans.test_a_message_that_lives_in_a_queue_elsewhere_looks_after_its_effect, "delivered", 0),
        ],
    ),
    "the second look with the row locked": (
        # Only the second read has an id as its argument.
        lambda: without(r"e\.id = \$1 and [^;]* for update", "e.id = $1 for update", within="skip locked"),
        [redriven_after_the_first_look],
    ),
    "the time to redrive after an answer": (
        orphans_of(r"a\.event = 'answered'", "false"),
        [test_orphans.test_who_answered_has_time_to_redrive],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage, PayonceError, asyncpg.UniqueViolationError)


SCHEMA_ABLATIONS: dict[str, tuple[str, Check]] = {
    "the constraints of the chain": (
        """
        alter table payonce.audit_seals drop constraint audit_seals_pkey cascade,
            drop constraint audit_seals_previous_key, drop constraint audit_seals_hash_key cascade;
        alter table payonce.audit_sealed drop constraint audit_sealed_pkey, drop constraint audit_sealed_note_key
        """,
        test_audit_seals.test_two_who_both_believe_to_lead_cannot_fork_the_chain,
    ),
    "the columns that services may not write": (
        "grant insert on payonce.audit_log to payonce_service",
        given(test_audit_seals.test_who_writes_a_note_chooses_neither_its_place_nor_its_time, "xact"),
    ),
    "the triggers against rewriting": (
        "drop trigger audit_seals_append_only on payonce.audit_seals",
        test_audit_seals.test_services_may_append_notes_and_seals_and_rewrite_neither,
    ),
}


@pytest.mark.parametrize("name", SCHEMA_ABLATIONS)
async def test_without_it_in_the_schema_the_named_test_fails(
    stage: OpenStage, scratch: ScratchDatabase, name: str
) -> None:
    taken_out, check = SCHEMA_ABLATIONS[name]
    owner = await asyncpg.connect(scratch.owner_url)
    await owner.execute(taken_out)
    await owner.close()
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await check(stage)
