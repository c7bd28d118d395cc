"""The seed's order of commands loses and doubles messages in seven places, and the harness that clears ours sees each.

Every test names the two commands between which the damage is done.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import NAMESPACE_OID, uuid5

import pytest

from payonce.embedded.redis import RedisServer
from tests.redis.client import Client, connect
from tests.redis.fault_explorer import Handle, OpenSide, Path, QueueClient, Side, explore, name_in, strike
from tests.redis.fault_proxy import FaultKind
from tests.redis.paths import BUSY, DONE, PARK, PUMP, RETRY, SEED_PATHS, SWEEP, TWINS
from tests.redis.seed_worker import RETRY_DELAY_MS, SeedWorker

QUEUE = "q:pay:subscription_update"
BEGINNING_MS = 1_767_268_800_000


@dataclass
class SeedClient:
    worker: SeedWorker

    async def tick(self, handle: Handle) -> str:
        return await self.worker.tick(handle)

    async def pump(self) -> object:
        return await self.worker.pump()

    async def sweep(self) -> object:
        return await self.worker.sweep()

    async def close(self) -> None:
        await self.worker.redis.close()


@dataclass
class SeedSide:
    redis: Client
    now_ms: int = BEGINNING_MS

    async def client(self, url: str, name: str) -> QueueClient:
        return SeedClient(SeedWorker(Client(url), QUEUE, name, lambda: self.now_ms))

    async def put(self, names: Sequence[str], *, raw: bool) -> None:
        for name in names:
            body = {"name": name}
            envelope = {"id": str(uuid5(NAMESPACE_OID, name)), "attempts": 0, "payload": body}
            await self.redis.say("LPUSH", QUEUE, json.dumps(body if raw else envelope))

    async def end_leases(self) -> None:
        """What a TTL does by itself, without waiting for it."""
        for lock in await self.redis.say("KEYS", "lock:*"):
            await self.redis.say("DEL", lock)

    async def let_delays_pass(self) -> None:
        self.now_ms += RETRY_DELAY_MS

    async def places(self) -> Mapping[str, Sequence[str]]:
        found = {
            "main": await self.redis.say("LRANGE", QUEUE, 0, -1),
            "processing": await self.redis.say("LRANGE", f"{QUEUE}:processing", 0, -1),
            "delayed": await self.redis.say("ZRANGE", f"{QUEUE}:delayed", 0, -1),
            "failed": await self.redis.say("LRANGE", f"{QUEUE}:failed", 0, -1),
        }
        return {place: [name_in(json.loads(body)) for body in bodies] for place, bodies in found.items()}

    async def claimable(self) -> bool:
        return bool(await self.redis.say("LLEN", QUEUE))

    async def inconsistencies(self) -> Sequence[str]:
        return ()

    async def holder(self, name: str) -> str | None:
        holders = [
            (await self.redis.say("GET", lock) or b"").decode() for lock in await self.redis.say("KEYS", "lock:*")
        ]
        return holders[0] if holders else None


def seed_on(server: RedisServer) -> OpenSide:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Side]:
        async with connect(server.url) as redis:
            await redis.say("FLUSHALL")
            yield SeedSide(redis)

    return opened


async def struck(server: RedisServer, path: Path, fault: FaultKind, *behind: str) -> str:
    """What the oracle says of one fault behind these commands."""
    found, _ = await strike(seed_on(server), server.port, path, fault, len(behind))
    assert all(each.behind == behind for each in found), [str(each) for each in found]
    return "; ".join(each.what for each in found)


async def test_a_busy_lock_loses_the_message_between_lrem_and_lpush(redis_server: RedisServer) -> None:
    assert "is lost" in await struck(redis_server, BUSY, FaultKind.DEATH, "BRPOPLPUSH", "SET", "LREM")


async def test_a_retry_leaves_two_copies_between_zadd_and_lrem(redis_server: RedisServer) -> None:
    assert "2 copies" in await struck(redis_server, RETRY, FaultKind.DEATH, "BRPOPLPUSH", "SET", "ZADD")


async def test_parking_leaves_two_copies_between_lpush_and_lrem(redis_server: RedisServer) -> None:
    assert "2 copies" in await struck(redis_server, PARK, FaultKind.DEATH, "BRPOPLPUSH", "SET", "LPUSH")


async def test_the_pump_loses_the_message_between_zrem_and_lpush(redis_server: RedisServer) -> None:
    assert "is lost" in await struck(redis_server, PUMP, FaultKind.DEATH, "ZRANGEBYSCORE", "ZREM")


async def test_a_sweep_between_claim_and_lock_doubles_the_message(redis_server: RedisServer) -> None:
    assert "put 1 times and ended 2 times" in await struck(redis_server, DONE, FaultKind.STOP, "BRPOPLPUSH")


async def test_a_handler_longer_than_the_ttl_deletes_anothers_lock(redis_server: RedisServer) -> None:
    said = await struck(redis_server, DONE, FaultKind.STOP, "BRPOPLPUSH", "SET")
    assert "the lock of a is nobody's, while another process has it in hand" in said
    assert "put 1 times and ended 2 times" in said


async def test_identical_raw_bodies_collapse_in_the_delayed_set(redis_server: RedisServer) -> None:
    """Nobody dies: two messages fail, and one of them is left."""
    found, _ = await strike(seed_on(redis_server), redis_server.port, TWINS, FaultKind.NONE, 0)
    assert [each.what for each in found] == ["a was put 2 times and is lost"]


async def test_the_sweep_itself_loses_the_message_between_lrem_and_zadd(redis_server: RedisServer) -> None:
    assert "is lost" in await struck(redis_server, SWEEP, FaultKind.DEATH, "LRANGE", "EXISTS", "LREM")


@pytest.mark.parametrize("path", SEED_PATHS, ids=lambda path: path.name)
async def test_no_path_of_the_seed_is_clean(redis_server: RedisServer, path: Path) -> None:
    found = await explore(seed_on(redis_server), redis_server.port, path)
    assert found, f"{path.name} of the seed is clean: the harness does not see what it is there for"
