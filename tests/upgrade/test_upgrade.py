"""A database of an earlier version is migrated without loss, once, or not at all."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest

from payonce.engine.database.connections import Database
from payonce.engine.database.migrate import Migration, migrate, status
from payonce.engine.messages.model import Message, State
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Filter
from payonce.kit.outcomes import Unavailable
from payonce.testing import ScratchDatabase, ScratchServer, open_stage
from tests.upgrade.released import HEAD, content, make_database_at, missing_rows, released, up_to

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BROKEN = Migration("engine", len(HEAD) + 1, "broken", "create table payonce.half (id integer); select 1 / 0;")
FUTURE = Migration("engine", len(HEAD) + 1, "future", "create table payonce.future (id integer);")


@pytest.fixture
def empty(postgres: ScratchServer) -> Iterator[ScratchDatabase]:
    database = postgres.empty_database()
    yield database
    postgres.drop(database)


async def connected(scratch: ScratchDatabase) -> asyncpg.Connection:
    return await asyncpg.connect(scratch.owner_url)


def test_some_state_was_released() -> None:
    assert released()
    assert max(released()) <= len(HEAD)


@pytest.mark.parametrize("number", released())
async def test_every_row_of_a_released_state_survives(empty: ScratchDatabase, number: int) -> None:
    owner = await connected(empty)
    await make_database_at(owner, number)
    before = await content(owner)
    applied = await migrate(owner, HEAD)
    after = await content(owner)
    await owner.close()
    assert [migration.number for migration in applied] == list(range(number + 1, len(HEAD) + 1))
    assert before["messages"], "an empty database would prove nothing"
    lost = {table: missing_rows(rows, after.get(table, [])) for table, rows in before.items()}
    assert not any(lost.values())
    assert all(len(after[table]) == len(rows) for table, rows in before.items())


@pytest.mark.parametrize("number", released())
async def test_every_message_and_key_of_a_released_state_still_works(empty: ScratchDatabase, number: int) -> None:
    owner = await connected(empty)
    await make_database_at(owner, number)
    await migrate(owner, HEAD)
    await owner.close()
    async with open_stage(empty) as s:
        await s.clock.freeze(NOON)
        pay = await s.queue(Policy("pay"))
        for key, message_id in (("pay:1", 1), ("pay:5", 5), ("pay:settled", 0xF1)):
            assert await s.feed.put([Message(queue="pay", idempotency_key=key)]) == [numbered(message_id)]
        fresh = Message(queue="pay", idempotency_key="pay:over")
        assert await s.feed.put([fresh]) == [fresh.id]
        assert await pay.reap() == 1
        assert await s.admin.redrive("pay", Filter()) == 1
        claims = {claim.message.id: claim for claim in (await pay.exchange([], 100)).claims}
        assert set(claims) == {*map(numbered, (1, 2, 4, 5)), fresh.id}
        assert claims[numbered(1)].message.payload == {"wei": 123456789012345678901234567890}
        assert (claims[numbered(2)].message.attempts, claims[numbered(2)].message.extra) == (2, {"sender": "shop"})
        alone = await pay.claim_alone()
        assert alone is not None
        assert alone.message.id == numbered(3)
        assert [found.message.id for found in await s.admin.peek("held", State.READY, 10)] == [numbered(7)]
        assert (await s.admin.depth("held")).paused


def numbered(number: int) -> UUID:
    return UUID(f"00000000-0000-7000-8000-{number:012x}")


@pytest.mark.parametrize("number", range(len(HEAD) + 1))
async def test_stopping_anywhere_and_going_on_gives_the_same_schema(
    empty: ScratchDatabase, scratch: ScratchDatabase, number: int
) -> None:
    owner = await connected(empty)
    await migrate(owner, up_to(number))
    await migrate(owner, HEAD)
    stepwise = await described(owner)
    await owner.close()
    at_once = await connected(scratch)
    assert stepwise == await described(at_once)
    await at_once.close()


async def described(connection: asyncpg.Connection) -> list[tuple[object, ...]]:
    rows = await connection.fetch(
        """
        select table_name, column_name, data_type, is_nullable, column_default from information_schema.columns
        where table_schema = 'payonce'
        union all select tablename, indexname, indexdef, '', '' from pg_indexes where schemaname = 'payonce'
        union all select table_name, grantee, privilege_type, '', '' from information_schema.table_privileges
        where table_schema = 'payonce'
        order by 1, 2, 3
        """
    )
    return [tuple(row) for row in rows]


async def test_migrating_twice_changes_nothing(empty: ScratchDatabase) -> None:
    owner = await connected(empty)
    assert await migrate(owner, HEAD) == HEAD
    assert await migrate(owner, HEAD) == []
    assert (await status(owner, HEAD)).pending == ()
    await owner.close()


async def test_an_edited_migration_is_refused(empty: ScratchDatabase) -> None:
    owner = await connected(empty)
    await migrate(owner, HEAD)
    edited = [replace(HEAD[0], sql=HEAD[0].sql + "\n-- a harmless remark"), *HEAD[1:]]
    for act in (migrate, status):
        with pytest.raises(Unavailable, match="0001_clocks was changed"):
            await act(owner, edited)
    await owner.close()


async def test_a_newer_database_is_refused(empty: ScratchDatabase) -> None:
    owner = await connected(empty)
    await migrate(owner, [*HEAD, FUTURE])
    for act in (migrate, status):
        with pytest.raises(Unavailable, match=r"future.*upgrade payonce"):
            await act(owner, HEAD)
    await owner.close()
    async with Database.open(empty.service_url) as database:
        with pytest.raises(Unavailable, match="upgrade payonce"):
            await database.check(HEAD)


async def test_services_refuse_a_database_that_lacks_migrations(empty: ScratchDatabase) -> None:
    owner = await connected(empty)
    await migrate(owner, up_to(2))
    await owner.close()
    async with Database.open(empty.service_url) as database:
        with pytest.raises(Unavailable, match=r"lacks .* migrations, first engine 0003_job_logs"):
            await database.check(HEAD)


async def test_migrators_at_once_apply_each_migration_once(empty: ScratchDatabase) -> None:
    owners = [await connected(empty) for _ in range(4)]
    applied = await asyncio.gather(*(migrate(owner, HEAD) for owner in owners))
    assert sorted(len(each) for each in applied) == [0, 0, 0, len(HEAD)]
    for owner in owners:
        await owner.close()


async def test_a_failing_migration_leaves_nothing_half_written(empty: ScratchDatabase) -> None:
    owner = await connected(empty)
    await make_database_at(owner, max(released()))
    before = (await content(owner), await described(owner))
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(owner, [*HEAD, replace(FUTURE, number=len(HEAD) + 1), replace(BROKEN, number=len(HEAD) + 2)])
    assert (await content(owner), await described(owner)) == before
    assert await owner.fetchval("select to_regclass('payonce.future') is null and to_regclass('payonce.half') is null")
    await owner.close()


async def test_a_failed_first_migration_can_be_tried_again(empty: ScratchDatabase) -> None:
    owner = await connected(empty)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(owner, [*HEAD, BROKEN])
    assert await migrate(owner, HEAD) == HEAD
    await owner.close()


async def test_services_may_not_migrate(scratch: ScratchDatabase) -> None:
    service = await asyncpg.connect(scratch.service_url)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await migrate(service, [*HEAD, FUTURE])
    await service.close()


async def test_services_refuse_to_run_as_owner(scratch: ScratchDatabase) -> None:
    async with Database.open(scratch.owner_url) as database:
        with pytest.raises(Unavailable, match="superuser or owns"):
            await database.check(HEAD)
