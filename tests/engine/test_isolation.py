"""A handler behaves the same whatever runs beside it: every run has a transaction of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from payonce.engine.database import pools
from payonce.engine.effects import Blind
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.transaction import begin
from payonce.engine.messages.work import Handler, Work, handles
from payonce.kit.outcomes import Unavailable
from payonce.testing import OpenStage, Stage, eventually
from tests.engine.effects_stage import Pay, Vendor

MOVE = Policy("move", max_attempts=None, backoff=Fixed(0), log="all")
RUNS = 40
POOL_SIZE = 10


@asynccontextmanager
async def working(s: Stage, handler: Handler, runs: int = RUNS) -> AsyncIterator[None]:
    worker = await s.worker(handler)
    await s.feed.put([Message(queue=MOVE.queue, payload={"number": number}) for number in range(runs)])
    running = asyncio.create_task(worker.run())
    try:
        yield
        await eventually(s.drained, 60.0, "every message is settled")
    finally:
        await worker.stop(5)
        await running


async def accounts(s: Stage, balance: int) -> None:
    await s.owner.execute(
        f"""
        create table accounts (name text primary key, balance int not null);
        create table notes (number int primary key);
        insert into accounts values ('a', {balance}), ('b', 0);
        grant all on accounts, notes to payonce_service
        """
    )


async def balances(s: Stage) -> dict[str, int]:
    return {row["name"]: row["balance"] for row in await s.owner.fetch("select name, balance from accounts")}


async def test_a_handler_that_catches_everything_around_its_commit_loses_nothing(stage: OpenStage) -> None:
    """The engine raises no errors of its own inside a commit that the handler would have to let pass."""

    @handles(MOVE)
    async def catch_all(work: Work) -> None:
        with suppress(Exception):
            async with work.commit() as tx:
                await tx.execute("insert into notes values ($1)", work.message.payload["number"])

    async with stage() as s:
        await accounts(s, 0)
        async with working(s, catch_all):
            pass
        assert await s.owner.fetchval("select count(*) from notes") == RUNS


async def test_a_handler_that_swallows_a_failed_commit_is_run_again(stage: OpenStage) -> None:
    """Nothing is acknowledged with nothing written: here the session is lost inside the first commit of each."""

    @handles(MOVE)
    async def swallow(work: Work) -> None:
        with suppress(Exception):
            async with work.commit() as tx:
                await tx.execute("insert into notes values ($1)", work.message.payload["number"])
                if not work.message.attempts:
                    tx.connection.terminate()

    async with stage() as s:
        await accounts(s, 0)
        async with working(s, swallow, runs=5):
            pass
        assert await s.owner.fetchval("select count(*) from notes") == 5
        errors = await s.owner.fetch("select distinct last_error from payonce.job_logs where status = 'retry'")
        assert ["the handler returned although its commit() failed" in row["last_error"] for row in errors] == [True]


ENDS = ["commit", "COMMIT AND CHAIN", "\n  end;", "rollback work", "abort", "begin", "start transaction"]


async def test_statements_that_end_the_transaction_are_refused_and_not_sent(stage: OpenStage) -> None:
    async with stage() as s:
        await accounts(s, 0)
        async with begin(s.database, s.feed) as tx:
            await tx.execute("insert into notes values (1)")
            for sql in ENDS:
                for call in (tx.execute, tx.fetch, tx.fetchrow, tx.fetchval):
                    with pytest.raises(RuntimeError, match="leave BEGIN, COMMIT and ROLLBACK to the engine"):
                        await call(sql)
            await tx.execute("insert into notes values (2)")
        assert await s.owner.fetchval("select count(*) from notes") == 2


async def test_a_handlers_own_commit_acknowledges_nothing(stage: OpenStage) -> None:
    @handles(MOVE)
    async def commit_early(work: Work) -> None:
        async with work.commit() as tx:
            await tx.execute("insert into notes values (1)")
            if not work.message.attempts:
                await tx.execute("commit")

    async with stage() as s:
        await accounts(s, 0)
        async with working(s, commit_early, runs=1):
            pass
        errors = await s.owner.fetch("select last_error from payonce.job_logs where status = 'retry'")
        assert ["leave BEGIN, COMMIT and ROLLBACK to the engine" in row["last_error"] for row in errors] == [True]
        assert await s.owner.fetchval("select count(*) from notes") == 1


async def test_savepoints_are_no_end_of_the_transaction(stage: OpenStage) -> None:
    async with stage() as s:
        await accounts(s, 0)
        async with begin(s.database, s.feed) as tx:
            await tx.execute("insert into notes values (1)")
            for back in ("rollback to before", "ROLLBACK TO SAVEPOINT before", "rollback work to before"):
                await tx.execute("savepoint before")
                await tx.execute("insert into notes values (2)")
                await tx.execute(back)
                await tx.execute("release before")
        assert await s.owner.fetchval("select count(*) from notes") == 1


async def test_a_statement_of_the_connection_that_ends_the_transaction_is_an_error(stage: OpenStage) -> None:
    async with stage() as s:
        await accounts(s, 0)

        async def roll_back() -> None:
            async with begin(s.database, s.feed) as tx:
                await tx.execute("insert into notes values (1)")
                await tx.connection.execute("rollback")

        with pytest.raises(RuntimeError, match="leave BEGIN, COMMIT and ROLLBACK to the engine"):
            await roll_back()
        assert await s.owner.fetchval("select count(*) from notes") == 0


async def test_a_task_that_outlives_its_transaction_reads_by_itself(stage: OpenStage) -> None:
    ended = asyncio.Event()
    async with stage() as s:

        async def read_later() -> int:
            await ended.wait()
            found: int = await s.read.fetchval("select 7")
            return found

        async with begin(s.database, s.feed):
            reading = asyncio.create_task(read_later())
        ended.set()
        assert await reading == 7


async def test_transfers_that_run_at_once_end_as_one_after_the_other(stage: OpenStage) -> None:
    """No update is lost, no balance falls below zero, nobody reads uncommitted data."""
    seen: list[int] = []

    @handles(MOVE)
    async def move(work: Work) -> None:
        async with work.commit() as tx:
            balance = await tx.fetchval("select balance from accounts where name = 'a' for update")
            seen.append(balance)
            if balance < 10:
                return
            await tx.execute("update accounts set balance = $1 where name = 'a'", balance - 10)
            await tx.execute("update accounts set balance = balance + 10 where name = 'b'")

    async with stage() as s:
        await accounts(s, 10 * RUNS - 100)
        async with working(s, move):
            pass
        assert await balances(s) == {"a": 0, "b": 10 * RUNS - 100}
    assert sorted(set(seen)) == list(range(0, 10 * RUNS - 90, 10)), "each balance that was ever committed, and no other"


async def test_one_slow_run_holds_up_no_other(stage: OpenStage) -> None:
    go_on = asyncio.Event()

    @handles(MOVE)
    async def some_are_slow(work: Work) -> None:
        async with work.commit() as tx:
            await tx.execute("insert into notes values ($1)", work.message.payload["number"])
            if work.message.payload["number"] == 0:
                await go_on.wait()

    async with stage() as s:
        await accounts(s, 0)

        async def all_but_one() -> bool:
            return bool(await s.owner.fetchval("select count(*) = $1 from notes", RUNS - 1))

        async with working(s, some_are_slow):
            await eventually(all_but_one, 30.0, "all but the slow one are written")
            go_on.set()


async def test_a_statement_tells_what_it_did_and_a_row_has_its_own_columns(stage: OpenStage) -> None:
    answers: list[object] = []

    @handles(MOVE)
    async def look(work: Work) -> None:
        async with work.commit() as tx:
            answers.append(await tx.execute("insert into notes values ($1)", work.message.payload["number"]))
            answers.append(list((await tx.fetchrow("select * from notes limit 1")).keys()))

    async with stage() as s:
        await accounts(s, 0)
        async with working(s, look):
            pass
    assert answers.count("INSERT 0 1") == RUNS
    assert answers.count(["number"]) == RUNS


async def test_reads_inside_a_commit_use_its_connection(stage: OpenStage) -> None:
    """With a connection each, as many runs as the pool has connections would wait for each other for ever."""
    together = asyncio.Barrier(POOL_SIZE)

    @handles(MOVE)
    async def read_inside(work: Work) -> None:
        number = work.message.payload["number"]
        async with work.commit() as tx:
            await tx.execute("insert into notes values ($1)", number)
            await together.wait()
            assert await work.read.fetchval("select number from notes where number = $1", number) == number

    async with stage() as s:
        assert s.database.handlers.get_max_size() == POOL_SIZE
        await accounts(s, 0)
        async with working(s, read_inside):
            pass
        assert await s.owner.fetchval("select count(*) from notes") == RUNS


async def test_reads_inside_a_request_use_its_connection_too(stage: OpenStage) -> None:
    async with stage() as s:
        await accounts(s, 0)

        async def request(number: int) -> int:
            async with begin(s.database, s.feed) as tx:
                await tx.execute("insert into notes values ($1)", number)
                found: int = await s.read.fetchval("select number from notes where number = $1", number)
                return found

        assert await asyncio.gather(*map(request, range(RUNS))) == list(range(RUNS))
        assert await s.read.fetchval("select count(*) from notes") == RUNS


async def test_two_reads_at_once_inside_one_commit_fail_at_once(stage: OpenStage) -> None:
    async with stage() as s:
        with pytest.raises(RuntimeError, match="two concurrent reads inside one transaction"):
            async with begin(s.database, s.feed):
                await asyncio.gather(*(s.read.fetchval("select pg_sleep(0.1)") for _ in range(2)))


async def test_nobody_waits_for_a_connection_for_ever(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "ACQUIRE_LIMIT_S", 0.2)
    async with stage() as s:
        held = [await s.database.work.acquire() for _ in range(s.database.work.get_max_size())]
        with pytest.raises(Unavailable, match="all 10 of the pool work are in use"):
            await s.read.fetchval("select 1")
        for connection in held:
            await s.database.work.release(connection)
        assert await s.read.fetchval("select 1") == 1


@pytest.mark.parametrize("inside", ["commit", "begin", "intent"])
async def test_an_effect_inside_a_transaction_is_refused(stage: OpenStage, inside: str) -> None:
    vendor = Vendor()
    errors: list[str] = []

    async def pay(work: Work) -> None:
        try:
            await work.effect(Pay(vendor, Blind()), key="p-2")
        except RuntimeError as error:
            errors.append(str(error))

    async with stage() as s:

        @handles(MOVE)
        async def pay_inside(work: Work) -> None:
            if inside == "intent":
                await work.effect(Pay(vendor, Blind()), key="p-1", intent=lambda tx: pay(work))
                return
            async with work.commit() if inside == "commit" else begin(s.database, s.feed):
                await pay(work)

        async with working(s, pay_inside, runs=1):
            pass
    assert len(errors) == 1
    assert "a vendor is never called inside one" in errors[0]
    assert [order.reference for order in vendor.calls] == (["p-1:1"] if inside == "intent" else [])
