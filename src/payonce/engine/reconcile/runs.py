"""Runs on record: which stretch of a statement each one goes over, how far it came, and what it found."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from payonce.engine.audit import note
from payonce.engine.database.connections import Database
from payonce.engine.effects.declaration import SEND_MAX_S
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.transaction import Tx
from payonce.engine.reconcile.source import StatementSource, check_source, suspense_account
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Invalid, Stale

OVERLAP_S: Final = 3_600.0
"""A run begins so long before the end of the last one, beside the vendor's lag: clocks differ, vendors amend."""
FIRST_WINDOW_S: Final = 86_400.0
"""How far back the first run of a vendor goes when nobody says."""
RUNS_SHOWN_MAX: Final = 500
_TOUCHES: Final = "$2::timestamptz <= covered_until - make_interval(secs => lag_s) and $3::timestamptz >= covered_since"
"""Whether a stretch from $2 to $3 leaves no gap to what is covered. What the vendor may have shown late is not yet."""
COUNTS: Final = ("lines", "found", "adopted", "unmatched", "missing", "settled")


@dataclass(frozen=True)
class Run:
    """What a run has come to."""

    id: UUID
    vendor: str
    since: datetime
    until: datetime
    reached: datetime
    state: str
    begun_at: datetime
    finished_at: datetime | None
    lines: int
    """Lines of the statement that were looked at."""
    found: int
    """Effects whose end was not known, and which the statement shows."""
    adopted: int
    """Effects that were not on record, and that a business object of ours expects."""
    unmatched: int
    """Lines, or differences to a line, that went into suspense."""
    missing: int
    """Effects of ours that the statement should show and does not."""
    settled: int
    """What was in suspense and is explained now."""


async def register(database: Database, source: StatementSource) -> None:
    """Makes the source known to whoever releases a quarantine."""
    check_source(source)
    guarded = "select exists (select from payonce.accounts where path in ($1, $2) and guarded)"
    if await database.work.fetchval(guarded, source.mirror, suspense_account(source.vendor)):
        raise Invalid(
            f"{source.mirror} or {suspense_account(source.vendor)} is guarded: what the vendor shows must never be "
            "refused by our own limits; guard the accounts of customers and budgets instead"
        )
    await database.work.execute(
        """
        insert into payonce.statement_sources as known (vendor, mirror, kinds, lag_s) values ($1, $2, $3, $4)
        on conflict (vendor) do update
            set mirror = excluded.mirror, kinds = excluded.kinds, lag_s = excluded.lag_s
            where (known.mirror, known.kinds, known.lag_s)
                is distinct from (excluded.mirror, excluded.kinds, excluded.lag_s)
        """,
        source.vendor,
        source.mirror,
        sorted(source.kinds),
        source.lag_s,
    )


@dataclass(frozen=True)
class Coverage:
    """A vendor whose statement is read, and the last stretch of it without a gap; None before the first run."""

    vendor: str
    mirror: str
    lag_s: float
    covered_since: datetime | None
    covered_until: datetime | None


async def coverages(read: Reads) -> list[Coverage]:
    rows = await read.fetch(
        "select vendor, mirror, lag_s, covered_since, covered_until from payonce.statement_sources order by vendor"
    )
    return [Coverage(**dict(row)) for row in rows]


async def last_runs(read: Reads, vendor: str | None = None, limit: int = 20) -> list[Run]:
    """The newest first."""
    rows = await read.fetch(
        "select * from payonce.reconcile_runs where $1::text is null or vendor = $1 order by id desc limit $2",
        vendor,
        min(limit, RUNS_SHOWN_MAX),
    )
    return [as_run(row) for row in rows]


async def is_due(read: Reads, source: StatementSource) -> bool:
    """Whether the source's own rhythm asks for a run: also as soon as a quarantine can be reconciled."""
    if source.every_s is None:
        return False
    return bool(
        await read.fetchval(
            """
            select not exists (
                select from payonce.reconcile_runs r
                where r.vendor = $1 and r.state = 'finished'
                  and r.begun_at > payonce.due_now() - make_interval(secs => $2::float8)
                  and not exists (
                    select from payonce.quarantines q
                    where q.released_at is null and r.until < q.began_at + make_interval(secs => $3::float8)
                      and payonce.due_now() > q.began_at + make_interval(secs => $3::float8)))
            """,
            source.vendor,
            source.every_s,
            source.lag_s + SEND_MAX_S,
        )
    )


