"""Runs of a worker in company: whatever one of them comes to, each ends as its own message demands."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from payonce.engine import metrics
from payonce.engine.company import sharing
from payonce.engine.company.sharing import Member
from payonce.engine.database import Database, PlainConnection
from payonce.engine.effects import Blind, Findable
from payonce.engine.model import Message, State
from payonce.engine.policy import Fixed, Policy
from payonce.engine.process import Worker
from payonce.engine.work import Function, Work, handles
from payonce.kit.outcomes import Invalid, Refused, Retry
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage, Stage, eventually
from tests.engine.company.company_stage import counted, end_session, notes, session_of
from tests.engine.effects_stage import Pay, Vendor

DO = Policy("company-do", max_attempts=1, lease_s=60)
NEXT = Policy("company-next")
RUNS = 6


@asynccontextmanager
async def open_runs(stage: OpenStage) -> AsyncIterator[Stage]:
    async with stage() as s:
        await s.owner.execute(
            """
            create table rows (id integer primary key, n integer not null default 0);
            create table notes (id integer generated always as identity primary key, note text not null);
            grant all on rows, notes to payonce_service;
            """
        )
        await s.feed.declare([DO, NEXT])
        yield s


@asynccontextmanager
async def working(s: Stage, function: Function, policy: Policy = DO, database: Database | None = None) -> Any:
    """What is there when it begins is claimed at once, and runs in company from its first statement."""
    database = database or s.database
    await s.feed.declare([policy])
    open_queue = PostgresQueue(database, s.bell, policy, "worker-1")
    worker = Worker([handles(policy, in_company=True)(function)], database, s.feed, lambda _: open_queue)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        await worker.stop(grace_s=5)
        await asyncio.wait_for(running, 60)


async def put(s: Stage, *which: Any, policy: Policy = DO) -> None:
    await s.feed.put([Message(queue=policy.queue, payload={"number": number}) for number in which])


async def nothing_runs(s: Stage, policy: Policy = DO) -> None:
    async def none() -> bool:
        return not await s.owner.fetchval(
            "select exists (select from payonce.messages where queue = $1 and state in ('ready', 'leased'))",
            policy.queue,
        )

    await eventually(none, what="nothing is left to run")


async def statuses(s: Stage) -> Counter[str]:
    rows = await s.owner.fetch("select status from payonce.job_logs where queue = $1", DO.queue)
    return Counter(row["status"] for row in rows)


async def sent(s: Stage) -> list[int]:
    rows = await s.owner.fetch(
        "select (payload::json->>'number')::int as n from payonce.messages where queue = $1 order by 1", NEXT.queue
    )
    return [row["n"] for row in rows]


def number_of(work: Work) -> Any:
    return work.message.payload["number"]


async def write(work: Work) -> None:
    async with work.commit() as tx:
        await tx.execute("insert into notes (note) values ($1)", str(number_of(work)))
        await tx.send(NEXT, {"number": number_of(work)}, key=f"next:{number_of(work)}")


def settles(ending: str) -> float:
    return float(metrics.SETTLES.labels(DO.queue, ending)._value.get())


async def test_each_has_its_row_its_message_its_line_and_its_count(stage: OpenStage) -> None:
    async with open_runs(stage) as s:
        await put(s, *range(RUNS))
        ended_before, rung = settles("success"), asyncio.Event()
        s.bell.subscribe(NEXT.queue, rung)
        with counted() as count:
            async with working(s, write):
                await nothing_runs(s)
        assert (count.committed, count.parted) == (1, 0)
        assert await notes(s) == [str(number) for number in range(RUNS)]
        assert await sent(s) == list(range(RUNS))
        assert await statuses(s) == {"success": RUNS}
        assert settles("success") - ended_before == RUNS
        await eventually(rung.is_set, what="those who wait for the next step are woken")


async def test_one_that_fails_leaves_the_others_done_once_and_is_done_again_alone(stage: OpenStage) -> None:
    errors = [Retry("later"), Refused("no"), Invalid("what"), RuntimeError("oh"), None]
    calls: Counter[int] = Counter()
    tokens: dict[int, set[int]] = {}

    async def fails(work: Work) -> None:
        number = number_of(work)
        calls[number] += 1
        tokens.setdefault(number, set()).add(work._claim.token)
        async with work.commit() as tx:
            await tx.execute("insert into notes (note) values ($1)", str(number))
            await tx.send(NEXT, {"number": number})
            if number < len(errors) and (error := errors[number]) is not None:
                raise error

    async with open_runs(stage) as s:
        await put(s, *range(RUNS))
        async with working(s, fails):
            await nothing_runs(s)
        assert await notes(s) == ["4", "5"]
        assert await sent(s) == [4, 5]
        assert await statuses(s) == {"success": 2, "parked": 4}
        parked = [each.last_error or "" for each in await s.admin.peek(DO.queue, State.PARKED, 10)]
    assert set(calls.values()) == {2}, "once in company, once alone"
    assert all(len(each) == 1 for each in tokens.values()), "under the same lease"
    assert not [each for each in parked if "Apart" in each], "each is parked for its own reason"


async def test_effects_are_performed_once_however_often_company_parts(stage: OpenStage) -> None:
    vendor, calls, where = Vendor(), Counter[int](), list[bool]()

    async def pays(work: Work) -> None:
        number = number_of(work)
        calls[number] += 1
        await work.effect(Pay(vendor, Findable(60.0)), key=f"p-{number}")
        async with work.commit() as tx:
            where.append(isinstance(tx.connection, Member))
            await tx.execute("insert into notes (note) values ($1)", str(number))
            if number == 3 and calls[number] == 1:
                raise RuntimeError("oh")

    async with open_runs(stage) as s:
        await put(s, *range(RUNS))
        with counted() as count:
            async with working(s, pays):
                await nothing_runs(s)
        assert await notes(s) == [str(number) for number in range(RUNS)]
        states = await s.owner.fetch("select distinct state from payonce.effects")
        assert [row["state"] for row in states] == ["performed"]
    assert (count.committed, count.parted) == (1, 1), "the intents were shared, the ends were not"
    assert set(calls.values()) == {2}
    assert where.count(True) == where.count(False) == RUNS
    assert len(vendor.calls) == len(vendor.booked) == RUNS


async def test_an_intent_that_fails_in_company_has_not_been_sent(stage: OpenStage) -> None:
    vendor = Vendor()

    async def pays(work: Work) -> None:
        number = number_of(work)

        async def intent(tx: Any) -> None:
            await tx.execute("insert into notes (note) values ($1)", str(number))
            if number == 2:
                raise Refused("not this one")

        await work.effect(Pay(vendor, Blind()), key=f"p-{number}", intent=intent)

    async with open_runs(stage) as s:
        await put(s, *range(RUNS))
        async with working(s, pays):
            await nothing_runs(s)
        others = [str(number) for number in range(RUNS) if number != 2]
        assert await notes(s) == others
        keys = await s.owner.fetch("select key, state from payonce.effects order by key")
    assert [(row["key"], row["state"]) for row in keys] == [(f"p-{number}", "performed") for number in others]
    assert sorted(vendor.times()) == [f"p-{number}:1" for number in others]


async def test_a_lost_lease_writes_nothing_and_troubles_nobody(stage: OpenStage) -> None:
    async with open_runs(stage) as s:
        await put(s, *range(RUNS))
        stale = metrics.STALE_SETTLES.labels(DO.queue)
        before = stale._value.get()

        async def taken_over(work: Work) -> None:
            if number_of(work) == 1:
                taken = "update payonce.messages set token = token + 1 where id = $1"
                await s.database.engine.execute(taken, work.message.id)
            await work.read.fetchval("select 1")
            await write(work)

        with counted() as count:
            async with working(s, taken_over) as worker:

                async def ended() -> bool:
                    return (await statuses(s))["success"] >= RUNS - 1 and not worker.running

                await eventually(ended)
                await s.owner.execute("delete from payonce.messages where queue = $1 and state = 'leased'", DO.queue)
        assert await notes(s) == ["0", "2", "3", "4", "5"]
        assert await sent(s) == [0, 2, 3, 4, 5]
    assert count.parted == 0
    assert stale._value.get() - before == 1


async def test_one_that_never_ends_is_ended_by_its_limit_and_the_others_go_on(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They began in the same moment, so its limit is theirs: they do not wait for that."""
    monkeypatch.setattr(sharing, "PATIENCE_S", 0.3)
    short = Policy("company-short", max_attempts=1, lease_s=10, run_limit_s=2)

    async def stays(work: Work) -> None:
        async with work.commit() as tx:
            await tx.execute("insert into notes (note) values ($1)", str(number_of(work)))
            if number_of(work) == 2:
                await asyncio.Event().wait()

    async with open_runs(stage) as s:
        await s.feed.declare([short])
        await put(s, *range(4), policy=short)
        with counted() as count:
            async with working(s, stays, short):
                await nothing_runs(s, short)
        assert await notes(s) == ["0", "1", "3"]
        [parked] = await s.admin.peek(short.queue, State.PARKED, 10)
    assert "run limit" in (parked.last_error or "")
    assert count.parted == 1


