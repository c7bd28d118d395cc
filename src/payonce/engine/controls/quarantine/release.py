"""The release of a quarantine: once every vendor's statement is reconciled with our effects, or a person accepts the
rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from payonce.engine.controls.quarantine.state import Quarantine, as_quarantine, open_quarantine
from payonce.engine.effects.declaration import SEND_MAX_S
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.model import clean_text
from payonce.engine.messages.transaction import Tx
from payonce.kit.outcomes import Invalid, Stale
from payonce.kit.redact import redact


@dataclass(frozen=True)
class Blocker:
    """What prevents the release, and the remedy."""

    vendor: str
    reason: str
    way_out: str


async def blockers(read: Reads, quarantine: Quarantine) -> list[Blocker]:
    """Empty when everything possibly lost was looked for and all findings are explained."""
    sources = await read.fetch(
        """
        select s.vendor, s.lag_s + $3 as settled_s,
            exists (
                select from payonce.reconcile_runs r
                where r.vendor = s.vendor and r.state = 'finished' and r.begun_at >= $1 and r.since <= $2
                  and r.until >= $1::timestamptz + make_interval(secs => s.lag_s + $3)) as reconciled,
            (select count(*) from payonce.unmatched u
             where u.vendor = s.vendor and u.state = 'open' and u.explanation is null and u.at >= $2) as unexplained
        from payonce.statement_sources s order by s.vendor
        """,
        quarantine.began_at,
        quarantine.lost_since,
        SEND_MAX_S,
    )
    found = [each for row in sources for each in _of_source(row, quarantine)]
    return found + [_of_kinds(row) for row in await _unlisted(read)]


async def release(tx: Tx, by: str, *, revision: int, accept_unreconciled: str | None = None) -> Quarantine:
    """Allows effects to be sent again. Raises Stale when the quarantine has changed since `revision`, and Invalid while
    blockers remain, unless a person accepts them with a reason."""
    if not by.strip() or (accept_unreconciled is not None and not accept_unreconciled.strip()):
        raise Invalid("a release needs a name, and accepting what was not reconciled needs a reason")
    quarantine = await open_quarantine(tx)
    if quarantine is None:
        raise Invalid("the database is not in quarantine; there is nothing to release")
    remaining = await blockers(tx, quarantine)
    if remaining and accept_unreconciled is None:
        raise Invalid(
            f"the quarantine cannot be released: {_listed(remaining)}; or accept that with "
            "--accept-unreconciled and a reason"
        )
    accepted = None if accept_unreconciled is None else clean_text(redact(accept_unreconciled))
    row = await tx.fetchrow(
        "select * from payonce.release_quarantine($1, $2, $3, $4, $5)",
        quarantine.id,
        revision,
        clean_text(by),
        accepted,
        clean_text(redact(_listed(remaining))) if remaining else None,
    )
    if row is None:
        raise Stale("the quarantine has changed since it was shown; look again")
    return as_quarantine(row)


def _of_source(row: Any, quarantine: Quarantine) -> list[Blocker]:
    found, vendor = [], row["vendor"]
    if not row["reconciled"]:
        asked_from = quarantine.began_at + timedelta(seconds=row["settled_s"])
        since = quarantine.lost_since.isoformat()
        found.append(
            Blocker(
                vendor,
                f"{vendor} was not reconciled from {since} on, at or after {asked_from.isoformat()}",
                f"run: payonce reconcile run {vendor}",
            )
        )
    if row["unexplained"]:
        found.append(
            Blocker(
                vendor,
                f"{row['unexplained']:,} unmatched items of {vendor} since then are unexplained",
                "see: payonce reconcile list; then assign, explain or write-off",
            )
        )
    return found


async def _unlisted(read: Reads) -> Sequence[Any]:
    """Vendors with effects that no statement shows, and the kinds of those effects. A vendor's statement need not show
    effects that move nothing."""
    return await read.fetch(
        """
        with recursive kinds as (
            (select kind, vendor from payonce.effects order by kind limit 1)
            union all
            select next.kind, next.vendor
            from kinds k
            cross join lateral (
                select e.kind, e.vendor from payonce.effects e where e.kind > k.kind order by e.kind limit 1) next
        )
        select k.vendor, s.vendor is not null as has_statement, string_agg(k.kind, ', ' order by k.kind) as kinds
        from kinds k left join payonce.statement_sources s using (vendor)
        where s.vendor is null or (not k.kind = any(s.kinds)
            and exists (select from payonce.effects e where e.kind = k.kind and e.amount_minor > 0))
        group by k.vendor, s.vendor order by k.vendor
        """
    )


def _of_kinds(row: Any) -> Blocker:
    vendor = row["vendor"]
    if row["has_statement"]:
        return Blocker(
            vendor,
            f"{row['kinds']} moved money but is not looked for on the statement of {vendor}",
            "add it to the statement's kinds, or check on the vendor's own pages and accept it",
        )
    return Blocker(
        vendor,
        f"{vendor} has effects but no statement on which to look for them",
        "check on the vendor's own pages and accept it",
    )


def _listed(remaining: Sequence[Blocker]) -> str:
    return "; ".join(f"{blocker.reason} ({blocker.way_out})" for blocker in remaining)
