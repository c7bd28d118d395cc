"""Named leases: one holder, growing epochs, and a fence that an old holder does not pass."""

import asyncio
from typing import cast

import pytest

from payonce.engine.database.connections import Database
from payonce.engine.database.leases import Leadership, acquire, fence, release, renew
from payonce.engine.messages.model import Lease
from payonce.engine.monitoring import metrics
from payonce.kit.outcomes import Invalid, Stale
from payonce.testing import OpenStage, Stage, eventually
from tests.locks import waits_for_a_lock

TTL_S = 30.0


async def held(s: Stage, holder: str = "a", name: str = "leader") -> Lease:
    lease = await acquire(s.database, name, holder, TTL_S)
    assert lease is not None
    return lease


async def fences(s: Stage, lease: Lease) -> bool:
    async with s.database.transaction() as connection:
        try:
            await fence(connection, lease)
        except Stale:
            return False
    return True


async def test_a_held_lease_is_nobody_elses_nor_given_twice_to_its_holder(stage: OpenStage) -> None:
    async with stage() as s:
        assert await held(s, "a") == Lease("leader", "a", 1, TTL_S)
        assert await acquire(s.database, "leader", "b", TTL_S) is None
        assert await acquire(s.database, "leader", "a", TTL_S) is None
        assert await acquire(s.database, "other", "b", TTL_S) is not None


async def test_the_epoch_grows_with_each_holding_also_by_the_same_holder(stage: OpenStage) -> None:
    async with stage() as s:
        epochs = [(await held(s, "a")).epoch]
        for holder in ("b", "b", "a"):
            await s.clock.advance_leases(TTL_S)
            epochs.append((await held(s, holder)).epoch)
        assert epochs == [1, 2, 3, 4]


async def test_a_lease_ends_by_the_lease_clock_and_not_by_the_due_clock(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        lease = await held(s)
        await s.clock.advance(86_400)
        assert await acquire(s.database, "leader", "b", TTL_S) is None
        await s.clock.advance_leases(TTL_S - 0.001)
        assert await fences(s, lease)
        assert await acquire(s.database, "leader", "b", TTL_S) is None
        await s.clock.advance_leases(0.001)
        assert not await fences(s, lease)
        assert await acquire(s.database, "leader", "b", TTL_S) is not None


async def test_a_renewed_lease_lives_a_full_time_again(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await held(s)
        for _ in range(3):
            await s.clock.advance_leases(TTL_S * 0.9)
            assert await renew(s.database, lease)
        assert await fences(s, lease)


async def test_an_expired_lease_is_not_renewed_even_if_nobody_took_it(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await held(s)
        await s.clock.advance_leases(TTL_S)
        assert not await renew(s.database, lease)


async def test_an_old_epoch_neither_renews_nor_passes_the_fence(stage: OpenStage) -> None:
    async with stage() as s:
        old = await held(s, "a")
        await s.clock.advance_leases(TTL_S)
        new = await held(s, "a")
        assert not await renew(s.database, old)
        assert not await fences(s, old)
        assert await fences(s, new)


async def test_another_holders_name_does_not_pass_with_a_guessed_epoch(stage: OpenStage) -> None:
    async with stage() as s:
        await held(s, "a")
        assert not await fences(s, Lease("leader", "b", 1, TTL_S))


async def test_a_released_lease_is_free_at_once_and_its_old_epoch_never_returns(stage: OpenStage) -> None:
    async with stage() as s:
        old = await held(s, "a")
        await release(s.database, old)
        assert not await fences(s, old)
        new = await held(s, "a")
        assert new.epoch == old.epoch + 1
        await release(s.database, old)
        assert await fences(s, new), "a late release of an old epoch took the new one away"


async def test_an_unknown_lease_is_stale(stage: OpenStage) -> None:
    async with stage() as s:
        assert not await fences(s, Lease("nobody", "a", 1, TTL_S))


async def test_a_take_over_waits_for_the_fenced_transaction(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await held(s, "a")
        async with s.database.transaction() as connection:
            await fence(connection, lease)
            await s.clock.advance_leases(TTL_S)
            taking = asyncio.create_task(acquire(s.database, "leader", "b", TTL_S))
            await eventually(lambda: waits_for_a_lock(s))
            assert not taking.done()
        taken = await taking
        assert taken is not None
        assert taken.epoch == lease.epoch + 1


async def test_two_fenced_transactions_of_one_holder_do_not_wait_for_each_other(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await held(s)
        async with s.database.transaction() as one, s.database.transaction() as other:
            await fence(one, lease)
            async with asyncio.timeout(30):
                await fence(other, lease)


async def test_those_who_wait_do_not_lock_a_held_lease(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await held(s, "a")
        async with s.database.transaction() as connection:
            await fence(connection, lease)
            async with asyncio.timeout(30):
                assert await acquire(s.database, "leader", "b", TTL_S) is None


async def test_of_many_who_race_for_an_expired_lease_one_wins(stage: OpenStage) -> None:
    async with stage() as s:
        await held(s)
        await s.clock.advance_leases(TTL_S)
        won = await asyncio.gather(*(acquire(s.database, "leader", f"h{n}", TTL_S) for n in range(20)))
        assert [lease.epoch for lease in won if lease is not None] == [2]


async def test_who_looked_before_another_took_over_gets_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        await held(s, "a")
        await s.clock.advance_leases(TTL_S)
        async with s.owner.transaction():
            await s.owner.execute(
                "update payonce.leases set holder = 'b', epoch = 2, expires_at = payonce.lease_now() + interval '1 min'"
            )
            late = asyncio.create_task(acquire(s.database, "leader", "c", TTL_S))
            await eventually(lambda: waits_for_a_lock(s))
        assert await late is None
        assert await fences(s, Lease("leader", "b", 2, TTL_S))


async def test_services_cannot_make_epochs_begin_anew(stage: OpenStage) -> None:
    async with stage() as s:
        allowed = await s.database.engine.fetchval("select has_table_privilege('payonce.leases', 'delete')")
        assert not allowed


async def test_each_holding_is_counted(stage: OpenStage) -> None:
    async with stage() as s:
        before = _count("counted")
        await held(s, name="counted")
        assert await acquire(s.database, "counted", "b", TTL_S) is None
        assert _count("counted") == before + 1


@pytest.mark.parametrize(
    ("name", "holder", "ttl_s", "says"),
    [
        ("", "a", 5.0, "name"),
        ("n", "h" * 201, 5.0, "holder"),
        ("n\x00", "a", 5.0, "NUL"),
        ("n", "a", 0.0, "ttl_s of lease n is 0.0"),
        ("n", "a", float("nan"), "nan"),
        ("n", "a", 3601.0, "3600"),
    ],
)
def test_bad_values_are_refused(name: str, holder: str, ttl_s: float, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        Leadership(cast(Database, None), name, holder, ttl_s)
    with pytest.raises(Invalid, match=says):
        asyncio.run(acquire(cast(Database, None), name, holder, ttl_s))


def _count(name: str) -> float:
    return metrics.REGISTRY.get_sample_value("payonce_lease_changes_total", {"name": name}) or 0.0
