"""Keys outlive their messages by their queue's retention, and the janitor never takes a living key."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from payonce.engine.messages import idempotency
from payonce.engine.messages.idempotency import Walk, expire_keys, forget_keys
from payonce.engine.messages.model import Ending, Message, Settlement
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import begin
from payonce.testing import OpenStage, Stage, eventually
from tests.locks import waits_for_a_lock

POLICY = Policy("q:test:keys", give_up_after_s=3_600, lease_s=30)
RETENTION_S = 3_600 + 86_400
START = datetime(2030, 1, 1, tzinfo=UTC)


async def put(s: Stage, key: str) -> UUID:
    [message_id] = await s.feed.put([Message(queue=POLICY.queue, idempotency_key=key)])
    return message_id


async def settle_all(s: Stage, ending: Ending = Ending.SUCCESS) -> None:
    queue = await s.queue(POLICY)
    claims = (await queue.exchange([], 1_000)).claims
    await queue.exchange([Settlement(claim, ending) for claim in claims], 0)


async def opened(s: Stage) -> None:
    await s.clock.freeze(START)
    await s.feed.declare([POLICY])


async def ends(s: Stage) -> dict[str, datetime | None]:
    rows = await s.owner.fetch("select key, expires_at from payonce.idempotency_keys")
    return {row["key"]: row["expires_at"] for row in rows}


async def test_a_key_ends_its_retention_after_its_message_was_seen_gone(stage: OpenStage) -> None:
    async with stage() as s:
        await opened(s)
        first = await put(s, "k")
        await settle_all(s)
        assert await expire_keys(s.database) == 1
        assert await ends(s) == {"k": START + timedelta(seconds=RETENTION_S)}
        await s.clock.advance(RETENTION_S - 1)
        assert await expire_keys(s.database) == 0, "an end once set is not moved"
        assert await forget_keys(s.database) == 0
        assert await put(s, "k") == first
        await s.clock.advance(1)
        assert await forget_keys(s.database) == 1
        assert await put(s, "k") != first


async def test_the_key_of_a_living_message_does_not_end(stage: OpenStage) -> None:
    """Waiting, delayed, running and parked messages live."""
    async with stage() as s:
        await opened(s)
        await put(s, "parked")
        await settle_all(s, Ending.PARKED)
        await put(s, "running")
        await (await s.queue(POLICY)).exchange([], 1)
        await put(s, "waiting")
        await s.feed.put([Message(queue=POLICY.queue, idempotency_key="delayed", delay_s=1e6)])
        assert await expire_keys(s.database) == 0
        await s.clock.advance(10 * RETENTION_S)
        assert await forget_keys(s.database) == 0
        assert set((await ends(s)).values()) == {None}


async def test_a_key_of_a_queue_that_is_gone_is_kept_a_day(stage: OpenStage) -> None:
    async with stage() as s:
        await opened(s)
        await put(s, "k")
        await settle_all(s)
        await s.owner.execute("delete from payonce.queues")
        await expire_keys(s.database)
        assert await ends(s) == {"k": START + timedelta(days=1)}


async def test_a_put_that_is_not_committed_yet_keeps_its_key(stage: OpenStage) -> None:
    async with stage() as s:
        await opened(s)
        async with begin(s.database, s.feed) as tx:
            await tx.send(POLICY, {}, key="k")
            assert await expire_keys(s.database) == 0
        assert await expire_keys(s.database) == 0
        assert await ends(s) == {"k": None}


async def test_an_expired_key_that_a_put_is_taking_over_is_neither_waited_for_nor_deleted(stage: OpenStage) -> None:
    async with stage() as s:
        await opened(s)
        await put(s, "k")
        await settle_all(s)
        await expire_keys(s.database)
        await s.clock.advance(RETENTION_S)
        async with begin(s.database, s.feed) as tx:
            again = await tx.send(POLICY, {}, key="k")
            async with asyncio.timeout(30):
                assert await forget_keys(s.database) == 0
                assert await expire_keys(s.database) == 0
        assert await forget_keys(s.database) == 0
        assert await expire_keys(s.database) == 0
        assert await put(s, "k") == again


async def test_a_key_that_a_put_is_looking_at_is_left_for_the_next_round(stage: OpenStage) -> None:
    async with stage() as s:
        await opened(s)
        first = await put(s, "k")
        await settle_all(s)
        async with begin(s.database, s.feed) as tx:
            assert await tx.send(POLICY, {}, key="k") == first
            async with asyncio.timeout(30):
                assert await expire_keys(s.database) == 0
        assert await expire_keys(s.database) == 1


async def test_a_put_that_meets_a_key_being_deleted_gets_it_anew(stage: OpenStage) -> None:
    async with stage() as s:
        await opened(s)
        first = await put(s, "k")
        await settle_all(s)
        await expire_keys(s.database)
        await s.clock.advance(RETENTION_S)
        async with s.owner.transaction():
            await s.owner.execute("delete from payonce.idempotency_keys")
            putting = asyncio.create_task(put(s, "k"))
            await eventually(lambda: waits_for_a_lock(s))
        second = await putting
        assert second != first
        assert await put(s, "k") == second


async def test_a_key_that_changes_hands_while_the_walk_looks_at_it_stays(stage: OpenStage) -> None:
    """The scan sees the old message gone; by the time it locks the key, the key belongs to a new one."""
    async with stage() as s:
        await opened(s)
        await put(s, "k")
        await settle_all(s)
        await s.owner.execute(_WAIT_WHILE_READING)
        async with s.owner.transaction():
            await s.owner.execute("select pg_advisory_xact_lock(1)")
            walking = asyncio.create_task(expire_keys(s.database))
            await eventually(lambda: waits_for_a_lock(s))
            await s.owner.execute("update payonce.idempotency_keys set message_id = gen_random_uuid()")
            await s.owner.execute(_PUT_MESSAGE_OF_KEY)
        assert await walking == 0
        assert await ends(s) == {"k": None}


async def test_the_walk_goes_on_where_it_stood_and_begins_anew_at_the_end(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "SLICE_KEYS", 2)
    monkeypatch.setattr(idempotency, "SLICE_WORTHWHILE", 1)
    async with stage() as s:
        await opened(s)
        for key in ("a", "b", "c"):
            await put(s, key)
        walk = Walk()
        assert await expire_keys(s.database, walk) == 0
        assert walk == Walk(POLICY.queue, "b"), "one slice at a time while nothing is found"
        await settle_all(s)
        assert await expire_keys(s.database, walk) == 1
        assert [key for key, end in sorted((await ends(s)).items()) if end is not None] == ["c"]
        assert walk == Walk()
        assert await expire_keys(s.database, walk) == 2


async def test_one_tick_is_bounded(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLICE_KEYS", "SLICE_WORTHWHILE", "FORGET_KEYS"):
        monkeypatch.setattr(idempotency, name, 1)
    for name in ("SLICES_MAX", "FORGET_BATCHES_MAX"):
        monkeypatch.setattr(idempotency, name, 3)
    async with stage() as s:
        await opened(s)
        for number in range(5):
            await put(s, f"k{number}")
        await settle_all(s)
        walk = Walk()
        assert [await expire_keys(s.database, walk) for _ in range(3)] == [3, 2, 0]
        await s.clock.advance(RETENTION_S)
        assert [await forget_keys(s.database) for _ in range(3)] == [3, 2, 0]


async def test_a_slice_among_many_keys_reads_only_itself(stage: OpenStage) -> None:
    """However many keys have live messages or wait to expire."""
    async with stage() as s:
        await opened(s)
        await s.owner.execute(
            """
            insert into payonce.idempotency_keys (queue, key, message_id, expires_at)
            select $1, 'k' || lpad(n::text, 7, '0'), gen_random_uuid(),
                   case when n % 10 > 0 then payonce.due_now() + interval '1 day' end
            from generate_series(1, 100000) as n
            """,
            POLICY.queue,
        )
        await s.owner.execute("vacuum analyze payonce.idempotency_keys")
        rows = await s.owner.fetch(
            """
            explain (analyze, buffers, costs off, timing off, summary off)
            select queue, key, message_id, expires_at from payonce.idempotency_keys
            where (queue, key) > ($1, $2) order by queue, key limit 100
            """,
            POLICY.queue,
            "k0050000",
        )
        plan = "\n".join(row[0] for row in rows)
        assert "Index Scan using idempotency_keys_pkey" in plan, plan
        assert "Rows Removed by Filter" not in plan, plan


# Row security runs for every row of the scan: after its snapshot was taken, before it locks anything.
_WAIT_WHILE_READING = """
    create function payonce.wait_for_the_test() returns boolean language plpgsql as $$
    begin
        perform pg_advisory_xact_lock_shared(1);
        return true;
    end $$;
    create policy waits on payonce.idempotency_keys using (payonce.wait_for_the_test());
    alter table payonce.idempotency_keys enable row level security;
"""
_PUT_MESSAGE_OF_KEY = """
    insert into payonce.messages (id, queue, ready_at, created_at, action, idempotency_key, payload)
    select message_id, queue, payonce.due_now(), payonce.due_now(), '', key, '{}' from payonce.idempotency_keys
"""
