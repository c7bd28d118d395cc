"""Reading the job log: filters, pages, and everything for one id, live messages included."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from payonce.engine.messages.job_log import INFO_MAX_LENGTH, RUNS_MAX, Entry, Status, of_message, recent, trace
from payonce.engine.messages.maintenance import Task, synthetic_message, write_maintenance_run
from payonce.engine.messages.model import Claim, Ending, Message, Settlement
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Filter, PullQueue
from payonce.engine.messages.transaction import Reader
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage, Stage

POLICY = Policy("q:test:first", lease_s=30)
OTHER = Policy("q:test:second", lease_s=30, log="failures")
START = datetime(2030, 1, 1, tzinfo=UTC)
ADD_PARTITION = "select payonce.add_job_log_partition((payonce.due_now() at time zone 'UTC')::date)"


async def run(queue: PullQueue, ending: Ending, reason: str | None = None, delay_s: float = 0.0) -> Claim:
    """One message goes through one run."""
    [claim] = (await queue.exchange([], 1)).claims
    await queue.exchange([Settlement(claim, ending, reason, delay_s)], 0)
    return claim


async def opened(s: Stage) -> tuple[PullQueue, PullQueue, Reader]:
    await s.clock.freeze(START)
    return await s.queue(POLICY), await s.queue(OTHER), Reader(s.database)


def told(entries: list[Entry] | tuple[Entry, ...]) -> list[tuple[UUID, str]]:
    return [(entry.message_id, entry.status.value) for entry in entries]


async def test_recent_runs_come_newest_first_in_pages(stage: OpenStage) -> None:
    async with stage() as s:
        queue, _, reader = await opened(s)
        ids = []
        for number in range(7):
            ids += await s.feed.put([Message(queue=POLICY.queue, payload={"number": number})])
            await run(queue, Ending.SUCCESS)
        first = await recent(reader, limit=4)
        second = await recent(reader, limit=4, before_id=first[-1].id)
        assert [entry.message_id for entry in first + second] == ids[::-1]


async def test_each_filter_leaves_only_what_it_names(stage: OpenStage) -> None:
    async with stage() as s:
        queue, other, reader = await opened(s)
        [plain] = await s.feed.put([Message(queue=POLICY.queue)])
        await run(queue, Ending.SUCCESS)
        await s.clock.advance(60)
        message = Message(queue=OTHER.queue, action="pay", correlation_id="order-1", idempotency_key="key-1")
        await s.feed.put([message])
        await run(other, Ending.FAILED, "refused")
        only = [(message.id, "failed")]
        assert told(await recent(reader)) == [*only, (plain, "success")]
        for filters in (
            {"queue": OTHER.queue},
            {"status": "failed"},
            {"action": "pay"},
            {"correlation_id": "order-1"},
            {"idempotency_key": "key-1"},
            {"since": START + timedelta(seconds=1)},
        ):
            assert told(await recent(reader, **filters)) == only, filters
        assert told(await recent(reader, until=START + timedelta(seconds=1))) == [(plain, "success")]
        assert told(await recent(reader, action="", status=Status.SUCCESS)) == [(plain, "success")]
        assert await recent(reader, queue=POLICY.queue, status="failed") == []


async def test_an_entry_tells_all_there_is_about_a_run(stage: OpenStage) -> None:
    async with stage() as s:
        queue, _, reader = await opened(s)
        message = Message(queue=POLICY.queue, action="pay", correlation_id="c", idempotency_key="k", trace_id="t")
        await s.feed.put([message])
        await run(queue, Ending.RETRY, "busy", 90)
        [entry] = await recent(reader)
        assert entry == Entry(
            id=entry.id,
            at=START,
            queue=POLICY.queue,
            message_id=message.id,
            trace_id="t",
            status=Status.RETRY,
            attempts=1,
            action="pay",
            correlation_id="c",
            idempotency_key="k",
            last_error="busy",
            info=None,
            next_retry_at=START + timedelta(seconds=90),
            worker="worker-1",
            started_at=START,
            created_at=START,
            updated_at=START,
        )
        assert not entry.live


async def test_what_a_run_has_to_say_is_cut_at_what_the_table_takes(stage: OpenStage) -> None:
    async with stage() as s:
        entry = synthetic_message(POLICY.queue, Task.PUMP)
        await write_maintenance_run(s.database, entry, "x" * (INFO_MAX_LENGTH + 1), "worker-1")
        [run] = await of_message(Reader(s.database), entry.id)
        assert (run.status, run.last_error, run.info) == (Status.SUCCESS, None, "x" * INFO_MAX_LENGTH)
        for of_today in (False, True):
            if of_today:
                await s.owner.execute(ADD_PARTITION)
            with pytest.raises(asyncpg.CheckViolationError, match="job_logs_info_is_short"):
                await s.owner.execute(
                    "insert into payonce.job_logs (queue, message_id, status, attempts, action, info, created_at, "
                    "updated_at) values ('q', gen_random_uuid(), 'success', 1, '', repeat('x', $1), payonce.due_now(), "
                    "payonce.due_now())",
                    INFO_MAX_LENGTH + 1,
                )


async def test_a_message_is_followed_from_received_to_parked(stage: OpenStage) -> None:
    async with stage() as s:
        queue, _, reader = await opened(s)
        [message_id] = await s.feed.put([Message(queue=POLICY.queue, delay_s=60)])

        async def life() -> list[str]:
            entries = await of_message(reader, message_id)
            assert [entry.live for entry in entries] == [False] * (len(entries) - 1) + [True]
            return [entry.status.value for entry in entries]

        assert await life() == ["received"]
        await s.clock.advance(60)
        [claim] = (await queue.exchange([], 1)).claims
        assert await life() == ["processing"]
        await queue.exchange([Settlement(claim, Ending.RETRY, "busy", 60)], 0)
        assert await life() == ["retry", "retry"]
        await s.clock.advance(60)
        await run(queue, Ending.PARKED, "no more")
        assert await life() == ["retry", "parked", "parked"]
        await s.admin.redrive(POLICY.queue, Filter())
        assert [entry.status.value for entry in await of_message(reader, message_id) if entry.live] == ["received"]


async def test_a_crashed_message_waits_as_a_retry(stage: OpenStage) -> None:
    async with stage() as s:
        queue, _, reader = await opened(s)
        [message_id] = await s.feed.put([Message(queue=POLICY.queue)])
        await queue.exchange([], 1)
        await s.clock.advance_leases(31)
        await queue.reap()
        assert [entry.status for entry in await of_message(reader, message_id)] == [Status.RETRY, Status.RETRY]


async def test_a_trace_holds_everything_in_time_order_whichever_id_is_asked(stage: OpenStage) -> None:
    async with stage() as s:
        queue, other, reader = await opened(s)
        first = Message(queue=POLICY.queue, correlation_id="order-7", idempotency_key="request-7")
        await s.feed.put([first, Message(queue=POLICY.queue, correlation_id="order-8", delay_s=3600)])
        await run(queue, Ending.SUCCESS)
        await s.clock.advance(1)
        second = Message(queue=OTHER.queue, trace_id=first.trace, idempotency_key="pay-7")
        third = Message(queue=POLICY.queue, trace_id=first.trace, delay_s=5, idempotency_key="tell-7")
        await s.feed.put([second, third])
        await s.clock.advance(1)
        await other.exchange([], 1)
        expected = [(first.id, "success"), (third.id, "received"), (second.id, "processing")]
        asked = [
            first.trace,
            str(first.id).upper(),
            str(second.id),
            str(third.id),
            "order-7",
            "request-7",
            "pay-7",
            "tell-7",
        ]
        for what in asked:
            found = await trace(reader, what)
            assert told(found.entries) == expected, what
            assert found.trace_ids == (first.trace,)
            assert not found.truncated
        assert {entry.trace_id for entry in found.entries} == {first.trace}
        assert (await trace(reader, "order-9")).entries == ()


async def test_a_correlation_shows_all_its_traces(stage: OpenStage) -> None:
    async with stage() as s:
        queue, _, reader = await opened(s)
        one, two = (Message(queue=POLICY.queue, correlation_id="order-1", trace_id=f"t{n}") for n in (1, 2))
        for message in (one, two):
            await s.feed.put([message])
            await run(queue, Ending.SUCCESS)
            await s.clock.advance(1)
        found = await trace(reader, "order-1")
        assert found.trace_ids == ("t2", "t1")
        assert told(found.entries) == [(one.id, "success"), (two.id, "success")]


async def test_a_long_trace_keeps_its_newest_runs_and_says_so(stage: OpenStage) -> None:
    async with stage() as s:
        await _fill(s, RUNS_MAX + 5, trace_id="long")
        found = await trace(Reader(s.database), "long")
        assert found.truncated
        newest = await s.owner.fetchval("select max(id) from payonce.job_logs")
        assert (len(found.entries), found.entries[-1].id) == (RUNS_MAX, newest)


async def test_lookups_among_many_rows_use_an_index(stage: OpenStage) -> None:
    """Also in the plan for unknown values, to which a prepared statement switches after five runs."""
    async with stage() as s:
        await _fill(s, 50_000)
        await s.feed.declare([POLICY])
        for _ in range(20):
            await s.feed.put([_numbered(number) for number in range(1_000)])
        await s.owner.execute(ADD_PARTITION)
        await s.owner.execute("vacuum analyze payonce.job_logs, payonce.messages, payonce.idempotency_keys")
        spy = Spy(s)
        [some] = await s.owner.fetch("select * from payonce.job_logs offset 25000 limit 1")
        await of_message(spy, some["message_id"])
        for what in (some["trace_id"], str(some["message_id"]), some["correlation_id"], some["idempotency_key"]):
            assert len((await trace(spy, what)).entries) == 1
        await recent(spy, correlation_id=some["correlation_id"])
        await recent(spy, idempotency_key=some["idempotency_key"])
        await recent(spy)
        await recent(spy, before_id=some["id"])
        await recent(spy, queue="q:none", status="failed")
        assert spy.looked_at >= 12
        assert not spy.scanned


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ({"limit": 0}, "limit is 0"),
        ({"limit": 1001}, "1000"),
        ({"status": "received"}, "'received'.*success, retry, failed, parked"),
        ({"queue": "q" * 201}, "queue"),
        ({"correlation_id": "a\x00b"}, "NUL"),
        ({"idempotency_key": "\ud800"}, "valid text"),
        ({"before_id": 2**63}, "before_id"),
        ({"since": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - that it has no zone is the point
        ({"since": START, "until": START}, "not before"),
    ],
)
def test_bad_filters_are_refused(filters: dict[str, Any], says: str) -> None:
    class Nothing:
        async def fetch(self, query: str, /, *args: Any) -> list[Any]:
            raise AssertionError("a bad filter reached the store")

    with pytest.raises(Invalid, match=says):
        asyncio.run(recent(Nothing(), **filters))


async def _fill(s: Stage, count: int, trace_id: str | None = None) -> None:
    await s.owner.execute(
        """
        insert into payonce.job_logs (queue, message_id, correlation_id, idempotency_key, trace_id, status, attempts,
                                      action, created_at, updated_at)
        select 'q:test:' || n % 5, gen_random_uuid(), 'c' || n, 'k' || n, coalesce($2, 't' || n),
               case when n % 100 = 0 then 'failed' else 'success' end, 1, 'a', payonce.due_now(), payonce.due_now()
        from generate_series(1, $1) as n
        """,
        count,
        trace_id,
    )


def _numbered(number: int) -> Message:
    return Message(queue=POLICY.queue, correlation_id=f"m{number}", idempotency_key=str(uuid4()), trace_id=f"m{number}")


class Spy:
    """A reader that explains every statement for unknown values and records the large tables that are read in full."""

    def __init__(self, s: Stage) -> None:
        self._owner = s.owner
        self.looked_at = 0
        self.scanned: list[str] = []

    async def fetch(self, query: str, /, *args: Any) -> list[Any]:
        self.looked_at += 1
        for mode in ("force_custom_plan", "force_generic_plan"):
            await self._owner.execute(f"set plan_cache_mode = {mode}")
            rows = await self._owner.fetch(f"explain {query}", *args)
            plan = "\n".join(row[0] for row in rows)
            if "Seq Scan on job_logs_2" in plan or "Seq Scan on messages" in plan:
                self.scanned.append(f"{mode}: {query}\n{plan}")
        found: list[Any] = await self._owner.fetch(query, *args)
        return found
