"""Our queue on Redis as one side of the harness: the product's own classes, with the test's hand on both clocks."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from uuid import NAMESPACE_OID, UUID, uuid5

import msgspec

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import Claim, Ending, Message, SettleAnswer, Settlement
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.ports import Filter
from payonce.engine.outbox import declare_relays, relay_step
from payonce.queues.redis import RedisAdmin, RedisFeed, RedisQueue, RedisRelay, RedisStore, refill
from payonce.queues.redis.store import clock_fields
from payonce.testing import Stage
from tests.redis.client import Client, connect
from tests.redis.fault_explorer import NOTHING, PARKED, SUCCESS, Handle, OpenSide, QueueClient, Side, name_in

QUEUE = "q:pay:subscription_update"
LEASE_S = 30.0
RETRY_DELAY_S = 60.0
MAX_ATTEMPTS = 2
POLICY = Policy(QUEUE, max_attempts=MAX_ATTEMPTS, backoff=Fixed(RETRY_DELAY_S), lease_s=LEASE_S)
STALE = "stale"


@dataclass
class OurClient:
    """One process: its own connections to Redis, the test's to PostgreSQL."""

    stage: Stage
    store: RedisStore
    queue: RedisQueue
    feed: RedisFeed
    admin: RedisAdmin
    closing: AsyncExitStack
    extends: bool = False
    """Whether a run renews its lease before it ends."""

    async def tick(self, handle: Handle) -> str:
        claim = await self.claim()
        if claim is None:
            return NOTHING
        settlement = Settlement(claim, Ending.SUCCESS)
        try:
            await handle({"payload": claim.message.payload})
        except ArithmeticError as error:
            given_up = claim.message.attempts + 1 >= MAX_ATTEMPTS
            ending = Ending.PARKED if given_up else Ending.RETRY
            settlement = Settlement(claim, ending, str(error), 0.0 if given_up else RETRY_DELAY_S)
        except LookupError as error:
            settlement = Settlement(claim, Ending.PARKED, str(error))
        if self.extends and await self.queue.extend([claim]):
            return STALE
        return await self.settle(settlement)

    async def settle(self, settlement: Settlement) -> str:
        [answer] = (await self.queue.exchange([settlement], 0)).answers
        if answer is not SettleAnswer.SETTLED:
            return STALE
        return {Ending.SUCCESS: SUCCESS, Ending.PARKED: PARKED}.get(settlement.ending, settlement.ending.value)

    async def claim(self) -> Claim | None:
        if claims := (await self.queue.exchange([], 1)).claims:
            return claims[0]
        claim = await self.queue.claim_alone()
        return claim if claim is not None and await self.queue.mark_alone(claim) else None

    async def pump(self) -> object:
        """Relays and refills the outbox; due messages in Redis are moved by every claiming script."""
        await self.carry()
        if (await refill(self.store, 0.0)).put_back:
            await self.carry()
        return None

    async def send(self, names: Sequence[str]) -> None:
        """In a transaction: Redis learns of them by the relay."""
        async with self.stage.database.transaction() as connection:
            await self.feed.put([message(name) for name in names], within=connection)

    async def carry(self) -> None:
        while await relay_step(self.stage.database, RedisRelay(self.store)):
            pass

    async def wipe(self) -> None:
        await self.store.command("FLUSHALL")
        await self.store.send_clocks()

    async def sweep(self) -> object:
        return await self.queue.reap()

    async def redrive(self) -> int:
        return await self.admin.redrive(QUEUE, Filter())

    async def put(self, names: Sequence[str]) -> list[UUID]:
        return await self.feed.put([message(name) for name in names])

    async def close(self) -> None:
        await self.closing.aclose()