async def test_giving_up_is_not_undone_by_who_happens_to_be_beside(stage: OpenStage) -> None:
    """It ends the business object, once; who gives up beside others that fail would be parked for no reason."""

    async def end(work: Work) -> None:
        async with work.commit(rejected="gave up") as tx:
            await tx.execute("insert into notes (note) values ($1)", f"ended {number_of(work)}")
            if number_of(work) == 1:
                raise RuntimeError("this one cannot be ended")

    async def never(work: Work) -> None:
        raise Retry("no")

    async with open_runs(stage) as s:
        ends = Policy("company-ends", max_attempts=1, lease_s=60, on_give_up=end)
        await s.feed.declare([ends])
        await put(s, 0, 1, 2, policy=ends)
        async with working(s, never, ends):
            await nothing_runs(s, ends)
        assert await notes(s) == ["ended 0", "ended 2"]
        [parked] = await s.admin.peek(ends.queue, State.PARKED, 10)
    assert parked.message.payload == {"number": 1}


class LosesCommits(PlainConnection):
    """The answer to the first COMMIT of several runs does not come; what happened to it, a test says."""

    committed = True
    left = 0

    async def execute(self, query: str, *arguments: Any, **options: Any) -> str:
        if query != "COMMIT;" or type(self).left == 0:
            return await super().execute(query, *arguments, **options)
        type(self).left -= 1
        if self.committed:
            await super().execute(query)
        self.terminate()
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")


