"""A ledger from before seals is sealed from its first line, in bounded steps; one sealed by an earlier version is
verified and sealed further."""

from collections.abc import Iterator

import asyncpg
import pytest

from payonce.engine.audit import LedgerSealer
from payonce.engine.database.migrate import migrate
from payonce.testing import ScratchDatabase, ScratchServer, eventually, open_stage
from tests.engine.audit_notes import leading
from tests.engine.ledger_chain import kinds_found, ledger_sealed, named, tamper, verified_ledger
from tests.upgrade.released import DATA, HEAD, make_database_at, released
from tests.upgrade.test_upgrade import connected

BOOKS_BEGIN = 5
FIRST_SEALED = min(number for number in released() if "ledger_seals" in (DATA / f"engine_{number:04}.sql").read_text())
LAST_HEAD = "1:622b8f48d06ca61b93b6d3ffc92c2c3821c2671d991e3da5a5039705d2d4dbcb"
MANY = 5_000


@pytest.fixture
def empty(postgres: ScratchServer) -> Iterator[ScratchDatabase]:
    database = postgres.empty_database()
    yield database
    postgres.drop(database)


@pytest.mark.parametrize("number", [number for number in released() if BOOKS_BEGIN <= number < FIRST_SEALED])
async def test_a_ledger_from_before_is_sealed_from_its_first_posting(empty: ScratchDatabase, number: int) -> None:
    owner = await connected(empty)
    await make_database_at(owner, number)
    await migrate(owner, HEAD)
    await owner.close()
    async with open_stage(empty) as s:
        before = await verified_ledger(s)
        assert (before.ok, before.postings, before.head.number) == (True, 0, 0), before.findings
        assert before.unsealed >= 2
        await ledger_sealed(s, await leading(s), before.unsealed)
        assert (await named(s))[0][:2] == [1, 2]
        after = await verified_ledger(s)
        assert (after.ok, after.unsealed) == (True, 0), after.findings
        await tamper(s, "update payonce.posting_lines set minor = minor * 3 where posting_id = 1")
        assert "changed posting" in await kinds_found(s)


@pytest.mark.parametrize("number", [number for number in released() if number >= FIRST_SEALED])
async def test_a_ledger_sealed_by_an_earlier_version_is_verified_and_sealed_on(
    empty: ScratchDatabase, number: int
) -> None:
    owner = await connected(empty)
    await make_database_at(owner, number)
    await migrate(owner, HEAD)
    await owner.close()
    async with open_stage(empty) as s:
        before = await verified_ledger(s)
        assert (before.ok, before.postings, str(before.head)) == (True, 1, LAST_HEAD), before.findings
        assert before.unsealed >= 1
        await ledger_sealed(s, await leading(s), before.unsealed)
        after = await verified_ledger(s, before.head)
        assert (after.ok, after.unsealed) == (True, 0), after.findings


async def test_a_large_ledger_is_sealed_in_bounded_steps_beside_postings_of_the_version_before(
    empty: ScratchDatabase,
) -> None:
    owner = await connected(empty)
    await make_database_at(owner, FIRST_SEALED - 2)
    old = await asyncpg.connect(empty.service_url)
    before = await old.prepare(
        """
        select payonce.post($1, 'payout', 'order-2', null, '', array['payouts/clients', 'payouts/host_wallet'],
            array['ETH', 'ETH'], array[18, 18]::smallint[], array[-5, 5])
        """
    )
    for number in range(MANY):
        await before.fetchval(f"old:{number}")
    await migrate(owner, HEAD)
    await owner.close()
    async with open_stage(empty) as s:
        lease, sealer = await leading(s), LedgerSealer(s.database, batches_max=2)
        left: list[int] = []
        total = (await verified_ledger(s)).unsealed

        async def all_sealed() -> bool:
            await before.fetchval(f"while it is sealed:{len(left)}")
            sealed = await sealer.seal(lease)
            left.append(sealer.unsealed_ids)
            assert sealed <= 2 * 2 * sealer.batch_lines / 2
            return sealer.unsealed_ids == 0

        await eventually(all_sealed, within_s=60)
        assert len(left) >= 3, "one call does not do it all"
        assert left == sorted(left, reverse=True)
        found = await verified_ledger(s)
        assert (found.ok, found.postings) == (True, total + len(left)), found.findings
    await old.close()
