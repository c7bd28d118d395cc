"""Moves a queue out of Redis, page by page: rows are written to PostgreSQL first, then their copies are deleted.

A process may die between any two steps. Before a message leaves the outbox its copy in Redis is marked as kept, and a
kept copy without a row is settled: a second move, or a worker, deletes it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

import msgspec

from payonce.engine.database.commits import settled_transaction
from payonce.engine.database.connections import Connection, Database
from payonce.engine.messages.idempotency import take_keys
from payonce.engine.messages.model import State, message_from_wire
from payonce.engine.messages.ports import Filter
from payonce.engine.outbox import put_out
from payonce.kit.ids import new_id
from payonce.queues.redis import scripts
from payonce.queues.redis.admin import RedisAdmin
from payonce.queues.redis.codec import encode_bodies
from payonce.queues.redis.durable_copy import RELAY, known_copies
from payonce.queues.redis.queries import StoredCopy
from payonce.queues.redis.store import RedisStore

STATES: Final = (State.READY, State.ALONE, State.PARKED)
KEY_TTL_US: Final = 86_400 * 1_000_000


@dataclass
class Withdrawal:
    """Moves one queue. `move` takes rows out of the outbox, in the transaction that it is given."""

    database: Database
    store: RedisStore
    admin: RedisAdmin
    queue: str
    move: Callable[[Connection, Sequence[UUID]], Awaitable[int]]
    moved: int = 0
    _seen: set[UUID] = field(default_factory=set)

    async def run(self) -> int:
        """Moves until a full pass finds nothing to do, since pages shift as copies go, and messages may still be put.
        Unreadable bodies stay. Returns how many messages were moved."""
        while await self._assign_ids() or await self._move_pages():
            pass
        return self.moved

    async def _assign_ids(self) -> int:
        """Gives each manually pushed body an id: two equal bodies are two messages."""
        named = 0
        for state in (State.READY, State.PARKED):
            async for page in self.admin.matching(self.queue, state, Filter()):
                words: list[str | bytes] = []
                for each in page:
                    if each.readable and not each.named:
                        words += (each.body, _named(self.queue, each.body))
                if words:
                    [count] = await self.store.run(scripts.NAME, self.queue, *words)
                    named += count
        return named

    async def _move_pages(self) -> int:
        done = 0
        for state in STATES:
            async for page in self.admin.matching(self.queue, state, Filter()):
                readable = {each.stored.message.id: each for each in page if each.readable and each.named}
                if readable:
                    done += await self._take(list(readable.values()), state)
        return done

    async def _take(self, page: Sequence[StoredCopy], state: State) -> int:
        known = await known_copies(self.database.engine, self.queue, _ids(page))
        # A second copy of a moved message was pushed manually.
        over = [
            each
            for each in page
            if each.stored.message.id in self._seen or known.are_over(each.stored.message.id, each.mark)
        ]
        alive = [each for each in page if each not in over]
        await self._keep([each for each in alive if each.stored.message.id not in known.states], state)
        marked = await self._mark(alive)
        async with self.database.engine.acquire() as connection, settled_transaction(self.database, connection):
            count = await self.move(connection, _ids(marked))
        self.moved += count
        self._seen.update(_ids(marked))
        return count + await drop(self.store, self.queue, state, [*over, *marked])

    async def _keep(self, page: Sequence[StoredCopy], state: State) -> None:
        """Stores messages that only Redis has in PostgreSQL as well: attempts, times, reason and idempotency key."""
        messages = [
            msgspec.structs.replace(each.stored.message, not_before=each.stored.ready_at, delay_s=0.0) for each in page
        ]
        async with self.database.engine.acquire() as connection, settled_transaction(self.database, connection):
            await take_keys(connection, messages)
            await put_out(connection, RELAY, messages)
            await connection.execute(
                _DESCRIBE,
                RELAY,
                _ids(page),
                [each.stored.ready_at for each in page],
                [each.stored.last_error for each in page],
                [each.first_attempt_at for each in page],
                state is State.PARKED,
            )

    async def _mark(self, page: Sequence[StoredCopy]) -> list[StoredCopy]:
        """Marks the copies as kept; returns those that are unchanged since they were read."""
        words = [word for each in page for word in (each.id.encode(), each.known)]
        known = await self.store.run(scripts.MARK_KEPT, self.queue, *words) if words else []
        return [replace(each, known=text) for each, text in zip(page, known, strict=True) if text]


async def drop(store: RedisStore, queue: str, state: State, page: Sequence[StoredCopy]) -> int:
    """Deletes exactly these copies; returns how many were there."""
    words: list[str | bytes | int] = [state.value, KEY_TTL_US]
    for each in page:
        words += (each.id, each.body, each.known, each.stored.message.idempotency_key or "", "")
    return len(await store.run(scripts.PURGE, queue, *words)) if page else 0


def _named(queue: str, body: bytes) -> bytes:
    """The body with an id. An envelope keeps its own; one derived from the bytes is replaced."""
    message = message_from_wire(queue, body)
    if message.id != message_from_wire(queue, body + b" ").id:
        message = msgspec.structs.replace(message, id=new_id())
    [named] = encode_bodies([message])
    return named


def _ids(page: Sequence[StoredCopy]) -> list[UUID]:
    return [each.stored.message.id for each in page]


_DESCRIBE: Final = """
    update payonce.outbox entry
    set last_error = described.reason, first_attempt_at = described.first_at, token = token + 1,
        state = case when $6 then 'parked' else entry.state end,
        try_at = case when $6 then described.at else entry.try_at end
    from unnest($2::uuid[], $3::timestamptz[], $4::text[], $5::timestamptz[]) as described (id, at, reason, first_at)
    where entry.relay = $1 and entry.id = described.id and entry.state = 'waiting'"""
