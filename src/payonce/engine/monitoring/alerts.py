"""Alerts: the counted items that an operator should look at now, for the console's first page and its badges."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.engine.messages.ports import Depth
from payonce.engine.monitoring.vendor_calls import VendorCalls, failing_vendors
from payonce.engine.outbox.admin import GIVEN_UP
from payonce.kit.money import Amount, Asset

OUTBOX_LATE_S: Final = 60.0
"""An entry that has been due for longer is stuck, not under way."""
COUNT_MAX: Final = 100_000
"""Counts stop here: beyond it nobody needs the exact number."""


@dataclass(frozen=True)
class OpenEffects:
    """Open effects in one state."""

    count: int = 0
    oldest_s: float = 0.0
    amounts: Sequence[Amount] = ()


@dataclass(frozen=True)
class Alerts:
    parked: int
    """Messages that wait for a person, in all queues."""
    paused: Sequence[str]
    reviews: OpenEffects
    unknown: OpenEffects
    freezes: int
    approvals: int
    unmatched: int
    outbox_parked: int
    outbox_late_s: float
    quarantine: str | None
    """Why nothing is sent; None without a quarantine."""
    vendors: Sequence[VendorCalls] = ()
    """Vendors with many failed calls within the last minutes, over all processes."""
    queues_away: str | None = None
    """Why depths are missing (the queue server does not answer); None when all are known."""

    @property
    def quiet(self) -> bool:
        counts = (self.parked, self.reviews.count, self.unknown.count, self.freezes, self.approvals, self.unmatched)
        return (
            not any(counts)
            and not self.outbox_parked
            and not self.outbox_late
            and not self.paused
            and not self.vendors
            and self.quarantine is None
            and self.queues_away is None
        )

    @property
    def outbox_late(self) -> bool:
        return self.outbox_late_s > OUTBOX_LATE_S

    def badge(self, name: str | None) -> int:
        """The count beside a page's title."""
        value = 0 if name is None else getattr(self, name)
        if isinstance(value, OpenEffects):
            return value.count
        return int(value) if isinstance(value, int) else len(value)


async def alerts(read: Reads, depths: Sequence[Depth], queues_away: str | None = None) -> Alerts:
    """The caller passes the depths, since messages may be stored in other backends."""
    rows = await read.fetch(
        f"""
        select 'effects' as what, state, asset, exponent, count(*)::bigint as count, sum(amount_minor) as minor,
            max(greatest(0, extract(epoch from payonce.due_now() - created_at)))::float8 as oldest_s, null as text
        from (select state, asset, exponent, amount_minor, created_at from payonce.effects
              where state in ('unknown', 'review') limit {COUNT_MAX}) e
        group by state, asset, exponent
        union all
        select 'freezes', null, null, null, count(*), null, null, null from payonce.freezes
        where lifted_at is null and (until is null or until > payonce.due_now())
        union all
        select 'approvals', null, null, null, count(*), null, null, null from payonce.approvals
        where state = 'waiting' and expires_at > payonce.due_now()
        union all
        select 'unmatched', null, null, null, count(*), null, null, null
        from (select from payonce.unmatched where state = 'open' limit {COUNT_MAX}) u
        union all
        select 'outbox_parked', null, null, null, count(*), null, null, null
        from payonce.relays r cross join lateral
            (select from payonce.outbox o where o.relay = r.name and {GIVEN_UP} limit {COUNT_MAX}) o
        union all
        select 'outbox_late', null, null, null, 0, null,
            coalesce(max(greatest(0, extract(epoch from payonce.due_now() - o.ready_at))), 0)::float8, null
        from payonce.relays r cross join lateral (
            select ready_at from payonce.outbox where relay = r.name and state in ('waiting', 'leased')
            order by ready_at limit 1) o
        union all
        select 'quarantine', null, null, null, 1, null, null, reason from payonce.quarantines where released_at is null
        """
    )
    counts = {row["what"]: row for row in rows if row["what"] != "effects"}
    quarantine = counts.get("quarantine")
    return Alerts(
        parked=sum(depth.parked for depth in depths),
        paused=[depth.queue for depth in depths if depth.paused],
        reviews=_open([row for row in rows if row["state"] == "review"]),
        unknown=_open([row for row in rows if row["state"] == "unknown"]),
        freezes=counts["freezes"]["count"],
        approvals=counts["approvals"]["count"],
        unmatched=counts["unmatched"]["count"],
        outbox_parked=counts["outbox_parked"]["count"],
        outbox_late_s=counts["outbox_late"]["oldest_s"],
        quarantine=None if quarantine is None else quarantine["text"],
        vendors=await failing_vendors(read),
        queues_away=queues_away,
    )


def _open(rows: Sequence[Any]) -> OpenEffects:
    amounts = [Amount(int(row["minor"]), Asset(row["asset"], row["exponent"])) for row in rows if row["asset"]]
    ordered = sorted(amounts, key=lambda amount: (amount.asset.code, amount.asset.exponent))
    return OpenEffects(
        sum(row["count"] for row in rows), max((row["oldest_s"] for row in rows), default=0.0), tuple(ordered)
    )
