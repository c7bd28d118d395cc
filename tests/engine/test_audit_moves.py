"""A real backup of a sealed log, restored into a real server that has counted fewer transactions."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from payonce.embedded import backup, restore
from payonce.engine.migrate import known_migrations
from payonce.testing import ScratchDatabase, ScratchServer, Servers, open_stage
from tests.engine.audit_notes import covered, head_of, leading, noted, sealed, verified

XACTS_BURNT = 20_000
"""More than the younger server counts while this test runs."""


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
        anchored = await head_of(s)
    await asyncio.to_thread(backup, scratch.owner_url, tmp_path / "dump")
    target = younger.empty_database()
    await asyncio.to_thread(restore, target.owner_url, tmp_path / "dump")
    assert await next_xact(target) + XACTS_BURNT / 2 < await next_xact(scratch)
    async with open_stage(target) as s:
        before = await verified(s, anchored)
        # The second is the restore's own, which put the database into quarantine.
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
