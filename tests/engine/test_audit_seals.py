"""Sealing: in the order of transactions, each note once, whichever commits late, whoever is the leader, wherever it was
written."""

import asyncio

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as some

from payonce.engine.audit import note, seal_notes
from payonce.engine.audit.seals import NOTE_FIELDS, encoded
from payonce.engine.database.leases import release
from payonce.kit.outcomes import Invalid, Stale
from payonce.testing import OpenStage, Stage, eventually
from tests.engine.audit_notes import (
    ELSEWHERE_XACT,
    all_final,
    covered,
    head_of,
    kinds,
    leading,
    noted,
    on_an_older_server,
    sealed,
    verified,
)
from tests.engine.ledger_books import unprotected


async def test_notes_are_sealed_in_batches_one_seal_after_the_other(stage: OpenStage) -> None:
    async with stage() as s:
        await noted(s, "a", "b", "c", "d", "e")
        await sealed(s, await leading(s), 5, batch_notes=2)
        found = await covered(s)
        assert [text for _, text in found] == ["a", "b", "c", "d", "e"]
        assert max([seal for seal, _ in found].count(number) for number, _ in found) <= 2
        now = await verified(s)
        assert (now.ok, now.notes, now.unsealed, now.head.number) == (True, 5, 0, found[-1][0])


async def test_sealing_nothing_writes_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await leading(s)
        await noted(s, "a")
        await sealed(s, lease, 1)
        before = await head_of(s)
        assert await seal_notes(s.database, lease) == 0
        assert await head_of(s) == before


async def test_a_transaction_that_is_open_while_a_seal_is_made_is_in_the_next_one_once(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await leading(s)
        await noted(s, "before")
        # Not the stage's own transaction, which the reads below must not see.
        async with s.database.work.acquire() as late, late.transaction():
            await note(late, "test", "reference", "late", actor="tester")
            # With a higher id than the late note.
            await noted(s, "after")
            await sealed(s, lease, 1)
            assert await covered(s) == [(1, "before")]
            assert (await verified(s)).unsealed == 1
        await sealed(s, lease, 2)
        assert [text for _, text in await covered(s)] == ["before", "late", "after"]
        assert (await verified(s)).ok


async def test_a_transaction_of_more_notes_than_a_seal_takes_is_sealed_whole(stage: OpenStage) -> None:
    async with stage() as s:
        async with s.database.transaction() as connection:
            for number in range(7):
                await note(connection, "test", "reference", str(number), actor="tester")
        await sealed(s, await leading(s), 7, batch_notes=3)
        assert [text for _, text in await covered(s)] == list("0123456")
        assert (await verified(s)).ok


async def test_a_leader_whose_lease_passed_on_seals_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        stale = await leading(s, "stale")
        await noted(s, "a")
        await release(s.database, stale)
        lease = await leading(s, "next")
        with pytest.raises(Stale):
            await seal_notes(s.database, stale)
        assert await covered(s) == []
        await sealed(s, lease, 1)


async def test_two_who_both_believe_to_lead_cannot_fork_the_chain(stage: OpenStage) -> None:
    """Both pass the fence and read the same end of the chain: the second finds its position taken."""
    async with stage() as s, stage() as other:
        lease = await leading(s)
        await noted(s, "a")
        await sealed(s, lease, 1)
        await noted(s, "b")
        await eventually(lambda: all_final(s))
        async with s.owner.transaction():
            # No seal can be finished before both have begun.
            await s.owner.execute("lock table payonce.audit_sealed in share row exclusive mode")
            both = [asyncio.create_task(seal_notes(each.database, lease)) for each in (s, other)]
            await eventually(lambda: waiting(other, 2), what="both having looked")
        ended = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(each).__name__ for each in ended) == ["Stale", "int"], ended
        assert [text for _, text in await covered(s)] == ["a", "b"]
        assert (await verified(s)).ok


async def waiting(s: Stage, count: int) -> bool:
    """Whether this many sessions wait for a lock."""
    found: int = await s.owner.fetchval("select count(distinct pid) from pg_locks where not granted")
    return found >= count


