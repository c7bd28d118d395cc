"""Recorded runs: the period of each run, its progress and its results."""

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
"""A run begins this long before the end of the last one, in addition to the vendor's lag: clocks differ, and vendors
amend."""
FIRST_WINDOW_S: Final = 86_400.0
"""How far back a vendor's first run goes by default."""
RUNS_SHOWN_MAX: Final = 500
_TOUCHES: Final = "$2::timestamptz <= covered_until - make_interval(secs => lag_s) and $3::timestamptz >= covered_since"
"""Whether a period from $2 to $3 leaves no gap to the covered period, whose last part within the vendor's lag does not
count."""
COUNTS: Final = ("lines", "found", "adopted", "unmatched", "missing", "settled")


@dataclass(frozen=True)
class Run:
    """The results of a run."""

    id: UUID
    vendor: str
    since: datetime
    until: datetime
    reached: datetime
    state: str
    begun_at: datetime
    finished_at: datetime | None
    lines: int
    """Statement lines processed."""
    found: int
    """Effects with an unknown outcome that the statement shows."""
    adopted: int
    """Effects that were not on record but that one of our business objects expects."""
    unmatched: int
    """Lines, or differences to a line, that went into suspense."""
    missing: int
    """Effects that the statement should show but does not."""
    settled: int
    """Items in suspense that are explained now."""


async def register(database: Database, source: StatementSource) -> None:
    """Records the source, which the release of a quarantine checks."""
    check_source(source)
    guarded = "select exists (select from payonce.accounts where path in ($1, $2) and guarded)"
    if await database.work.fetchval(guarded, source.mirror, suspense_account(source.vendor)):
        raise Invalid(
            f"{source.mirror} or {suspense_account(source.vendor)} is guarded: our own limits must never refuse "
            "what the vendor shows; guard the accounts of customers and budgets instead"
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
    """A vendor with a statement source, and its last period covered without a gap; None before the first run."""

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
    """Newest first."""
    rows = await read.fetch(
        "select * from payonce.reconcile_runs where $1::text is null or vendor = $1 order by id desc limit $2",
        vendor,
        min(limit, RUNS_SHOWN_MAX),
    )
    return [as_run(row) for row in rows]


async def is_due(read: Reads, source: StatementSource) -> bool:
    """Whether a run is due by the source's own interval, or because a quarantine can be reconciled now."""
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
    """The run over this period, or an interrupted run within it, which continues to its own end. A run reads everything
    after that end, so beyond the vendor's lag it misses nothing; with a later end it would have read its first slices
    too early. A run from before a quarantine is not continued."""
    now = await tx.fetchval("select payonce.due_now()")
    if until is not None and until > now:
        raise Invalid(f"until is {until.isoformat()}, which is in the future; leave it out to use the present time")
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
    """Records the result of one step, in its transaction."""
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
        raise Stale(f"the run for {run.vendor} was taken over by another one")
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
        raise Stale(f"the run for {run.vendor} was taken over by another one")
    # A later period that leaves a gap changes nothing: the next run begins before the gap.
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
    counts_text = ", ".join(f"{getattr(finished, name)} {name}" for name in COUNTS)
    text = f"{finished.since.isoformat()} to {finished.until.isoformat()}: {counts_text}"
    await note(tx.connection, "reconcile.run", run.vendor, text, actor=by)
    return finished


async def covered_since(read: Reads, run: Run) -> datetime:
    """The start of the period that is covered without a gap once the run has ended."""
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
