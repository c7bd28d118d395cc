"""A log sealed by an earlier version is verified and sealed further by this one, also on another server."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from payonce.engine.database.migrate import migrate
from payonce.testing import ScratchDatabase, ScratchServer, open_stage
from tests.engine.audit_notes import head_of, leading, sealed, verified
from tests.upgrade.released import DATA, HEAD, make_database_at, released
from tests.upgrade.test_upgrade import connected

SEALED = [number for number in released() if "audit_seals" in (DATA / f"engine_{number:04}.sql").read_text()]
FIRST_SEALED = min(SEALED)
LAST_HEAD = "2:fff8d5110285b2bc4c0f468c7f2707450351e66d0ad5d1113b9ef11741fb9a24"


@pytest.fixture
def empty(postgres: ScratchServer) -> Iterator[ScratchDatabase]:
    database = postgres.empty_database()
    yield database
    postgres.drop(database)


@pytest.mark.parametrize("number", [number for number in released() if number >= FIRST_SEALED])
async def test_a_log_sealed_by_an_earlier_version_is_verified_and_sealed_on(
    empty: ScratchDatabase, number: int
) -> None:
    owner = await connected(empty)
    await make_database_at(owner, number)
    await migrate(owner, HEAD)
    await owner.close()
    async with open_stage(empty) as s:
        before = await verified(s)
        assert (before.ok, before.notes, before.unsealed) == (True, 3, 3), before.findings
        assert before.oldest_unsealed_at == datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)
        anchored = await head_of(s)
        assert str(anchored) == LAST_HEAD
        await sealed(s, await leading(s), 3)
        after = await verified(s, anchored)
        assert (after.ok, after.notes, after.unsealed) == (True, 6, 0), after.findings
