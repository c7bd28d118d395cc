"""What a start finds in Redis: another installation's queues, messages that it would not serve, an unusable server."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import Message, State
from payonce.engine.messages.policy import Policy
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.queues.backends import refuse_stranded_messages
from payonce.queues.redis import RedisStore
from payonce.testing import ScratchDatabase
from tests.conformance.backend import PLAIN, QUEUE, claim, claim_one, message, park_all
from tests.conformance.redis_backend import RedisBackend, open_redis_backend


@pytest.fixture
def direct(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "direct")


@pytest.mark.parametrize("state", list(State))
async def test_a_start_with_postgresql_sees_what_lies_in_redis_alone(direct: RedisBackend, state: State) -> None:
    queue, database, url = await direct.queue(PLAIN), direct.stage.database, direct.server.url
    await refuse_stranded_messages(database, "postgres", [QUEUE], url)
    await direct.feed.put([message()])
    if state is State.LEASED:
        await claim_one(queue)
    elif state is State.PARKED:
        await park_all(queue)
    elif state is State.ALONE:
        for _ in range(2):
            await claim_one(queue)
            await direct.time.advance_leases(PLAIN.lease_s + 1)
            await queue.reap()
    with pytest.raises(Invalid, match=f"1 messages of queue {QUEUE} are in Redis.* --to postgres"):
        await refuse_stranded_messages(database, "postgres", [QUEUE], url)
    await refuse_stranded_messages(database, "postgres", ["other"], url)


async def test_a_start_with_postgresql_does_not_need_redis(direct: RedisBackend) -> None:
    await refuse_stranded_messages(direct.stage.database, "postgres", [QUEUE], "redis://127.0.0.1:1/0")


async def test_a_replica_is_refused_at_start(direct: RedisBackend) -> None:
    await direct.store.command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(Unavailable, match="is a replica, which refuses writes; let REDIS_URL name the primary"):
            async with RedisStore.open(direct.server.url, direct.stage.database):
                pass
    finally:
        await direct.store.command("REPLICAOF", "NO", "ONE")


async def test_a_database_number_that_is_none_is_refused_at_start(direct: RedisBackend) -> None:
    with pytest.raises(Unavailable, match="database number in REDIS_URL"):
        async with RedisStore.open(f"redis://127.0.0.1:{direct.server.port}/99", direct.stage.database):
            pass


async def test_a_url_that_asks_for_text_gets_bytes(direct: RedisBackend) -> None:
    url = f"redis://127.0.0.1:{direct.server.port}/0?decode_responses=true"
    async with RedisStore.open(url, direct.stage.database) as store:
        assert await store.command("GET", "payonce:installation")


@asynccontextmanager
async def as_another_installation(backend: RedisBackend) -> AsyncIterator[None]:
    before = await backend.stage.owner.fetchval("select id from payonce.installation")
    await backend.stage.owner.execute("update payonce.installation set id = $1", uuid4())
    yield
    await backend.stage.owner.execute("update payonce.installation set id = $1", before)


async def test_queues_of_another_database_are_refused(direct: RedisBackend) -> None:
    url, database = direct.server.url, direct.stage.database
    async with as_another_installation(direct):
        with pytest.raises(Unavailable, match=r"holds the queues of another database .* DEL payonce:installation"):
            async with RedisStore.open(url, database):
                pass
        # The remedy that it names.
        await direct.store.command("DEL", "payonce:installation")
        async with RedisStore.open(url, database):
            pass
    with pytest.raises(Unavailable, match="another database"):
        async with RedisStore.open(url, database):
            pass


async def test_a_wiped_server_is_marked_again(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    mark = await direct.store.command("GET", "payonce:installation")
    await direct.store.command("FLUSHALL")
    assert await claim(queue) == []
    assert await direct.store.command("GET", "payonce:installation") == mark


async def test_a_put_for_two_queues_is_all_or_none_when_redis_has_forgotten_one(
    direct: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await direct.queue(Policy("a"))
    await direct.queue(Policy("b"))
    await direct.store.command("DEL", "q:b:policy")
    declare, seen = direct.store.declare, []

    async def looked_at(*arguments: Any, **options: Any) -> None:
        seen.append((await direct.admin.depth("a")).ready)
        await declare(*arguments, **options)

    monkeypatch.setattr(direct.store, "declare", looked_at)
    await direct.feed.put([Message(queue="a"), Message(queue="b")])
    assert set(seen) == {0}
    assert len((await first.exchange([], 5)).claims) == 1
    assert (await direct.admin.depth("b")).ready == 1
