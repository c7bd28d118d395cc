"""The job log's partitions follow the due clock: created ahead, dropped by age, and filled from the default one."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import cast

import pytest

from payonce.engine.database.connections import Database
from payonce.engine.database.sessions import LOCK_TIMEOUT_S
from payonce.engine.janitors.prune import KEEP_DAYS_DEFAULT, Prune, add_partitions, drop_partitions
from payonce.engine.messages.model import Ending, Message, Settlement
from payonce.engine.messages.policy import Policy
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage, Stage, eventually
from tests.locks import waits_for_a_lock

POLICY = Policy("q:test:prune", lease_s=30)
NOON = datetime(2030, 3, 1, 12, tzinfo=UTC)


async def partitions(s: Stage) -> list[str]:
    rows = await s.owner.fetch(
        """
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'payonce.job_logs'::regclass and c.relname <> 'job_logs_default' order by 1
        """
    )
    return [row["relname"] for row in rows]


def named(*days: date) -> list[str]:
    return [f"job_logs_{day:%Y%m%d}" for day in days]


async def write_run(s: Stage, count: int = 1) -> None:
    queue = await s.queue(POLICY)
    await s.feed.put([Message(queue=POLICY.queue) for _ in range(count)])
    claims = (await queue.exchange([], count)).claims
    await queue.exchange([Settlement(claim, Ending.SUCCESS) for claim in claims], 0)


async def rows_in(s: Stage, table: str) -> int:
    return int(await s.owner.fetchval(f"select count(*) from payonce.{table}"))


async def test_today_and_two_days_ahead_have_partitions_by_the_due_clock(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(NOON)
        assert await add_partitions(s.database) == 3
        today = NOON.date()
        assert await partitions(s) == named(today, today + timedelta(1), today + timedelta(2))
        assert await add_partitions(s.database) == 0
        await s.clock.advance(86_400)
        assert await add_partitions(s.database) == 1


async def test_rows_that_came_before_their_partition_move_into_it(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(NOON)
        await write_run(s)
        assert await rows_in(s, "job_logs_default") == 1
        await add_partitions(s.database)
        await write_run(s)
        assert await rows_in(s, "job_logs_default") == 0
        assert await rows_in(s, "job_logs_20300301") == 2


async def test_a_row_that_is_being_written_while_its_partition_is_made_moves_too(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(NOON)
        async with s.owner.transaction():
            await s.owner.execute(
                """
                insert into payonce.job_logs (queue, message_id, status, attempts, action, created_at, updated_at)
                values ('q', gen_random_uuid(), 'success', 1, '', payonce.due_now(), payonce.due_now())
                """
            )
            making = asyncio.create_task(
                s.database.engine.execute("select payonce.add_job_log_partition($1)", NOON.date())
            )
            await eventually(lambda: waits_for_a_lock(s))
        await making
        assert await rows_in(s, "job_logs_20300301") == 1


async def test_a_partition_is_made_while_rows_pour_in(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(NOON)
        queue = await s.queue(POLICY)
        await s.feed.put([Message(queue=POLICY.queue) for _ in range(3_000)])
        written = 0

        async def pour() -> None:
            nonlocal written
            while claims := (await queue.exchange([], 10)).claims:
                await queue.exchange([Settlement(claim, Ending.SUCCESS) for claim in claims], 0)
                written += len(claims)

        pouring = [asyncio.create_task(pour()) for _ in range(3)]
        for ahead in range(5):
            await asyncio.sleep(0)
            await s.owner.execute("select payonce.add_job_log_partition($1)", NOON.date() + timedelta(ahead))
        await asyncio.gather(*pouring)
        assert written == 3_000
        assert await rows_in(s, "job_logs") == 3_000
        assert await rows_in(s, "job_logs_default") == 0


async def test_days_older_than_the_keeping_time_are_dropped_whole(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(NOON)
        await write_run(s)
        await add_partitions(s.database)
        await s.clock.advance(KEEP_DAYS_DEFAULT * 86_400)
        assert await drop_partitions(s.database, KEEP_DAYS_DEFAULT) == 0
        assert await rows_in(s, "job_logs") == 1
        await s.clock.advance(86_400)
        assert await drop_partitions(s.database, KEEP_DAYS_DEFAULT) == 1
        assert await rows_in(s, "job_logs") == 0


async def test_the_default_partition_is_pruned_by_age_too(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(NOON)
        await write_run(s)
        await s.clock.advance(3 * 86_400)
        await write_run(s)
        await drop_partitions(s.database, 2)
        assert await rows_in(s, "job_logs_default") == 1


async def test_a_long_reader_of_the_log_holds_the_janitor_up_and_nobody_else(stage: OpenStage) -> None:
    """Settles queue behind a wait to change partitions, so that wait is short; keys are not delayed."""
    async with stage() as s:
        await s.clock.freeze(NOON)
        await s.feed.declare([POLICY])
        [message_id] = await s.feed.put([Message(queue=POLICY.queue, idempotency_key="k")])
        queue = await s.queue(POLICY)
        [claim] = (await queue.exchange([], 1)).claims
        await queue.exchange([Settlement(claim, Ending.SUCCESS)], 0)
        async with s.owner.transaction():
            await s.owner.execute("select from payonce.job_logs")
            # Less than any session waits for a lock by itself.
            async with asyncio.timeout(LOCK_TIMEOUT_S - 1):
                with pytest.raises(Exception, match="lock timeout"):
                    await Prune(s.database).tick()
            assert await s.owner.fetchval("select expires_at is not null from payonce.idempotency_keys")
        await Prune(s.database).tick()
        assert len(await partitions(s)) == 3
        assert await s.owner.fetchval("select message_id from payonce.job_logs") == message_id


async def test_a_tick_does_all_of_it(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(NOON)
        await s.feed.declare([POLICY])
        await s.feed.put([Message(queue=POLICY.queue, idempotency_key="k")])
        queue = await s.queue(POLICY)
        [claim] = (await queue.exchange([], 1)).claims
        await queue.exchange([Settlement(claim, Ending.SUCCESS)], 0)
        prune = Prune(s.database, keep_days=1)
        await prune.tick()
        await s.clock.advance(3 * 86_400)
        await prune.tick()
        assert await rows_in(s, "idempotency_keys") == 0
        assert await rows_in(s, "job_logs") == 0
        assert len(await partitions(s)) == 4, "yesterday is kept, today and two days ahead are made"


@pytest.mark.parametrize("keep_days", [0, -1, 100_000])
def test_a_senseless_keeping_time_is_refused(keep_days: int) -> None:
    with pytest.raises(Invalid, match=f"keep_days is {keep_days}"):
        Prune(cast(Database, None), keep_days)
