"""Waiting for a connection: in order, for a bounded time, and nothing is lost by waiters that stop waiting."""

import asyncio

import asyncpg
import pytest

from payonce.engine.database.pools import Turns
from payonce.testing import OpenStage


async def waiting(turns: Turns, limit_s: float = 60.0) -> "asyncio.Task[None]":
    task = asyncio.create_task(turns.take(limit_s))
    await asyncio.sleep(0)
    return task


async def test_whoever_waits_longest_is_served_first() -> None:
    turns = Turns(1)
    await turns.take(1)
    first, second = await waiting(turns), await waiting(turns)
    turns.give()
    await first
    assert not second.done()
    turns.give()
    await second


async def test_whoever_waits_too_long_gives_up_and_the_others_wait_on() -> None:
    turns = Turns(1)
    await turns.take(1)
    patient, hasty = await waiting(turns), await waiting(turns, 0.01)
    with pytest.raises(TimeoutError):
        await hasty
    assert not patient.done()
    turns.give()
    await patient


@pytest.mark.parametrize("served_meanwhile", [False, True])
async def test_a_turn_is_not_lost_with_whoever_was_cancelled(served_meanwhile: bool) -> None:
    turns = Turns(1)
    await turns.take(1)
    cancelled, next_one = await waiting(turns), await waiting(turns)
    if served_meanwhile:
        turns.give()
        cancelled.cancel()
    else:
        cancelled.cancel()
        await asyncio.sleep(0)
        turns.give()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await next_one
    turns.give()
    await turns.take(1)


@pytest.mark.parametrize("how", ["released", "released twice", "closed", "in a transaction", "cancelled"])
async def test_every_connection_comes_back_however_it_is_given_back(stage: OpenStage, how: str) -> None:
    async with stage() as s:
        pool = s.database.work
        for _ in range(2 * pool.get_max_size()):
            connection = await pool.acquire()
            assert await connection.fetchval("select 1") == 1
            if how == "closed":
                await connection.close()
            if how == "in a transaction":
                await connection.execute("begin")
            if how == "cancelled":
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await connection.fetchval("select pg_sleep(1)")
            await pool.release(connection)
            if how == "released twice":
                await pool.release(connection)
        held = [await pool.acquire() for _ in range(pool.get_max_size())]
        with pytest.raises(asyncpg.InterfaceError):
            await s.database.engine.release(held[0])
        assert [await each.fetchval("select 1") for each in held] == [1] * len(held)
        for each in held:
            await pool.release(each)
