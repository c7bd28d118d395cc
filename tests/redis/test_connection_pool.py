"""The connections for short commands: what one answers is never taken for the answer to something else."""

import asyncio

import pytest
from redis import exceptions

from payonce.embedded.redis import RedisServer
from payonce.queues.redis.connections import ConnectionPool
from payonce.testing import eventually
from tests.redis.fault_proxy import FaultProxy


def lines(url: str, most: int = 4) -> ConnectionPool:
    return ConnectionPool(url, most=most, connect_timeout_s=30.0, timeout_s=30.0)


async def test_many_at_once_on_few_connections_each_get_their_own_answer(redis_server: RedisServer) -> None:
    spoken = lines(redis_server.url, most=2)
    told = await asyncio.gather(*(spoken.execute_command("ECHO", f"word {number}") for number in range(200)))
    assert told == [f"word {number}".encode() for number in range(200)]
    await spoken.aclose()


async def test_a_burst_makes_no_more_connections_than_are_allowed(redis_server: RedisServer) -> None:
    async with FaultProxy.open(redis_server.port) as proxy:
        spoken = lines(proxy.url, most=3)
        await asyncio.gather(*(spoken.execute_command("ECHO", str(number)) for number in range(100)))
        assert proxy.accepted <= 3
        await spoken.aclose()


async def test_one_that_was_not_waited_for_does_not_leave_its_answer_to_the_next(redis_server: RedisServer) -> None:
    spoken = lines(redis_server.url, most=1)
    await spoken.execute_command("ECHO", "first")
    asked = asyncio.create_task(spoken.execute_command("ECHO", "given up"))
    await asyncio.sleep(0)
    asked.cancel()
    assert await spoken.execute_command("ECHO", "next") == b"next"
    await spoken.aclose()


async def test_an_answer_that_does_not_come_in_time_costs_the_connection(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FaultProxy.open(redis_server.port) as proxy:
        spoken = lines(proxy.url, most=1)
        await spoken.execute_command("ECHO", "before")
        proxy.freeze()
        with monkeypatch.context() as impatient:
            impatient.setattr(spoken, "_timeout_s", 0.1)
            with pytest.raises(exceptions.TimeoutError):
                await spoken.execute_command("ECHO", "lost")
        proxy.wake()
        assert await spoken.execute_command("ECHO", "after") == b"after"
        assert proxy.accepted == 2
        await spoken.aclose()


async def test_a_broken_connection_fails_its_callers_and_is_not_used_again(redis_server: RedisServer) -> None:
    async with FaultProxy.open(redis_server.port) as proxy:
        spoken = lines(proxy.url, most=1)
        await spoken.execute_command("ECHO", "before")
        waiting = asyncio.create_task(spoken.execute_command("BLPOP", "nothing-comes-here", 0))
        await eventually(lambda: "BLPOP" in proxy.carried, 30, "the command is under way")
        proxy.break_all()
        with pytest.raises(exceptions.ConnectionError):
            await waiting
        assert await spoken.execute_command("ECHO", "after") == b"after"
        await spoken.aclose()


async def test_the_database_number_and_the_password_of_the_address_are_used(redis_server: RedisServer) -> None:
    plain, third = lines(redis_server.url), lines(redis_server.url.removesuffix("/0") + "/3")
    await third.execute_command("SET", "here", "3")
    assert await plain.execute_command("GET", "here") is None
    await third.execute_command("DEL", "here")
    await plain.execute_command("CONFIG", "SET", "requirepass", "s3cret/word")
    try:
        with pytest.raises(exceptions.AuthenticationError):
            await lines(redis_server.url.replace("redis://", "redis://:wrong@")).execute_command("PING")
        told = lines(redis_server.url.replace("redis://", "redis://:s3cret%2Fword@"))
        assert await told.execute_command("PING") == b"PONG"
        await told.aclose()
    finally:
        await plain.execute_command("CONFIG", "SET", "requirepass", "")
    await plain.aclose()
    await third.aclose()


async def test_a_refusal_is_an_error_of_that_command_alone(redis_server: RedisServer) -> None:
    spoken = lines(redis_server.url, most=1)
    with pytest.raises(exceptions.NoScriptError):
        await spoken.execute_command("EVALSHA", "0" * 40, 0)
    with pytest.raises(exceptions.ResponseError, match="unknown command"):
        await spoken.execute_command("NONSENSE")
    assert await spoken.execute_command("PING") == b"PONG"
    await spoken.aclose()


def test_tls_is_left_to_the_driver() -> None:
    assert ConnectionPool.supports("redis://localhost:6379/0")
    assert ConnectionPool.supports("unix:///run/redis.sock")
    assert not ConnectionPool.supports("rediss://localhost:6379/0")
