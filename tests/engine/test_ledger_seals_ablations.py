"""With a safeguard of the ledger's chain removed, named tests fail."""

from typing import Any

import asyncpg
import pytest

from payonce.engine.audit import ledger_seals, ledger_verify
from payonce.engine.audit.seals import encoded
from payonce.kit.outcomes import PayonceError
from payonce.testing import OpenStage, ScratchDatabase
from tests.ablations import Ablations, Check, cases, given, missed, patched
from tests.conformance.wire import without
from tests.engine import ledger_chain, test_ledger_seals, test_ledger_verify
from tests.engine.ledger_books import plant
from tests.engine.test_audit_ablations import encoding_without_lengths, fence_nothing

balanced = test_ledger_verify.test_tampering_that_keeps_the_books_balanced_is_found_and_named
sealing, verifying = test_ledger_seals, test_ledger_verify

UNSEALED_FIELDS = {
    "key": "a key is changed",
    "reference_kind": "a kind of reference is changed",
    "reference_id": "a reference is changed",
    "trace_id": "a trace is added",
    "description": "a text is changed",
    "posted_at": "a time is changed",
    "number": "lines are numbered anew",
    "path": "an account is renamed",
    "asset": "an asset is changed",
    "exponent": "an exponent is changed",
    "minor": "both lines and the guarded balance are changed",
    "line_posted_at": "the times of lines are changed",
}
"""The hashed fields, and the tampering that each one reveals."""


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safeguard the awaited event never happens."""
    monkeypatch.setattr(ledger_chain, "SEALED_WITHIN_S", 2.0)


def nulls_as_empty_texts(*fields: str | None) -> bytes:
    return encoded(*(field or "" for field in fields))


def without_field(name: str) -> Any:
    return patched(
        ledger_seals,
        *(
            ("POSTING_FIELDS", tuple(each for each in ledger_seals.POSTING_FIELDS if each != name))
            if name in ledger_seals.POSTING_FIELDS
            else ("LINE_FIELDS", tuple(each for each in ledger_seals.LINE_FIELDS if each != name))
        ),
    )


ABLATIONS: Ablations = {
    "the wait for older transactions": (
        lambda: without(r"pg_snapshot_xmin\(pg_current_snapshot\(\)\) >= \$1::text::xid8", "$1::text <> ''"),
        [sealing.test_a_posting_that_is_committed_late_is_sealed_in_its_place],
    ),
    "the mark kept between calls": (
        patched(ledger_seals.LedgerSealer, "_mark", property(lambda _: None, lambda *_: None)),
        [sealing.test_long_transactions_that_overlap_without_end_hold_sealing_up_no_longer_than_one_of_them],
    ),
    "the server of the mark": (
        patched(ledger_seals, "PLACE", "'anywhere'"),
        [sealing.test_a_mark_of_another_server_counts_for_nothing],
    ),
    "the fence of the leader": (
        patched(ledger_seals, "fence", fence_nothing),
        [sealing.test_a_leader_whose_lease_passed_on_seals_nothing],
    ),
    "the lengths in the encoding": (
        patched(ledger_seals, "encoded", lambda *fields: encoding_without_lengths(*(each or "" for each in fields))),
        [given(balanced, "text moves from one field into the next")],
    ),
    "the encoding of what is null": (
        patched(ledger_seals, "encoded", nulls_as_empty_texts),
        [given(balanced, "a trace is added")],
    ),
    "the look below the first posting": (
        lambda: without(r"where id > \$1 and id <= \$2", "where id > greatest($1::bigint, 0) and id <= $2"),
        [given(balanced, "a posting is inserted before all")],
    ),
    "the balances held against their lines": (
        patched(ledger_verify, "DERIVED", ()),
        [given(verifying.test_what_follows_from_the_lines_is_held_against_them, name) for name in verifying.DERIVED],
    ),
    "the postings that no seal names": (
        patched(ledger_verify._Walk, "check_posting", lambda walk, posting: walk.expected.pop(posting.id, None)),
        [verifying.test_a_posting_inserted_where_an_id_was_never_used_is_found],
    ),
    "the postings that are gone": (
        patched(ledger_verify._Walk, "check_missing", lambda walk: walk.expected.clear()),
        [given(balanced, "a posting is deleted")],
    ),
    "the rest of a posting that a page cuts": (
        patched(ledger_seals, "LINES_OF_ANY_POSTING", 3),
        [sealing.test_a_posting_of_more_lines_than_a_batch_is_sealed_whole],
    ),
    **{
        f"{name} in the digest": (without_field(name), [given(balanced, tampering)])
        for name, tampering in UNSEALED_FIELDS.items()
    },
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage, PayonceError, asyncpg.UniqueViolationError)


def test_everything_that_is_hashed_is_proven_to_matter() -> None:
    assert set(UNSEALED_FIELDS) == {*ledger_seals.POSTING_FIELDS, *ledger_seals.LINE_FIELDS}


SCHEMA_ABLATIONS: dict[str, tuple[str, Check]] = {
    "the constraints of the chain": (
        """
        alter table payonce.ledger_seals drop constraint ledger_seals_pkey,
            drop constraint ledger_seals_previous_key, drop constraint ledger_seals_hash_key cascade
        """,
        sealing.test_two_who_both_believe_to_lead_cannot_fork_the_chain,
    ),
    "the triggers against rewriting": (
        "drop trigger ledger_seals_append_only on payonce.ledger_seals",
        sealing.test_services_may_append_seals_and_rewrite_none,
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


async def test_without_a_number_before_the_id_the_named_test_fails(stage: OpenStage, scratch: ScratchDatabase) -> None:
    owner = await asyncpg.connect(scratch.owner_url)
    await plant(
        owner, "post", "if (select horizon from payonce.ledger_horizon) > pg_current_xact_id() then", "if false then"
    )
    await owner.close()
    with pytest.raises((AssertionError, asyncpg.RaiseError)):
        await sealing.test_a_posting_has_its_transaction_number_before_its_id(stage)
