"""A real backup of a sealed log and ledger, restored into a real server with a smaller transaction counter."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from payonce.embedded import backup, restore
from payonce.engine.audit import Head, ledger_head
from payonce.engine.database.migrate import known_migrations
from payonce.engine.messages.model import Lease
from payonce.testing import ScratchDatabase, ScratchServer, Servers, Stage, open_stage
from tests.engine.audit_notes import covered, head_of, leading, noted, sealed, verified
from tests.engine.ledger_books import posted, transfer
from tests.engine.ledger_chain import ledger_sealed, verified_ledger

XACTS_BURNT = 20_000
"""More transactions than the younger server runs during this test."""


@pytest.fixture
def younger() -> Iterator[ScratchServer]:
    servers = Servers(known_migrations(()))
    yield servers.of()
    servers.close()


async def burn_transactions(scratch: ScratchDatabase) -> None:
    superuser = await asyncpg.connect(scratch.superuser_url)
    try:
        await superuser.execute(
            f"""
            do $$ begin
                for n in 1..{XACTS_BURNT} loop perform pg_current_xact_id(); commit; end loop;
            end $$
            """
        )
    finally:
        await superuser.close()


async def next_xact(scratch: ScratchDatabase) -> int:
    owner = await asyncpg.connect(scratch.owner_url)
    try:
        return int(await owner.fetchval("select pg_snapshot_xmax(pg_current_snapshot())::text"))
    finally:
        await owner.close()


async def test_a_backup_restored_into_a_younger_server_is_verified_and_sealed_on(
    scratch: ScratchDatabase, younger: ScratchServer, tmp_path: Path
) -> None:
    await burn_transactions(scratch)
    async with open_stage(scratch) as s:
        lease = await leading(s)
        await noted(s, "sealed there")
        await sealed(s, lease, 1)
        await noted(s, "not sealed yet")
        await posted(s, transfer("sealed there", 10))
        await ledger_sealed(s, lease, 1)
        await posted(s, transfer("not sealed yet", 10))
        anchored, ledger_anchored = await head_of(s), await ledger_head(s.database.engine)
    await asyncio.to_thread(backup, scratch.owner_url, tmp_path / "dump")
    target = younger.empty_database()
    await asyncio.to_thread(restore, target.owner_url, tmp_path / "dump")
    assert await next_xact(target) + XACTS_BURNT / 2 < await next_xact(scratch)
    async with open_stage(target) as s:
        before = await verified(s, anchored)
        # The second note is the restore's own, which put the database into quarantine.
        assert (before.ok, before.notes, before.unsealed) == (True, 1, 2), before.findings
        await s.owner.execute("update payonce.leases set expires_at = '-infinity'")
        lease = await leading(s, "next")
        await noted(s, "written here")
        await sealed(s, lease, 3)
        await noted(s, "and later")
        await sealed(s, lease, 1)
        assert {text for _, text in await covered(s)} > {"sealed there", "not sealed yet", "written here", "and later"}
        after = await verified(s, anchored)
        assert (after.ok, after.notes, after.unsealed) == (True, 5, 0), after.findings
        await check_ledger(s, lease, ledger_anchored)


async def check_ledger(s: Stage, lease: Lease, anchored: Head) -> None:
    """Recorded transactions belong to the previous server; the hashes of the seals do not depend on them."""
    assert await s.owner.fetchval("select bool_and(xact = '1') from payonce.posting_lines"), "the restore rebased"
    before = await verified_ledger(s, anchored)
    assert (before.ok, before.postings, before.unsealed) == (True, 1, 1), before.findings
    await posted(s, transfer("written here", 10))
    await ledger_sealed(s, lease, 2)
    after = await verified_ledger(s, anchored)
    assert (after.ok, after.postings, after.unsealed) == (True, 3, 0), after.findings


async def test_an_older_backup_says_which_ledger_seals_are_missing(scratch: ScratchDatabase, tmp_path: Path) -> None:
    async with open_stage(scratch) as s:
        lease = await leading(s)
        await posted(s, transfer("in the backup", 10))
        await ledger_sealed(s, lease, 1)
        await asyncio.to_thread(backup, scratch.owner_url, tmp_path / "dump")
        await posted(s, transfer("after the backup", 10))
        await ledger_sealed(s, lease, 1)
        lost = await ledger_head(s.database.engine)
        await s.owner.execute("drop schema payonce cascade")
    await asyncio.to_thread(restore, scratch.owner_url, tmp_path / "dump")
    async with open_stage(scratch) as s:
        assert (await verified_ledger(s)).ok
        missing = (await verified_ledger(s, lost)).findings
        assert [finding.text for finding in missing] == [
            "ledger seal 2 existed when its head was stored elsewhere, but the chain now ends with ledger seal 1"
        ]
        await s.owner.execute("update payonce.leases set expires_at = '-infinity'")
        await posted(s, transfer("instead of it", 10))
        await ledger_sealed(s, await leading(s, "next"), 1)
        assert [finding.kind for finding in (await verified_ledger(s, lost)).findings] == ["rewritten history"]