@dataclass
class OurSide:
    stage: Stage
    redis: Client
    url: str
    opened: list[QueueClient] = field(default_factory=list)

    async def client(self, url: str, name: str) -> QueueClient:
        async with AsyncExitStack() as opening:
            store = await opening.enter_async_context(RedisStore.open(url, self.stage.database))
            notifier = self.stage.notifier
            feed, admin = RedisFeed(store, notifier), RedisAdmin(store, notifier)
            queue = RedisQueue(store, notifier, POLICY, name)
            return OurClient(self.stage, store, queue, feed, admin, opening.pop_all())
        raise AssertionError("a stack of exits never swallows an error")

    async def put(self, names: Sequence[str], *, raw: bool) -> None:
        for name in names:
            body = msgspec.json.encode({"name": name})
            if not raw:
                body = msgspec.json.encode({"payload": {"name": name}, "attempts": 0, "id": str(id_of(name))})
            await self.redis.say("LPUSH", QUEUE, body)

    async def end_leases(self) -> None:
        await self.stage.clock.advance_leases(LEASE_S + 1)
        await send_clocks(self.stage, self.redis)

    async def let_delays_pass(self) -> None:
        await self.stage.clock.advance(RETRY_DELAY_S)
        await send_clocks(self.stage, self.redis)

    async def places(self) -> Mapping[str, Sequence[str]]:
        found = {
            "main": await self.redis.say("LRANGE", QUEUE, 0, -1),
            "processing": await self.redis.say("LRANGE", f"{QUEUE}:processing", 0, -1),
            "delayed": await self.redis.say("ZRANGE", f"{QUEUE}:delayed", 0, -1),
            "alone": await self.redis.say("ZRANGE", f"{QUEUE}:alone", 0, -1),
            "failed": await self.redis.say("LRANGE", f"{QUEUE}:failed", 0, -1),
        }
        read = {place: [msgspec.json.decode(body) for body in bodies] for place, bodies in found.items()}
        in_redis = [envelope["id"] for envelopes in read.values() for envelope in envelopes if "id" in envelope]
        only_kept = await self.stage.owner.fetch(
            "select payload->>'name' as name from payonce.outbox where not id::text = any($1)", in_redis
        )
        return {
            **{place: [name_in(envelope) for envelope in envelopes] for place, envelopes in read.items()},
            "outbox": [row["name"] for row in only_kept],
        }

    async def claimable(self) -> bool:
        now_ms = (await self.stage.clock.now()).timestamp() * 1_000
        due = [await self.redis.say("ZCOUNT", f"{QUEUE}:{place}", "-inf", now_ms) for place in ("delayed", "alone")]
        return bool(await self.redis.say("LLEN", QUEUE) or any(due))

    async def holder(self, name: str) -> str | None:
        """By the lock that operators see; the claim behind it says whose token that is."""
        records = await self.redis.say("HGETALL", f"{QUEUE}:claims")
        for message_id, record in pairs(records).items():
            token, *_, worker = record.partition(b"\n")[0].decode().split()
            if name_in(msgspec.json.decode(record.partition(b"\n")[2])) == name:
                lock = await self.redis.say("GET", f"lock:{QUEUE}:{message_id}")
                return worker if lock is not None and lock.decode() == token else None
        return None

    async def inconsistencies(self) -> Sequence[str]:
        """A message in `:processing` has a claim, a lease and a lock, and vice versa."""
        bodies = await self.redis.say("LRANGE", f"{QUEUE}:processing", 0, -1)
        processing = sorted(msgspec.json.decode(body)["id"] for body in bodies)
        claims = sorted(pairs(await self.redis.say("HGETALL", f"{QUEUE}:claims")))
        leases = sorted(each.decode() for each in await self.redis.say("ZRANGE", f"{QUEUE}:leases", 0, -1))
        locks = sorted(each.decode().rpartition(":")[2] for each in await self.redis.say("KEYS", "lock:*"))
        known = set(pairs(await self.redis.say("HGETALL", f"{QUEUE}:ids")))
        found = []
        if not processing == claims == leases == locks:
            found.append(f"in :processing {processing}, claimed {claims}, leased {leases}, locked {locks}")
        places = await self.places()
        if known and not any(places.values()):
            found.append(f"known, and nowhere: {sorted(known)}")
        return found


def pairs(answer: object) -> dict[str, bytes]:
    """Of HGETALL, however the client has read it."""
    assert isinstance(answer, dict)
    return {name.decode(): value for name, value in answer.items()}


def id_of(name: str) -> UUID:
    return uuid5(NAMESPACE_OID, name)


def message(name: str) -> Message:
    return Message(queue=QUEUE, id=id_of(name), payload={"name": name})


async def send_clocks(stage: Stage, redis: Client) -> None:
    """Redis' test clock stands where PostgreSQL's does."""
    await redis.say("HSET", "payonce:test_clock", *await clock_fields(stage.owner))


def ours_on(server: RedisServer, stage: Stage) -> OpenSide:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Side]:
        async with connect(server.url) as redis:
            await redis.say("FLUSHALL")
            await stage.owner.execute("delete from payonce.outbox; delete from payonce.inbox")
            await send_clocks(stage, redis)
            async with RedisStore.open(server.url, stage.database) as store:
                await RedisFeed(store, stage.notifier).declare([POLICY])
                await declare_relays(stage.database, [RedisRelay(store)])
            yield OurSide(stage, redis, server.url)

    return opened


def told(found: Sequence[object]) -> str:
    return "\n".join(map(str, found)) or "clean"