async def lose_the_commit(stage: OpenStage, *, committed: bool, parted: int) -> None:
    vendor, calls = Vendor(), Counter[int]()

    async def pays(work: Work) -> None:
        calls[number_of(work)] += 1
        await work.effect(Pay(vendor, Blind()), key=f"p-{number_of(work)}")
        if calls.total() == RUNS:
            LosesCommits.left = 1
        await write(work)

    async with open_runs(stage) as s, Database.open(s.scratch.service_url, connection_class=LosesCommits) as lossy:
        LosesCommits.committed, LosesCommits.left = committed, 0
        await put(s, *range(RUNS))
        with counted() as count:
            async with working(s, pays, database=lossy):
                await nothing_runs(s)
        assert LosesCommits.left == 0, "none was lost: the test tried nothing"
        assert await notes(s) == [str(number) for number in range(RUNS)]
        assert await sent(s) == list(range(RUNS))
        assert await statuses(s) == {"success": RUNS}
    assert count.parted == parted
    assert len(vendor.calls) == RUNS


async def test_a_commit_whose_answer_was_lost_counts_for_all(stage: OpenStage) -> None:
    await lose_the_commit(stage, committed=True, parted=0)


async def test_a_commit_that_was_lost_is_done_again_by_each(stage: OpenStage) -> None:
    await lose_the_commit(stage, committed=False, parted=1)


async def test_a_session_that_ends_in_mid_transaction_loses_nothing(stage: OpenStage) -> None:
    async with open_runs(stage) as s:

        async def loses(work: Work) -> None:
            async with work.commit() as tx:
                await tx.execute("insert into notes (note) values ($1)", str(number_of(work)))
                if number_of(work) == 1 and isinstance(tx.connection, Member):
                    await end_session(s, await session_of(tx.connection))
                await tx.send(NEXT, {"number": number_of(work)})

        await put(s, *range(RUNS))
        async with working(s, loses):
            await nothing_runs(s)
        assert await notes(s) == [str(number) for number in range(RUNS)]
        assert await sent(s) == list(range(RUNS))
        assert await statuses(s) == {"success": RUNS}


async def test_an_error_that_is_swallowed_does_not_end_a_message(stage: OpenStage) -> None:
    async def swallows(work: Work) -> None:
        async with work.commit() as tx:
            await tx.execute("insert into notes (note) values ($1)", str(number_of(work)))
            if number_of(work) == 0:
                try:
                    await tx.fetch("select 1 / 0")
                except Exception:
                    return

    async with open_runs(stage) as s:
        await put(s, 0, 1)
        async with working(s, swallows):
            await nothing_runs(s)
        assert await notes(s) == ["1"]
        [parked] = await s.admin.peek(DO.queue, State.PARKED, 10)
    assert parked.message.payload == {"number": 0}


async def test_a_queue_runs_in_company_only_if_all_of_its_handlers_say_so(stage: OpenStage) -> None:
    policy = Policy("company-mixed", backoff=Fixed(1))

    async def one(work: Work) -> None: ...

    async with stage() as s:
        mixed = [handles(policy, "a", in_company=True)(one), handles(policy, "b")(one)]
        for handlers, shared in ((mixed, False), (mixed[:1], True)):
            worker = await s.worker(*handlers)
            assert (worker._servers[0].company is not None) is shared
