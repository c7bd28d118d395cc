"""What operators do to queues in Redis: look, pause, redrive, purge."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from payonce.engine.bell import Bell
from payonce.engine.database import Connection
from payonce.engine.model import State, clean_text
from payonce.engine.outbox import wake_name
from payonce.engine.queue import Depth, Filter, Preview, Stored
from payonce.kit.outcomes import Invalid
from payonce.queues.declaring import check_known, queue_names, set_paused
from payonce.queues.redis import scripts
from payonce.queues.redis.bodies import encode_bodies
from payonce.queues.redis.kept import RELAY, adopt, forget, start_over
from payonce.queues.redis.keys import paused_key
from payonce.queues.redis.looking import Found, found_of, matches
from payonce.queues.redis.runlog import EndedRun, line, try_to_write_runs
from payonce.queues.redis.store import RedisStore

COUNT_MAX: Final = 1_000_000
"""A filter looks at no more messages than this."""
PAGE: Final = 500
SAMPLES: Final = 5
PEEK_MAX: Final = 1_000
US: Final = 1_000_000


class Changed(NamedTuple):
    chosen: int
    changed: int


class RedisAdmin:
    def __init__(self, store: RedisStore, bell: Bell) -> None:
        self._store = store
        self._pool = store.database.engine
        self._bell = bell

    async def queues(self) -> list[str]:
        return await queue_names(self._pool)

    async def depth(self, queue: str) -> Depth:
        await check_known(self._pool, queue)
        ready, delayed, alone, leased, parked, oldest_us, paused = await self._store.run(scripts.DEPTH, queue)
        return Depth(queue, ready, delayed, alone, leased, parked, int(oldest_us) / US, bool(paused))

    async def peek(self, queue: str, state: State, limit: int, after: UUID | None = None) -> list[Stored]:
        """In the order they fall due; `after` the given message, for the next page."""
        await check_known(self._pool, queue)
        if not 1 <= limit <= PEEK_MAX:
            raise Invalid(f"limit is {limit}; it must be between 1 and {PEEK_MAX}")
        page: list[Stored] = []
        passed = after is None
        async for found in self._walk(queue, state):
            if passed:
                page.append(found.stored)
                if len(page) == limit:
                    break
            passed = passed or found.stored.message.id == after
        return page

    async def pause(self, queue: str, reason: str, by: str = "the application") -> None:
        cleaned = clean_text(reason)
        async with self._pool.acquire() as connection, connection.transaction():
            await set_paused(connection, queue, cleaned, by)
            await self._store.command("SET", paused_key(queue), cleaned or "paused")

    async def resume(self, queue: str, by: str = "the application") -> None:
        async with self._pool.acquire() as connection, connection.transaction():
            await set_paused(connection, queue, None, by)
            await self._store.command("DEL", paused_key(queue))
        self._bell.ring({queue})

    async def preview(self, queue: str, state: State, which: Filter) -> Preview:
        await check_known(self._pool, queue)
        count, with_open_effects = 0, 0
        samples: list[Stored] = []
        async for page in self.matching(queue, state, which):
            count += len(page)
            with_open_effects += len(await self._with_open_effects([found.stored.message.id for found in page]))
            samples += [found.stored for found in page[: SAMPLES - len(samples)]]
        return Preview(count, samples, with_open_effects)

    async def choose(
        self, queue: str, state: State, which: Filter, limit: int, within: Connection | None = None
    ) -> list[UUID]:
        await check_known(self._pool, queue)
        chosen: list[UUID] = []
        async for page in self.matching(queue, state, which):
            chosen += [found.stored.message.id for found in page[: limit - len(chosen)]]
            if len(chosen) == limit:
                break
        return chosen

    async def redrive(self, queue: str, which: Filter, within: Connection | None = None) -> int:
        """Parked messages start over: attempts, crashes and age from zero. One that is parked again meanwhile stays."""
        await check_known(self._pool, queue)

        async def redrive_within(page: Sequence[Found]) -> int:
            assert within is not None
            kept = await start_over(within, [found.stored.message.id for found in page])
            direct = [found.stored.message for found in page if found.stored.message.id not in kept]
            await adopt(within, direct)
            # They stay where they are until the relay comes: the next page must pass them by.
            return 0

        async def redrive_now(page: Sequence[Found]) -> int:
            async with self._pool.acquire() as connection:
                await start_over(connection, [found.stored.message.id for found in page if found.kept])
            words: list[str | bytes] = []
            for found in page:
                [fresh] = encode_bodies([msgspec.structs.replace(found.stored.message, attempts=0)])
                words += (found.id, found.body, fresh)
            [count] = await self._store.run(scripts.REDRIVE, queue, *words)
            return int(count)

        def was_parked(found: Found, begun_at: datetime) -> bool:
            return found.readable and found.stored.ready_at <= begun_at

        if within is not None:
            return (await self._change(queue, State.PARKED, which, redrive_within, was_parked)).chosen
        redriven = await self._change(queue, State.PARKED, which, redrive_now, was_parked)
        if redriven.changed:
            self._bell.ring({queue, wake_name(RELAY)})
        return redriven.changed

    async def purge(self, queue: str, state: State, which: Filter, by: str) -> int:
        """Deletes what is there at the beginning; each leaves a row in the job log, so nothing vanishes untold.
        Messages with open effects stay."""
        await check_known(self._pool, queue)
        if state is State.LEASED:
            raise Invalid("messages that are being worked on cannot be purged; pause the queue and let them end")
        retention_s = await self._pool.fetchval("select key_retention_s from payonce.queues where name = $1", queue)
        reason = f"purged by {clean_text(by)}"

        async def purge(page: Sequence[Found]) -> int:
            busy = await self._with_open_effects([found.stored.message.id for found in page])
            async with self._pool.acquire() as connection:
                kept = [found.stored.message.id for found in page if found.kept]
                await forget(connection, [message_id for message_id in kept if message_id not in busy])
            arguments: list[str | bytes | int] = [state.value, round(retention_s * US)]
            for found in page:
                message = found.stored.message
                if message.id not in busy:
                    told = line(message, "failed", message.attempts, reason)
                    arguments += (found.id, found.body, found.known, message.idempotency_key or "", told)
            gone = {each.decode() for each in await self._store.run(scripts.PURGE, queue, *arguments)}
            runs = [
                EndedRun(found.stored.message, "failed", found.stored.message.attempts, reason, None, None, None)
                for found in page
                if found.id in gone
            ]
            await try_to_write_runs(self._store.database, runs)
            return len(gone)

        return (await self._change(queue, state, which, purge, _was_there)).changed

    async def _change(
        self, queue: str, state: State, which: Filter, act: Callable[[Sequence[Found]], Awaitable[int]],
        at_the_beginning: Callable[[Found, datetime], bool],
    ) -> Changed:  # fmt: skip
        """What is there at the beginning, page by page; what an act removed is not skipped on the next page."""
        begun_at = await self._pool.fetchval("select payonce.due_now()")
        skip, all_chosen, all_changed, more = 0, 0, 0, True
        while more and skip < COUNT_MAX:
            page, more = await self._page(queue, state, skip)
            chosen = [found for found in page if matches(found.stored, which) and at_the_beginning(found, begun_at)]
            changed = await act(chosen) if chosen else 0
            all_chosen, all_changed = all_chosen + len(chosen), all_changed + changed
            skip += PAGE - changed
        return Changed(all_chosen, all_changed)

    async def matching(self, queue: str, state: State, which: Filter) -> AsyncIterator[list[Found]]:
        """Page by page; what changes meanwhile may be seen twice or not at all."""
        skip, more = 0, True
        while more and skip < COUNT_MAX:
            page, more = await self._page(queue, state, skip)
            skip += PAGE
            yield [found for found in page if matches(found.stored, which)]

    async def _walk(self, queue: str, state: State) -> AsyncIterator[Found]:
        async for page in self.matching(queue, state, Filter()):
            for found in page:
                yield found

    async def _page(self, queue: str, state: State, skip: int) -> tuple[list[Found], bool]:
        page: list[Found] = []
        more, left = 1, PAGE
        while more and left:
            more, looked, *rows = await self._store.run(scripts.LIST, queue, state.value, skip + PAGE - left, left)
            page += [found_of(queue, state, *rows[at : at + 5]) for at in range(0, len(rows), 5)]
            left -= looked
        return page, bool(more)

    async def _with_open_effects(self, ids: Sequence[UUID]) -> set[UUID]:
        rows = await self._pool.fetch(
            """
            select distinct message_id from payonce.effects
            where message_id = any($1) and state in ('intended', 'unknown', 'review')
            """,
            list(ids),
        )
        return {row["message_id"] for row in rows}


def _was_there(found: Found, begun_at: datetime) -> bool:
    created_at = found.stored.message.created_at
    return created_at is None or created_at <= begun_at