async def test_services_may_append_notes_and_seals_and_rewrite_neither(stage: OpenStage) -> None:
    async with stage() as s:
        await noted(s, "a")
        await sealed(s, await leading(s), 1)
        for table, column in (("audit_log", "text"), ("audit_seals", "server"), ("audit_sealed", "digest")):
            for statement in (
                f"update payonce.{table} set {column} = {column}",
                f"delete from payonce.{table}",
                f"truncate payonce.{table} cascade",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await s.database.work.execute(statement)
                # The owner of the tables has to remove the trigger first.
                with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
                    await s.owner.execute(statement)


@pytest.mark.parametrize("column", ["id", "xact", "created_at"])
async def test_who_writes_a_note_chooses_neither_its_place_nor_its_time(stage: OpenStage, column: str) -> None:
    """A note that claims an old transaction would be below the horizon and never be sealed."""
    value = {"id": "17", "xact": "'3'", "created_at": "'epoch'"}[column]
    async with stage() as s:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await s.database.work.execute(
                f"""
                insert into payonce.audit_log ({column}, severity, location, reference, text, actor)
                overriding system value values ({value}, 'INFO', 'test', 'r', 't', 'a')
                """
            )


async def test_every_column_of_the_log_is_hashed(stage: OpenStage) -> None:
    async with stage() as s:
        columns = await s.owner.fetch(
            """
            select attname from pg_attribute
            where attrelid = 'payonce.audit_log'::regclass and attnum > 0 and not attisdropped
            """
        )
    assert {row["attname"] for row in columns} == set(NOTE_FIELDS)


@given(some.lists(some.text(max_size=3), max_size=4), some.lists(some.text(max_size=3), max_size=4))
def test_no_two_lists_of_fields_are_encoded_alike(one: list[str], other: list[str]) -> None:
    assert (encoded(*one) == encoded(*other)) == (one == other)


async def written_elsewhere(s: Stage, *texts: str, first_xact: int = ELSEWHERE_XACT) -> None:
    """Notes from a dump of a server with a much higher transaction counter."""
    async with unprotected(s.scratch) as superuser:
        for number, text in enumerate(texts):
            await superuser.execute(
                """
                insert into payonce.audit_log (xact, severity, location, reference, text, actor)
                values ($1::text::xid8, 'INFO', 'test', 'reference', $2, 'tester')
                """,
                str(first_xact + number),
                text,
            )


async def test_a_log_restored_into_a_younger_server_is_sealed_on_and_verified(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await leading(s)
        await written_elsewhere(s, "sealed there", "and this")
        with on_an_older_server():
            assert await seal_notes(s.database, lease) == 2
            assert (await verified(s)).ok
        anchored = await head_of(s)
        # Unsealed in the dump: above every transaction of this server, and below.
        await written_elsewhere(s, "dumped unsealed", first_xact=ELSEWHERE_XACT + 500)
        await written_elsewhere(s, "of an old time", first_xact=3)
        before = await verified(s, anchored)
        assert (before.ok, before.unsealed) == (True, 2)
        await noted(s, "written here")
        await sealed(s, lease, 3)
        texts = [text for _, text in await covered(s)]
        assert sorted(texts) == sorted(
            ["sealed there", "and this", "dumped unsealed", "of an old time", "written here"]
        )
        after = await verified(s, anchored)
        assert (after.ok, after.unsealed) == (True, 0)
        await noted(s, "and later")
        await sealed(s, lease, 1)
        assert await kinds(s, anchored) == set()


async def test_a_move_is_sealed_in_batches_and_recorded_even_without_a_note(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await leading(s)
        await written_elsewhere(s, "a", "b", "c", "d", "e")
        await sealed(s, lease, 5, batch_notes=2)
        with on_an_older_server():
            assert await seal_notes(s.database, lease) == 0
            moved = await head_of(s)
            assert await seal_notes(s.database, lease) == 0
            assert await head_of(s) == moved, "the move is on record once"
        assert [text for _, text in await covered(s)] == list("abcde")
        assert await seal_notes(s.database, lease) == 0
        assert (await head_of(s)).number == moved.number + 1
        assert (await verified(s)).ok


async def test_a_batch_of_nothing_is_refused(stage: OpenStage) -> None:
    async with stage() as s:
        with pytest.raises(Invalid, match="batch_notes is 0"):
            await seal_notes(s.database, await leading(s), batch_notes=0)
