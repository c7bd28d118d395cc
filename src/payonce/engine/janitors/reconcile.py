"""Reconciles vendors' statements when they fall due, and refreshes the gauges of reconciliation. Any process
may do it."""

from typing import Any

from payonce.engine.database.connections import Database
from payonce.engine.messages.transaction import NotifyingFeed, Reader
from payonce.engine.monitoring.metrics import (
    QUARANTINED,
    RECONCILED_SECONDS,
    UNMATCHED,
    UNMATCHED_AMOUNT,
    UNMATCHED_OLDEST_SECONDS,
)
from payonce.engine.reconcile import Direction, StatementSource, is_due, reconcile
from payonce.kit.log import get_logger
from payonce.kit.money import Amount, Asset

log = get_logger(__name__)


async def reconcile_when_due(database: Database, feed: NotifyingFeed, source: StatementSource, holder: str) -> None:
    """Reconciles one vendor if it is due, in a process that serves the vendor and has its keys. Raises Stale while
    another process does it."""
    if not await is_due(Reader(database), source):
        return
    run = await reconcile(database, feed, source, by="schedule", holder=holder)
    log.info("reconciled", vendor=run.vendor, lines=run.lines, unmatched=run.unmatched, missing=run.missing)


async def refresh_reconciliation_metrics(database: Database) -> None:
    """Refreshes the gauges of reconciliation and quarantine."""
    rows = await database.engine.fetch(
        """
        select s.vendor, extract(epoch from payonce.due_now() - s.covered_until)::float8 as reconciled_s,
            coalesce(extract(epoch from payonce.due_now() - min(u.first_seen_at)), 0)::float8 as oldest_s,
            count(u.id) filter (where direction = 'theirs') as theirs,
            count(u.id) filter (where direction = 'ours') as ours,
            count(u.id) filter (where direction = 'difference') as difference
        from payonce.statement_sources s left join payonce.unmatched u on u.vendor = s.vendor and u.state = 'open'
        group by s.vendor
        """
    )
    for row in rows:
        for direction in Direction:
            UNMATCHED.labels(row["vendor"], direction.value).set(row[direction.value])
        UNMATCHED_OLDEST_SECONDS.labels(row["vendor"]).set(row["oldest_s"])
        if row["reconciled_s"] is not None:
            RECONCILED_SECONDS.labels(row["vendor"]).set(row["reconciled_s"])
    amounts = await database.engine.fetch(
        """
        select vendor, asset, exponent, sum(abs(amount_minor)) as minor
        from payonce.unmatched where state = 'open' group by vendor, asset, exponent
        """
    )
    UNMATCHED_AMOUNT.clear()
    for row in amounts:
        UNMATCHED_AMOUNT.labels(row["vendor"], row["asset"]).set(_major(row))
    open_now = "select exists (select from payonce.quarantines where released_at is null)"
    QUARANTINED.set(await database.engine.fetchval(open_now))


def _major(row: Any) -> float:
    """A gauge is a double; the ledger keeps the exact amount."""
    amount = Amount(int(row["minor"]), Asset(row["asset"], row["exponent"]))
    return float(amount.to_decimal())
