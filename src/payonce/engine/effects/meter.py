"""The money meter: what effects moved of each asset within the last hour and day."""

from dataclasses import dataclass
from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.kit.money import Amount, Asset

ASSETS_MAX: Final = 50
HOUR_S: Final = 3_600
DAY_S: Final = 86_400


@dataclass(frozen=True)
class AssetFlow:
    """Counted by the time of the intent: a late send belongs to the hour in which it was decided."""

    last_hour: Amount
    last_hour_count: int
    last_day: Amount
    last_day_count: int
    open: Amount
    """Effects that have not ended, however long ago they began."""
    open_count: int


async def asset_flows(read: Reads) -> list[AssetFlow]:
    """By asset. Indexes find the last day and the open effects, however long the history is."""
    rows = await read.fetch(
        f"""
        with recursive assets as (
            (select asset from payonce.effects where asset is not null order by asset limit 1)
            union all
            select (select e.asset from payonce.effects e where e.asset > a.asset order by e.asset limit 1)
            from assets a where a.asset is not null
        )
        select a.asset, d.* from (select asset from assets where asset is not null limit {ASSETS_MAX}) a
        cross join lateral (
            select e.exponent,
                coalesce(sum(e.amount_minor) filter (where {_DONE} and {_RECENT}), 0) as hour_minor,
                count(*) filter (where {_DONE} and {_RECENT}) as hour_count,
                coalesce(sum(e.amount_minor) filter (where {_DONE}), 0) as day_minor,
                count(*) filter (where {_DONE}) as day_count,
                coalesce(sum(e.amount_minor) filter (where {_OPEN}), 0) as open_minor,
                count(*) filter (where {_OPEN}) as open_count
            from (
                select exponent, amount_minor, state, created_at from payonce.effects
                where asset = a.asset and state = 'performed'
                  and created_at > payonce.due_now() - make_interval(secs => {DAY_S})
                union all
                select exponent, amount_minor, state, created_at from payonce.effects
                where asset = a.asset and state in ('intended', 'unknown', 'review')
            ) e
            group by e.exponent
        ) d order by a.asset, d.exponent
        """
    )
    return [_moved(row) for row in rows]


_DONE: Final = "e.state = 'performed'"
_OPEN: Final = "e.state in ('intended', 'unknown', 'review')"
_RECENT: Final = f"e.created_at > payonce.due_now() - make_interval(secs => {HOUR_S})"


def _moved(row: Any) -> AssetFlow:
    asset = Asset(row["asset"], row["exponent"])
    hour, day, still_open = (Amount(int(row[f"{name}_minor"]), asset) for name in ("hour", "day", "open"))
    return AssetFlow(hour, row["hour_count"], day, row["day_count"], still_open, row["open_count"])
