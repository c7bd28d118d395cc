"""A reconciliation run: each statement line against our effects, then our effects against the lines.

Repeating a run changes nothing more. An interrupted run continues with its current slice.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from uuid import UUID

from payonce.engine.database.connections import Database
from payonce.engine.database.leases import Leadership, fence
from payonce.engine.messages.transaction import NotifyingFeed, Reader, Tx, begin
from payonce.engine.reconcile import missing_effects, runs
from payonce.engine.reconcile.match import match_again, match_entry, matched_lines
from payonce.engine.reconcile.runs import Run
from payonce.engine.reconcile.source import Entry, StatementSource
from payonce.engine.reconcile.suspense import Direction, unmatched
from payonce.kit.outcomes import PayonceError, Stale, Unavailable
from payonce.kit.redact import redact

PAGE_LINES: Final = 200
ENTRY_LIMIT_S: Final = 120.0
"""A vendor that returns no further line within this time is considered hung."""
GO_ON: Final = "run it again to continue from there"
LEAD_LOOK_S: Final = 0.05
LEAD_LOOKS: Final = 160
"""Together longer than the lease of a run that died."""

Step = Callable[[Tx], Awaitable[Counter[str]]]


async def reconcile(
    database: Database,
    feed: NotifyingFeed,
    source: StatementSource,
    *,
    by: str,
    holder: str,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Run:
    """Reconciles one vendor from `since` to before `until`. By default it continues after the last run, or in
    quarantine covers everything that may be lost. `holder` must be unique to this process. Raises Stale while another
    process does it."""
    await runs.register(database, source)
    asked_at = await database.work.fetchval("select payonce.due_now()")
    async with Leadership.open(database, f"reconcile:{source.vendor}", holder) as leadership:
        await _lead(leadership, source.vendor)
        go_over = partial(_go_over, database, feed, source, by, leadership, since, until)
        run = await go_over()
        if until is None and run.until < asked_at - timedelta(seconds=source.lag_s):
            # A run interrupted long ago continued to its own end; the requested period goes further.
            run = await go_over()
        return run


async def _go_over(
    database: Database,
    feed: NotifyingFeed,
    source: StatementSource,
    by: str,
    leadership: Leadership,
    since: datetime | None,
    until: datetime | None,
) -> Run:
    async with _fenced(database, feed, leadership, source.vendor) as tx:
        run = await runs.begin_or_go_on(tx, source, since, until, by)
    walk = _Walk(database, feed, source, by, leadership, run)
    await walk.look_again()
    await walk.go_over_lines()
    await walk.look_for_missing()
    async with _fenced(database, feed, leadership, source.vendor) as tx:
        return await runs.finish(tx, walk.run, by)


@dataclass
class _Walk:
    """A run in progress. Each line has a transaction of its own, so that no handler waits for more than one."""

    database: Database
    feed: NotifyingFeed
    source: StatementSource
    by: str
    leadership: Leadership
    run: Run

    async def look_again(self) -> None:
        """Matches unexplained lines again: a business object may exist by now. A missing effect leaves suspense only
        with its line or by a person, since only they know whether the ledger still has it."""
        after: UUID | None = None
        while items := await unmatched(Reader(self.database), self.source.vendor, PAGE_LINES, after):
            for item in items:
                if item.direction is not Direction.OURS:
                    await self._step(
                        partial(match_again, source=self.source, item=item, run_id=self.run.id, by=self.by)
                    )
            after = items[-1].id

    async def go_over_lines(self) -> None:
        while self.run.reached < self.run.until:
            end = min(self.run.reached + timedelta(seconds=self.source.slice_s), self.run.until)
            async for page in _pages(self.source, self.run.reached, end):
                await self._match(page)
            await self._step(_nothing, reached=end)

    async def look_for_missing(self) -> None:
        read, last = Reader(self.database), None
        covered_since = await runs.covered_since(read, self.run)
        while page := await missing_effects.find_missing(read, self.source, self.run, covered_since, PAGE_LINES):
            if page == last:
                raise AssertionError(f"effects of {self.source.vendor} are missing and cannot be put into suspense")
            for effect_id in page:
                await self._step(
                    partial(missing_effects.put_into_suspense, source=self.source, effect_id=effect_id, by=self.by)
                )
            last = page

    async def _match(self, page: list[Entry]) -> None:
        known = await matched_lines(Reader(self.database), self.source.vendor, page)
        for entry in page:
            if (entry.kind, entry.vendor_ref) not in known:
                await self._step(partial(match_entry, source=self.source, entry=entry, run_id=self.run.id, by=self.by))
        await self._step(_nothing, lines=len(page))

    async def _step(self, step: Step, *, lines: int = 0, reached: datetime | None = None) -> None:
        async with _fenced(self.database, self.feed, self.leadership, self.source.vendor) as tx:
            counts = await step(tx)
            if lines or reached or counts.total():
                self.run = await runs.advance(tx, self.run, {**counts, "lines": lines}, reached)


async def _nothing(tx: Tx) -> Counter[str]:
    return Counter()


async def _pages(source: StatementSource, since: datetime, until: datetime) -> AsyncIterator[list[Entry]]:
    """The vendor's lines in pages; no transaction is open while waiting for the vendor."""
    page: list[Entry] = []
    entries = source.entries(since, until)
    try:
        while (entry := await _next(source, entries)) is not None:
            page.append(entry)
            if len(page) == PAGE_LINES:
                yield page
                page = []
        if page:
            yield page
    finally:
        if isinstance(entries, AsyncGenerator):
            await entries.aclose()


async def _next(source: StatementSource, entries: AsyncIterator[Entry]) -> Entry | None:
    try:
        async with asyncio.timeout(ENTRY_LIMIT_S):
            return await anext(entries, None)
    except TimeoutError as error:
        why = f"returned no further line within {ENTRY_LIMIT_S:g} s"
        raise Unavailable(f"the statement of {source.vendor} {why}; {GO_ON}") from error
    except PayonceError:
        raise
    except Exception as error:
        why = f"broke off: {type(error).__name__}: {redact(str(error))}"
        raise Unavailable(f"the statement of {source.vendor} {why}; {GO_ON}") from error


async def _lead(leadership: Leadership, vendor: str) -> None:
    for _ in range(LEAD_LOOKS):
        if leadership.lease is not None:
            return
        await asyncio.sleep(LEAD_LOOK_S)
    raise Stale(f"another process is reconciling {vendor}; wait for it to end")


@asynccontextmanager
async def _fenced(database: Database, feed: NotifyingFeed, leadership: Leadership, vendor: str) -> AsyncIterator[Tx]:
    """A transaction that begins with the fence, so that of two runs over one vendor only one writes."""
    lease = leadership.lease
    if lease is None:
        raise Stale(f"the lease of the run for {vendor} was lost; {GO_ON}")
    async with begin(database, feed, f"reconcile:{vendor}") as tx:
        await fence(tx.connection, lease)
        yield tx
        await tx.check_alive()