async def begin_or_go_on(
    tx: Tx, source: StatementSource, since: datetime | None, until: datetime | None, by: str
) -> Run:
    """The run over this stretch, or the one that was broken off in it, which goes on to its own end: whatever a run
    reads it reads after that end, so that of what lies further back than the vendor's lag it misses nothing. With a
    later end it would have read its first slices too early. None goes on from before a quarantine."""
    now = await tx.fetchval("select payonce.due_now()")
    if until is not None and until > now:
        raise Invalid(f"until is {until.isoformat()}, which is still to come; leave it out for now")
    end = until or now
    begin = since or await _default_since(tx, source, end)
    if begin >= end:
        raise Invalid(f"since is {begin.isoformat()}, which is not before {end.isoformat()}")
    row = await tx.fetchrow(
        """
        select r.* from payonce.reconcile_runs r join payonce.statement_sources s using (vendor)
        where vendor = $1 and state = 'running' and ($3::timestamptz is null or until >= $3)
          and begun_at >= coalesce((select began_at from payonce.quarantines where released_at is null), '-infinity')
          and (since = $2 or (not $4 and since < $2 and until > coalesce(covered_until, '-infinity')))
        for update of r
        """,
        source.vendor,
        begin,
        until,
        since is not None,
    )
    if row is None:
        await tx.execute(
            "update payonce.reconcile_runs set state = 'abandoned' where vendor = $1 and state = 'running'",
            source.vendor,
        )
        row = await tx.fetchrow(
            """
            insert into payonce.reconcile_runs (id, vendor, since, until, reached, begun_by)
            values ($1, $2, $3, $4, $3, $5) returning *
            """,
            new_id(),
            source.vendor,
            begin,
            end,
            by,
        )
    return as_run(row)


async def advance(tx: Tx, run: Run, counts: Mapping[str, int], reached: datetime | None = None) -> Run:
    """Notes what one step of a run did, in the transaction that did it."""
    added = ", ".join(f"{name} = {name} + ${place}" for place, name in enumerate(COUNTS, start=3))
    row = await tx.fetchrow(
        f"""
        update payonce.reconcile_runs set reached = coalesce($2, reached), {added}
        where id = $1 and state = 'running' returning *
        """,
        run.id,
        reached,
        *(counts.get(name, 0) for name in COUNTS),
    )
    if row is None:
        raise Stale(f"the run over {run.vendor} was taken over by another one")
    return as_run(row)


async def finish(tx: Tx, run: Run, by: str) -> Run:
    row = await tx.fetchrow(
        """
        update payonce.reconcile_runs set state = 'finished', finished_at = payonce.due_now()
        where id = $1 and state = 'running' returning *
        """,
        run.id,
    )
    if row is None:
        raise Stale(f"the run over {run.vendor} was taken over by another one")
    # A later stretch that leaves a gap moves nothing: the next run begins before the gap.
    await tx.execute(
        f"""
        update payonce.statement_sources
        set covered_until = greatest(covered_until, $3), covered_since = least(covered_since, $2)
        where vendor = $1 and (covered_since is null or ({_TOUCHES}))
        """,
        run.vendor,
        run.since,
        run.until,
    )
    finished = as_run(row)
    told = ", ".join(f"{getattr(finished, name)} {name}" for name in COUNTS)
    text = f"{finished.since.isoformat()} to {finished.until.isoformat()}: {told}"
    await note(tx.connection, "reconcile.run", run.vendor, text, actor=by)
    return finished


async def covered_since(read: Reads, run: Run) -> datetime:
    """Where the stretch begins that is covered without a gap once the run has ended."""
    since: datetime = await read.fetchval(
        f"select case when {_TOUCHES} then least(covered_since, $2) else $2 end "
        "from payonce.statement_sources where vendor = $1",
        run.vendor,
        run.since,
        run.until,
    )
    return since


async def _default_since(tx: Tx, source: StatementSource, until: datetime) -> datetime:
    row = await tx.fetchrow(
        """
        select s.covered_until, q.lost_since
        from payonce.statement_sources s left join payonce.quarantines q on q.released_at is null
        where s.vendor = $1
        """,
        source.vendor,
    )
    starts = []
    if row["covered_until"] is not None:
        starts.append(min(row["covered_until"], until) - timedelta(seconds=source.lag_s + OVERLAP_S))
    if row["lost_since"] is not None:
        starts.append(row["lost_since"])
    return min(starts, default=until - timedelta(seconds=FIRST_WINDOW_S))


def as_run(row: Any) -> Run:
    return Run(**{name: row[name] for name in Run.__dataclass_fields__})
