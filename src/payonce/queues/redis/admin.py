"""Operations on queues in Redis: inspect, pause, redrive, purge."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from payonce.engine.database.commits import settled_transaction
from payonce.engine.database.connections import Connection
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.declarations import check_known, queue_names, set_paused
from payonce.engine.messages.job_log import EndedRun, write_runs
from payonce.engine.messages.model import State, clean_text
from payonce.engine.messages.ports import Depth, Filter, Preview, QueuedMessage
from payonce.engine.outbox import wake_name
from payonce.queues.operations import COUNT_MAX, SAMPLES, check_page, check_purged
from payonce.queues.redis import scripts
from payonce.queues.redis.durable_copy import KEPT, RELAY, forget, start_over
from payonce.queues.redis.job_log import line, try_to_write_runs
from payonce.queues.redis.keys import paused_key
from payonce.queues.redis.queries import StoredCopy, matches, stored_copy_of
from payonce.queues.redis.redrive import parked_rows, redrive_now, redrive_within
from payonce.queues.redis.store import RedisStore

PAGE: Final = 500
US: Final = 1_000_000


class PurgeCounts(NamedTuple):
    from_redis: int
    from_both: int


class RedisAdmin:
    def __init__(self, store: RedisStore, notifier: Notifier) -> None:
        self._store = store
        self._pool = store.database.engine
        self._notifier = notifier

    async def queues(self) -> list[str]:
        return await queue_names(self._pool)

    async def depth(self, queue: str) -> Depth:
        await check_known(self._pool, queue)
        ready, delayed, alone, leased, parked, oldest_us, paused = await self._store.run(scripts.DEPTH, queue)
        return Depth(queue, ready, delayed, alone, leased, parked, int(oldest_us) / US, bool(paused))

    async def peek(self, queue: str, state: State, limit: int, after: UUID | None = None) -> list[QueuedMessage]:
        """Messages in the order they fall due; `after` names the last message of the previous page."""
        await check_known(self._pool, queue)
        check_page(limit)
        page: list[QueuedMessage] = []
        passed = after is None
        async for found in self._each(queue, state):
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
        self._notifier.notify({queue})

    async def preview(self, queue: str, state: State, which: Filter) -> Preview:
        await check_known(self._pool, queue)
        count, with_open_effects, in_review, unreadable = 0, 0, 0, 0
        samples: list[QueuedMessage] = []
        async for page in self.matching(queue, state, which):
            count += len(page)
            unreadable += sum(not found.readable for found in page)
            effects = await self._with_open_effects([found.stored.message.id for found in page])
            with_open_effects += len(effects)
            in_review += sum(effects.values())
            samples += [found.stored for found in page[: SAMPLES - len(samples)]]
        return Preview(count, samples, with_open_effects, in_review, unreadable)

    async def choose(
        self, queue: str, state: State, which: Filter, limit: int, within: Connection | None = None
    ) -> list[UUID]:
        await check_known(self._pool, queue)
        chosen: list[UUID] = []
        async for page in self.matching(queue, state, which):
            chosen += [found.stored.message.id for found in page if found.readable][: limit - len(chosen)]
            if len(chosen) == limit:
                break
        return chosen

    async def redrive(self, queue: str, which: Filter, within: Connection | None = None) -> int:
        """Parked messages start over: attempts, crashes and age from zero. One that is parked again meanwhile stays
        parked."""
        await check_known(self._pool, queue)
        begun_at = await self._pool.fetchval("select payonce.due_now()")
        rows = set(await parked_rows(within or self._pool, queue, which, begun_at))
        left = set(rows)
        async for page in self.matching(queue, State.PARKED, which):
            left |= {each.stored.message.id for each in page if each.readable and each.stored.ready_at <= begun_at}
            if which.ids and left.issuperset(which.ids):
                break
        redriven: set[UUID] = set()

        async def act(page: Sequence[StoredCopy]) -> None:
            nonlocal redriven
            if within is None:
                redriven |= await redrive_now(self._store, queue, page)
            else:
                redriven |= await redrive_within(self._store, queue, page, within)

        await self._act_on(queue, left, act)
        # A wiped server does not list them yet.
        redriven |= await start_over(within or self._pool, list(rows & left))
        if redriven and within is None:
            self._notifier.notify({queue, wake_name(RELAY)})
        return len(redriven)

    async def _act_on(
        self, queue: str, left: set[UUID], act: Callable[[Sequence[StoredCopy]], Awaitable[None]]
    ) -> None:
        """Passes the parked copies of these messages to `act` and removes their ids from the set. Pages shift when
        copies are removed, here or elsewhere, so the list is read until none of them is left in it."""
        found = True
        while found and left:
            found = False
            async for page in self.matching(queue, State.PARKED, Filter()):
                chosen = {each.stored.message.id: each for each in page if each.stored.message.id in left}
                if chosen:
                    found = True
                    left -= chosen.keys()
                    await act(list(chosen.values()))
                if not left:
                    return

    async def purge(
        self,
        queue: str,
        state: State,
        which: Filter,
        by: str,
        *,
        limit: int | None = None,
        put_before: datetime | None = None,
    ) -> int:
        """Deletes the messages that are there at the beginning, except those with open effects; each gets a row in the
        job log."""
        await check_known(self._pool, queue)
        check_purged(state)
        retention_s = await self._pool.fetchval("select key_retention_s from payonce.queues where name = $1", queue)
        reason = f"purged by {clean_text(by)}"

        async def purge(page: Sequence[StoredCopy]) -> PurgeCounts:
            busy = await self._with_open_effects([found.stored.message.id for found in page])
            arguments: list[str | bytes | int] = [state.value, round(retention_s * US)]
            for found in page:
                message = found.stored.message
                if message.id not in busy:
                    log_line = line(message, "failed", message.attempts, reason)
                    arguments += (found.id, found.body, found.known, message.idempotency_key or "", log_line)
            names = {each.decode() for each in await self._store.run(scripts.PURGE, queue, *arguments)}
            # Redis first: a message claimed meanwhile stays there, and so does its row.
            gone = [found for found in page if found.id in names]
            return PurgeCounts(len(gone), len(gone) - await self._forget(gone, reason))

        return await self._purge_pages(queue, state, which, purge, limit, put_before)

    async def _forget(self, gone: Sequence[StoredCopy], reason: str) -> int:
        """Deletes outbox rows and writes the job log. Returns how many rows stay because a run holds them: refill puts
        their messages back into Redis."""
        kept = [found.stored.message.id for found in gone if found.kept]
        async with self._pool.acquire() as connection, settled_transaction(self._store.database, connection):
            forgotten = await forget(connection, kept)
            ended = [purged(found, reason) for found in gone if found.stored.message.id in forgotten]
            await write_runs(connection, ended)
            rest = {message_id for message_id in kept if message_id not in forgotten}
            held = await connection.fetchval(
                "select count(*) from payonce.outbox where relay = $1 and id = any($2)", RELAY, list(rest)
            )
        direct = [found for found in gone if found.mark != KEPT and found.stored.message.id not in forgotten]
        await try_to_write_runs(self._store.database, [purged(found, reason) for found in direct])
        return int(held)

    async def _purge_pages(
        self,
        queue: str,
        state: State,
        which: Filter,
        act: Callable[[Sequence[StoredCopy]], Awaitable[PurgeCounts]],
        limit: int | None,
        begun_at: datetime | None,
    ) -> int:
        """Purges page by page what was there at the beginning; messages that move up are not skipped."""
        begun_at = begun_at or await self._pool.fetchval("select payonce.due_now()")
        skip, count, more = 0, 0, True
        while more and skip < COUNT_MAX and (limit is None or count < limit):
            page, more = await self._page(queue, state, skip)
            chosen = [found for found in page if matches(found.stored, which) and _existed(found, begun_at)]
            gone = await act(chosen) if chosen else PurgeCounts(0, 0)
            count += gone.from_both
            skip += PAGE - gone.from_redis
        return count

    async def matching(self, queue: str, state: State, which: Filter) -> AsyncIterator[list[StoredCopy]]:
        """Matching messages, page by page; those that change meanwhile may appear twice or not at all."""
        skip, more = 0, True
        while more and skip < COUNT_MAX:
            page, more = await self._page(queue, state, skip)
            skip += PAGE
            yield [found for found in page if matches(found.stored, which)]

    async def _each(self, queue: str, state: State) -> AsyncIterator[StoredCopy]:
        async for page in self.matching(queue, state, Filter()):
            for found in page:
                yield found

    async def _page(self, queue: str, state: State, skip: int) -> tuple[list[StoredCopy], bool]:
        page: list[StoredCopy] = []
        more, left = 1, PAGE
        while more and left:
            more, looked, *rows = await self._store.run(scripts.LIST, queue, state.value, skip + PAGE - left, left)
            page += [stored_copy_of(queue, state, *rows[at : at + 5]) for at in range(0, len(rows), 5)]
            left -= looked
        return page, bool(more)

    async def _with_open_effects(self, ids: Sequence[UUID]) -> dict[UUID, bool]:
        """Messages with open effects, and whether one of the effects is in review."""
        rows = await self._pool.fetch(
            """
            select message_id, bool_or(state = 'review') as in_review from payonce.effects
            where message_id = any($1) and state in ('intended', 'unknown', 'review') group by message_id
            """,
            list(ids),
        )
        return {row["message_id"]: row["in_review"] for row in rows}


def purged(found: StoredCopy, reason: str) -> EndedRun:
    message = found.stored.message
    return EndedRun(message, "failed", message.attempts, reason, None, None, None)


def _existed(found: StoredCopy, begun_at: datetime) -> bool:
    created_at = found.stored.message.created_at
    return created_at is None or created_at <= begun_at
